package node

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/capability"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// Waits of the session loop.
const (
	firstBackoff   = 100 * time.Millisecond
	capsEvery      = time.Minute            // how often the machine is probed again
	heartbeatFloor = 100 * time.Millisecond // between two of them
	silentAfter    = 3                      // heartbeats in a row that fail before the node says that the site is silent
)

// sessionLoop registers this process as the current session of its runner, then
// renews its leases. It tries for ever; only a removal, or another process with
// this node's key, ends it (07§190, E09).
func (n *Node) sessionLoop(ctx context.Context) error {
	if err := n.probe(ctx); err != nil {
		return err
	}
	n.deliverRecovered(ctx)
	for wait, try := firstBackoff, 0; ; try++ {
		n.setState(StateRegistering)
		err := n.register(ctx)
		if err == nil {
			break
		}
		if forgeyard.KindOf(err) == forgeyard.Denied {
			n.log.Error("the site refuses this node", "err", err)
			return err
		}
		if try%10 == 9 {
			n.log.Warn("not registered yet", "tries", try+1, "err", err)
		}
		wait = min(2*wait, time.Duration(n.cfg.Settings.Reconnect.MaxBackoff))
		if !n.pause(ctx, jitter(wait)) {
			return nil
		}
	}
	n.log.Info("registered")
	n.learnDevices()
	return n.renewLoop(ctx)
}

// jitter spreads what many nodes would do at the same time.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func (n *Node) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-n.clock.After(d):
		return true
	}
}

// probe looks at what the machine is; the snapshot travels only when it changed (07§21).
func (n *Node) probe(ctx context.Context) error {
	caps, err := capability.Probe(ctx, n.capabilityConfig())
	if err != nil {
		return err
	}
	n.tighten(&caps)
	n.caps.Store(&caps)
	return nil
}

// tighten applies what node.yaml says of this machine: bounds only lower what was probed,
// and tools that it names are there by its word.
func (n *Node) tighten(c *job.Capabilities) {
	set := n.cfg.Settings
	lower := func(has *int64, bound int64) {
		if bound > 0 {
			*has = min(*has, bound)
		}
	}
	lower(&c.MilliCPU, int64(set.Limits.CPU))
	lower(&c.Memory, int64(set.Limits.Memory))
	lower(&c.Disk, int64(set.Limits.Disk))
	c.MaxJobs = set.Limits.MaxJobs
	for _, t := range set.Toolchains {
		if !slices.ContainsFunc(c.Toolchains, func(k job.Toolchain) bool { return k.Name == t.Name }) {
			c.Toolchains = append(c.Toolchains, job.Toolchain{Name: t.Name, Version: t.Version, Source: "host"})
		}
	}
	slices.SortFunc(c.Toolchains, func(a, b job.Toolchain) int { return strings.Compare(a.Name, b.Name) })
}

func (n *Node) register(ctx context.Context) error {
	caps := *n.caps.Load()
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	own := n.ownAddr()
	_, err := n.propose(ctx, site.Register{
		Runner: n.enrolment.RunnerID, Session: n.session, Version: n.cfg.Version, Caps: caps, Digest: capsDigest(caps),
		Addrs: own.Addrs, Gossip: own.GossipAddr, Labels: n.cfg.Settings.Labels,
		Formats: site.Formats,
	})
	if err == nil {
		if gerr := n.gossip.UpdateMeta(n.gossipMeta()); gerr != nil {
			n.log.Warn("gossip does not carry this node's record", "err", gerr)
		}
	}
	return err
}

// renewLoop is the heartbeat: one batch for all leases, early when one of them has no
// deadline yet, and again soon when it failed.
func (n *Node) renewLoop(ctx context.Context) error {
	fails := 0
	nextProbe := n.clock.Now().Add(capsEvery)
	for try := 0; ; try++ {
		last := n.clock.Now()
		err := n.renewOnce(ctx, try)
		wait := n.replica.State().Config.Lease.Renew
		if wait <= 0 {
			wait = time.Second // our copy of the log has not come yet
		}
		switch {
		case err == nil:
			if fails >= silentAfter {
				n.log.Info("the site answers again", "after_failures", fails)
				n.metrics.reconnects.Inc()
			}
			fails = 0
			n.setOnline()
		case ctx.Err() != nil:
			return nil
		default:
			fails++
			if fails == silentAfter {
				n.setState(StateReconnecting)
				n.log.Warn("the site does not answer", "err", err)
			}
			wait = min(wait, firstBackoff<<min(fails, 6))
		}
		if err := n.superseded(); err != nil {
			return err
		}
		if n.clock.Now() > nextProbe {
			n.work.Go(func() { n.refresh(ctx) }) // heartbeats do not wait for it
			nextProbe = n.clock.Now().Add(capsEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.local.renewNow:
			if early := heartbeatFloor - n.clock.Now().Sub(last); early > 0 && !n.pause(ctx, early) {
				return nil // however often it is asked for
			}
		case <-n.clock.After(jitter(wait)):
		}
	}
}

// superseded reports that the log has a later session of this runner than ours: another
// process has this node's key. Whoever registered last is the runner; this one stops, and
// all its work with it (E09).
func (n *Node) superseded() error {
	m, ok := n.replica.State().Members.Get(n.enrolment.RunnerID)
	switch {
	case !ok:
		return nil
	case m.Session.ID == n.session:
		n.registered.Store(m.Session.Index)
		return nil
	}
	if own := n.registered.Load(); own == 0 || m.Session.Index < own {
		return nil // our copy of the log is behind our own registration
	}
	return forgeyard.Errorf("session", forgeyard.Conflict, "another process registered as runner %s (session %s), so this one stops", n.enrolment.Name, forgeyard.Short(m.Session.ID)).
		WithHint("a data dir belongs to one machine: never run a copy of it")
}

func (n *Node) setOnline() {
	switch {
	case n.stopping.Load():
	case n.isDraining():
		n.setState(StateDraining)
	default:
		n.setState(StateOnline)
	}
}

// refresh registers again when the machine has changed.
func (n *Node) refresh(ctx context.Context) {
	before := capsDigest(*n.caps.Load())
	if err := n.probe(ctx); err != nil {
		n.log.Warn("the machine could not be probed", "err", err)
		return
	}
	if capsDigest(*n.caps.Load()) == before {
		return
	}
	n.log.Info("capabilities changed")
	if err := n.register(ctx); err != nil {
		n.log.Warn("the change was not registered", "err", err)
	}
}

// renewOnce sends one heartbeat. The instant of the send is taken first: the holder
// counts from it (decision 1).
func (n *Node) renewOnce(ctx context.Context, try int) error {
	batch := n.local.toRenew()
	sign := controllers.Sign{Session: n.session, Pressure: n.pressure(), Refusing: n.refusingWords()}
	sent := n.clock.Now()
	answers, err := n.sendRenewal(ctx, try, sign, batch)
	if err != nil {
		return err
	}
	n.local.renewed(sent, batch, answers)
	n.nudge()
	return nil
}

func (n *Node) sendRenewal(ctx context.Context, try int, sign controllers.Sign, batch []forgeyard.Authority) ([]controllers.RenewalAnswer, error) {
	if l := n.leading.Load(); l != nil {
		ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
		defer cancel()
		var rs []controllers.Renewal
		for _, a := range batch {
			rs = append(rs, controllers.Renewal{Authority: a})
		}
		return l.Renew(ctx, n.enrolment.RunnerID, sign, rs)
	}
	addr, c, err := n.peers.leader(try)
	if err != nil {
		return nil, err
	}
	ctx, cancel := n.peers.whileLeads(ctx, addr)
	defer cancel()
	req := &forgeyardv1.RenewRequest{RunnerId: string(n.enrolment.RunnerID), SessionId: string(n.session), Pressure: sign.Pressure, Refusing: sign.Refusing}
	for _, a := range batch {
		req.Leases = append(req.Leases, authorityToWire(a))
	}
	out, err := c.Renew(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	if len(out.Msg.Answers) != len(batch) {
		return nil, forgeyard.Errorf("renew", forgeyard.Invalid, "%d answers to %d leases", len(out.Msg.Answers), len(batch))
	}
	var as []controllers.RenewalAnswer
	for _, a := range out.Msg.Answers {
		as = append(as, answerFromWire(a))
	}
	return as, nil
}

func answerFromWire(a *forgeyardv1.RenewResponse_Answer) controllers.RenewalAnswer {
	r := controllers.RenewalAnswer{Answer: lease.Answer(a.Answer), Reason: a.Reason, Left: -1}
	if a.Left != nil {
		r.Left = a.Left.AsDuration()
	}
	return r
}

func answerToWire(a controllers.RenewalAnswer) *forgeyardv1.RenewResponse_Answer {
	w := &forgeyardv1.RenewResponse_Answer{Answer: string(a.Answer), Reason: a.Reason}
	if a.Left >= 0 {
		w.Left = durationpb.New(a.Left)
	}
	return w
}
