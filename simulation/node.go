package simulation

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
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
	gone     bool // removed by a person, for good
	lost     bool // its data dir was copied: it is cut off, for good
	paused   bool
	asleep   bool
	resuming bool     // a paused machine takes its first look
	life     int32    // counts processes: what an earlier one began never comes back
	deferred []func() // what happened to a paused machine

	raftState
	world    *world // of its incarnation
	bootLast uint64 // last entry of the log when this process began: later ones are live

	runner  forgeyard.RunnerID
	session forgeyard.SessionID
	book    *agent.Book
	execs   []*execution
	lead    *leadership
	looks   int // generation of the agent's alarm
	soon    bool
	waiters []waiter
	beats   int    // counts heartbeats
	renewed bool   // a heartbeat is asked for out of turn, while one is under way
	hurry   func() // asks for it, while none is
	facts   job.Capabilities
	formats site.FormatRange // of the log, that its program reads; zero: the first one

	witness reckon.Memory

	inherited map[forgeyard.JobID]lease.Lease // by a fault: the lease whose terms go on

	// On disk.
	dataDir   string // the file whose lock a process holds: a copy is another
	disk      disk
	spool     []*completion
	witnessed []byte // the file
	hosted    map[forgeyard.DeviceID]*hosted
	objects   objects
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
	n.s.events.push(event{at: n.s.now + n.clk.span(d), n: n, life: n.life, f: f})
}

func (n *node) state() *site.State { return n.world.states[n.applied] }

// boot brings up a site that was formed before.
func (s *sim) boot() {
	g := &group{}
	for i := range s.sc.Nodes {
		name := fmt.Sprintf("n%d", i+1)
		ppm := s.rng.Int64N(9_600) - 4_800 // two clocks differ by less than the 10,000 that the site allows
		c := &nodeClock{s: s, ppm: ppm, name: name, trusted: true}
		n := &node{s: s, world: s.world, id: i, name: name, dataDir: name, clk: c, hosted: map[forgeyard.DeviceID]*hosted{}, raftState: raftState{term: 1, voted: -1, leads: -1}}
		n.objects.of = map[forgeyard.Digest]*object{}
		g.member[i], g.voter[i] = true, i < s.sc.Voters
		n.groups = []groupAt{{0, g}}
		n.facts = n.caps()
		if !s.sc.Old[i] {
			n.upgrade()
		}
		s.nodes = append(s.nodes, n)
	}
	for _, b := range s.founding() {
		raw := site.Command{ID: forgeyard.MessageID(s.newID("found")), At: forgeyard.WallOf(epoch), By: "founder", Body: b}.Encode()
		for _, n := range s.nodes {
			n.log = append(n.log, entry{term: 1, cmds: [][]byte{raw}})
			n.synced = n.lastIndex()
		}
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

// byRunner is the machine of a runner.
func (s *sim) byRunner(id forgeyard.RunnerID) *node {
	for _, n := range s.nodes {
		if n.runner == id {
			return n
		}
	}
	return nil
}

// caps is what every machine is.
func (n *node) caps() job.Capabilities {
	c := job.Capabilities{
		OS: "linux", Arch: "amd64", MilliCPU: 3000, Memory: 16 << 30, Disk: 200 << 30, MaxJobs: 3,
		Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}, {Kind: job.SandboxOwn}}, Networks: []job.Network{job.NetworkNone},
	}
	for i := range n.s.sc.Devices[n.id] {
		c.Devices = append(c.Devices, job.DeviceFact{ID: forgeyard.DeviceID(fmt.Sprintf("%s-board%d", n.name, i+1)), Kind: "board"})
	}
	return c
}

// start begins a process, after a boot of the machine if power says so. Where the disk
// cannot be read it does not, and is tried again.
func (n *node) start(power bool) {
	n.life++
	if n.disk.unreadable > 0 {
		n.s.trace("%s does not start: its disk cannot be read", n.name)
		life := n.life
		n.s.after(int64(2*time.Second), func() {
			if !n.up && n.life == life && !n.gone {
				n.start(power)
			}
		})
		return
	}
	n.up, n.paused, n.asleep, n.deferred = true, false, false, nil
	if power {
		n.clk.reboot()
	}
	n.recall()
	n.role, n.leads, n.commit, n.applied, n.votes = follower, -1, 0, 0, 0
	n.pending, n.queue, n.waiters, n.lead, n.soon, n.hurry, n.renewed = nil, nil, nil, nil, false, nil, false
	if !n.s.faults.orphans {
		n.execs = nil
	}
	if lost := uint64(n.s.faults.amnesia); lost > 0 && n.life > 1 && n.lastIndex() > lost+8 {
		n.cutLog(n.lastIndex() - lost)
	}
	if n.s.faults.forgetsVote {
		n.voted = -1
	}
	n.bootLast = n.lastIndex()
	n.session = forgeyard.SessionID(fmt.Sprintf("%s/%d", n.name, n.life))
	n.book, n.inherited = agent.NewBook(), map[forgeyard.JobID]lease.Lease{}
	n.s.trace("%s starts as %s", n.name, n.session)
	n.resetElection()
	n.after(time.Duration(n.s.rng.IntN(200))*time.Millisecond, n.raftLoop)
	n.after(n.s.within(5*time.Second, 15*time.Second), n.upkeep)
	n.nudge()
	n.deliverSpooled(n.enter)
}

// recall reads what an earlier process left beside the log.
func (n *node) recall() {
	n.witness = reckon.Memory{}
	if seen, err := reckon.DecodeSighting(n.witnessed); err == nil {
		n.witness.Seen = seen
	}
	for id, g := range n.hosted { // each on its own: their order does not show
		if n.s.faults.blankGate {
			n.hosted[id] = &hosted{}
		} else if g.lost {
			n.hosted[id] = &hosted{damaged: true}
		}
	}
}

// keepSighting writes the witness's file, a little after the fact.
func (n *node) keepSighting() {
	raw := n.witness.Seen.Encode()
	n.after(n.syncFor(), func() {
		if n.disk.full == 0 {
			n.witnessed = raw
		}
	})
}

// crash ends the process: memory is gone, and every workload with it, since who
// registers next has killed what was left.
func (n *node) crash() {
	for _, x := range n.execs {
		if !n.s.faults.orphans {
			x.die()
		}
	}
	n.up = false
	n.life++
	if n.lead != nil {
		n.lead = nil
	}
	n.pending, n.queue, n.waiters, n.deferred = nil, nil, nil, nil
	n.role = follower
}

// resume lets a paused machine go on. Comparing the clock is the first thing that it
// does; then comes what was waiting, in its order.
func (n *node) resume() {
	if !n.paused {
		return
	}
	n.paused, n.asleep = false, false
	n.s.trace("%s goes on", n.name)
	n.resuming = true
	for _, x := range n.execs {
		if x.over {
			x.die()
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
	in := agent.Input{State: n.looksAt(), Me: n.runner, Session: n.session, Caps: n.facts}
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

// looksAt is the state that the agent sees: the node's copy of the log, but for a fault.
func (n *node) looksAt() *site.State {
	if len(n.inherited) == 0 {
		return n.state()
	}
	st := *n.state()
	for id, was := range n.inherited {
		if j, ok := st.Jobs.Get(id); ok && j.Lease.Live() && j.Lease.Authority.Session == n.session {
			j.Lease.Policy, j.Lease.Terms = was.Policy, was.Terms
			st.Jobs = st.Jobs.Put(id, j)
		}
	}
	return &st
}

// inherit is the fault by which the next epoch of a job has the terms of this one.
func (n *node) inherit(l lease.Lease) {
	if n.s.faults.oldTerms {
		n.inherited[l.Authority.Job] = l
	}
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
			x.stop(e.Kind, e.Why, e.Wish)
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
