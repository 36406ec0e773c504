// Package ender ends process trees for certain, and knows which of them will not end.
//
//	End → asked to die ─→ dead
//	           │ a whole try was in vain
//	           ▼
//	        stuck, tried again and again ─→ dead
//
// A tree that outlives a try hangs in the kernel, on a disk or a device that does not
// answer. Nobody can say what it will still write, so whoever runs it holds its attempt
// and takes no new work until it is dead (E18).
//
// Invariant: End returns only when the tree is confirmed dead.
package ender

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

const (
	// look is how long one try to end a tree lasts before it is told and tried again. What
	// is killed and does not wait for the kernel is gone within milliseconds.
	look = 10 * time.Second
	// pause comes before the next try, where the last did not take its time.
	pause = time.Second
)

// Tree is what is ended; an executor.Handle is one.
type Tree interface {
	PID() int
	Kill(ctx context.Context) error
}

// Stuck is a tree that was told to die and has not.
type Stuck struct {
	ID    string // of the epoch
	PID   int
	Since forgeyard.Instant // when the first try began
	Why   string            // what the last try said
}

// Ender ends trees. It is safe for concurrent use.
type Ender struct {
	clock clock.Clock
	log   *slog.Logger

	mu    sync.Mutex // guards stuck
	stuck map[string]Stuck
}

// New makes one.
func New(c clock.Clock, log *slog.Logger) *Ender {
	return &Ender{clock: c, log: log, stuck: map[string]Stuck{}}
}

// End ends a tree and does not return before that is confirmed: nothing may be done, given
// back or proposed while something of it could still act (E29).
func (e *Ender) End(id string, t Tree) {
	began := e.clock.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), look)
		err := t.Kill(ctx)
		early := ctx.Err() == nil
		cancel()
		if err == nil {
			e.dead(id, began)
			return
		}
		e.log.Error("the process tree does not end; the attempt is held until it does", "attempt", id, "pid", t.PID(), "err", err)
		e.note(Stuck{ID: id, PID: t.PID(), Since: began, Why: err.Error()})
		if early {
			<-e.clock.After(pause)
		}
	}
}

func (e *Ender) note(s Stuck) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stuck[s.ID] = s
}

func (e *Ender) dead(id string, began forgeyard.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.stuck[id]; ok {
		delete(e.stuck, id)
		e.log.Info("the process tree is dead at last", "attempt", id, "after", e.clock.Now().Sub(began))
	}
}

// Stuck lists the trees that do not end, the oldest first.
func (e *Ender) Stuck() []Stuck {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []Stuck
	for _, s := range e.stuck {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Stuck) int { return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.ID, b.ID)) })
	return all
}
