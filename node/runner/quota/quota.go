// Package quota says how much of the disk an attempt uses, and when to look again.
//
//	the folders of a workspace, files that are open and have no name, log ──▶ Usage ──▶ over?
//
// What is counted are blocks and files as the file system has them: a sparse file counts what
// was written of it, a file of two names once, and a deleted one for as long as a process of
// the tree holds it open. Trees that several jobs share count for nobody.
//
// Reading a workspace costs time, so it is read when it can have grown: the free space of the
// disk is looked at ten times a second, which costs nothing, and when that fell by half of what
// the attempt has left, or now and then, its files are counted; and at the end of a step, unless
// that takes long.
//
// Invariants: nothing is followed out of the workspace, whatever the workload puts there while
// it is read; a folder that cannot be read any more is counted as far as it was.
//
// It stops nothing: who watches an attempt ends it. So it is a bound that is held a moment
// late, by as much as a disk takes in that moment.
package quota

import (
	"fmt"
	"strings"
	"time"
)

// Usage is what an attempt has on the disk, in bytes but for Files.
type Usage struct {
	Inputs      int64 // as they were before the first step
	Work        int64 // all that the workload made, outputs too
	Checkpoints int64 // staged, not yet in the store
	Log         int64 // spooled, not yet in the store
	Deleted     int64 // of Work: files without a name that are still open
	Files       int64 // files and folders
	Deep        bool  // folders lie in each other deeper than is counted
}

// Bytes is the sum.
func (u Usage) Bytes() int64 { return u.Inputs + u.Work + u.Checkpoints + u.Log }

// Limits of an attempt. Zero bounds nothing.
type Limits struct{ Bytes, Files int64 }

const (
	// bytesPerFile and leastFiles say how many files come with the bytes of a job: a small job
	// may unpack a source tree, and a million empty files would take the inodes of others.
	bytesPerFile = 4 << 10
	leastFiles   = 1 << 16
	// own is not held against a job: the empty folders of its workspace.
	own = 64 << 10
	// maxDepth bounds the descriptors that a count holds: one for each folder on its way.
	maxDepth = 256
)

// Of is what a job may have that asked for so much disk.
func Of(bytes int64) Limits {
	if bytes <= 0 {
		return Limits{}
	}
	return Limits{Bytes: bytes, Files: max(bytes/bytesPerFile, leastFiles)}
}

// Over says what is used beyond the limits, where from, or nothing.
func (l Limits) Over(u Usage) string {
	var what string
	switch {
	case l.Files > 0 && u.Deep:
		what = fmt.Sprintf("has folders more than %d deep, which are not counted", maxDepth)
	case l.Bytes > 0 && u.Bytes() > l.Bytes+own:
		what = fmt.Sprintf("uses %d bytes of disk, and asked for %d", u.Bytes(), l.Bytes)
	case l.Files > 0 && u.Files > l.Files:
		what = fmt.Sprintf("has %d files, and %d come with the disk that it asked for", u.Files, l.Files)
	default:
		return ""
	}
	parts := []string{fmt.Sprintf("inputs %d", u.Inputs), fmt.Sprintf("work %d", u.Work)}
	for _, p := range []struct {
		name string
		n    int64
	}{{"of that deleted and open", u.Deleted}, {"checkpoints", u.Checkpoints}, {"log", u.Log}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", p.name, p.n))
		}
	}
	return what + ": " + strings.Join(parts, ", ")
}

// Free is what a file system has left.
type Free struct{ Bytes, Files int64 }

// Pace of looking.
const (
	// Look is how often the free space is looked at.
	Look = 100 * time.Millisecond
	// rest is after how long the files are counted although the disk did not fill: others may
	// have freed what this one took.
	rest = 5 * time.Second
	// share: counting takes no more than this part of the time, however many files there are.
	share = 20
	// cheap is a count that nobody feels: at the end of a step it is made in any case.
	cheap = 10 * time.Millisecond
)

// Pace decides when files are counted. The zero value counts at once.
type Pace struct {
	counted bool
	left    Limits        // what the attempt had left then
	free    Free          // of the disk, then
	idle    time.Duration // since then
	cost    time.Duration // of counting
}

// Due reports whether it is time to count, so long after the last question.
func (p *Pace) Due(free Free, since time.Duration) bool {
	p.idle += since
	switch {
	case !p.counted:
		return true
	case p.idle < share*p.cost:
		return false
	case p.idle >= rest:
		return true
	}
	return p.grew(free)
}

// grew reports whether the disk lost so much that half of what is left may be gone.
func (p *Pace) grew(free Free) bool {
	return p.left.Bytes > 0 && p.free.Bytes-free.Bytes > p.left.Bytes/2 || p.left.Files > 0 && p.free.Files-free.Files > p.left.Files/2
}

// DueAtEnd is Due once the workload has ended: it has written what it will. That the disk did
// not fill says little, since others may have freed meanwhile what this one took.
func (p *Pace) DueAtEnd(free Free) bool { return !p.counted || p.cost < cheap || p.grew(free) }

// Counted notes a count, and how long it took.
func (p *Pace) Counted(u Usage, l Limits, free Free, cost time.Duration) {
	*p = Pace{counted: true, free: free, cost: cost, left: Limits{Bytes: max(l.Bytes-u.Bytes(), 1), Files: max(l.Files-u.Files, 1)}}
}
