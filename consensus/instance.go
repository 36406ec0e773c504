package consensus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus/carry"
)

// instance is one run of hashicorp/raft with its stores and its transport. It
// is started and stopped by the group's supervisor and never started twice.
type instance struct {
	g       *Group
	store   *guardedStore
	snaps   *shelf
	trans   *guardedTransport
	raft    *raft.Raft
	notify  chan bool     // from raft's main loop, unbuffered: it waits for us
	quit    chan struct{} // raft has stopped
	watch   sync.WaitGroup
	fault   atomic.Pointer[fault] // the first one; the supervisor ends the instance
	batch   batcher
	lent    *lentLayer       // nil with a test's transport, as is
	carrier *carry.Transport // what carries calls
	broken  chan struct{}    // capacity 1: see lossWatch

	mu       sync.Mutex
	refusing bool
	pending  int
	idle     chan struct{} // made by stop, closed when pending is zero
}

func snapshotDir(dir string) string { return filepath.Join(dir, "snapshots") }

// openInstance opens the stores, carries out a rebuild that is planned, and
// starts raft. After a fault it first makes sure that the disk works.
func (g *Group) openInstance(after *fault) (*instance, error) {
	if err := os.MkdirAll(g.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	in := &instance{g: g, notify: make(chan bool), quit: make(chan struct{}), broken: make(chan struct{}, 1)}
	disk, err := g.cfg.openStore(filepath.Join(g.cfg.Dir, "raft.db"))
	if err != nil {
		return nil, err
	}
	in.store, err = newGuardedStore(disk, &g.cfg, &g.term, in.storeBroken)
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	if err = in.prepare(after); err == nil {
		err = g.boots.begin(in.store)
	}
	if err == nil {
		err = in.start()
	}
	if h := g.machine.halted.Load(); err != nil && h != nil {
		err = h // raft's own words only say that no snapshot could be read
	}
	if err != nil {
		return nil, errors.Join(err, in.store.close())
	}
	return in, nil
}

// storeBroken is called from the failing write itself.
func (in *instance) storeBroken(err error) {
	kind, _ := diskKind(err)
	in.report(fault{kind: kind, err: err})
}

// report tells the supervisor that this instance must end. The first word counts.
func (in *instance) report(f fault) {
	in.fault.CompareAndSwap(nil, &f)
	select {
	case in.g.wake <- struct{}{}:
	default:
	}
}

func (in *instance) diverged(index uint64) {
	in.report(fault{kind: Diverged, wipe: wipeAll,
		err: forgeyard.Errorf("state check", forgeyard.Corrupt, "the state at index %d differs from the group's", index)})
}

func (in *instance) prepare(after *fault) error {
	g := in.g
	if after.kind == DiskFull {
		if err := in.store.probe(); err != nil {
			return err
		}
	}
	if err := removeHalfSnapshots(g.cfg.Dir); err != nil {
		return err
	}
	var err error
	if in.snaps, err = g.openSnapshots(); err != nil {
		return err
	}
	plan := g.plan.Load()
	if after.wipe != wipeNothing && !after.planned {
		if plan, err = g.planWipe(in.store, in.snaps, after.wipe, after.kind); err != nil {
			return err
		}
		g.plan.Store(plan)
		after.planned = true // another attempt carries it out
	}
	if r := g.reseed.Load(); r != nil {
		return in.carryOut(r)
	}
	if plan == nil || plan.Wiped {
		return nil
	}
	if err := g.wipeStore(in.store, plan); err != nil {
		return err
	}
	in.snaps, err = g.openSnapshots()
	return err
}

func (g *Group) openSnapshots() (*shelf, error) {
	s, err := raft.NewFileSnapshotStoreWithLogger(g.cfg.Dir, g.cfg.RetainSnapshots, newHCLog(g.cfg.Log).Named("snapshot"))
	return &shelf{SnapshotStore: s}, err
}

// removeHalfSnapshots clears what a crash left; raft itself never does.
func removeHalfSnapshots(dir string) error {
	list, err := os.ReadDir(snapshotDir(dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range list {
		if strings.HasSuffix(e.Name(), ".tmp") {
			if err := os.RemoveAll(filepath.Join(snapshotDir(dir), e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// start runs raft. raft panics on a log that it cannot read; at a start that
// is an error and not the end of the process.
func (in *instance) start() (err error) {
	g := in.g
	inner, err := g.cfg.openTransport(in)
	if err != nil {
		return err
	}
	in.trans = newGuardedTransport(inner, in)
	defer func() {
		if r := recover(); r != nil {
			err = forgeyard.Errorf("open consensus", forgeyard.Corrupt, "raft: %v", r)
		}
		if err != nil {
			in.trans.Close()
		}
	}()
	cache, err := raft.NewLogCache(logCacheEntries, in.store)
	if err != nil {
		return err
	}
	g.machine.seen, g.machine.onDiverged, g.machine.onApplied = 0, in.diverged, in.applied
	in.raft, err = raft.NewRaft(g.cfg.raftConfig(in.notify), g.machine, cache, in.store, in.snaps, in.trans)
	if err != nil {
		return err
	}
	if to, ok := g.machine.fsm.(Preparer); ok {
		in.store.prepares(&preparer{m: g.machine, to: to})
	}
	ahead, follows := in.leadsOthers, in.follows
	in.store.ahead.may.Store(&ahead)
	in.store.follows.Store(&follows)
	in.watch.Go(in.watchLeadership)
	in.watch.Go(func() { g.boots.watch(in) })
	if in.lent != nil {
		in.watch.Go(in.trans.loss.run)
	}
	if in.soleVoter() {
		in.trans.askForVotesNow()
	}
	return nil
}

func (in *instance) soleVoter() bool {
	voters, self := in.voters()
	return self && voters == 1
}

// voters counts them, by the newest configuration in the log.
func (in *instance) voters() (n int, self bool) {
	for _, s := range in.servers() {
		if s.Suffrage == raft.Voter {
			n++
			self = self || string(s.ID) == in.g.cfg.LocalID
		}
	}
	return n, self
}

// leadsOthers says that what raft stores now is a leader's, and that a commit takes more
// than the leader. On raft's main goroutine it is exact: that changes both.
func (in *instance) leadsOthers() bool {
	if in.raft.State() != raft.Leader {
		return false
	}
	n, _ := in.voters()
	return n > 1
}

// follows says that what raft stores now came from a leader: on its main goroutine, where
// it is exact.
func (in *instance) follows() bool { return in.raft.State() == raft.Follower }

func (in *instance) servers() []raft.Server {
	return in.raft.GetConfiguration().Configuration().Servers
}

func (in *instance) leads(term uint64) bool {
	return in.raft.State() == raft.Leader && in.raft.CurrentTerm() == term
}

// enter admits one call to raft; leave ends it.
func (in *instance) enter() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.refusing {
		return false
	}
	in.pending++
	return true
}

func (in *instance) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.pending--; in.pending == 0 && in.idle != nil {
		close(in.idle)
		in.idle = nil
	}
}

// await runs one call to raft and waits for its future, for the caller to give
// up, or for the instance to stop. The future's own wait has no end if raft
// stops at a bad moment, which is why stop lets pending calls end first.
func (in *instance) await(ctx context.Context, op string, call func() raft.Future) error {
	if !in.enter() {
		return in.g.unavailable(op)
	}
	done := make(chan error, 1)
	go func() {
		defer in.leave()
		done <- call().Error()
	}()
	select {
	case err := <-done:
		return in.withCause(err)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.quit:
		return in.whyStopped()
	}
}

// withCause adds what the store knows: raft's log cache keeps only the text of an error.
func (in *instance) withCause(err error) error {
	if cause := in.store.failure(); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

func (in *instance) whyStopped() error {
	if cause := in.store.failure(); cause != nil && !errors.Is(cause, errClosed) {
		return fmt.Errorf("%w: %w", errStopped, cause) // it stopped for that
	}
	return errStopped
}

// propose puts bytes into the log and returns what Apply made of them.
func (in *instance) propose(ctx context.Context, op string, data []byte) (Result, error) {
	var future raft.ApplyFuture
	err := in.await(ctx, op, func() raft.Future {
		future = in.raft.Apply(data, 0)
		return future
	})
	if err != nil {
		return Result{}, err
	}
	return Result{Index: future.Index(), Value: future.Response()}, nil
}

// proposeHere is propose on the caller's own goroutine, for as long as raft takes.
func (in *instance) proposeHere(op string, data []byte) (Result, error) {
	if !in.enter() {
		return Result{}, in.g.unavailable(op)
	}
	defer in.leave()
	future := in.raft.Apply(data, 0)
	if err := future.Error(); err != nil {
		return Result{}, in.withCause(err)
	}
	return Result{Index: future.Index(), Value: future.Response()}, nil
}

// barrier commits an empty entry: it proves leadership at some instant after
// the call, and that everything before it has been applied here.
func (in *instance) barrier(ctx context.Context) (position, error) {
	r, err := in.propose(ctx, "barrier", frame{kind: frameBegin, from: in.g.machine.own}.encode())
	if err != nil {
		return position{}, err
	}
	at, ok := r.Value.(position)
	if !ok {
		return position{}, fmt.Errorf("barrier at %d was skipped as a replay", r.Index)
	}
	return at, nil
}

// watchLeadership turns raft's notices into Leadership. A leader counts as one
// only when its first entry is applied: before, its state may lack what the
// last leader acknowledged.
func (in *instance) watchLeadership() {
	var begun chan position
	ctx, cancel := context.WithCancel(in.g.ctx)
	for {
		select {
		case leads := <-in.notify:
			cancel()
			ctx, cancel = context.WithCancel(in.g.ctx)
			begun = nil
			if !leads {
				in.g.leadership.set(Leadership{Term: in.raft.CurrentTerm()})
				continue
			}
			begun = make(chan position, 1)
			in.watch.Go(func() { in.begin(ctx, begun) })
		case at := <-begun:
			begun = nil
			in.g.leadership.set(Leadership{IsLeader: true, Term: at.Term})
		case <-in.quit:
			cancel()
			return
		}
	}
}

// begin commits the leader's first entry. A node whose last transfer hangs
// refuses even that (26b); it says so here before any caller notices.
func (in *instance) begin(ctx context.Context, begun chan<- position) {
	for {
		at, err := in.barrier(ctx)
		switch {
		case err == nil:
			begun <- at
			return
		case !errors.Is(err, raft.ErrLeadershipTransferInProgress):
			return // deposed or stopped; a notice follows
		}
		in.g.checkTransfer(in)
		select {
		case <-in.g.cfg.Clock.After(in.g.cfg.Timings.Commit):
		case <-ctx.Done():
			return
		case <-in.quit:
			return
		}
	}
}

// stop ends the instance and returns when nothing of it runs any more, which
// a hung disk can delay for ever. isolate is called once peers and callers
// can no longer reach it.
func (in *instance) stop(grace time.Duration) error {
	in.mu.Lock()
	in.refusing = true
	idle := make(chan struct{})
	if in.pending == 0 {
		close(idle)
	} else {
		in.idle = idle
	}
	in.mu.Unlock()
	select {
	case <-idle:
	case <-in.g.cfg.Clock.After(grace):
	}
	stopped := in.raft.Shutdown()
	closing := in.trans.Close()
	err := stopped.Error()
	close(in.quit)
	in.watch.Wait()
	in.g.boots.save(in, true)
	in.g.leadership.set(Leadership{Term: in.g.Term()}) // raft need not have said so
	return errors.Join(err, closing, in.store.close())
}
