package runner

import (
	"context"
	"errors"
	"math"
	"syscall"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// How long the keeper is waited for.
const (
	keptWithin   = 10 * time.Second // before the first step: a keeper that died is back by then
	struckWithin = 2 * time.Second  // at the end of a step
)

var errLost = errors.New("the lease is over")

// Lost reports whether the right to act has ended, by the clock of this very moment. What
// is seen outside is preceded by it, so that a process which was stopped or asleep learns
// it before it acts. It is for good.
func (a *Attempt) Lost() bool {
	if a.ctx.Err() != nil {
		return true
	}
	until := a.deadline()
	if until == 0 || a.run.cfg.Clock.Now() < until {
		return false
	}
	a.endLease()
	return true
}

func (a *Attempt) deadline() forgeyard.Instant { a.mu.Lock(); defer a.mu.Unlock(); return a.until }

// Extend tells when the right to act ends as far as is known now, later or earlier than
// before. What has ended stays so. It waits for nobody.
func (a *Attempt) Extend(until forgeyard.Instant) {
	if until == 0 || a.Lost() {
		return
	}
	a.mu.Lock()
	a.until = until
	a.mu.Unlock()
	if k := a.run.cfg.Keeper; k != nil {
		k.Move(a.id, until)
	}
}

// kept has the deadline held outside of this process before anything is started.
func (a *Attempt) kept(ctx context.Context) error {
	k := a.run.cfg.Keeper
	if k == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keptWithin)
	defer cancel()
	until := a.deadline()
	if until == 0 {
		until = math.MaxInt64 // only the end of this process ends it
	}
	if err := k.Hold(ctx, a.exec.Named(a.id), until); err != nil {
		return forgeyard.E("hold the deadline", forgeyard.Other, err)
	}
	if later := a.deadline(); later != 0 {
		k.Move(a.id, later) // one that was told meanwhile
	}
	return nil
}

// unkept ends the hold: the tree is confirmed dead.
func (a *Attempt) unkept() {
	if k := a.run.cfg.Keeper; k != nil {
		k.Release(a.id)
	}
}

// struck reports whether a step was ended from outside for its deadline, which this
// process may have slept through. Where nobody can say, a kill is taken for one: the work
// is done again, while a wrong result would stay.
func (a *Attempt) struck(x executor.Exit) bool {
	k := a.run.cfg.Keeper
	if k == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), struckWithin)
	defer cancel()
	over, err := k.Struck(ctx, a.id)
	if err != nil {
		a.said().Warn("the keeper of deadlines cannot say how a step ended", "err", err)
		return x.Signal == syscall.SIGKILL && !x.OOM && !a.asked().ends()
	}
	return over
}
