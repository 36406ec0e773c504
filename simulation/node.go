package simulation

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// node is one machine and the process on it.
type node struct {
	s    *sim
	id   int
	name string
	clk  *nodeClock

	up       bool
	paused   bool
	resuming bool     // a paused machine takes its first look
	life     int      // counts processes: what an earlier one began never comes back
	deferred []func() // what happened to a paused machine

	raftState
	bootLast uint64 // last entry of the log when this process began: later ones are live

	runner  forgeyard.RunnerID
	session forgeyard.SessionID
	book    *agent.Book
	execs   []*execution
	lead    *leadership
	looks   int // generation of the agent's alarm
	soon    bool
	waiters []waiter
	renewed bool // a heartbeat is asked for out of turn

	// On disk.
	spool   []completion
	witness reckon.Memory
	host    map[forgeyard.DeviceID]*hosted
}

type waiter struct {
	index uint64
	f     func()
}

// run lets f happen now, or when a paused machine goes on.
func (n *node) run(f func()) {
	if n.paused {
		n.deferred = append(n.deferred, f)
		return
	}
	f()
}

// after lets f happen when d has passed on this node's clock, in this life.
func (n *node) after(d time.Duration, f func()) {
	life := n.life
	n.s.after(n.clk.span(d), func() {
		if n.up && n.life == life {
			n.run(func() {
				if n.life == life {
					f()
				}
			})
		}
	})
}

func (n *node) state() *site.State { return n.s.world.states[n.applied] }

// boot brings up a site that was formed before: its founder, two members, an uplink.
func (s *sim) boot() {
	for i := range s.nodes {
		name := fmt.Sprintf("n%d", i+1)
		ppm := s.rng.Int64N(9_600) - 4_800 // two clocks differ by less than the 10,000 that the site allows
		c := &nodeClock{s: s, ppm: ppm, name: name, trusted: true}
		s.nodes[i] = &node{s: s, id: i, name: name, clk: c, host: map[forgeyard.DeviceID]*hosted{}, raftState: raftState{voted: -1, leads: -1}}
	}
	for _, b := range s.founding() {
		s.nodes[0].log = append(s.nodes[0].log, entry{term: 1, data: site.Command{
			ID: forgeyard.MessageID(s.newID("found")), At: forgeyard.WallOf(epoch), By: "founder", Body: b,
		}.Encode()})
	}
	for i, n := range s.nodes {
		n.log = append(n.log[:0:0], s.nodes[0].log...)
		n.term = 1
		n.runner = forgeyard.RunnerID(forgeyard.NewULID(epoch, [10]byte{9: byte(i + 1)}))
	}
	s.committed(s.nodes[0], s.nodes[0].lastIndex())
	for _, m := range s.head().Members.All() {
		for _, n := range s.nodes {
			if m.Name == n.name {
				n.runner = m.Runner
			}
		}
	}
	for _, n := range s.nodes {
		n.start(true)
	}
}

func (s *sim) founding() []site.Body {
	id := forgeyard.SiteID(forgeyard.NewULID(epoch, [10]byte{1}))
	hash := [32]byte{7}
	return []site.Body{
		site.Init{Site: id, Name: "sim", Config: s.shape.config, Runner: forgeyard.RunnerID(forgeyard.NewULID(epoch, [10]byte{9: 1})), Node: "n1", Peer: "peer-n1"},
		site.TokenCreate{Token: "T", Hash: hash, Expires: forgeyard.WallOf(epoch.Add(time.Hour)), Uses: 2, MayVote: true},
		site.Join{Token: "T", Hash: hash, Peer: "peer-n2", Name: "n2"},
		site.Join{Token: "T", Hash: hash, Peer: "peer-n3", Name: "n3"},
		site.UplinkConnect{Central: site.Central{Peer: "central", Name: "central"}, Terms: s.shape.terms},
	}
}

// caps is what every machine is.
func (n *node) caps() job.Capabilities {
	c := job.Capabilities{
		OS: "linux", Arch: "amd64", MilliCPU: 3000, Memory: 16 << 30, Disk: 200 << 30, MaxJobs: 3,
		Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}}, Networks: []job.Network{job.NetworkNone},
	}
	for i := range n.s.shape.devices[n.id] {
		c.Devices = append(c.Devices, job.DeviceFact{ID: forgeyard.DeviceID(fmt.Sprintf("%s-board%d", n.name, i+1)), Kind: "board"})
	}
	return c
}

// start begins a process, after a boot of the machine if power says so.
func (n *node) start(power bool) {
	n.up, n.paused, n.deferred = true, false, nil
	n.life++
	if power {
		n.clk.reboot()
	}
	n.witness.Own = false
	if n.life == 1 || n.s.chance(100) { // its file was lost, or its last figure not yet on disk
		n.witness = reckon.Memory{}
	}
	n.role, n.leads, n.commit, n.applied, n.votes = follower, -1, 0, 0, 0
	n.pending, n.waiters, n.lead, n.execs, n.soon = nil, nil, nil, nil, false
	if lost := uint64(n.s.faults.amnesia); lost > 0 && n.life > 1 && n.lastIndex() > lost+5 {
		n.log = n.log[:n.lastIndex()-lost]
	}
	n.bootLast = n.lastIndex()
	n.session = forgeyard.SessionID(fmt.Sprintf("%s/%d", n.name, n.life))
	n.book = agent.NewBook()
	n.s.trace("%s starts as %s", n.name, n.session)
	n.resetElection()
	n.after(time.Duration(n.s.rng.IntN(200))*time.Millisecond, n.raftLoop)
	n.nudge()
	n.deliverSpooled(func() { n.register(0) })
}

// crash ends the process: memory is gone, and every workload with it, since who
// registers next has killed what was left.
func (n *node) crash() {
	for _, x := range n.execs {
		x.die("its machine is gone")
	}
	n.up = false
	n.life++
	if n.lead != nil {
		n.lead = nil
	}
	n.pending, n.waiters, n.deferred = nil, nil, nil
	n.role = follower
}

// resume lets a paused machine go on. Comparing the clock is the first thing that it
// does; then comes what was waiting, in its order.
func (n *node) resume() {
	if !n.paused {
		return
	}
	n.paused = false
	n.s.trace("%s goes on", n.name)
	n.resuming = true
	for _, x := range n.execs {
		if x.over {
			x.die("it was killed before")
		}
	}
	n.step()
	n.resuming = false
	waiting := n.deferred
	n.deferred = nil
	life := n.life
	for _, f := range waiting {
		if n.life == life {
			n.run(f)
		}
	}
}

func (n *node) waitApplied(index uint64, timeout time.Duration, f func()) {
	if n.applied >= index {
		f()
		return
	}
	done := false
	once := func() {
		if !done {
			done = true
			f()
		}
	}
	n.waiters = append(n.waiters, waiter{index, once})
	n.after(timeout, once)
}

func (n *node) wakeWaiters() {
	var ready []func()
	kept := n.waiters[:0:0]
	for _, w := range n.waiters {
		if w.index <= n.applied {
			ready = append(ready, w.f)
		} else {
			kept = append(kept, w)
		}
	}
	n.waiters = kept
	for _, f := range ready {
		f()
	}
}

// nudge lets the agent look soon.
func (n *node) nudge() {
	if n.soon {
		return
	}
	n.soon = true
	n.after(time.Millisecond, func() { n.soon = false; n.step() })
}

// step is the agent's loop: decide, obey, set the alarm.
func (n *node) step() {
	in := agent.Input{State: n.state(), Me: n.runner, Session: n.session, Caps: n.caps()}
	now := n.clk.Now()
	effects, wake := agent.Step(now, in, n.book)
	for _, e := range effects {
		n.obey(e)
	}
	n.askForDeadlines()
	n.looks++
	mine := n.looks
	n.after(wake.Sub(now), func() {
		if mine == n.looks {
			n.step()
		}
	})
}

func (n *node) obey(e agent.Effect) {
	switch e := e.(type) {
	case agent.Accept:
		n.accept(e.Authority)
	case agent.Reject:
		n.s.trace("%s rejects %s: %s", n.name, short(e.Authority), e.Detail)
		n.propose(n.name, site.Reject{Authority: e.Authority, Reason: e.Reason, Detail: e.Detail}, proposeFor, nil)
	case agent.Start:
		n.begin(e.Job, e.Lease)
	case agent.Cancel:
		if x := n.execution(e.Lease); x != nil {
			x.cancel(e.Why)
		} else {
			n.cancelUnstarted(e.Lease, e.Why)
		}
	case agent.Stop:
		if x := n.execution(e.Lease); x != nil {
			x.stop(e.Kind, e.Why)
		}
	case agent.Kill:
		if x := n.execution(e.Lease); x != nil {
			x.kill(e.Why)
		}
	case agent.ResetDevice:
		n.resetDevice(e)
	case agent.CheckDevice:
		n.checkDevice(e.Device)
	}
}

func (n *node) accept(a forgeyard.Authority) {
	sent := n.clk.Now()
	n.propose(n.name, site.Accept{Authority: a}, proposeFor, func(r site.Reply, known bool) {
		if known && r.Err() == nil {
			n.book.Accepted(a.Lease, n.s.faults.counted(n, sent))
		} else {
			n.book.NotAccepted(a.Lease)
		}
		n.nudge()
	})
}
