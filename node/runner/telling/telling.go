// Package telling keeps what happened in an epoch until the site's log has it: tool
// activity, and where output is. It decides what is one event and what number it has, so
// that each is told once, however often it is sent.
//
// It sends nothing, and reads no clock.
package telling

import (
	"fmt"
	"slices"
	"sync"

	"github.com/forgeyard/forgeyard-node/job"
)

// Most is how many events may wait for the site: two for each step of the longest job.
const Most = 512

// Tellings are what happened in an epoch and is not in the site's log yet. They are
// numbered as they are sent; what is under way keeps its number until it is known to have
// arrived, so that a repeat is known for one.
type Tellings struct {
	mu      sync.Mutex      // guards all below
	last    uint64          // number of the last that has arrived
	pending []job.Happening // those after it
	sent    int             // of pending, how many are under way: they stay as they are
	lost    int             // beyond the bound, and not told of yet

	first          uint64 // of the attempt's log, that no output event covers
	stdout, stderr int64  // bytes since then
}

// Add takes in what happened. What only started a moment ago and has ended by now is told
// once: a step of a second is one event.
func (t *Tellings) Add(h job.Happening) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.Tool != nil {
		i := slices.IndexFunc(t.pending[t.sent:], func(p job.Happening) bool {
			return p.Tool != nil && p.Tool.State == job.ToolStarted && p.Tool.Source == h.Tool.Source && p.Tool.Name == h.Tool.Name
		})
		if i >= 0 {
			t.pending = slices.Delete(t.pending, t.sent+i, t.sent+i+1)
		}
	}
	if len(t.pending) >= Most-1 {
		t.lost++
		return
	}
	t.gap()
	t.pending = append(t.pending, h)
}

// gap tells of what is lost, where it is lost: the last place is kept for that.
func (t *Tellings) gap() {
	if t.lost == 0 || len(t.pending) >= Most {
		return
	}
	t.pending = append(t.pending, job.Happening{Kind: job.EventError, Message: fmt.Sprintf("%d events are not told: %d already waited for the site; what was printed is in the log", t.lost, Most-1)})
	t.lost = 0
}

// Wrote counts output; it is told of at the next mark.
func (t *Tellings) Wrote(stderr bool, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if stderr {
		t.stderr += int64(n)
	} else {
		t.stdout += int64(n)
	}
}

// Mark tells of the output up to a number of the attempt's log, if there was any. Output
// that nothing came between is one event.
func (t *Tellings) Mark(last uint64) {
	t.mu.Lock()
	o := job.Printed{FirstSeq: t.first, LastSeq: last, Stdout: t.stdout, Stderr: t.stderr}
	if o.Stdout+o.Stderr == 0 || last < o.FirstSeq {
		t.mu.Unlock()
		return
	}
	t.first, t.stdout, t.stderr = last+1, 0, 0
	if n := len(t.pending); n > t.sent && t.pending[n-1].Output != nil {
		was := *t.pending[n-1].Output
		was.LastSeq, was.Stdout, was.Stderr = last, was.Stdout+o.Stdout, was.Stderr+o.Stderr
		t.pending[n-1].Output = &was
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	t.Add(job.Happening{Kind: job.EventOutput, Output: &o})
}

// Take is what shall be sent now, at most so many.
func (t *Tellings) Take(most int) job.Told {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gap()
	n := min(len(t.pending), most)
	if n == 0 {
		return job.Told{}
	}
	t.sent = max(t.sent, n)
	return job.Told{First: t.last + 1, Events: slices.Clone(t.pending[:n])}
}

// Arrived forgets what is in the site's log.
func (t *Tellings) Arrived(last uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last <= t.last {
		return
	}
	n := min(int(last-t.last), len(t.pending))
	t.pending, t.sent, t.last = slices.Clone(t.pending[n:]), max(0, t.sent-n), last
}

func (t *Tellings) Waiting() int { t.mu.Lock(); defer t.mu.Unlock(); return len(t.pending) }

// Begin says with which number of the attempt's log the epoch begins.
func (t *Tellings) Begin(first uint64) { t.mu.Lock(); defer t.mu.Unlock(); t.first = first }
