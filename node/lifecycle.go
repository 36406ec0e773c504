package node

import (
	"context"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas/layer"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/capability"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/keeper"
	"github.com/forgeyard/forgeyard-node/node/executor/process"
	"github.com/forgeyard/forgeyard-node/node/executor/sandbox"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/node/secrets"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// openUsers makes the pool of users that all executors of this node lend from. A daemon that
// is not root has only its own.
func (n *Node) openUsers() error {
	if os.Geteuid() != 0 {
		return nil
	}
	set := n.settings().Users
	p, err := users.New(users.Config{First: int(set.First), Count: int(set.Count), Seat: os.Getpid()})
	if err != nil {
		return err
	}
	n.users = p
	return nil
}

// openRunner makes the executors and the runner, and ends what an earlier process of
// this node left running, before anything else of this one starts (07§249).
func (n *Node) openRunner(ctx context.Context, c *closers) error {
	n.executors = map[job.Sandbox]executor.Executor{}
	set := n.settings()
	if err := n.openUsers(); err != nil {
		return err
	}
	if set.Runs("sandbox") {
		var binds []executor.Bind
		for _, b := range set.Sandbox.ReadOnlyBinds {
			binds = append(binds, executor.Bind{Host: b, Inside: b})
		}
		e, err := sandbox.New(sandbox.Config{Users: n.users, ReadOnly: binds, HostNetwork: n.allowsHost, SiteNetworks: n.siteNetworks, Log: n.log, ScratchDir: n.dir.join(dirWorkspaces)})
		if err != nil {
			n.log.Warn("the sandbox cannot be used here", "err", err)
		} else {
			n.executors[job.SandboxStrict] = e
		}
	}
	if set.Runs("process") {
		own := n.users
		if set.Process.UID != 0 {
			p, err := users.New(users.Config{First: int(set.Process.UID), Count: 1, GID: int(set.Process.GID)})
			if err != nil {
				return err
			}
			own = p
		}
		e, err := process.New(process.Config{Users: own, ScratchDir: n.dir.join(dirWorkspaces)})
		if err != nil {
			return err
		}
		n.executors[job.SandboxProcess] = e
	}
	if err := n.openOwn(); err != nil {
		return err
	}
	var keep runner.Keeper // nil as an interface, not a nil pointer in one
	if n.cfg.Keeper != "" && len(n.executors) > 0 {
		k, err := keeper.Start(keeper.Config{Program: n.cfg.Keeper, Clock: n.clock, Log: n.log})
		if err != nil {
			return err
		}
		c.add(k.Close)
		n.keeper, keep = k, k
	}
	layers, err := n.openLayers()
	if err != nil {
		return err
	}
	r, err := runner.New(runner.Config{
		Site: n.enrolment.SiteID, Workspaces: n.dir.join(dirWorkspaces), Spool: n.dir.join(dirSpool), StateDir: n.dir.join(dirAgent),
		Store: n.store, Fetch: n.fetchInput, FetchTree: n.fetchInputTree, Urgent: urgently, Executors: n.executors, Layers: layers, Keeper: keep, Ender: n.ender, Clock: n.clock, Log: n.log,
		HelperPath: n.cfg.Helper, Own: n.ownProgram(), ReserveDisk: int64(set.Limits.Reserve.Disk), SpoolLimit: int64(set.Spool.Limit), JobLog: int64(set.Spool.PerJob), PackLogs: n.packsLogs,
		Prepare: n.platform().Prepare, Toolchains: n.managedToolchains, Warmed: n.warmed, Used: n.metrics.attempts.used,
		Secrets: secrets.Chain{secrets.Files(set.Secrets), siteSecrets{n}}, Unseal: n.Unseal,
	})
	if err != nil {
		return err
	}
	n.runner = r
	return n.endOrphans(ctx)
}

// openLayers opens what keeps materialised trees. Where nothing can use them, those that
// were kept before go.
func (n *Node) openLayers() (*layer.Cache, error) {
	budget := int64(n.settings().Limits.Layers)
	if _, ok := n.executors[job.SandboxStrict]; !ok {
		budget = 0
	}
	c, err := layer.Open(layer.Config{
		Dir: n.dir.join(dirLayers), MaxBytes: budget, MaxInodes: maxLayerInodes, Store: n.store, Clock: n.clock, Log: n.log,
	})
	if err != nil || budget == 0 { // without a budget none has stayed
		return nil, err
	}
	n.layers = c
	return c, nil
}

// maxLayerInodes is a third of what a small disk has.
const maxLayerInodes = 400_000

// endOrphans ends what an earlier process left running. While one of its trees may still
// live this process does not start: registering says to the site that all of it is dead.
func (n *Node) endOrphans(ctx context.Context) error {
	n.recovered = n.runner.Recover(ctx)
	if len(n.recovered) > 0 {
		rebooted := slices.ContainsFunc(n.recovered, func(r runner.Recovered) bool { return r.Rebooted })
		n.log.Info("cleaned up after an earlier process", "attempts", len(n.recovered), "machine_restarted", rebooted)
	}
	for _, r := range n.recovered {
		if r.Err != nil && r.Alive {
			return forgeyard.Errorf("start", forgeyard.Conflict, "work of an earlier process may still run here: %v", r.Err).
				WithHint("end it, or restart the machine; then start the node again")
		}
	}
	return nil
}

func (n *Node) capabilityConfig() capability.Config {
	set := n.settings()
	c := capability.Config{
		ReserveMilliCPU: int64(set.Limits.Reserve.CPU), ReserveMemory: int64(set.Limits.Reserve.Memory), ReserveDisk: int64(set.Limits.Reserve.Disk),
		MaxJobs: set.Limits.MaxJobs, DataDir: n.dir.path, Labels: set.Labels, HostNetwork: set.Policy.Allows(job.NetworkHost), Log: n.log,
		Discover: n.platform().Discover, Graphics: &n.graphics,
	}
	for _, k := range []job.Sandbox{job.SandboxStrict, job.SandboxProcess} {
		if e, ok := n.executors[k]; ok {
			c.Executors = append(c.Executors, e)
		}
	}
	for _, d := range set.Devices {
		c.Devices = append(c.Devices, job.DeviceFact{ID: d.ID, Kind: d.Kind, Labels: d.Labels, Serial: d.Serial})
	}
	return c
}

// Drain implements control.Node: no new work; what runs goes on, or with cancel is
// asked to stop. Active counts what still runs or was not acknowledged (E29).
func (n *Node) Drain(ctx context.Context, r *forgeyardv1.DrainRequest) (*forgeyardv1.DrainResponse, error) {
	m, _ := n.replica.State().Members.Get(n.enrolment.RunnerID)
	yes := true
	b := site.MemberSet{Runner: n.enrolment.RunnerID, Draining: &yes, Cancel: r.Cancel}
	if d := r.Deadline.AsDuration(); d > 0 && !r.Cancel {
		b.Deadline = forgeyard.WallOf(n.clock.Wall().Add(d))
	}
	if !m.Draining || r.Cancel || b.Deadline != 0 {
		reply, err := n.Propose(ctx, "operator", b)
		if err != nil {
			return nil, err
		}
		if err := reply.Err(); err != nil {
			return nil, err
		}
	}
	n.setOnline()
	return &forgeyardv1.DrainResponse{Changed: !m.Draining, Active: int32(len(n.local.executions()))}, nil
}

// isDraining is what the log says of this node.
func (n *Node) isDraining() bool {
	m, ok := n.replica.State().Members.Get(n.enrolment.RunnerID)
	return ok && m.Draining
}

// drainLoop keeps the deadlines of this node's drains. They are in the log, so that no
// restart forgets them, and so is the word that one has passed (decision 7).
func (n *Node) drainLoop(ctx context.Context) error {
	yes := true
	for {
		changed := n.replica.Changed()
		m, _ := n.replica.State().Members.Get(n.enrolment.RunnerID)
		var due <-chan time.Time
		if m.Draining && m.Deadline != 0 {
			due = n.clock.After(max(0, m.Deadline.Time().Sub(n.clock.Wall())))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			continue
		case <-due:
		}
		reply, err := n.Propose(ctx, "drain", site.MemberSet{Runner: n.enrolment.RunnerID, Draining: &yes, Cancel: true, Deadline: m.Deadline})
		if err == nil {
			err = reply.Err()
		}
		if err != nil {
			n.log.Warn("the deadline of the drain has passed and the site does not hear it; it is said again", "err", err)
			n.pause(ctx, drainRetry)
		}
	}
}

// drainRetry is between two words that the deadline of a drain has passed.
const drainRetry = 2 * time.Second

// Undrain implements control.Node.
func (n *Node) Undrain(ctx context.Context) (*forgeyardv1.ResumeResponse, error) {
	m, _ := n.replica.State().Members.Get(n.enrolment.RunnerID)
	no := false
	reply, err := n.Propose(ctx, "operator", site.MemberSet{Runner: n.enrolment.RunnerID, Draining: &no})
	if err == nil {
		err = reply.Err()
	}
	if err != nil {
		return nil, err
	}
	n.setOnline()
	return &forgeyardv1.ResumeResponse{Changed: m.Draining}, nil
}

// NewToken implements control.Node. The secret leaves this node once, in the answer.
func (n *Node) NewToken(ctx context.Context, ttl time.Duration, uses int, mayVote, approve bool) (*forgeyardv1.Token, error) {
	secret, err := mesh.NewTokenSecret()
	if err != nil {
		return nil, err
	}
	t := mesh.Token{SiteID: n.enrolment.SiteID, TokenID: forgeyard.TokenID(n.NewID()), Secret: secret, Peers: n.enrollers()}
	text, err := t.Text()
	if err != nil {
		return nil, err
	}
	expires := n.clock.Wall().Add(ttl)
	hash := mesh.SecretHash(secret)
	reply, err := n.Propose(ctx, "operator", site.TokenCreate{Token: t.TokenID, Hash: hash, Expires: forgeyard.WallOf(expires), Uses: uses, MayVote: mayVote, Approve: approve})
	if err == nil {
		err = reply.Err()
	}
	if err != nil {
		return nil, err
	}
	v := &forgeyardv1.Token{TokenId: string(t.TokenID), Token: text, Expires: timestamppb.New(expires), UsesLeft: int32(uses), Role: "runner", Approve: approve}
	if mayVote {
		v.Role = "voter"
	}
	return v, nil
}

// enrollers are the members that can answer a join: this node first, then the others
// that may vote, since they hold the site key.
func (n *Node) enrollers() []mesh.PeerAddr {
	const most = 5 // a token stays short enough to paste
	out := []mesh.PeerAddr{n.ownAddr()}
	if n.siteKey().IsZero() {
		out = nil
	}
	st := n.replica.State()
	for _, p := range n.memberAddrs() {
		if m, ok := st.Members.Get(p.RunnerID); ok && m.MayLead() && p.PeerID != n.mesh.PeerID() && len(out) < most && len(p.Addrs) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// ConnectUplink implements control.Node.
func (n *Node) ConnectUplink(ctx context.Context, ticket string) error {
	if n.siteKey().IsZero() {
		return forgeyard.Errorf("uplink connect", forgeyard.Denied, "%s holds no site key", n.enrolment.Name).WithHint("run it on a node that may vote")
	}
	c, err := uplink.Connect(ctx, n.mesh, uplink.ApplicantOf(n.replica.State(), n.siteKey()), ticket)
	if err != nil {
		return err
	}
	reply, err := n.Propose(ctx, "operator", c)
	if err != nil {
		return err
	}
	return reply.Err()
}

// shutdown ends the work of this node in order: no new work, what runs is asked to give
// its jobs back within the configured time, then killed; a leader hands over.
func (n *Node) shutdown(ctx context.Context) {
	n.stopping.Store(true)
	n.setState(StateShuttingDown)
	grace := n.settings().Shutdown.Grace
	ctx, cancel := context.WithTimeout(ctx, grace+closeTimeout)
	defer cancel()
	running := n.local.executions()
	for _, x := range running {
		x.stop(agent.Stop{Kind: "drain", Why: "the node stops"})
	}
	n.awaitExecutions(ctx, grace)
	n.handOver(ctx, true)
}

func (n *Node) awaitExecutions(ctx context.Context, grace time.Duration) {
	deadline := n.clock.After(grace)
	for len(n.local.executions()) > 0 {
		changed := n.replica.Changed()
		select {
		case <-ctx.Done():
			return
		case <-deadline:
			n.log.Warn("work is still running at the end of the shutdown's time", "attempts", len(n.local.executions()))
			for _, x := range n.local.executions() {
				x.leaseEnded("the node stops")
			}
			return
		case <-changed:
		case <-n.clock.After(100 * time.Millisecond):
		}
	}
}

// handOver gives the leadership to another voter, if this node leads and there is one that
// may have it: that costs far less than the election that follows a leader's silence.
func (n *Node) handOver(ctx context.Context, stops bool) {
	if !n.group.IsLeader() || len(n.otherVoters()) == 0 {
		return
	}
	var heirs []controllers.Heir
	for _, f := range n.group.Stats().Followers {
		if f.Voter && f.Known {
			heirs = append(heirs, controllers.Heir{Runner: forgeyard.RunnerID(f.ID), Behind: f.Lag, Silent: f.Silent})
		}
	}
	to, ok := controllers.Successor(n.replica.State(), heirs, stops)
	if !ok && !stops {
		n.log.Info("leadership is kept while this node drains: every other voter drains too, is silent or is to lose its vote")
		return
	}
	// One that stops and knows no better lets raft choose.
	if err := n.group.Transfer(ctx, string(to)); err != nil {
		n.log.Info("leadership was not handed over", "to", n.memberName(to), "err", err)
		return
	}
	n.log.Info("leadership handed over", "to", n.memberName(to))
}
