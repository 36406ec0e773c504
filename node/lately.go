package node

import (
	"context"
	"sync"
	"time"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
)

// askedWithin is how long who asks for something on the disk waits for it.
const askedWithin = 2 * time.Second

// lately asks a disk, which may hang, for who must not: one question is under way at a time, and
// who does not want to wait longer gets what it said last.
type lately[T any] struct {
	mu    sync.Mutex    // guards all below
	last  T             // zero: nothing was answered yet
	under chan struct{} // closed when the question under way is answered; nil: none is
}

// ask returns what f says, or what it said last and false where that is not known when ctx ends.
// Who asks while a question is under way is given its answer. run starts f beside the caller.
func (l *lately[T]) ask(ctx context.Context, run func(func()), f func() T) (T, bool) {
	l.mu.Lock()
	under := l.under
	if under == nil {
		under = make(chan struct{})
		l.under = under
		run(func() {
			v := f()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.last, l.under = v, nil
			close(under)
		})
	}
	l.mu.Unlock()
	answered := false
	select {
	case <-under:
		answered = true
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, answered
}

// storage is what status shows of the disk.
type storage struct {
	usage *cas.Usage // nil: it could not be counted
	spool int64
}

// lookAtStorage counts what lies on the disk. Sums of what is pinned read every pinned tree
// after a change.
func (n *Node) lookAtStorage(ctx context.Context) storage {
	ctx, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	s, _ := n.storage.ask(ctx, n.work.Go, func() storage {
		s := storage{spool: n.spoolBytes()}
		if u, err := n.store.Usage(n.running); err == nil {
			s.usage = &u
		}
		return s
	})
	return s
}

// diskChecks are the checks that ask a disk and keep no work away.
func (n *Node) diskChecks(ctx context.Context) ([]*forgeyardv1.Health_Check, bool) {
	ctx, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	return n.onDisk.ask(ctx, n.work.Go, func() []*forgeyardv1.Health_Check {
		return []*forgeyardv1.Health_Check{n.checkDisk(), n.checkWorkspaces(), n.checkLogStore(), n.checkOwnRuns(), n.checkSecrets()}
	})
}
