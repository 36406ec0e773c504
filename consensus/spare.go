package consensus

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// spareFile is the next segment, made while the last one fills: nobody should wait for all
// its zeroes. It has a name that is no segment's until it is taken, and one that another
// process left is worth nothing.
type spareFile struct {
	path string
	size int64

	mu     sync.Mutex // guards what is below
	making chan struct{}
	made   bool // once making is closed
	closed bool
}

// prepare begins to make it, unless it is made or being made.
func (s *spareFile) prepare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.making != nil || s.closed {
		return
	}
	done := make(chan struct{})
	s.making = done
	go func() {
		defer close(done)
		f, err := newSegmentFile(s.path, s.size, writeThrough)
		if err == nil {
			err = f.Close()
		}
		s.mu.Lock()
		s.made = err == nil // where there is no room, who needs the file says so
		s.mu.Unlock()
	}()
}

// take gives it another name, and reports false where there is none of that size.
func (s *spareFile) take(path string, size int64) bool {
	if size != s.size || !s.await() || os.Rename(s.path, path) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making, s.made = nil, false
	return true
}

// await waits until it is made, and reports false where there is none.
func (s *spareFile) await() bool {
	s.mu.Lock()
	making := s.making
	s.mu.Unlock()
	if making == nil {
		return false
	}
	<-making
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.made {
		s.making = nil // another try is made when another segment fills
	}
	return s.made
}

// close removes it. None is made any more.
func (s *spareFile) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.await()
	return s.clear()
}

// clear removes what another process left.
func (s *spareFile) clear() error {
	if err := os.Remove(s.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
