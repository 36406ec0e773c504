package consensus

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// machine is raft's FSM: it keeps internal entries away from the state
// machine, and keeps the state machine over restarts of raft in this process.
// A restarted raft replays from its snapshot; what is applied already is
// skipped, so readers never see the state go back. Nor do they where it is given
// up and built again: until it is whole, they see the one from before.
type machine struct {
	fsm   StateMachine
	own   nonce
	off   guardsOff
	stamp stamper // of our state hashes
	blank []byte  // a snapshot of the state before the first entry

	onApplied  func(l *raft.Log, value any) // after each batch, for each entry of it
	onDiverged func(index uint64)
	onChecked  func(index uint64)
	onHalted   func(index uint64, h *Halt)
	marked     chan stateHeader // our own marks, towards the check; capacity 1

	applied     atomic.Uint64            // the last index whose effect is in fsm
	floor       atomic.Pointer[position] // see liveAfter; nil: nothing is live yet
	quarantined atomic.Bool
	halted      atomic.Pointer[Halt] // nothing is applied any more

	// goal is where what readers see ends, while the state behind it is built
	// again. 0: they see the state. Written by the applying goroutine, or where
	// no raft runs.
	goal atomic.Uint64

	// seen is the last index that the current raft instance has passed through
	// here. Below applied it is replaying. Owned by the applying goroutine.
	seen uint64

	mu      sync.Mutex
	changed chan struct{} // made when somebody asks, closed at the next apply
	marks   []*mark       // the newest maxMarks, by index
}

// mark is the hash of the state at an index, which is computed aside.
type mark struct {
	index uint64
	done  chan struct{} // closed when hash is there
	hash  [32]byte
}

var _ raft.BatchingFSM = (*machine)(nil)

func newMachine(fsm StateMachine, own nonce, stamp stamper, off guardsOff) (*machine, error) {
	snap, err := fsm.Snapshot()
	if err != nil {
		return nil, err
	}
	var blank bytes.Buffer
	if _, err := snap.WriteTo(&blank); err != nil {
		return nil, err
	}
	m := &machine{fsm: fsm, own: own, stamp: stamp, off: off, blank: blank.Bytes(), marked: make(chan stateHeader, 1)}
	return m, nil
}

// hasher captures the state, and returns what computes its hash.
func (m *machine) hasher() func() [32]byte {
	h := m.fsm.Hasher()
	return func() [32]byte { return m.stamp.put(h()) }
}

// reset returns to the state before the first entry. No raft may be running.
// Readers go on with what they have, until the state reaches whole again.
func (m *machine) reset(whole uint64) error {
	if whole > 0 {
		m.hold(whole)
	}
	m.applied.Store(0)
	m.forgetMarks()
	err := m.fsm.Restore(bytes.NewReader(m.blank), 0)
	if whole == 0 {
		m.release() // they never saw more than the blank one
	}
	return err
}

// whole is the index up to which readers have the state.
func (m *machine) whole() uint64 {
	if g := m.goal.Load(); g != 0 {
		return g
	}
	return m.applied.Load()
}

// hold keeps from readers what becomes of the state until it reaches an index.
func (m *machine) hold(until uint64) {
	if m.goal.Swap(until) == 0 {
		m.fsm.Rebuilding(true)
	}
}

func (m *machine) release() {
	if m.goal.Load() != 0 {
		m.fsm.Rebuilding(false)
		m.goal.Store(0) // last: whoever finds no goal reads the new state
	}
}

func (m *machine) reached(index uint64) {
	m.applied.Store(index)
	if index >= m.goal.Load() {
		m.release()
	}
}

// suspect says that nothing should be begun on the strength of what readers see.
func (m *machine) suspect() bool { return m.quarantined.Load() || m.goal.Load() != 0 }

// liveAfter says that at some time since this process opened the group the
// leader of p.Term had committed up to p.Index, as far as it knew. It knows
// exactly once it has committed in its own term; until then, what it committed
// of older terms is not known to be new. So an entry is live if it is above
// p.Index and not of an older term. The first word stands. What is applied again
// to a state that is built again is not.
func (m *machine) liveAfter(p position) { m.floor.CompareAndSwap(nil, &p) }

func (m *machine) live(l *raft.Log) bool {
	f := m.floor.Load()
	return f != nil && l.Index > max(f.Index, m.goal.Load()) && l.Term >= f.Term
}

// Apply implements raft.FSM; raft calls ApplyBatch instead.
func (m *machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	values := make([]any, len(logs))
	for i, l := range logs {
		m.seen = l.Index
		if l.Index <= m.applied.Load() || m.halted.Load() != nil {
			continue // replayed, the state machine has it; or never to be applied here
		}
		if l.Type == raft.LogCommand {
			values[i] = m.applyOne(l)
			if h, ok := values[i].(*Halt); ok {
				m.halt(l.Index, h)
			}
			if m.halted.Load() != nil {
				continue
			}
		}
		m.reached(l.Index)
	}
	m.announce()
	if m.onApplied != nil {
		for i, l := range logs {
			if len(l.Data) > 0 {
				m.onApplied(l, values[i])
			}
		}
	}
	return values
}

// halt ends the applying for good: what this program cannot read, it must not skip.
func (m *machine) halt(index uint64, h *Halt) {
	if m.halted.CompareAndSwap(nil, h) && m.onHalted != nil {
		m.onHalted(index, h)
	}
}

// applyOne crashes on an entry that it cannot read: to skip what the others
// apply would make this node differ from them for good.
func (m *machine) applyOne(l *raft.Log) any {
	f, err := decodeFrame(l.Data)
	invariant.NoError(err, "a committed log entry can be read")
	switch f.kind {
	case frameCommand:
		return m.fsm.Apply(Entry{Index: l.Index, Term: l.Term, Data: f.data, Live: m.live(l)})
	case frameBatch:
		return m.applyBatch(l, f.batch)
	case frameBegin:
		at := position{Term: l.Term, Index: l.Index}
		if f.from == m.own {
			m.liveAfter(at)
		}
		return at
	case frameMark:
		m.mark(l.Index, m.hasher(), f.from == m.own)
	case frameCheck:
		m.check(f)
	}
	return nil
}

// mark remembers the hash of the state as it is now, and tells the check of it if the
// mark is ours. Apply goes on meanwhile.
func (m *machine) mark(index uint64, hash func() [32]byte, ours bool) {
	k := &mark{index: index, done: make(chan struct{})}
	m.mu.Lock()
	if len(m.marks) >= maxMarks {
		m.marks = m.marks[1:]
	}
	m.marks = append(m.marks, k)
	m.mu.Unlock()
	go func() {
		k.hash = hash()
		close(k.done)
		if ours {
			select {
			case m.marked <- stateHeader{index: index, hash: k.hash}:
			default:
			}
		}
	}()
}

func (m *machine) check(f frame) {
	mine := m.markAt(f.index)
	if mine == nil || m.off.hash || !m.stamp.compares(f.hash) {
		return // restored from a snapshot since the mark, or the hash is of another program's making
	}
	<-mine.done // most voters have told the leader theirs by now
	if mine.hash == f.hash {
		m.onChecked(f.index)
		return
	}
	m.quarantined.Store(true)
	m.onDiverged(f.index)
}

// markAt is the mark at an index, or nil.
func (m *machine) markAt(index uint64) *mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.marks {
		if k.index == index {
			return k
		}
	}
	return nil
}

func (m *machine) forgetMarks() {
	m.mu.Lock()
	m.marks = nil
	m.mu.Unlock()
}

// Changed is closed at the next apply or restore.
func (m *machine) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}

func (m *machine) announce() {
	m.mu.Lock()
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
	m.mu.Unlock()
}

func (m *machine) wait(ctx context.Context, index uint64, quit <-chan struct{}) error {
	for {
		changed := m.Changed()
		if m.quarantined.Load() {
			return forgeyard.E("read", forgeyard.Unavailable, errQuarantined)
		}
		if m.goal.Load() == 0 && m.applied.Load() >= index {
			return nil
		}
		if h := m.halted.Load(); h != nil {
			return forgeyard.E("wait for index", forgeyard.Unavailable, h)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return waitError("wait for index", ctx)
		case <-quit:
			return forgeyard.E("wait for index", forgeyard.Unavailable, errClosed)
		}
	}
}

// Snapshot implements raft.FSM.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	at := m.applied.Load()
	if m.seen < at {
		// raft would file the newer state under the older index.
		return nil, forgeyard.Errorf("snapshot", forgeyard.Unavailable, "the log is being replayed at %d of %d", m.seen, at)
	}
	if m.quarantined.Load() {
		return nil, forgeyard.E("snapshot", forgeyard.Unavailable, errQuarantined)
	}
	if h := m.halted.Load(); h != nil {
		return nil, forgeyard.E("snapshot", forgeyard.Unavailable, h)
	}
	state, err := m.fsm.Snapshot()
	if err != nil {
		return nil, err
	}
	return &capturedState{at, m.hasher(), state}, nil
}

type capturedState struct {
	index uint64
	hash  func() [32]byte
	state Snapshot
}

// Persist implements raft.FSMSnapshot.
func (c *capturedState) Persist(sink raft.SnapshotSink) error {
	_, err := sink.Write(stateHeader{index: c.index, hash: c.hash()}.encode())
	if err == nil {
		_, err = c.state.WriteTo(sink)
	}
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (c *capturedState) Release() {}

// Restore implements raft.FSM.
func (m *machine) Restore(r io.ReadCloser) error {
	head := make([]byte, snapshotHeader)
	if _, err := io.ReadFull(r, head); err != nil {
		return forgeyard.E("snapshot", forgeyard.Corrupt, err)
	}
	at, err := decodeStateHeader(head)
	if err != nil {
		return err
	}
	m.seen = at.index
	if at.index <= m.applied.Load() {
		return nil // an older one, at a restart inside the process
	}
	whole := m.whole()
	m.hold(max(whole, at.index)) // it shows only once its hash is known to be right
	err = m.fsm.Restore(r, at.index)
	if got := [32]byte{}; err == nil {
		if got = m.hasher()(); got != at.hash && m.stamp.compares(at.hash) && !m.off.hash {
			err = forgeyard.Errorf("snapshot", forgeyard.Corrupt, "state hash %x after restore is not %x, which the snapshot names", got[:6], at.hash[:6])
		}
	}
	var h *Halt
	if errors.As(err, &h) {
		m.halt(at.index, h)
		return err // the state that was there stays
	}
	if err != nil {
		return errors.Join(err, m.reset(whole))
	}
	m.forgetMarks()
	m.reached(at.index)
	m.announce()
	return nil
}
