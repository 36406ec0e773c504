package node

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// local is what this node knows of its own leases: the agent's book, and the
// executions that the book's leases stand for.
type local struct {
	mu       sync.Mutex // guards book, running
	book     *agent.Book
	running  map[forgeyard.LeaseID]*execution
	renewNow chan struct{}
}

func newLocal() *local {
	return &local{book: agent.NewBook(), running: map[forgeyard.LeaseID]*execution{}, renewNow: make(chan struct{}, 1)}
}

func (l *local) toRenew() []forgeyard.Authority {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.ToRenew()
}

func (l *local) renewed(sent forgeyard.Instant, batch []forgeyard.Authority, answers []controllers.RenewalAnswer) {
	l.mu.Lock()
	for i, a := range batch {
		l.book.Renewed(a.Lease, sent, answers[i].Answer, answers[i].Left)
	}
	l.mu.Unlock()
	l.tellDeadlines()
}

// tellDeadlines passes the book's deadlines on to the executions.
func (l *local) tellDeadlines() {
	for _, x := range l.executions() {
		l.mu.Lock()
		until := l.book.Deadline(x.authority.Lease)
		l.mu.Unlock()
		x.extend(until)
	}
}

// askRenewal makes the next heartbeat go out now.
func (l *local) askRenewal() {
	select {
	case l.renewNow <- struct{}{}:
	default: // one is due already
	}
}

// attempts are how far the executions under those leases have come. One that was accepted
// and has not begun is in its first phase.
func (l *local) attempts(batch []forgeyard.Authority) []controllers.Attempt {
	out := make([]controllers.Attempt, 0, len(batch))
	for _, a := range batch {
		t := controllers.Attempt{Authority: a, Phase: job.PhaseAccepted}
		if x := l.execution(a.Lease); x != nil {
			t.Phase, t.LastLog = x.progress()
		}
		out = append(out, t)
	}
	return out
}

func (l *local) taken() controllers.Taken {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, n := l.book.Holds()
	return controllers.Taken{Jobs: n, MilliCPU: r.MilliCPU, Memory: r.Memory, Disk: r.Disk}
}

// busy reports whether leases are held here.
func (l *local) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.Active() > 0 || len(l.running) > 0
}

func (l *local) execution(id forgeyard.LeaseID) *execution {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running[id]
}

func (l *local) executions() []*execution {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*execution
	for _, e := range l.running {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *execution) int { return cmp.Compare(a.authority.Lease, b.authority.Lease) })
	return out
}

// agentLoop carries out what the agent decides. It steps at every change of the
// state, at every deadline, and at least once a second, so that a process that was
// stopped or asleep compares the clock as the first thing it does.
func (n *Node) agentLoop(ctx context.Context) error {
	for {
		changed := n.replica.Changed()
		now := n.clock.Now()
		suspect := n.group.Suspect() // before the state: see there
		in := agent.Input{State: n.replica.State(), Suspect: suspect, Me: n.enrolment.RunnerID, Session: n.session, Refusing: n.refusing(), Caps: n.capsNow(), Notice: n.notice.Load(), Wall: forgeyard.WallOf(n.clock.Wall())}
		n.local.mu.Lock()
		effects, wake := agent.Step(now, in, n.local.book)
		n.local.mu.Unlock()
		for _, e := range effects {
			n.carryOut(ctx, e)
		}
		n.local.tellDeadlines()
		n.askForDeadlines()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-n.kick:
		case <-n.clock.After(wake.Sub(n.clock.Now())):
		}
	}
}

// askForDeadlines renews at once when a lease is ours and we do not know until when.
func (n *Node) askForDeadlines() {
	n.local.mu.Lock()
	defer n.local.mu.Unlock()
	for _, a := range n.local.book.ToRenew() {
		if n.local.book.Deadline(a.Lease).IsZero() {
			n.local.askRenewal()
			return
		}
	}
}

// capsNow is what this node says of itself: nothing until the machine was looked at.
func (n *Node) capsNow() job.Capabilities {
	c := n.caps.Load()
	if c == nil {
		return job.Capabilities{}
	}
	if !n.allows(site.FormatGPUs) {
		return c.Early() // whoever reads the log must be able to
	}
	return *c
}

func (n *Node) carryOut(ctx context.Context, e agent.Effect) {
	switch e := e.(type) {
	case agent.Accept:
		n.work.Go(func() { n.accept(ctx, e.Authority) })
	case agent.Reject:
		n.metrics.rejected.WithLabelValues(string(e.Reason)).Inc()
		n.work.Go(func() { n.tell(ctx, site.Reject{Authority: e.Authority, Reason: e.Reason, Detail: e.Detail}) })
	case agent.Start:
		n.begin(ctx, e.Job, e.Lease)
	case agent.Cancel:
		if x := n.local.execution(e.Lease); x != nil {
			x.cancel(e)
		} else {
			n.cancelUnstarted(ctx, e.Lease, e.Why)
		}
	case agent.Stop:
		if x := n.local.execution(e.Lease); x != nil {
			x.stop(e)
		}
	case agent.Hasten:
		if x := n.local.execution(e.Lease); x != nil {
			x.ask(func(a *runner.Attempt) { a.Hasten(e.Until) })
		}
	case agent.Kill:
		if x := n.local.execution(e.Lease); x != nil {
			x.leaseEnded(e.Why)
		}
	case agent.ResetDevice:
		n.work.Go(func() { n.resetDevice(ctx, e) })
	case agent.CheckDevice:
		n.work.Go(func() { n.checkDevice(ctx, e.Device) })
	}
}

// unfit says why an offered job cannot begin here as things are at this moment: the disk has
// no room, it may not have its secrets here, or nobody has a toolchain that it names.
func (n *Node) unfit(ctx context.Context, a forgeyard.Authority) (job.RejectReason, error) {
	j, ok := n.replica.State().Jobs.Get(a.Job)
	if !ok || j.Lease.Authority != a {
		return "", nil // it is no longer ours; the log will say so
	}
	others := n.local.taken().Disk - j.Spec.Resources.Disk // the book has this lease too, since it asked
	err := n.runner.Check(j.Spec, others)
	switch forgeyard.KindOf(err) {
	case forgeyard.NoSpace:
		return job.RejectDisk, err
	case forgeyard.Denied:
		return job.RejectLocalPolicy, err
	}
	if err := n.checkToolchainsOf(ctx, j.Spec, n.providers(), n.exchange.Ask); err != nil {
		return job.RejectCapabilityChanged, err
	}
	return "", nil // what else there is ends the attempt with its own category
}

// eventLog is a log whose lines name an epoch.
func eventLog(log *slog.Logger, a forgeyard.Authority) *slog.Logger {
	return log.With("job", a.Job, "attempt", a.Attempt, "epoch", a.Fence.Epoch, "lease", a.Lease)
}

// accept takes an offer, or rejects it while nothing was begun: a job that finds the disk
// full goes elsewhere, and counts no failure. The instant of the send is the start of the
// holder's count.
func (n *Node) accept(ctx context.Context, a forgeyard.Authority) {
	if why, err := n.unfit(ctx, a); why != "" {
		n.metrics.rejected.WithLabelValues(string(why)).Inc()
		n.tell(ctx, site.Reject{Authority: a, Reason: why, Detail: err.Error()})
		n.over(a.Lease)
		return
	}
	sent := n.clock.Now()
	_, err := n.propose(ctx, site.Accept{Authority: a})
	if err == nil {
		eventLog(n.log, a).Info("lease accepted", runner.LeaseAccepted.Attr()) // before anything of it begins
	}
	n.local.mu.Lock()
	if err == nil {
		n.local.book.Accepted(a.Lease, sent)
	} else {
		n.local.book.NotAccepted(a.Lease)
	}
	n.local.mu.Unlock()
	if err == nil {
		n.metrics.accepted.Inc()
	} else if ctx.Err() == nil {
		n.log.Info("an offer was not taken", "lease", a.Lease, "err", err)
	}
	n.nudge()
}

// tell proposes something whose refusal changes nothing here.
func (n *Node) tell(ctx context.Context, b site.Body) {
	if _, err := n.propose(ctx, b); err != nil && ctx.Err() == nil {
		n.log.Info("a report was not taken", "what", b, "err", err)
	}
}

// cancelUnstarted answers a cancellation of a lease that was accepted and not begun:
// nothing ran, so nothing needs to end.
func (n *Node) cancelUnstarted(ctx context.Context, id forgeyard.LeaseID, why string) {
	a, ok := n.authorityOf(id)
	if !ok {
		return
	}
	c := completion{Authority: a, Message: forgeyard.MessageID(NewID(n.clock)), Result: job.Result{Outcome: job.OutcomeCancelled, Message: why}}
	n.work.Go(func() { n.deliver(ctx, c, nil) })
}

func (n *Node) authorityOf(id forgeyard.LeaseID) (forgeyard.Authority, bool) {
	for _, a := range n.local.toRenew() {
		if a.Lease == id {
			return a, true
		}
	}
	return forgeyard.Authority{}, false
}

// over ends a lease in the book: its tree is dead and its end was reported.
func (n *Node) over(id forgeyard.LeaseID) {
	n.local.mu.Lock()
	n.local.book.Over(id)
	delete(n.local.running, id)
	n.local.mu.Unlock()
	n.nudge()
}

func (n *Node) handingOver(id forgeyard.LeaseID) {
	n.local.mu.Lock()
	defer n.local.mu.Unlock()
	n.local.book.HandingOver(id)
}

// granted takes in the next epoch, which our proposal, sent then, was given in place.
func (n *Node) granted(a forgeyard.Authority, r job.Resources, sent forgeyard.Instant) {
	n.local.mu.Lock()
	n.local.book.Granted(a, r, sent)
	n.local.mu.Unlock()
	n.nudge()
}
