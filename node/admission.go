package node

import (
	"context"
	"slices"
	"sync"
)

// admission lets a few through at a time, and of those who wait the one that is worth most:
// checkpoints of many executions share one disk and one line (CK-289).
type admission struct {
	mu      sync.Mutex
	free    int
	waiting []*waiter // the next one first
}

type waiter struct {
	worth int
	let   chan struct{} // closed when it may go on
}

func newAdmission(n int) *admission { return &admission{free: n} }

// enter waits for a place, and leave gives it back. Among equals the first comes first.
func (a *admission) enter(ctx context.Context, worth int) (leave func(), err error) {
	a.mu.Lock()
	if a.free > 0 {
		a.free--
		a.mu.Unlock()
		return a.leave, nil
	}
	w := &waiter{worth: worth, let: make(chan struct{})}
	at := slices.IndexFunc(a.waiting, func(o *waiter) bool { return o.worth < worth })
	if at < 0 {
		at = len(a.waiting)
	}
	a.waiting = slices.Insert(a.waiting, at, w)
	a.mu.Unlock()
	select {
	case <-w.let:
		return a.leave, nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.waiting, w); i >= 0 {
		a.waiting = slices.Delete(a.waiting, i, i+1)
	} else {
		a.next() // it was let in meanwhile
	}
	return nil, context.Cause(ctx)
}

func (a *admission) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next()
}

// next gives a place that became free to whoever is first. The caller holds mu.
func (a *admission) next() {
	if len(a.waiting) == 0 {
		a.free++
		return
	}
	close(a.waiting[0].let)
	a.waiting = a.waiting[1:]
}
