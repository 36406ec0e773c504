package consensus

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// ahead is what raft has stored and the disk has not: entries that a leader sends to its
// followers while it writes them itself.
//
// raft's leader writes an entry, then sends it, and counts its own copy as soon as StoreLogs
// returns. So a commit costs two disks' writes, one after the other. Here StoreLogs takes a
// leader's entries and returns; one goroutine writes them in their order, together what has
// come meanwhile. That is safe because nothing follows from raft's belief before it is true:
//
//   - A commit needs a follower's word as well, for at least two vote. The guarded transport
//     holds that word back until this disk has the entry too (settled), so what is committed
//     is on the disks of a majority.
//   - What is ahead is of the term that is on the disk, in which this node led. It tells a
//     leader that it has an entry only in a later term, and votes only in a later term, and a
//     later term is saved only when nothing is ahead (SetUint64).
//   - A change of the voters, a truncation, and all that a node writes that does not lead wait
//     until nothing is ahead, and are written before raft goes on. A sole voter's entries too.
//
// A write that fails or hangs condemns the store, as any other does. What was ahead then is
// lost here, as after a crash, and nobody was told otherwise.
type ahead struct {
	may   atomic.Pointer[func() bool] // this node leads, and others vote; nil: never
	moved *sync.Cond                  // on guardedStore.mu: logs became less, or the store failed
	work  *preparer                   // what the state machine does meanwhile; nil: nothing

	// guarded by guardedStore.mu
	logs    []*raft.Log // in the order of their indexes, without a hole
	writing bool        // catchUp runs
}

// goAhead takes a leader's entries, to be written while others have them already. It
// reports false for entries that must be written first.
func (s *guardedStore) goAhead(logs []*raft.Log) bool {
	may := s.ahead.may.Load()
	if may == nil || s.off.tail || slices.ContainsFunc(logs, changesVoters) || !(*may)() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.failed == nil && len(s.ahead.logs) > 0 && len(s.ahead.logs)+len(logs) > maxAhead {
		s.ahead.moved.Wait()
	}
	if s.failed != nil {
		return false
	}
	s.ahead.logs = append(s.ahead.logs, logs...)
	if !s.ahead.writing {
		s.ahead.writing = true
		go s.catchUp()
	}
	return true
}

func changesVoters(l *raft.Log) bool {
	return l.Type != raft.LogCommand && l.Type != raft.LogNoop && l.Type != raft.LogBarrier
}

// catchUp writes until nothing is ahead, or the store has failed.
func (s *guardedStore) catchUp() {
	for {
		s.mu.Lock()
		batch := slices.Clip(s.ahead.logs)
		s.ahead.writing = len(batch) > 0
		if p := s.ahead.work; p != nil && len(batch) > 0 && s.failed == nil && p.take(batch) {
			s.writes.Go(p.run) // close waits for it too
		}
		s.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		if s.writeHere(func() error { return s.disk.StoreLogs(batch) }) != nil {
			return // whoever waits is told by judge
		}
		s.stored.Add(1)
		s.mu.Lock()
		if s.ahead.logs = s.ahead.logs[len(batch):]; len(s.ahead.logs) == 0 {
			s.ahead.logs = nil // let them go
		}
		s.ahead.moved.Broadcast()
		s.mu.Unlock()
	}
}

// settled returns once the disk has all entries up to index that it was given, or never will.
func (s *guardedStore) settled(index uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ahead.logs) > 0 && s.ahead.logs[0].Index <= index {
		if s.failed != nil {
			return s.failed
		}
		s.ahead.moved.Wait()
	}
	return nil
}

// settle waits for what is ahead now. What goes ahead meanwhile does not prolong it.
func (s *guardedStore) settle() error { return s.settled(s.lastAhead()) }

// lastAhead is the last index that is ahead; zero: nothing is.
func (s *guardedStore) lastAhead() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.ahead.logs); n > 0 {
		return s.ahead.logs[n-1].Index
	}
	return 0
}

func (s *guardedStore) findAhead(index uint64) *raft.Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ahead.logs) == 0 {
		return nil
	}
	i := index - s.ahead.logs[0].Index // wraps below the first
	if i >= uint64(len(s.ahead.logs)) {
		return nil
	}
	return s.ahead.logs[i]
}

// GetLog implements raft.LogStore.
func (s *guardedStore) GetLog(index uint64, l *raft.Log) error {
	// This order: what is on the disk is never ahead any more.
	if a := s.findAhead(index); a != nil {
		*l = *a
		return nil
	}
	return s.disk.GetLog(index, l)
}

// FirstIndex implements raft.LogStore.
func (s *guardedStore) FirstIndex() (uint64, error) {
	first, err := s.disk.FirstIndex()
	if err != nil || first > 0 {
		return first, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ahead.logs) > 0 {
		return s.ahead.logs[0].Index, nil
	}
	return s.disk.FirstIndex() // it may have come meanwhile
}

// LastIndex implements raft.LogStore.
func (s *guardedStore) LastIndex() (uint64, error) {
	if last := s.lastAhead(); last > 0 {
		return last, nil
	}
	return s.disk.LastIndex()
}

// awaitOwn returns when raft may hear that a follower has what it was sent.
func (s *guardedStore) awaitOwn(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if len(q.Entries) == 0 || !r.Success || s.off.ahead {
		return nil
	}
	return s.settled(q.Entries[len(q.Entries)-1].Index)
}
