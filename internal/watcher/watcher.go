// Package watcher lets the watcher of Go's runtime sleep longer.
//
// The runtime has one thread that looks after the others (sysmon): it takes the processor
// from a goroutine whose system call lasts, and from one that runs for long. It sleeps while
// the whole process does. From then on it looks every 20 µs until the process sleeps again
// or a millisecond has gone by. A node that commits goes to sleep and wakes many times a
// millisecond, for each message and each sync, so its watcher hardly ever gets to look less
// often: it took a fifth of the processor time of a lease grant, on threads that compete
// with the next step of the same grant.
//
// The kernel may wake a sleeping thread late, by its timer slack, which is 50 µs. Here the
// watcher's is more, while the process commits. It is not while many goroutines are in
// system calls, or the files of a transfer: then the watcher is who finds out that all
// processors wait there, and what took 140 µs to be found would take 640.
//
// Nothing depends on this: where it cannot be had, all is as before.
//
// Goroutines: one of Watcher.Run, which sleeps while nothing is committed.
package watcher

import (
	"context"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	late  = 300 * time.Microsecond
	usual = 50 * time.Microsecond

	// every is how long a commit lets the watcher be late, and how late it is seen that the
	// process does other things as well.
	every = 25 * time.Millisecond
	// calm is how many times nothing else may be seen before the watcher is late again.
	calm = 20
)

// Watcher is that of this process.
type Watcher struct {
	set     func(slack time.Duration) error
	calls   func() int // goroutines in system calls
	most    int        // so many are those of a process that commits
	commits atomic.Bool
	wake    chan struct{} // capacity 1
}

// Find finds the watcher, and an error where there is none that this process may change.
// With one processor there is nothing to gain: a system call that lasts is over for all
// others only when the watcher says so.
func Find() (*Watcher, error) {
	set, err := setter()
	if err != nil {
		return nil, err
	}
	return newWatcher(set, inCalls, 2*runtime.GOMAXPROCS(0)+2), nil
}

func newWatcher(set func(time.Duration) error, calls func() int, most int) *Watcher {
	return &Watcher{set: set, calls: calls, most: most, wake: make(chan struct{}, 1)}
}

// inCalls counts this goroutine's own as little as those that wait for the network.
func inCalls() int {
	s := []metrics.Sample{{Name: "/sched/goroutines/not-in-go:goroutines"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int(s[0].Value.Uint64())
}

// Committed says that this process commits. It takes no time, and may be called on nil.
func (w *Watcher) Committed() {
	if w == nil || w.commits.Swap(true) {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run lets the watcher be late while this process commits and does little else, until ctx
// ends or the system does not allow it any more.
func (w *Watcher) Run(ctx context.Context) {
	now := usual
	to := func(slack time.Duration) bool {
		if slack == now {
			return true
		}
		now = slack
		return w.set(slack) == nil
	}
	defer func() { to(usual) }()
	turn := time.NewTimer(every)
	defer turn.Stop()
	for quiet := calm; ; {
		if w.calls() > w.most {
			quiet = 0
		}
		quiet = min(quiet+1, calm)
		commits, slack := w.commits.Swap(false), usual
		if commits && quiet == calm {
			slack = late
		}
		if !to(slack) {
			return
		}
		if !commits {
			select {
			case <-w.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		turn.Reset(every)
		select {
		case <-turn.C:
		case <-ctx.Done():
			return
		}
	}
}
