package consensus

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus/seam"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Entry is one committed command.
type Entry struct {
	Index uint64 // of the log entry; commands that share one come one after the other
	Term  uint64
	Data  []byte // the state machine may keep it; nobody changes it
	// Live is false while the node replays or catches up with what was, or may
	// have been, committed before this process opened the group.
	Live bool
}

// Snapshot is an immutable state that was captured; WriteTo runs on another
// goroutine than Apply and may run late or never.
type Snapshot interface{ io.WriterTo }

// Halt is what Apply returns, and Restore fails with, when this program cannot read what
// the group has decided: an older program among newer ones. The entry counts as not
// applied, nothing is applied after it, and the group's owner is told by an event: it
// should say so and end. What this node has in its log stays good for a newer program.
type Halt struct{ Err error }

func (h *Halt) Error() string { return h.Err.Error() }
func (h *Halt) Unwrap() error { return h.Err }

// StateMachine is the state that the log builds. One goroutine at a time calls
// it. It is given to Open in the state before the first entry.
type StateMachine interface {
	// Apply must be deterministic. Its value goes to the proposer, if local.
	Apply(e Entry) any
	// Snapshot captures the current state; it must be cheap, Apply waits for it. What it
	// returned is written while Apply goes on.
	Snapshot() (Snapshot, error)
	// Restore replaces the whole state by what WriteTo wrote. index is that of
	// the last entry in it; 0 is the state before the first entry.
	Restore(r io.Reader, index uint64) error
	// Rebuilding says, with true, that the state is about to go back: until it is
	// told false, others must see the one from before, whatever is applied and
	// restored. Apply, Snapshot, Restore and Hasher go on with the new one.
	Rebuilding(on bool)
	// Hasher captures the current state, as Snapshot does, and returns what names it:
	// equal on two nodes that applied the same index. It is called about once a minute
	// and at each snapshot; the hash is computed while Apply goes on.
	Hasher() func() [32]byte
}

// Timings are durations; zero means the default. A site with slow links or
// disks raises all of the first four together.
type Timings struct {
	// Heartbeat is how long a follower waits without the leader before it
	// stands for election. Default 500ms. Too low: elections while a disk syncs.
	Heartbeat time.Duration
	// Election is how long a candidate waits for votes; at least Heartbeat.
	// Default: Heartbeat.
	Election time.Duration
	// Lease is how long a leader goes on without hearing a majority; at most
	// Heartbeat. Default: half of Heartbeat.
	Lease time.Duration
	// Commit is how long an idle leader waits before it tells followers the
	// commit index. Default 50ms.
	Commit time.Duration
	// RPC bounds one exchange with a peer. Default 3s.
	RPC time.Duration
	// Write bounds one write of the log store (decision 26e). Default 5s. Too
	// low: a slow disk looks like a hung one and the node steps down.
	Write time.Duration
	// Confirm bounds the wait for a majority's terms before the fallback.
	// Default: Heartbeat.
	Confirm time.Duration
	// Transfer bounds a leadership transfer (decision 26b). Default: four
	// elections, at least 1s.
	Transfer time.Duration
	// Hash is the time between state hash checks (decision 26g). Default 1m.
	Hash time.Duration
	// Retry is the wait between attempts to reopen after a fault. Default 1s.
	Retry time.Duration
	// Snapshot is how often the log's length is looked at. Default 2m.
	Snapshot time.Duration
}

func (t Timings) withDefaults() Timings {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.Heartbeat, 500*time.Millisecond)
	def(&t.Election, t.Heartbeat)
	def(&t.Lease, t.Heartbeat/2)
	def(&t.Commit, 50*time.Millisecond)
	def(&t.RPC, 3*time.Second)
	def(&t.Write, 5*time.Second)
	def(&t.Confirm, t.Heartbeat)
	def(&t.Transfer, max(4*t.Election, time.Second))
	def(&t.Hash, time.Minute)
	def(&t.Retry, time.Second)
	def(&t.Snapshot, 2*time.Minute)
	return t
}

// Config is what a Group is made of.
type Config struct {
	// Dir holds raft.db, wal/ and snapshots/; made if absent. One process at a time.
	Dir string
	// LocalID names this node in the group for ever.
	LocalID string
	// LocalAddr is where peers dial this node; the mesh's peer id.
	LocalAddr string
	// Layer carries Raft's streams. The group closes it.
	Layer raft.StreamLayer
	// FSM is the state; see StateMachine.
	FSM StateMachine
	// Clock defaults to the system's.
	Clock clock.Clock
	// Log defaults to nowhere.
	Log *slog.Logger
	// Timings may be zero.
	Timings Timings
	// SnapshotAfter is the number of log entries since the last snapshot that
	// calls for one. Default 8192.
	SnapshotAfter uint64
	// TrailingLogs stay in the log behind a snapshot, for followers that lag.
	// Default 10240; zero cannot be asked for.
	TrailingLogs uint64
	// RetainSnapshots is how many snapshots stay on disk. Default 2.
	RetainSnapshots int
	// TermOf asks the node at addr for its Group.Term over the mesh. It must
	// return when ctx ends, and never answer from a cache. Nil: each Confirm
	// costs a log entry.
	TermOf func(ctx context.Context, addr string) (term uint64, err error)
	// HashOf asks the node at addr for its Group.HashAt. As TermOf. Nil: states are not
	// compared, because no leader may be believed that most voters do not bear out.
	HashOf func(ctx context.Context, addr string, index uint64) ([32]byte, error)
	// StateVersion names how this program encodes the state: hashes are compared only
	// between nodes, and with snapshots, of one version. Empty: they always are, so every
	// node must run the same program.
	StateVersion string
	// Batches says, at each proposal, that every member of the group reads entries with
	// several commands (kind 5 of the entry's format): a program that does not would stop
	// at the first one. It must not take back a yes. Nil: one command an entry.
	Batches func() bool
	// LogStore is what keeps the log of a new Dir; empty is DefaultLogStore. A Dir that has
	// a log keeps it where it is: MoveLog moves it.
	LogStore LogStore
	// OnEvent is called from one goroutine; while it blocks, events queue and
	// the oldest are dropped. It may not call Close.
	OnEvent func(Event)

	// OnStranger is told the address of a node that called and belongs to another lineage
	// of this group (see Reseed). It must return at once.
	OnStranger func(addr string)

	// Seam is what a simulation replaces. The product leaves it nil.
	Seam *seam.Parts

	// What tests replace.
	off           guardsOff
	openStore     func(path string) (diskStore, error)
	openTransport func(*instance) (innerTransport, error)
}

// guardsOff switches guards of decision 26 off, so that a test can show the
// fault that each one holds back. Nothing but tests sets it.
type guardsOff struct {
	heartbeats bool // (a)
	transfer   bool // (b)
	loop       bool // (c)
	confirm    bool // (d)
	deadline   bool // (e)
	unknown    bool // (f)
	hash       bool // (g)
	lineage    bool // telling groups apart after a forced recovery
	tail       bool // reopening after a failed write
	pipelines  bool // giving up a pipeline that nobody reads
	alone      bool // asking the others before standing for a leader that is lost
	ahead      bool // waiting for the own disk before a follower's word counts
	boots      bool // telling a voter from a copy of its disk
}

func (c *Config) prepare() error {
	switch {
	case c.Dir == "":
		return forgeyard.Errorf("open consensus", forgeyard.Invalid, "no directory given")
	case c.LocalID == "" || c.LocalAddr == "":
		return forgeyard.Errorf("open consensus", forgeyard.Invalid, "local id %q and address %q must both be set", c.LocalID, c.LocalAddr)
	case c.FSM == nil:
		return forgeyard.Errorf("open consensus", forgeyard.Invalid, "no state machine given")
	case c.Layer == nil && c.openTransport == nil:
		return forgeyard.Errorf("open consensus", forgeyard.Invalid, "no stream layer given")
	}
	var err error
	if c.LogStore, err = ParseLogStore(string(c.LogStore)); err != nil {
		return err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Seam != nil {
		c.fit(*c.Seam)
	}
	if c.openStore == nil {
		want, log := c.LogStore, newHCLog(c.Log).Named("wal")
		c.openStore = func(path string) (diskStore, error) { return openDisk(filepath.Dir(path), want, log) }
	}
	if c.openTransport == nil {
		c.openTransport = openNetwork
	}
	c.Timings = c.Timings.withDefaults()
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.SnapshotAfter == 0 {
		c.SnapshotAfter = 8192
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 10240
	}
	if c.RetainSnapshots == 0 {
		c.RetainSnapshots = 2
	}
	if err := raft.ValidateConfig(c.raftConfig(nil)); err != nil {
		return forgeyard.E("open consensus", forgeyard.Invalid, err)
	}
	return nil
}

// fit puts a simulation's parts into place.
func (c *Config) fit(e seam.Parts) {
	c.off = guardsOff{heartbeats: e.Off.Heartbeats, transfer: e.Off.Transfer, loop: e.Off.Loop, confirm: e.Off.Confirm, deadline: e.Off.Deadline, hash: e.Off.Hash, tail: e.Off.Tail, pipelines: e.Off.Pipelines, alone: e.Off.Alone, ahead: e.Off.Ahead, boots: e.Off.Boots}
	if e.Open != nil {
		c.openStore = func(path string) (diskStore, error) { return e.Open(path) }
	}
	if e.Between != nil {
		c.openTransport = func(in *instance) (innerTransport, error) {
			t, err := openNetwork(in)
			if err != nil {
				return nil, err
			}
			return e.Between(t), nil
		}
	}
}

func (c *Config) raftConfig(notify chan<- bool) *raft.Config {
	r := raft.DefaultConfig()
	r.LocalID = raft.ServerID(c.LocalID)
	r.HeartbeatTimeout = c.Timings.Heartbeat
	r.ElectionTimeout = c.Timings.Election
	r.LeaderLeaseTimeout = c.Timings.Lease
	r.CommitTimeout = c.Timings.Commit
	r.MaxAppendEntries = maxAppendEntries
	// A buffered apply channel would lose proposals without an answer when
	// raft stops, and the unbuffered one already groups whoever waits.
	r.BatchApplyCh = false
	// A removed node stays up as a follower: its owner decides what comes next.
	r.ShutdownOnRemove = false
	r.TrailingLogs = c.TrailingLogs
	r.SnapshotThreshold = c.SnapshotAfter
	r.SnapshotInterval = c.Timings.Snapshot
	r.NotifyCh = notify
	r.NoLegacyTelemetry = true
	r.Logger = newHCLog(c.Log)
	return r
}
