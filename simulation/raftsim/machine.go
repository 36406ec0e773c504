package raftsim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/consensus/seam"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/leading"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/site"
)

// machine is a box with a disk and a clock, and at most one process. Its name is its
// address, on the mesh and in the group.
type machine struct {
	w      *world
	id     int
	name   string
	runner forgeyard.RunnerID
	clk    *nodeClock
	disk   *disk
	lives  int
	dir    string // snapshots of the present life

	booting atomic.Bool

	mu sync.Mutex
	p  *process // nil while down
}

func newMachine(w *world, i int) *machine {
	m := &machine{
		w: w, id: i, name: fmt.Sprintf("n%d", i+1), runner: runnerID(i),
		clk:  &nodeClock{start: w.start, ppm: w.rng.Int64N(9_600) - 4_800}, // two differ by less than the 10,000 that the site allows
		disk: newDisk(w, uint64(i+1)),
	}
	m.disk.awake = m.clk.awake
	return m
}

// runnerID names the runner of machine i.
func runnerID(i int) forgeyard.RunnerID {
	return forgeyard.RunnerID(forgeyard.NewULID(time.Unix(1_800_000_000, 0), [10]byte{9: byte(i + 1)}))
}

func (m *machine) process() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.p
}

func (m *machine) set(p *process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.p = p
}

func (m *machine) stopped() bool {
	m.clk.mu.Lock()
	defer m.clk.mu.Unlock()
	return m.clk.stopped != nil
}

// machine is the one of that name.
func (w *world) machine(name string) *machine {
	for _, m := range w.nodes {
		if m.name == name {
			return m
		}
	}
	panic("no machine is called " + name)
}

// reach is the process that answers at an address.
func (w *world) reach(addr string) *process {
	for _, m := range w.nodes {
		if m.name == addr {
			return m.process()
		}
	}
	return nil
}

// leader is a process that believes that it leads.
func (w *world) leader() *process {
	for _, m := range w.nodes {
		if p := m.process(); p != nil && p.leading.Load() != nil {
			return p
		}
	}
	return nil
}

// boot starts a process on what the disk has. A machine has one at a time: one whose start
// takes as long as the machine stands still is not started again meanwhile.
func (m *machine) boot() {
	if !m.booting.CompareAndSwap(false, true) {
		return
	}
	defer m.booting.Store(false)
	if m.process() != nil {
		return
	}
	m.lives++
	p, err := m.start()
	if err != nil {
		m.w.fail("progress", "%s does not start: %v", m.name, err)
		return
	}
	m.set(p)
	m.w.trace("%s starts as %s", m.name, p.session)
	p.run()
}

// crash ends the process; with the machine's power its peers are not told either.
func (m *machine) crash(power bool) {
	p := m.process()
	if p == nil {
		return
	}
	m.w.trace("%s crashes, power lost: %v", m.name, power)
	m.clk.resume()
	m.set(nil)
	p.dead.Store(true)
	p.port.shutdown(!power)
	if p.gossiper != nil {
		p.gossiper.port.shutdown(!power)
	}
	m.disk.crash()
	m.w.net.look()
	m.w.count(func(r *Result) { r.Restarts++ })
	next := fmt.Sprintf("%s.%d", m.name, m.lives+1)
	if err := copyTree(m.dir, next); err != nil {
		m.w.fail("progress", "the snapshots of %s cannot be carried over: %v", m.name, err)
	}
	m.dir = next
	p.abandon()
}

// copyTree keeps what a crash leaves of the snapshots: the old process may write on.
func copyTree(from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	return filepath.Walk(to, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o700)
	})
}

// mend ends what is wrong with the machine.
func (m *machine) mend() {
	m.disk.heal()
	if m.stopped() {
		m.w.trace("%s goes on", m.name)
		m.clk.resume()
		m.w.net.look()
	}
	m.boot()
}

// process is one run of the node's program on a machine.
type process struct {
	w        *world
	m        *machine
	session  forgeyard.SessionID
	dir      string // its snapshots
	ctx      context.Context
	cancel   context.CancelFunc
	dead     atomic.Bool // it crashed: nothing that it still does counts
	port     *port
	gossiper *gossiper    // nil if this site does not gossip
	gossip   *mesh.Gossip // as gossiper
	group    *consensus.Group
	replica  *replica.Replica
	proposer *replica.Proposer
	leading  atomic.Pointer[leading.Leadership]
	term     atomic.Uint64 // that it last led
	tasks    sync.WaitGroup

	renewNow chan struct{} // capacity 1
	kick     chan struct{} // capacity 1

	mu    sync.Mutex // guards what is below
	book  *agent.Book
	execs map[forgeyard.LeaseID]*execution
}

func (m *machine) start() (*process, error) {
	if m.dir == "" {
		m.dir = fmt.Sprintf("%s.%d", m.name, m.lives)
	}
	p := &process{
		w: m.w, m: m, session: forgeyard.SessionID(fmt.Sprintf("%s/%d", m.name, m.lives)), dir: m.dir, replica: replica.New(),
		renewNow: make(chan struct{}, 1), kick: make(chan struct{}, 1), book: agent.NewBook(), execs: map[forgeyard.LeaseID]*execution{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.port = m.w.net.listen(p, m.name)
	p.replica.Observe(p.applied)
	var state consensus.StateMachine = p.replica
	if f := m.w.faults.State; f != nil {
		state = f(m.id, m.lives, state)
	}
	g, err := consensus.Open(consensus.Config{
		Dir: p.dir, LocalID: string(m.runner), LocalAddr: m.name, Layer: p.port, FSM: state, Clock: m.clk, Log: verbose(m.name),
		Timings: m.w.shape.timings(m.id), SnapshotAfter: m.w.shape.snapshotAfter, TrailingLogs: m.w.shape.trailing,
		TermOf: p.termOf, HashOf: p.hashOf, StateVersion: "sim", OnEvent: p.event, Batches: func() bool { return m.w.shape.batches },
		Seam: &seam.Parts{Off: m.w.faults.Off, Open: func(string) (seam.Store, error) { return m.disk.open() }, Between: p.between},
	})
	if err != nil {
		p.port.shutdown(true)
		return nil, err
	}
	p.group = g
	p.proposer = &replica.Proposer{
		Group: g, Self: m.name, Forward: p.forward, Clock: m.clk, By: m.name,
		NewID: func() forgeyard.MessageID { return forgeyard.MessageID(m.w.newID("r")) },
		Route: p.route,
	}
	if m.w.shape.gossip {
		err = p.startGossip()
	}
	return p, err
}

// route is the leader, or another machine where none is known.
func (p *process) route(leader string, try int) string {
	if leader == "" {
		return p.w.nodes[(p.m.id+1+try)%len(p.w.nodes)].name
	}
	return leader
}

// verbose is the log of a run that somebody looks into.
func verbose(name string) *slog.Logger {
	if os.Getenv("RAFTSIM_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
}

func (p *process) run() {
	p.tasks.Go(p.leaderLoop)
	p.tasks.Go(p.sessionLoop)
	p.tasks.Go(p.agentLoop)
}

// abandon clears away a crashed process, on the side.
func (p *process) abandon() {
	p.cancel()
	p.killAll()
	left := p.dir
	p.w.tasks.Go(func() {
		p.end()
		if err := os.RemoveAll(left); err != nil {
			p.w.fail("progress", "what %s left cannot be removed: %v", p.session, err)
		}
	})
}

// close ends the process as an orderly stop does.
func (p *process) close() {
	p.cancel()
	p.killAll()
	p.end()
	p.m.set(nil)
}

func (p *process) end() {
	p.endGossip()
	if err := p.group.Close(context.Background()); err != nil {
		panic(err) // it has no end to its patience
	}
	p.tasks.Wait()
}

// leaderLoop leads whenever this process is the leader, one leadership at a time.
func (p *process) leaderLoop() {
	changes := p.group.LeaderChanges()
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-p.ctx.Done():
			return
		case l, ok := <-changes:
			stop()
			stop = func() {}
			if !ok {
				return
			}
			if l.IsLeader && !p.dead.Load() {
				stop = p.lead(l.Term)
			}
		}
	}
}

func (p *process) lead(term uint64) (stop func()) {
	ctx, cancel := context.WithCancel(p.ctx)
	l := leading.New(leading.Config{
		Self: p.m.runner, Term: term, Group: p.group, Replica: p.replica, Proposer: p.proposer, Clock: p.m.clk, Log: verbose(p.m.name),
		Used: func() (time.Duration, bool) { return 0, true }, // there is no uplink
	})
	p.leading.Store(l)
	p.term.Store(term)
	p.w.trace("%s leads term %d", p.m.name, term)
	p.w.count(func(r *Result) { r.Elections++ })
	p.askRenewal()
	var wg sync.WaitGroup
	wg.Go(func() { l.Run(ctx) })
	for _, m := range p.w.nodes { // whom it reaches renews now
		if m != p.m {
			wg.Go(func() {
				_ = p.w.net.call(ctx, p, m.name, func(_ context.Context, to *process) error { to.askRenewal(); return nil })
			})
		}
	}
	return func() {
		p.leading.CompareAndSwap(l, nil)
		cancel()
		wg.Wait()
		if !p.dead.Load() {
			p.w.trace("%s leads term %d no more", p.m.name, term)
		}
	}
}

// What peers ask of each other.

func (p *process) termOf(ctx context.Context, addr string) (term uint64, err error) {
	err = p.w.net.call(ctx, p, addr, func(_ context.Context, to *process) error {
		var e error
		term, e = to.group.Promised()
		return e
	})
	return term, err
}

func (p *process) hashOf(ctx context.Context, addr string, index uint64) (h [32]byte, err error) {
	err = p.w.net.call(ctx, p, addr, func(ctx context.Context, to *process) error {
		var e error
		h, e = to.group.HashAt(ctx, index)
		return e
	})
	return h, err
}

func (p *process) forward(ctx context.Context, addr string, command []byte) (index uint64, reply []byte, err error) {
	err = p.w.net.call(ctx, p, addr, func(ctx context.Context, to *process) error {
		var e error
		index, reply, e = to.proposer.Here(ctx, command)
		return wire.FromConnect(wire.ToConnect(e)) // as it comes out of the wire
	})
	return index, reply, err
}

// event takes note of what the group says.
func (p *process) event(e consensus.Event) {
	if p.dead.Load() || e.Kind == consensus.HashChecked {
		return
	}
	switch e.Kind {
	case consensus.LeadershipGained, consensus.LeadershipLost: // leaderLoop tells
	case consensus.LeaderLost:
		p.w.trace("%s stands: the leader of term %d is lost", p.m.name, e.Term)
		p.w.check.lost(p, e.Term)
	case consensus.RestartFailed:
		p.w.trace("%s %s: %v", p.m.name, e.Kind, e.Err)
	default:
		p.w.trace("%s %s", p.m.name, e.Kind)
	}
}

func (p *process) applied(a replica.Applied) {
	if !p.dead.Load() {
		p.w.check.applied(p, a)
	}
}

// found makes the first machine a site.
func (w *world) found(p *process) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.group.Bootstrap(ctx); err != nil {
		w.fail("progress", "bootstrap: %v", err)
		return
	}
	for _, b := range w.founding() {
		r, err := p.proposer.Propose(ctx, b)
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			w.fail("progress", "founding %T: %v", b, err)
			return
		}
	}
	// Names are drawn by the log; the machines take theirs.
	for _, member := range p.replica.State().Members.All() {
		for _, m := range w.nodes {
			if m.name == member.Name {
				m.runner = member.Runner
			}
		}
	}
}

func (w *world) founding() []site.Body {
	id := forgeyard.SiteID(forgeyard.NewULID(w.start, [10]byte{1}))
	hash := [32]byte{7}
	bodies := []site.Body{
		site.Init{Site: id, Name: "sim", Config: w.shape.config, Runner: runnerID(0), Node: "n1", Peer: "n1"},
		site.TokenCreate{Token: "T", Hash: hash, Expires: forgeyard.WallOf(w.start.Add(time.Hour)), Uses: w.shape.machines, MayVote: true},
	}
	for i := 1; i < w.shape.machines; i++ {
		name := fmt.Sprintf("n%d", i+1)
		bodies = append(bodies, site.Join{Token: "T", Hash: hash, Peer: name, Name: name})
	}
	return bodies
}

// between taps the calls that leave.
func (p *process) between(t seam.Transport) seam.Transport {
	if f := p.w.faults.Carry; f != nil {
		t = f(t)
	}
	return &tap{Transport: t, p: p}
}

var _ io.Closer = (*store)(nil)
