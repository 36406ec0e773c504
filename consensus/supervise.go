package consensus

import (
	"context"
	"time"
)

// fault is why an instance must end, and what goes with it.
type fault struct {
	kind    EventKind
	err     error
	wipe    wipe
	planned bool // the wipe is written down
}

func (g *Group) install(in *instance) {
	g.mu.Lock()
	g.in, g.why = in, nil
	g.mu.Unlock()
	if g.plan.Load() != nil {
		g.spawn(func() { g.watchRebuild(in) })
	}
}

// take removes the instance from callers' reach.
func (g *Group) take(why error) *instance {
	g.mu.Lock()
	in := g.in
	if in != nil {
		g.last = in.servers()
	}
	g.in, g.why = nil, why
	g.mu.Unlock()
	g.leadership.set(Leadership{Term: g.Term()})
	return in
}

// supervise owns the instance. It ends when the group is closed.
func (g *Group) supervise() {
	defer close(g.done)
	listener := make(chan struct{})
	stopEvents := make(chan struct{})
	go func() { defer close(listener); g.events.run(stopEvents) }()
	tick := g.cfg.Clock.After(g.cfg.Timings.Hash)
	for open := true; open; {
		select {
		case <-g.wake:
			open = g.recycle()
		case <-tick:
			tick = g.cfg.Clock.After(g.cfg.Timings.Hash)
			g.spawn(g.proposeMark)
		case h := <-g.machine.marked:
			g.spawn(func() { g.proposeCheck(h) })
		case <-g.quit:
			open = false
		}
	}
	if in := g.take(errClosed); in != nil {
		if err := in.stop(g.cfg.Timings.Lease); err != nil {
			g.cfg.Log.Warn("consensus did not stop cleanly", "error", err)
		}
	}
	g.tasks.Wait()
	if g.layer != nil {
		if err := g.layer.close(); err != nil {
			g.cfg.Log.Debug("stream layer", "error", err)
		}
	}
	g.leadership.close()
	g.machine.announce()
	close(stopEvents)
	<-listener
}

// recycle ends the faulty instance and starts another, when the disk lets it.
// It reports false when the group was closed meanwhile.
func (g *Group) recycle() bool {
	g.mu.Lock()
	old := g.in
	g.mu.Unlock()
	if old == nil || old.fault.Load() == nil {
		return true // the word was about an instance that is gone
	}
	f := *old.fault.Load()
	if f.kind == Diverged {
		g.machine.quarantined.Store(true)
	}
	g.events.put(Event{Kind: f.kind, Term: g.Term(), Index: g.Applied(), Err: f.err})
	g.take(f.err)
	stopped := make(chan error, 1)
	go func() { stopped <- old.stop(g.cfg.Timings.Lease) }()
	select {
	case <-stopped: // its errors are those of the fault
	case <-g.quit:
		<-stopped
		return false
	}
	for told := ""; ; {
		in, err := g.openInstance(&f)
		if err == nil {
			g.install(in)
			g.events.put(Event{Kind: Restarted, Term: g.Term(), Index: g.Applied()})
			return true
		}
		if text := err.Error(); text != told {
			told = text
			g.events.put(Event{Kind: RestartFailed, Err: err})
		}
		select {
		case <-g.cfg.Clock.After(g.cfg.Timings.Retry):
		case <-g.quit:
			return false
		}
	}
}

// watchRebuild lifts the quarantine as soon as the log is current again.
func (g *Group) watchRebuild(in *instance) {
	for {
		changed := g.machine.Changed()
		if !g.votesWithheld(in) {
			return
		}
		select {
		case <-changed:
		case <-g.cfg.Clock.After(time.Second): // entries may come before they are applied
		case <-in.quit:
			return
		case <-g.quit:
			return
		}
	}
}

// proposeMark asks all nodes to remember the hash of their state: guard (g).
func (g *Group) proposeMark() {
	if g.cfg.off.hash || !g.IsLeader() {
		return
	}
	g.tell(frame{kind: frameMark, from: g.machine.own})
}

// proposeCheck tells all nodes this leader's hash at its mark, if most voters have the
// same. A follower that differs from it gives its own state up, so a leader that nobody
// could confirm says nothing: it may be the one that is wrong.
func (g *Group) proposeCheck(h stateHeader) {
	in, err := g.running("state check")
	if err != nil {
		return
	}
	switch g.judge(h) {
	case agreed:
		g.tell(frame{kind: frameCheck, from: g.machine.own, index: h.index, hash: h.hash})
	case outvoted:
		g.machine.quarantined.Store(true)
		in.diverged(h.index)
	case disputed:
		g.events.put(Event{Kind: HashDisputed, Term: g.Term(), Index: h.index, Err: errDisputed})
	}
}

// tell proposes an internal entry and forgets it: the next round is a minute away.
func (g *Group) tell(f frame) {
	in, err := g.running("state check")
	if err != nil {
		return
	}
	ctx, cancel := g.within(g.ctx, g.cfg.Timings.RPC)
	defer cancel()
	if _, err := in.propose(ctx, "state check", f.encode()); err != nil {
		g.cfg.Log.Debug("state check was not committed", "error", err)
	}
}

// verdict is what the voters make of a leader's hash.
type verdict uint8

const (
	unheard  verdict = iota // too few answered to know
	agreed                  // most voters have the leader's
	outvoted                // most voters have another one, the same
	disputed                // some differ, and no hash has most voters
)

// judge asks the other voters for their hash at the mark. It is done as soon as most
// voters agree, whatever the rest would say.
func (g *Group) judge(mine stateHeader) verdict {
	voters := g.voters()
	ctx, cancel := g.within(g.ctx, g.cfg.Timings.RPC)
	defer cancel()
	answers := make(chan [32]byte, len(voters))
	for _, v := range voters {
		switch {
		case v.ID == g.cfg.LocalID:
			answers <- mine.hash
			continue
		case g.cfg.HashOf == nil:
			answers <- [32]byte{} // no vote
			continue
		}
		ok := g.spawn(func() {
			h, err := g.cfg.HashOf(ctx, v.Addr, mine.index)
			if err != nil {
				h = [32]byte{}
			}
			answers <- h
		})
		if !ok {
			return unheard
		}
	}
	count := map[[32]byte]int{}
	for range voters {
		h := <-answers
		if h == ([32]byte{}) || !g.machine.stamp.compares(h) {
			continue
		}
		if count[h]++; count[h] <= len(voters)/2 {
			continue
		}
		if h == mine.hash {
			return agreed
		}
		return outvoted
	}
	if len(count) > 1 {
		return disputed
	}
	return unheard
}

// within is context.WithTimeout on the group's clock.
func (g *Group) within(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if !g.spawn(func() {
		select {
		case <-g.cfg.Clock.After(d):
			cancel(context.DeadlineExceeded)
		case <-ctx.Done():
		}
	}) {
		cancel(errClosed)
	}
	return ctx, func() { cancel(context.Canceled) }
}
