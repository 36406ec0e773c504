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
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/capability"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// Waits of the session loop.
const (
	firstBackoff   = 100 * time.Millisecond
	capsEvery      = time.Minute            // how often the machine is probed again
	heartbeatFloor = 100 * time.Millisecond // between two of them
	renewCallFloor = 500 * time.Millisecond // a heartbeat's call gets at least that long
)

// sessionLoop registers this process as the current session of its runner, then
// renews its leases. It tries for ever; what ends it is a removal, a program that no member
// speaks with, or another process with this node's key (07§190, E09). A disabled runner
// waits until the log says otherwise.
func (n *Node) sessionLoop(ctx context.Context) error {
	if err := n.probe(ctx); err != nil {
		return err
	}
	n.deliverRecovered(ctx)
	for {
		if err := n.enter(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		n.log.Info("registered")
		n.learnDevices()
		if err := n.renewLoop(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// enter registers, however long that takes. The site refuses a disabled runner (RA-092):
// it is asked again when the log says that the runner is enabled.
func (n *Node) enter(ctx context.Context) error {
	n.setState(StateRegistering)
	for wait, try := firstBackoff, 0; ; try++ {
		if n.isDisabled() && n.awaitEnabled(ctx) != nil {
			return nil
		}
		err := n.register(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if end := n.way.ended(); end != nil {
			n.log.Error("the site refuses this node", "err", end)
			return end
		}
		if try%10 == 9 {
			n.log.Warn("not registered yet; it goes on trying", "tries", try+1, "err", err, "clock", n.clockDoubt())
		}
		wait = min(2*wait, time.Duration(n.settings().Reconnect.MaxBackoff))
		if !n.pause(ctx, jitter(wait)) {
			return nil
		}
	}
}

// isDisabled is what the log says of this node.
func (n *Node) isDisabled() bool {
	m, ok := n.replica.State().Members.Get(n.enrolment.RunnerID)
	return ok && m.Disabled
}

// awaitEnabled waits until the log says that the runner is enabled. What else this node
// is, a voter among it, goes on.
func (n *Node) awaitEnabled(ctx context.Context) error {
	n.log.Warn("the runner is disabled: it is silent until it is enabled", "hint", "forgeyard-node runner enable "+n.enrolment.Name)
	n.setState(StateOffline)
	if err := n.until(ctx, func(*site.State) bool { return !n.isDisabled() }); err != nil {
		return err
	}
	n.setState(StateRegistering)
	return nil
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

// probeAgain is how long an executor that worked a minute ago, and failed now, is left alone before
// it is tried once more: a machine in heavy use may have had no time for it.
const probeAgain = 2 * time.Second

// probe looks at what the machine is; the snapshot travels only when it changed (07§21).
func (n *Node) probe(ctx context.Context) error {
	n.probing.Lock() // the later one sees the later settings
	defer n.probing.Unlock()
	cfg, failed := n.capabilityConfig(), map[job.Sandbox]string{}
	cfg.Again = func(k job.Sandbox, _ error) bool { return n.tried.works(k) && n.pause(ctx, probeAgain) }
	cfg.LeftOut = func(k job.Sandbox, err error) { failed[k] = err.Error() }
	caps, err := capability.Probe(ctx, cfg)
	if err != nil {
		return err
	}
	n.tighten(&caps)
	if ctx.Err() == nil { // a probe that was cut short says nothing of the machine
		n.tried.probed(caps, failed)
	}
	n.caps.Store(&caps)
	return nil
}

// tighten applies what node.yaml says of this machine: bounds only lower what was probed,
// and tools that it names are there by its word.
func (n *Node) tighten(c *job.Capabilities) {
	set := n.settings()
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
		if !t.Digest.IsZero() { // what a job gets by that name is this, whatever the machine has
			c.Toolchains = slices.DeleteFunc(c.Toolchains, func(k job.Toolchain) bool { return k.Name == t.Name })
			c.Toolchains = append(c.Toolchains, job.Toolchain{Name: t.Name, Version: t.Version, Source: job.ToolchainStore, Verified: true, Digest: t.Digest, Warm: n.layers.Has(t.Digest)})
			continue
		}
		if !slices.ContainsFunc(c.Toolchains, func(k job.Toolchain) bool { return k.Name == t.Name }) {
			c.Toolchains = append(c.Toolchains, job.Toolchain{Name: t.Name, Version: t.Version, Source: job.ToolchainHost})
		}
	}
	c.WarmToolchains = n.warmToolchains(c.Toolchains)
	slices.SortFunc(c.Toolchains, func(a, b job.Toolchain) int { return strings.Compare(a.Name, b.Name) })
}

func (n *Node) register(ctx context.Context) error {
	if end := n.awaitFormat(ctx); end != nil {
		return end
	}
	caps := n.capsNow()
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	own := n.ownAddr()
	err := n.askIn(ctx, site.Register{
		Runner: n.enrolment.RunnerID, Session: n.session, Version: n.cfg.Version, Caps: caps, Digest: capsDigest(caps),
		Addrs: own.Addrs, Gossip: own.GossipAddr, Labels: n.settings().Labels,
		Formats: site.Formats, Place: n.place(),
	})
	if err == nil {
		if gerr := n.gossip.UpdateMeta(n.gossipMeta()); gerr != nil {
			n.log.Warn("gossip does not carry this node's record", "err", gerr)
		}
	}
	return err
}

// askIn asks to be let in, and keeps what stands against it that only a person can mend.
func (n *Node) askIn(ctx context.Context, b site.Register) error {
	reply, err := n.proposer.Propose(ctx, b)
	byLog := err == nil
	if byLog {
		if err = reply.Err(); forgeyard.KindOf(err) == forgeyard.Denied && !n.votes(n.enrolment.RunnerID) {
			n.way.removed() // the log itself says so
		}
	}
	now := refusalOf(err, byLog, n.isDisabled())
	if before := n.refusedAs.Swap(now); now != nil && now.program && (before == nil || !before.program) {
		n.log.Error("the site does not take this program: it runs no job", "err", err)
	}
	return err
}

// refusal is why the site does not let this process in as its runner.
type refusal struct {
	err     error
	program bool // the site and this program do not understand each other (RA-094, RA-095); else another process is that runner
}

// refusalOf is what the answer to a registration says against this process; nil: nothing that
// waits for a person. The log itself knows nothing of two processes, so its conflict is about
// the program; and who calls a registration invalid does not know what this program says.
func refusalOf(err error, byLog, disabled bool) *refusal {
	switch k := forgeyard.KindOf(err); {
	case err == nil, k == forgeyard.Conflict && disabled:
		return nil
	case k == forgeyard.Invalid, k == forgeyard.Conflict:
		return &refusal{err, k == forgeyard.Invalid || byLog}
	}
	return nil
}

// outdated is what the site has against this program; empty: nothing.
func (n *Node) outdated() string {
	if r := n.refusedAs.Load(); r != nil && r.program {
		return r.err.Error()
	}
	return ""
}

// formatWait bounds how long a registration waits to learn the format of the log.
const formatWait = 30 * time.Second

// awaitFormat waits until the format of the site's log is known here. A process that just
// began has not gone through its log yet, and would not say where it runs: then the site
// could not know that the process before it is dead. Whoever reaches the leader can tell. Who was removed is given no more of the
// log: what the members say at the door ends its wait, and is returned (RA-321).
func (n *Node) awaitFormat(ctx context.Context) error {
	if n.lineage() == "" {
		return nil // it comes in: there was no process before
	}
	ctx, cancel := context.WithTimeout(ctx, formatWait)
	defer cancel()
	for !n.allows(site.FormatPlaces) {
		if end := n.way.ended(); end != nil {
			return end
		}
		if n.learnFormat(ctx) || !n.pause(ctx, firstBackoff) {
			return nil
		}
	}
	return nil
}

// place is where this process runs, once the log's format has room for it.
func (n *Node) place() forgeyard.Digest {
	if !n.allows(site.FormatPlaces) {
		return forgeyard.Digest{}
	}
	return n.platform().Place(n.dir.lock, n.clock.BootID())
}

// placeUntold reports that the log has this session without its place: it registered
// before the log's format had room for it.
func (n *Node) placeUntold() bool {
	m, ok := n.replica.State().Members.Get(n.enrolment.RunnerID)
	return ok && m.Session.ID == n.session && m.Session.Place.IsZero() && !n.place().IsZero()
}

// renewEvery is the time between two heartbeats.
func (n *Node) renewEvery() time.Duration {
	if d := n.replica.State().Config.Lease.Renew; d > 0 {
		return d
	}
	return time.Second // our copy of the log has not come yet
}

// renewLoop is the heartbeat: one batch for all leases, early when one of them has no
// deadline yet, and again soon when it failed. It ends without an error when the runner is
// disabled and holds nothing any more (07§199).
func (n *Node) renewLoop(ctx context.Context) error {
	nextProbe := n.clock.Now().Add(capsEvery)
	nextPlace := n.clock.Now()
	for {
		last := n.clock.Now()
		wait, err := n.beat(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if n.isDisabled() && !n.local.busy() {
			return nil
		}
		if n.clock.Now() > nextProbe {
			n.work.Go(func() { n.refresh(ctx) }) // heartbeats do not wait for it
			nextProbe = n.clock.Now().Add(capsEvery)
		}
		if (n.placeUntold() || n.capsUntold()) && n.clock.Now() >= nextPlace {
			n.work.Go(func() { n.tellAgain(ctx) })
			nextPlace = n.clock.Now().Add(formatWait)
		}
		due := last.Add(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-n.local.renewNow:
			if early := heartbeatFloor - n.clock.Now().Sub(last); early > 0 && !n.pause(ctx, early) {
				return nil // however often it is asked for
			}
		case <-n.clock.After(due.Sub(n.clock.Now())):
			n.metrics.renewalLate.Observe(max(0, n.clock.Now().Sub(due)).Seconds())
		}
	}
}

// beat sends one heartbeat and says, from its begin, when the next is due.
func (n *Node) beat(ctx context.Context) (wait time.Duration, err error) {
	began := n.clock.Now()
	addr, err := n.renewOnce(ctx)
	wait = jitter(n.renewEvery())
	if ctx.Err() != nil {
		return wait, nil
	}
	if again := n.way.heard(addr, err); again > 0 {
		wait = n.clock.Now().Sub(began) + again
	}
	if err == nil {
		n.metrics.renewalTook.Observe(n.clock.Now().Sub(began).Seconds())
		n.setOnline()
	} else if s, _ := n.way.status(); s.State == agent.LinkReconnecting && n.State() != StateReconnecting {
		n.setState(StateReconnecting)
		n.log.Warn("the site does not answer; it goes on trying", "err", err, "clock", n.clockDoubt())
	}
	if end := n.way.ended(); end != nil {
		n.log.Error("the site refuses this node", "err", end)
		return wait, end
	}
	return wait, n.superseded()
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

// tellAgain registers again: the log's format has room now for what it had none for, or what
// this machine is has changed while it was being told.
func (n *Node) tellAgain(ctx context.Context) {
	if err := n.register(ctx); err != nil && ctx.Err() == nil {
		n.log.Warn("the site does not know yet all that this node says of itself", "err", err)
	}
}

// capsUntold reports that the log has other facts of this session than are true now.
func (n *Node) capsUntold() bool {
	m, ok := n.replica.State().Members.Get(n.enrolment.RunnerID)
	return ok && m.Session.ID == n.session && m.Digest != capsDigest(n.capsNow())
}

// refresh registers again when the machine has changed. One at a time is enough.
func (n *Node) refresh(ctx context.Context) {
	if !n.refreshing.TryLock() {
		return
	}
	defer n.refreshing.Unlock()
	n.lookAgain(ctx)
}

// lookAgain is refresh under its lock.
func (n *Node) lookAgain(ctx context.Context) {
	if err := n.probe(ctx); err != nil {
		if ctx.Err() == nil {
			n.log.Warn("the machine could not be probed", "err", err)
		}
		return
	}
	n.tellChange(ctx)
}

// tellChange registers what this machine is, if the log has it otherwise.
func (n *Node) tellChange(ctx context.Context) {
	if ctx.Err() != nil || !n.capsUntold() { // also before the first registration, which tells all
		return
	}
	n.log.Info("capabilities changed")
	if err := n.register(ctx); err != nil {
		n.log.Warn("the change was not registered", "err", err)
	}
}

// renewOnce sends one heartbeat, and says to whom. The instant of the send is taken first:
// the holder counts from it (decision 1).
func (n *Node) renewOnce(ctx context.Context) (addr string, err error) {
	batch := n.local.toRenew()
	sign := n.heartbeat(ctx, batch)
	sent := n.clock.Now()
	addr, answers, err := n.sendRenewal(ctx, sign, batch)
	if err != nil {
		return addr, err
	}
	n.local.renewed(sent, batch, answers)
	n.nudge()
	return addr, nil
}

// heartbeat is what this node says of itself to the leader (07§26).
func (n *Node) heartbeat(ctx context.Context, batch []forgeyard.Authority) controllers.Sign {
	s := controllers.Sign{
		Session: n.session, Pressure: n.pressure(), Refusing: n.refusingWords(), Facts: n.facts(ctx), State: string(n.State()), Sent: forgeyard.WallOf(n.clock.Wall()),
		Caps: capsDigest(n.capsNow()), Attempts: n.local.attempts(batch), Taken: n.local.taken(),
	}
	s.Taken.Withheld = n.withheld()
	if free, err := n.platform().Free(n.dir.path); err == nil {
		s.Taken.DiskFree = free
	}
	return s
}

func (n *Node) sendRenewal(ctx context.Context, sign controllers.Sign, batch []forgeyard.Authority) (string, []controllers.RenewalAnswer, error) {
	// A call that hangs must leave time to ask somebody else before the lease ends.
	within := min(max(n.renewEvery(), renewCallFloor), forwardTimeout)
	if l := n.leading.Load(); l != nil {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		var rs []controllers.Renewal
		for _, a := range batch {
			rs = append(rs, controllers.Renewal{Authority: a})
		}
		answers, err := l.Renew(ctx, n.enrolment.RunnerID, sign, rs)
		return n.mesh.PeerID().String(), answers, err
	}
	addr, c, err := n.peers.leader()
	if err != nil {
		return addr, nil, err
	}
	ctx, cancel := n.peers.whileLeads(ctx, within)
	defer cancel()
	answers, err := n.askRenewal(ctx, c, sign, batch)
	return addr, answers, err
}

func (n *Node) askRenewal(ctx context.Context, c forgeyardv1connect.PeerServiceClient, sign controllers.Sign, batch []forgeyard.Authority) ([]controllers.RenewalAnswer, error) {
	req := n.renewRequest(sign, batch)
	out, err := c.Renew(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	if len(out.Msg.Answers) != len(batch) {
		return nil, forgeyard.Errorf("renew", forgeyard.Invalid, "%d answers to %d leases", len(out.Msg.Answers), len(batch))
	}
	n.rival.Store(&out.Msg.Contest)
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
