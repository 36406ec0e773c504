package consensus

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// diskStore is what keeps the log, the term and the vote. It may be a prober, an atOnce and
// a raft.MonotonicLogStore as well.
type diskStore interface {
	raft.LogStore
	raft.StableStore
	io.Closer
}

// openBolt opens the database. NoFreelistSync spares a large write per commit;
// the list is rebuilt at open (decision 25).
func openBolt(path string) (diskStore, error) {
	return raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
}

func boltOptions() *bbolt.Options {
	return &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: boltTimeout}
}

// prober is a store whose log needs room of its own.
type prober interface{ probe() error }

// atOnce is a store that deletes any range in one cheap step.
type atOnce interface{ deletesAtOnce() bool }

var (
	keyCurrentTerm = []byte("CurrentTerm") // raft's own key
	keyProbe       = []byte("fy-space-probe")
)

// guardedStore stands between raft and the disk.
//
// A failed or hung write condemns it: every later write fails with the same
// error, and the group closes it and opens a new one. raft itself would go on
// with a picture in memory that the disk may not share (it says so in a TODO
// after its own truncation), and an entry that did reach the disk could later
// stand behind a newer one and spoil an election.
type guardedStore struct {
	disk     diskStore
	clock    clock.Clock
	deadline time.Duration
	off      guardsOff
	broken   func(error)                 // told once, on the first failure
	term     *atomic.Uint64              // the durable term, for Group.Term
	stored   atomic.Uint64               // counts successful StoreLogs
	follows  atomic.Pointer[func() bool] // this node follows; nil: not known

	writes sync.WaitGroup // under way, also those that were given up
	mu     sync.Mutex     // guards what is below
	failed error
	ahead  ahead
	watch  writeWatch
}

func newGuardedStore(disk diskStore, cfg *Config, term *atomic.Uint64, broken func(error)) (*guardedStore, error) {
	s := &guardedStore{disk: disk, clock: cfg.Clock, deadline: cfg.Timings.Write, off: cfg.off, term: term, broken: broken}
	s.ahead.moved = sync.NewCond(&s.mu)
	t, err := s.GetUint64(keyCurrentTerm)
	if err != nil && !notFound(err) {
		return nil, err
	}
	s.term.Store(t)
	return s, nil
}

// raft itself tells "not found" by the text.
func notFound(err error) bool {
	return errors.Is(err, raftboltdb.ErrKeyNotFound) || err != nil && err.Error() == "not found"
}

// write runs f on its own goroutine, so that a hung disk holds up nobody but
// itself, and gives up after the deadline (decision 26e).
func (s *guardedStore) write(f func() error) error {
	s.mu.Lock()
	if s.failed != nil {
		defer s.mu.Unlock()
		return s.failed
	}
	s.writes.Add(1)
	s.mu.Unlock()
	if s.off.deadline {
		defer s.writes.Done()
		return s.judge(f())
	}
	done := make(chan error, 1)
	go func() {
		defer s.writes.Done()
		done <- f()
	}()
	select {
	case err := <-done:
		return s.judge(err)
	case <-s.clock.After(s.deadline):
		return s.judge(errWriteHung)
	}
}

// writeHere is write on the caller's own goroutine, for those that nobody needs to go on
// while the disk hangs: it spares two hand-overs. After the deadline whoever else waits is
// told, and so is the caller once the disk is back.
func (s *guardedStore) writeHere(f func() error) error {
	if s.off.deadline {
		return s.write(f)
	}
	s.mu.Lock()
	if s.failed != nil {
		defer s.mu.Unlock()
		return s.failed
	}
	s.writes.Add(1)
	defer s.writes.Done()
	w := s.watch.begin(time.Now(), s.lookAtWrites)
	s.mu.Unlock()
	err := f()
	s.mu.Lock()
	s.watch.end(w)
	s.mu.Unlock()
	if w.late {
		return errors.Join(errWriteHung, err)
	}
	return s.judge(err)
}

// lookAtWrites condemns the store if a write is beyond the deadline.
func (s *guardedStore) lookAtWrites() {
	s.mu.Lock()
	late := s.watch.look(time.Now(), s.deadline)
	s.mu.Unlock()
	if late {
		_ = s.judge(errWriteHung) // who waits is told
	}
}

// writeWatch is one timer for all writes that are made in place, in the place of one for
// each. It runs while there are some, and so it is the first to end of all that a busy node
// has set: raft sets its own anew each time that it goes to sleep, and one that were the
// first would wake another thread each time, only for that to wait no longer than until then.
type writeWatch struct {
	timer *time.Timer
	runs  bool // the timer does
	busy  bool // something was written since it last ended
	under []*writeUnder
}

type writeUnder struct {
	began time.Time
	late  bool
}

// watchEvery is how late a write may be found to be late.
const watchEvery = 40 * time.Millisecond

func (w *writeWatch) begin(now time.Time, look func()) *writeUnder {
	u := &writeUnder{began: now}
	w.under, w.busy = append(w.under, u), true
	switch {
	case w.timer == nil:
		w.timer = time.AfterFunc(watchEvery, look)
	case !w.runs:
		w.timer.Reset(watchEvery)
	}
	w.runs = true
	return u
}

func (w *writeWatch) end(u *writeUnder) {
	w.under = slices.DeleteFunc(w.under, func(o *writeUnder) bool { return o == u })
}

// look reports whether a write is late, and has the timer go on while there are writes.
func (w *writeWatch) look(now time.Time, deadline time.Duration) (late bool) {
	for _, u := range w.under {
		u.late = u.late || now.Sub(u.began) >= deadline
		late = late || u.late
	}
	w.runs = w.busy || len(w.under) > 0
	w.busy = false
	if w.runs {
		w.timer.Reset(watchEvery)
	}
	return late
}

func (s *guardedStore) judge(err error) error {
	if err == nil || s.off.tail {
		return err
	}
	s.mu.Lock()
	first := s.failed == nil
	if first {
		s.failed = err
	}
	s.ahead.moved.Broadcast()
	s.mu.Unlock()
	if first {
		s.broken(err)
	}
	return err
}

// prepares names what the state machine does with a leader's entries while they are written.
func (s *guardedStore) prepares(p *preparer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead.work = p
}

// failure is what condemned the store, or nil.
func (s *guardedStore) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *guardedStore) StoreLog(l *raft.Log) error         { return s.StoreLogs([]*raft.Log{l}) }
func (s *guardedStore) Get(k []byte) ([]byte, error)       { return s.disk.Get(k) }
func (s *guardedStore) GetUint64(k []byte) (uint64, error) { return s.disk.GetUint64(k) }
func (s *guardedStore) Set(k, v []byte) error {
	if err := s.settle(); err != nil {
		return err
	}
	return s.write(func() error { return s.disk.Set(k, v) })
}

func (s *guardedStore) StoreLogs(logs []*raft.Log) error {
	if s.goAhead(logs) {
		return nil
	}
	err := s.settle()
	if err == nil {
		write := s.write
		if f := s.follows.Load(); f != nil && (*f)() {
			write = s.writeHere // a follower has nothing else to do that needs no disk
		}
		err = write(func() error { return s.disk.StoreLogs(logs) })
	}
	if err == nil {
		s.stored.Add(1)
	}
	return err
}

// DeleteRange works in pieces, so that entries can be stored in between. A
// compaction goes upwards and a truncation downwards: a crash half-way leaves
// a log without a hole.
func (s *guardedStore) DeleteRange(lo, hi uint64) error {
	if err := s.settle(); err != nil {
		return err
	}
	first, err := s.disk.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	lo, hi = max(lo, first, 1), min(hi, last)
	if a, ok := s.disk.(atOnce); ok && a.deletesAtOnce() && lo <= hi {
		return s.write(func() error { return s.disk.DeleteRange(lo, hi) })
	}
	for down := hi == last; lo <= hi; {
		from, to := lo, min(hi, lo+deleteChunk-1)
		if down {
			from, to = max(lo, hi-min(hi, deleteChunk-1)), hi
		}
		if err := s.write(func() error { return s.disk.DeleteRange(from, to) }); err != nil {
			return err
		}
		if down {
			hi = from - 1
		} else {
			lo = to + 1
		}
	}
	return nil
}

// SetUint64 saves terms. raft panics if it cannot save one, which would end
// the process on a full disk; here the failure ends only raft's main goroutine
// (its deferred answers say no), and the group then stops the rest of it.
func (s *guardedStore) SetUint64(k []byte, v uint64) error {
	isTerm := bytes.Equal(k, keyCurrentTerm)
	if isTerm && v == s.term.Load() {
		return nil // raft repeats it at each start; a full disk must not stop that
	}
	err := s.settle() // see ahead
	if err == nil {
		err = s.write(func() error { return s.disk.SetUint64(k, v) })
	}
	if err != nil && isTerm && !s.off.tail {
		runtime.Goexit()
	}
	if err == nil && isTerm {
		s.term.Store(v)
	}
	return err
}

// probe fails unless there is room to work.
func (s *guardedStore) probe() error {
	if err := s.Set(keyProbe, make([]byte, probeBytes)); err != nil {
		return err
	}
	if err := s.Set(keyProbe, []byte{1}); err != nil {
		return err
	}
	if p, ok := s.disk.(prober); ok {
		return s.write(p.probe)
	}
	return nil
}

// IsMonotonic tells raft whether the log may have no hole: then it is emptied before a
// snapshot from elsewhere takes its place.
func (s *guardedStore) IsMonotonic() bool {
	m, ok := s.disk.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// lastEntry is where the log ends.
func (s *guardedStore) lastEntry() (position, error) {
	last, err := s.disk.LastIndex()
	if err != nil || last == 0 {
		return position{}, err
	}
	var l raft.Log
	if err := s.disk.GetLog(last, &l); err != nil {
		return position{}, err
	}
	return position{Term: l.Term, Index: l.Index}, nil
}

// close waits for writes that were given up: the file stays locked until then.
func (s *guardedStore) close() error {
	_ = s.settle() // what is lost is said to the group, and was promised to nobody
	s.mu.Lock()
	if s.failed == nil {
		s.failed = errClosed
	}
	s.mu.Unlock()
	s.writes.Wait()
	return s.disk.Close()
}
