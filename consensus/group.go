package consensus

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// Result is what became of a proposal: its place in the log, which commands of one entry
// share, and what Apply returned for this one.
type Result struct {
	Index uint64
	Value any
}

// Group is this node's part of the Raft group. All methods may be called at any
// time by any goroutine; after Close they return errors of kind Unavailable.
type Group struct {
	cfg     Config
	machine *machine
	layer   *sharedLayer // nil with a test's transport
	events  *eventQueue
	term    atomic.Uint64 // on disk

	ctx    context.Context // of everything the group starts itself
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	quit   chan struct{} // Close was called
	done   chan struct{} // the supervisor has ended

	plan       atomic.Pointer[rebuildPlan] // nil unless rebuilding
	reseed     atomic.Pointer[Reseed]      // nil unless a new group is to begin here
	refused    atomic.Pointer[error]       // why the last such plan was given up
	lineage    atomic.Pointer[string]
	wake       chan struct{} // some instance has a fault; capacity 1
	leadership *leadershipBoard
	rounds     rounds
	batches    batchCount
	transfer   transferWatch
	boots      *boots

	mu     sync.Mutex
	in     *instance // nil while down
	why    error     // while down: what callers are told
	closed bool
	last   []raft.Server // members as last seen
}

// Open opens or creates this node's part. It returns once what was committed
// and known to be so is being replayed; a new node waits to be bootstrapped or
// added by a leader.
//
// Errors: Invalid for a bad Config, Conflict if another process holds Dir,
// Corrupt if the log or every snapshot is unreadable, NoSpace.
func Open(cfg Config) (*Group, error) {
	if err := cfg.prepare(); err != nil {
		return nil, err
	}
	g := &Group{cfg: cfg, quit: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1)}
	g.events = newEventQueue(cfg.Log, cfg.OnEvent)
	g.leadership = &leadershipBoard{onChange: g.onLeadership}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	var own nonce
	_, err := rand.Read(own[:])
	invariant.NoError(err, "the system has randomness")
	if g.machine, err = newMachine(cfg.FSM, own, newStamper(cfg.StateVersion), cfg.off); err != nil {
		return nil, forgeyard.E("open consensus", forgeyard.Other, err)
	}
	g.machine.onChecked = func(i uint64) { g.events.put(Event{Kind: HashChecked, Index: i}) }
	g.machine.onHalted = func(i uint64, h *Halt) { g.events.put(Event{Kind: Halted, Index: i, Err: h}) }
	plan, err := readPlan(cfg.Dir)
	if err != nil {
		return nil, err
	}
	g.plan.Store(plan)
	if err := g.readLineage(); err != nil {
		return nil, err
	}
	g.boots = newBoots(g)
	g.machine.quarantined.Store(plan != nil && plan.Snapshots)
	if cfg.Layer != nil {
		g.layer = newSharedLayer(cfg.Layer)
	}
	in, err := g.openInstance(&fault{})
	if err != nil {
		if g.layer != nil {
			err = errors.Join(err, g.layer.close())
		}
		g.cancel()
		return nil, openError(err)
	}
	g.install(in)
	go g.supervise()
	return g, nil
}

func openError(err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return forgeyard.E("open consensus", forgeyard.Conflict, err).WithHint("another process has this data directory open")
	case isNoSpace(err):
		return forgeyard.E("open consensus", forgeyard.NoSpace, err).WithHint("free at least %d MiB", 2*probeBytes>>20)
	}
	return forgeyard.E("open consensus", forgeyard.Other, err)
}

// Bootstrap makes this node the only voter of a new group. Conflict if it has
// a log already.
func (g *Group) Bootstrap(ctx context.Context) error {
	const op = "bootstrap"
	in, err := g.running(op)
	if err != nil {
		return err
	}
	self := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(g.cfg.LocalID), Address: raft.ServerAddress(g.cfg.LocalAddr)}
	err = in.await(ctx, op, func() raft.Future {
		return in.raft.BootstrapCluster(raft.Configuration{Servers: []raft.Server{self}})
	})
	if errors.Is(err, raft.ErrCantBootstrap) {
		return forgeyard.E(op, forgeyard.Conflict, err).WithHint("this node belongs to a group already")
	}
	if err != nil {
		return g.proposalError(op, err)
	}
	in.trans.askForVotesNow()
	return nil
}

// Propose commits a command and returns what Apply made of it on this node.
// Only the leader can. Where Config.Batches allows it, commands that wait share an entry.
//
// Errors: Unavailable (it certainly did not enter the log; NotLeader in the
// chain names the leader), Unknown (it may commit, now or under a later
// leader), Limit (larger than MaxCommand), NoSpace (this node's disk is full).
func (g *Group) Propose(ctx context.Context, data []byte) (Result, error) {
	const op = "propose"
	if len(data) > MaxCommand {
		return Result{}, forgeyard.Errorf(op, forgeyard.Limit, "a command of %d bytes is larger than %d", len(data), MaxCommand)
	}
	in, err := g.running(op)
	if err != nil {
		return Result{}, err
	}
	var r Result
	if g.cfg.Batches != nil && g.cfg.Batches() {
		r, err = in.gather(ctx, op, data)
	} else {
		r, err = in.propose(ctx, op, encodeCommand(data))
	}
	if errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		g.checkTransfer(in)
	}
	return r, g.proposalError(op, err)
}

// present is the instance that runs; nil while there is none.
func (g *Group) present() *instance {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.in
}

// votes says whether a member does, by the newest configuration in the log.
func (g *Group) votes(id string) bool {
	in := g.present()
	return in != nil && slices.ContainsFunc(in.servers(), func(s raft.Server) bool { return s.Suffrage == raft.Voter && string(s.ID) == id })
}

// has says whether there is such a member, by the newest configuration in the log.
func (g *Group) has(id string) bool {
	return slices.ContainsFunc(g.Members(), func(m Member) bool { return m.ID == id })
}

// leadsIn is the term that this node leads now; zero: it does not.
func (g *Group) leadsIn() uint64 {
	in := g.present()
	if in == nil {
		return 0
	}
	if term := in.raft.CurrentTerm(); in.leads(term) {
		return term
	}
	return 0
}

// running returns the current instance, or why there is none.
func (g *Group) running(op string) (*instance, error) {
	g.mu.Lock()
	in := g.in
	g.mu.Unlock()
	if in == nil {
		return nil, g.unavailable(op)
	}
	if g.machine.quarantined.Load() {
		return nil, forgeyard.E(op, forgeyard.Unavailable, errQuarantined)
	}
	if h := g.machine.halted.Load(); h != nil {
		return nil, forgeyard.E(op, forgeyard.Unavailable, h)
	}
	return in, nil
}

func (g *Group) unavailable(op string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return forgeyard.E(op, forgeyard.Unavailable, errClosed)
	case g.why == nil:
		return forgeyard.E(op, forgeyard.Unavailable, errStopped)
	}
	_, kind := diskKind(g.why)
	e := forgeyard.E(op, kind, g.why)
	if kind == forgeyard.NoSpace {
		return e.WithHint("free space on the disk of %s; the node returns by itself", g.cfg.Dir)
	}
	return e
}

// Leader names the leader this node knows of, empty if none. It is a hint for
// whom to ask, never a proof.
func (g *Group) Leader() (id, addr string, term uint64) {
	g.mu.Lock()
	in := g.in
	g.mu.Unlock()
	if in == nil {
		return "", "", g.Term()
	}
	a, i := in.raft.LeaderWithID()
	return string(i), string(a), g.Term()
}

// IsLeader says that this node leads and has applied everything of before. It
// may be out of date when it returns; Confirm is the guard.
func (g *Group) IsLeader() bool { return g.leadership.get().IsLeader }

// Term is the highest term this node has on disk.
func (g *Group) Term() uint64 { return g.term.Load() }

// LastEntry is where this node's log ends: how current it is, compared by term first. A log
// that cannot be read is an error, never an empty one: what is decided by it would take
// every other log for newer, or this node for one that has nothing. Unavailable while the
// group is restarting or closed.
func (g *Group) LastEntry() (term, index uint64, err error) {
	g.mu.Lock()
	in := g.in
	g.mu.Unlock()
	if in == nil {
		return 0, 0, g.unavailable("log")
	}
	at, err := in.store.lastEntry()
	if err != nil {
		return 0, 0, forgeyard.E("read the end of the log", forgeyard.Other, err)
	}
	if snap, err := in.snaps.at(); err == nil && snap.compare(at) > 0 {
		at = snap
	}
	return at.Term, at.Index, nil
}

// HashAt returns the hash of this node's state at a mark, once that is
// applied: what a peer's HashOf asks. NotFound if it remembers none there.
func (g *Group) HashAt(ctx context.Context, index uint64) ([32]byte, error) {
	if err := g.WaitApplied(ctx, index); err != nil {
		return [32]byte{}, err
	}
	if k := g.machine.markAt(index); k != nil {
		select {
		case <-k.done:
			return k.hash, nil
		case <-ctx.Done():
			return [32]byte{}, waitError("state hash", ctx)
		}
	}
	return [32]byte{}, forgeyard.Errorf("state hash", forgeyard.NotFound, "no mark at index %d is remembered", index)
}

// Applied is the index of the last entry whose effect is in the state.
func (g *Group) Applied() uint64 { return g.machine.applied.Load() }

// Suspect reports that the state which readers have here may be wrong, or is not
// yet what it was: it differs from the group's and is given up, or it is being
// built again. Ask before you look at the state.
func (g *Group) Suspect() bool { return g.machine.suspect() }

// Changed is closed at the next apply. Take it before you look at the state.
func (g *Group) Changed() <-chan struct{} { return g.machine.Changed() }

// WaitApplied returns once index is applied here. index must come from this
// package: Result, Confirm or Applied of any node.
func (g *Group) WaitApplied(ctx context.Context, index uint64) error {
	return g.machine.wait(ctx, index, g.quit)
}

// Snapshot writes one now and shortens the log behind it.
func (g *Group) Snapshot(ctx context.Context) error {
	const op = "snapshot"
	in, err := g.running(op)
	if err != nil {
		return err
	}
	err = in.await(ctx, op, func() raft.Future { return in.raft.Snapshot() })
	switch {
	case err == nil, errors.Is(err, raft.ErrNothingNewToSnapshot):
		return nil
	case isNoSpace(err):
		return forgeyard.E(op, forgeyard.NoSpace, err)
	}
	return forgeyard.E(op, forgeyard.Unavailable, err)
}

// Close leaves the group's work to the others and closes everything. With a
// disk that hangs it returns when ctx ends, and what hangs is left behind.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	g.mu.Unlock()
	if first {
		close(g.quit)
		g.cancel()
	}
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
		return waitError("close consensus", ctx)
	}
}

// spawn starts a task of the group; false once it is closing.
func (g *Group) spawn(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.tasks.Go(f)
	return true
}
