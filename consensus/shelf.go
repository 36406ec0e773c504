package consensus

import (
	"sync"

	"github.com/hashicorp/raft"
)

// shelf is a snapshot store that remembers which one is the newest: whoever leads asks at
// every look, and the store reads every snapshot's record to answer.
type shelf struct {
	raft.SnapshotStore

	mu     sync.Mutex // guards what is below
	known  bool
	newest position
}

// Create implements raft.SnapshotStore.
func (s *shelf) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, c, at, t)
	if err != nil {
		return nil, err
	}
	return &shelved{sink, s}, nil
}

// at is the place of the newest snapshot, zero if there is none.
func (s *shelf) at() (position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		return s.newest, nil
	}
	list, err := s.List()
	if err != nil {
		return position{}, err
	}
	s.known, s.newest = true, position{}
	if len(list) > 0 {
		s.newest = position{Term: list[0].Term, Index: list[0].Index}
	}
	return s.newest, nil
}

// shelved is a snapshot that is being written.
type shelved struct {
	raft.SnapshotSink
	of *shelf
}

// Close implements io.Closer: the snapshot is there, unless it fails.
func (s *shelved) Close() error {
	err := s.SnapshotSink.Close()
	s.of.mu.Lock()
	s.of.known = false
	s.of.mu.Unlock()
	return err
}
