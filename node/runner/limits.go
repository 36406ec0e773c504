package runner

import "time"

// The bounds of one attempt that its spec does not set.
const (
	// pollEvery is how often a workload's checkpoint folders are looked at: an
	// answer to `fyjob ckpt commit` comes at most that much later.
	pollEvery = 250 * time.Millisecond
	// flushEvery bounds what a lost node takes of a quiet log with it.
	flushEvery = 10 * time.Second
	// flushSlower is after how many parts the time above doubles, so that a log of days
	// stays within the parts that a job's record holds.
	flushSlower = 64
	// guidanceFile is where a spec's guidance is, in the read-only folder of programs.
	guidanceFile = "guidance.txt"
	// flushBytes flushes a busy log earlier: about one chunk.
	flushBytes = 896 << 10
	// lateParts is how many parts a log of many days has left when only full ones are made.
	lateParts = 64
	// flushLook is how often the two above are looked at.
	flushLook = time.Second
	// maxCritical bounds how long a critical section may delay the stop signal.
	maxCritical = 20 * time.Second
	// retryFirst and retryMost bound the pause between tries to deliver outputs.
	retryFirst = 500 * time.Millisecond
	retryMost  = 15 * time.Second
	// endFlush bounds the last flush of a log whose attempt ended without a result.
	endFlush = time.Minute
	// reapTime bounds the look whether the control groups of an epoch are gone.
	reapTime = 5 * time.Second
	// leastLog is what an epoch may write into a log that is at its bound already.
	leastLog = 64 << 10
	// lowDisk: a workload that failed on a disk with less free was stopped by the disk.
	lowDisk = 1 << 20
	// newsWaiting is how much the node may be behind with being told: an attempt has
	// four phases and few refused suspends.
	newsWaiting = 64
	// reportEvery is how often events are brought into the site's log, at most: each time is
	// an entry. It doubles as the above does, with each reportSlower times.
	reportEvery  = 5 * time.Second
	reportSlower = 32
	// ranWithin is how long the end of work waits until the node has told that it ran.
	ranWithin = time.Second
	// maxMessage bounds the text of a result.
	maxMessage = 1 << 10
	// maxOutputFiles bounds files of all outputs together.
	maxOutputFiles = 200_000
)
