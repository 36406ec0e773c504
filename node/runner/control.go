package runner

import (
	"context"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// order is what was asked of an attempt. A stronger one replaces a weaker one, and
// nothing takes one back but a suspend that was refused.
type order struct {
	kind   checkpoint.StopKind
	reason string
	force  bool // no asking, no grace

	cancel bool              // the job ends, by somebody's word
	save   bool              // of a cancel: a checkpoint is asked for first
	within time.Duration     // for that; 0: as the contract says
	until  forgeyard.Instant // the machine may be gone then; 0: nobody says when
}

// strength orders stops. A person's cancel wins over a reclaim that races with it (K07).
func (o order) strength() int {
	s := 0
	switch o.kind {
	case checkpoint.StopCheckpoint:
		s = 1
	case checkpoint.StopSuspend:
		s = 2
	case checkpoint.StopPreempt, checkpoint.StopDrain, checkpoint.StopAuthority:
		s = 3
	case checkpoint.StopTimeout:
		s = 4
	case checkpoint.StopCancel, checkpoint.StopSuperseded:
		s = 6
	case checkpoint.StopSecurity:
		s = 7
	}
	if o.cancel {
		s = max(s, 6)
	}
	if o.cancel && o.save {
		s = 5 // one that waits for nothing is more
	}
	if s > 1 && o.force {
		s += 10
	}
	return s
}

// gives reports whether the stop hands the job back, rather than ending it.
func (o order) gives() bool {
	return o.kind == checkpoint.StopSuspend || o.kind == checkpoint.StopPreempt || o.kind == checkpoint.StopDrain || o.kind == checkpoint.StopAuthority
}

// ends reports whether the stop ends the job.
func (o order) ends() bool { return !o.gives() && o.strength() > 1 }

// Cancel ends the attempt as cancelled: softly, with the spec's grace, or at once by
// force. It is idempotent; force after a soft cancel shortens it.
func (a *Attempt) Cancel(reason string, force bool) {
	a.End(Ending{Kind: checkpoint.StopCancel, Reason: reason, Force: force})
}

// Ending is how the work of a job that is cancelled is ended.
type Ending struct {
	Kind   checkpoint.StopKind // what the program is told: cancel, superseded, timeout or security
	Reason string
	Force  bool
	Save   bool          // a checkpoint is asked for first
	Within time.Duration // for that; 0: as the contract says
}

// End ends the attempt as cancelled. It is idempotent; what presses harder takes the place of
// what went before.
func (a *Attempt) End(e Ending) {
	a.give(order{kind: e.Kind, reason: e.Reason, force: e.Force || e.Kind == checkpoint.StopSecurity, cancel: true, save: e.Save && !e.Force, within: e.Within})
}

// Preempt asks for the job to be given back by a machine that may be gone at the instant; 0:
// nobody says when.
func (a *Attempt) Preempt(reason string, until forgeyard.Instant) {
	a.give(order{kind: checkpoint.StopPreempt, reason: reason, until: until})
}

// Hasten bounds the time of what was asked of the attempt already: the machine may be gone at
// the instant.
func (a *Attempt) Hasten(until forgeyard.Instant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.order.strength() <= 1 || until == 0 || (a.order.until != 0 && a.order.until <= until) {
		return
	}
	a.order.until = until
	a.ring()
}

// Stop asks for a checkpoint, a suspend, or to give the job back. A security stop kills
// at once. It is idempotent.
func (a *Attempt) Stop(kind checkpoint.StopKind, reason string) {
	a.give(order{kind: kind, reason: reason, force: kind == checkpoint.StopSecurity, cancel: kind == checkpoint.StopSecurity})
}

// LeaseEnded kills at once: the right to act is gone, so nothing is captured, committed
// or proposed any more. It is idempotent and returns before the tree is dead; Wait tells.
func (a *Attempt) LeaseEnded() { a.endLease() }

func (a *Attempt) give(o order) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o.strength() <= a.order.strength() || o.strength() == 0 {
		return
	}
	if was := a.order.until; was != 0 && (o.until == 0 || was < o.until) {
		o.until = was // the machine goes then, whatever is asked
	}
	a.order = o
	if o.kind != checkpoint.StopCheckpoint {
		closeOnce(a.stopping)
	}
	if o.ends() && (o.cancel || o.kind != checkpoint.StopTimeout) && !o.save {
		closeOnce(a.cancelled)
	}
	a.ring()
}

func (a *Attempt) ring() {
	select {
	case a.bell <- struct{}{}:
	default:
	}
}

// closeOnce closes a channel that only Attempt.mu's holder closes.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// asked is the order in force.
func (a *Attempt) asked() order { a.mu.Lock(); defer a.mu.Unlock(); return a.order }

// withdraw forgets an order that was carried out or refused, unless a stronger came.
func (a *Attempt) withdraw(o order) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o.until = a.order.until // one that was hastened is the same
	if a.order != o {
		return
	}
	a.order = order{}
	select {
	case <-a.stopping:
		a.stopping = make(chan struct{})
	default:
	}
}

// halt is closed once a stop other than a checkpoint was asked for.
func (a *Attempt) halt() <-chan struct{} { a.mu.Lock(); defer a.mu.Unlock(); return a.stopping }

// refuse tells that a suspend was not followed.
func (a *Attempt) refuse(o order, why string) {
	a.withdraw(o)
	a.note("suspend refused: %s", why)
	a.tell(func(ctx context.Context) { a.hooks.StopRefused(ctx, why) })
}

// tell calls the node from a goroutine of its own, in order: a node that waits for a
// quorum must not delay a signal or a kill.
func (a *Attempt) tell(f func(ctx context.Context)) {
	select {
	case a.news <- f:
	default: // the node takes nothing; the log and the end will tell
		a.said().Warn("the node was not told in time")
	}
}

// teller carries tell out until stop is closed, then lets go of what is under way.
func (a *Attempt) teller(stop <-chan struct{}) {
	ctx, cancel := a.stoppable(stop)
	defer cancel()
	for {
		select {
		case f := <-a.news:
			f(ctx)
		case <-stop:
			for len(a.news) > 0 {
				(<-a.news)(ctx) // ended: the completion says more; they return at once
			}
			return
		}
	}
}
