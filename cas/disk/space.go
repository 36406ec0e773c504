package disk

import (
	"crypto/rand"
	"os"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
)

// diskState is what a filesystem has. inodes is 0 where there is no inode table.
type diskState struct{ free, total, inodesFree, inodes int64 }

// space decides whether there is room. Under Store.mu.
//
// What others use of the disk counts too, because it is asked with statfs each time
// (C11); what we promised and did not write yet is subtracted from its answer.
type space struct {
	used    int64 // bytes of content that the index counts
	pending int64 // reserved by writes in flight, written or not
	ahead   int64 // the part of pending that is not written yet
	inodes  int64 // reserved inodes

	reserve, reserveInodes, ballast int64
}

// askDisk is what the store's disk has; zero where it does not say.
func (s *Store) askDisk() diskState {
	d, err := diskFree(s.cfg.Dir)
	if err != nil {
		s.log.Warn("cas: the disk cannot be asked for its size", "dir", s.cfg.Dir, "err", err)
	}
	return d
}

// init takes over the bounds of cfg on a disk like d, which was asked without Store.mu: a disk
// that hangs holds up nobody who does not need it.
func (sp *space) init(cfg Config, d diskState) {
	sp.reserve, sp.reserveInodes = cfg.Reserve, cfg.ReserveInodes
	if sp.reserve == 0 {
		sp.reserve = min(maxReserve, d.total/50)
	}
	if sp.reserveInodes == 0 {
		sp.reserveInodes = min(maxReserveInodes, d.inodes/100)
	}
	sp.reserve, sp.reserveInodes = max(0, sp.reserve), max(0, sp.reserveInodes)
	sp.ballast = max(minBallast, min(maxBallast, d.total/64))
}

// SetBounds changes Config's Limit and Reserve for what is written from now on. Nothing goes
// by it: a store above its new limit takes nothing more until room was made.
func (s *Store) SetBounds(limit, reserve int64) {
	d := s.askDisk()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Limit, s.cfg.Reserve = limit, reserve
	s.space.init(s.cfg, d)
}

func (s *Store) inlineMost() int64 {
	if s.cfg.Inline == 0 {
		return defaultInline
	}
	return s.cfg.Inline
}

// reservation is room that one write was promised.
type reservation struct {
	s      *Store
	left   int64
	wrote  int64
	inodes int64
}

// reserve asks for n bytes and the inodes of one put before the first byte is written.
func (s *Store) reserve(op string, n int64) (*reservation, error) {
	r := &reservation{s: s}
	if err := r.grow(op, n, inodesPerPut); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *reservation) grow(op string, n, inodes int64) error {
	s := r.s
	d, err := diskFree(s.cfg.Dir)
	if err != nil {
		return s.fail(op, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := &s.space
	const hint = "unpin what is no longer needed and run `forgeyard-node cas gc`, or "
	switch {
	case s.cfg.Limit > 0 && sp.used+sp.pending+n > s.cfg.Limit:
		return forgeyard.Errorf(op, forgeyard.NoSpace, "%d bytes more exceed the limit of %d bytes of store %s, which holds %d and expects %d", n, s.cfg.Limit, s.cfg.Dir, sp.used, sp.pending).WithHint(hint + "raise the limit")
	case d.free-sp.ahead-n-overhead < sp.reserve:
		return forgeyard.Errorf(op, forgeyard.NoSpace, "the disk of %s has %d bytes free; %d are promised to other writes, %d are wanted and %d stay in reserve", s.cfg.Dir, d.free, sp.ahead, n+overhead, sp.reserve).WithHint(hint + "free space on that disk")
	case d.inodes > 0 && d.inodesFree-sp.inodes-inodes < sp.reserveInodes:
		return forgeyard.Errorf(op, forgeyard.NoSpace, "the disk of %s has %d inodes free; %d are promised to other writes, %d are wanted and %d stay in reserve", s.cfg.Dir, d.inodesFree, sp.inodes, inodes, sp.reserveInodes).WithHint(hint + "remove files on that disk")
	}
	sp.pending, sp.ahead, sp.inodes = sp.pending+n, sp.ahead+n, sp.inodes+inodes
	r.left, r.inodes = r.left+n, r.inodes+inodes
	return nil
}

// written tells that n of the reserved bytes are on the disk now.
func (r *reservation) written(n int64) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	n = min(n, r.left)
	r.left, r.wrote = r.left-n, r.wrote+n
	r.s.space.ahead -= n
}

// counted tells that the index counts n of the written bytes now.
func (r *reservation) counted(n int64) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	n = min(n, r.wrote)
	r.wrote -= n
	r.s.space.pending -= n
}

// end gives back whatever is left. It is idempotent.
func (r *reservation) end() {
	if r == nil {
		return
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	sp := &r.s.space
	sp.pending, sp.ahead, sp.inodes = sp.pending-r.left-r.wrote, sp.ahead-r.left, sp.inodes-r.inodes
	r.left, r.wrote, r.inodes = 0, 0, 0
}

func (s *Store) ballastPath() string { return filepath.Join(s.cfg.Dir, "ballast") }

// fillBallast writes the file that a collection on a full disk gives up. It is
// written, not only sized, and with bytes that no filesystem can squeeze.
func (s *Store) fillBallast() {
	s.mu.Lock()
	want, reserve := s.space.ballast, s.space.reserve
	s.mu.Unlock()
	if st, err := os.Stat(s.ballastPath()); err == nil && st.Size() == want {
		return
	}
	d, err := diskFree(s.cfg.Dir)
	if err != nil || d.free-want < max(reserve, want) {
		return // no room for it now; the next opening or collection tries again
	}
	b := make([]byte, want)
	_, _ = rand.Read(b) // never fails
	if err := os.WriteFile(s.ballastPath(), b, 0o600); err != nil {
		s.dropBallast()
	}
}

// dropBallast frees it and reports whether there was any.
func (s *Store) dropBallast() bool { return os.Remove(s.ballastPath()) == nil }
