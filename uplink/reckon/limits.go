package reckon

import "time"

// The bounds of the count and of the exchange, each with its reason.
const (
	// What terms may be. Below a second, one lost packet would end Online; 90 days is
	// what a job may ask for offline.
	MinSilentAfter = time.Second
	MaxSilentAfter = 10 * time.Minute
	MaxAllowance   = 90 * 24 * time.Hour

	// MaxBatchRecords and MaxBatchBytes bound what one exchange sends and what a daemon
	// reads: a second of a thin link, and small enough to repeat after a cut.
	MaxBatchRecords = 256
	MaxBatchBytes   = 1 << 20
	// minBatchBytes is where halving after timeouts ends: one record always goes.
	minBatchBytes = 4 << 10

	// MaxDelegations bounds the delegations of one answer.
	MaxDelegations = 256
	// maxDelegateBytes bounds one Delegate command; a log entry has at most 1 MiB.
	maxDelegateBytes = 512 << 10
	// MaxCancelled bounds the grants that one answer takes back first.
	MaxCancelled = 1024

	// MaxStill and MaxStillText bound what is said of jobs that stand still: people read it.
	MaxStill     = 256
	MaxStillText = 200

	// commitEvery is how often the figure is committed when no threshold asks for it.
	commitEvery = 5 * time.Second
	// minInterval: more frequent exchanges say nothing new and wake the disk.
	minInterval = 200 * time.Millisecond
	// intervalsPerSilence: so many exchanges fit into SilentAfter, so that one or
	// two that are lost do not end Online.
	intervalsPerSilence = 5
	// pollEvery is how soon to look again when nothing else is due.
	pollEvery = 500 * time.Millisecond
	// minCall and maxCall bound one exchange.
	minCall = time.Second
	maxCall = time.Minute

	// lateBy: a figure that is applied later than this after it was proposed, by the
	// wall clock, is not taken as seen live: its reader was paused or cut off.
	lateBy = 10 * time.Second
	// maxBootID bounds what names a boot in a witness's file.
	maxBootID = 64
)
