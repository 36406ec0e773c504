package consensus

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
)

// EventKind says what happened to a group. Append only.
type EventKind uint8

const (
	// LeadershipGained: this node leads and has applied everything of before.
	LeadershipGained EventKind = 1 + iota
	// LeadershipLost: it no longer does.
	LeadershipLost
	// DiskFull: a write found no space. The node has stepped down, serves reads
	// of what it has applied, and returns by itself when there is space.
	DiskFull
	// DiskHung: a write did not end in time. The node has left the group and
	// returns when the disk answers. If it never does, only a restart helps.
	DiskHung
	// DiskFailed: a write failed for another reason. As DiskFull.
	DiskFailed
	// TransferStuck: a leadership transfer did not end; raft is restarted (26b).
	TransferStuck
	// SnapshotLoop: the same snapshot was installed again and again; the log is
	// wiped and fetched anew (26c).
	SnapshotLoop
	// Diverged: this node's state differs from the group's. It serves nothing
	// until it has been rebuilt (26g).
	Diverged
	// Restarted: raft runs again in this process after one of the above.
	Restarted
	// RestartFailed: an attempt failed; the next follows after Timings.Retry.
	RestartFailed
	// Rebuilt: a wiped node is as current as it was, and votes again.
	Rebuilt
	// HashChecked: this node's state equals the leader's at Index.
	HashChecked
	// Halted: this program cannot read what the group has decided. Nothing more is applied
	// here; only a newer program helps.
	Halted
	// Reseeding: this node begins a new group as its only voter; see Reseed.
	Reseeding
	// Reseeded: it has.
	Reseeded
	// HashDisputed: voters' states differ at Index, and no state has most of them, so
	// nobody is told to give its own up. A node that was away decides it.
	HashDisputed
	// LeaderLost: the leader of Term ended, most voters say the same, and this node
	// stands for election without waiting for its timer.
	LeaderLost
	// VoterRefused: a process was refused that speaks for a member: it was started from a
	// copy of its disk, or from that disk as it was earlier.
	VoterRefused
	// VoteDisowned: this process is such a one, says another node. It neither votes nor
	// takes entries any more.
	VoteDisowned
)

var eventNames = [...]string{"", "leadership_gained", "leadership_lost", "disk_full", "disk_hung", "disk_failed", "transfer_stuck", "snapshot_loop", "diverged", "restarted", "restart_failed", "rebuilt", "hash_checked", "halted", "reseeding", "reseeded", "hash_disputed", "leader_lost", "voter_refused", "vote_disowned"}

func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// Event is one thing that happened. Term, Index and Err are set where they mean something.
type Event struct {
	Kind  EventKind
	Term  uint64
	Index uint64
	Err   error
}

func (e Event) level() slog.Level {
	switch e.Kind {
	case DiskFull, DiskHung, DiskFailed, Diverged, Halted, HashDisputed, VoterRefused, VoteDisowned:
		return slog.LevelError
	case TransferStuck, SnapshotLoop, RestartFailed, Reseeding:
		return slog.LevelWarn
	case HashChecked:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// eventQueue decouples those who notice from those who listen.
type eventQueue struct {
	log  *slog.Logger
	sink func(Event)

	mu   sync.Mutex
	list []Event
	wake chan struct{} // capacity 1
}

func newEventQueue(log *slog.Logger, sink func(Event)) *eventQueue {
	return &eventQueue{log: log, sink: sink, wake: make(chan struct{}, 1)}
}

func (q *eventQueue) put(e Event) {
	attrs := []any{"event", e.Kind.String(), "term", e.Term, "index", e.Index}
	if e.Err != nil {
		attrs = append(attrs, "error", e.Err)
	}
	q.log.Log(context.Background(), e.level(), "consensus", attrs...)
	if q.sink == nil {
		return
	}
	q.mu.Lock()
	if len(q.list) >= maxEvents {
		q.list = q.list[1:]
	}
	q.list = append(q.list, e)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run delivers until quit is closed, then what is left.
func (q *eventQueue) run(quit <-chan struct{}) {
	for last := false; ; {
		q.mu.Lock()
		list := q.list
		q.list = nil
		q.mu.Unlock()
		for _, e := range list {
			q.sink(e)
		}
		if last {
			return
		}
		select {
		case <-q.wake:
		case <-quit:
			last = true
		}
	}
}
