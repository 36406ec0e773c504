package raftsim

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node/consensus/seam"
)

// disk is what a machine keeps of its log over crashes. A write takes a while, and then
// it is on the medium; one that is under way at a crash is there afterwards or not.
//
// The dishonest one (lazy) answers at once and writes back every few seconds.
type disk struct {
	w     *world
	awake func()        // returns when the machine is not stopped
	lazy  time.Duration // how long an answered write may not be on the medium; 0: it always is

	mu     sync.Mutex // guards what is below
	rng    *rand.Rand
	seen   medium   // what the running process sees
	synced medium   // what a crash leaves; only of a lazy disk
	flying []*write // in their order
	life   int      // counts processes
	slow   time.Duration
	hung   chan struct{}
	wrote  time.Duration // when a lazy disk wrote back last
}

// medium is the contents. Entries are never changed once stored.
type medium struct {
	logs        map[uint64]*raft.Log
	first, last uint64
	keys        map[string][]byte
	words       map[string]uint64
}

func newMedium() medium {
	return medium{logs: map[uint64]*raft.Log{}, keys: map[string][]byte{}, words: map[string]uint64{}}
}

func (m medium) clone() medium {
	m.logs, m.keys, m.words = maps.Clone(m.logs), maps.Clone(m.keys), maps.Clone(m.words)
	return m
}

type write struct{ do func(*medium) }

var errPowerLost = errors.New("the machine has lost its power")

func newDisk(w *world, seed uint64) *disk {
	d := &disk{w: w, rng: rand.New(rand.NewPCG(w.seed, seed)), seen: newMedium(), synced: newMedium(), lazy: w.faults.LazyDisk}
	return d
}

// open gives the store to a new process.
func (d *disk) open() (seam.Store, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &store{d: d, life: d.life}, nil
}

// crash takes the store from the running process.
func (d *disk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life++
	reached := d.rng.IntN(len(d.flying) + 1)
	for _, f := range d.flying[:reached] {
		f.do(&d.seen)
	}
	d.flying = nil
	if d.lazy > 0 {
		d.seen = d.synced.clone()
	}
	d.release()
}

// image is what is on the medium of a machine that is down.
func (d *disk) image() medium {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen.clone()
}

// putBack makes an image the contents of a machine that is down.
func (d *disk) putBack(m medium) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen, d.synced = m.clone(), m.clone()
}

func (d *disk) release() {
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
	d.slow = 0
}

func (d *disk) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.release()
}

func (d *disk) setSlow(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow = by
}

func (d *disk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil {
		d.hung = make(chan struct{})
	}
}

// commit carries out one write of a process.
func (d *disk) commit(life int, awake func(), do func(*medium)) error {
	f := &write{do}
	d.mu.Lock()
	if d.life != life {
		d.mu.Unlock()
		return errPowerLost
	}
	d.flying = append(d.flying, f)
	hung, takes := d.hung, d.slow+200*time.Microsecond+time.Duration(d.rng.Int64N(int64(2*time.Millisecond)))
	d.mu.Unlock()
	if hung != nil {
		<-hung
	}
	if d.lazy == 0 {
		time.Sleep(takes)
	}
	awake()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.life != life {
		return errPowerLost
	}
	d.flying = slices.DeleteFunc(d.flying, func(o *write) bool { return o == f })
	do(&d.seen)
	if d.lazy > 0 && d.w.now()-d.wrote > d.lazy {
		d.synced, d.wrote = d.seen.clone(), d.w.now()
	}
	return nil
}

// store is the disk as one process has it.
type store struct {
	d    *disk
	life int
}

var _ seam.Store = (*store)(nil)

func (s *store) read(f func(*medium)) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	f(&s.d.seen)
}

func (s *store) FirstIndex() (n uint64, _ error) {
	s.read(func(m *medium) { n = m.first })
	return n, nil
}

func (s *store) LastIndex() (n uint64, _ error) {
	s.read(func(m *medium) { n = m.last })
	return n, nil
}

func (s *store) GetLog(i uint64, into *raft.Log) error {
	var l *raft.Log
	s.read(func(m *medium) { l = m.logs[i] })
	if l == nil {
		return raft.ErrLogNotFound
	}
	*into = *l
	return nil
}

func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *store) StoreLogs(logs []*raft.Log) error {
	copied := make([]*raft.Log, 0, len(logs))
	for _, l := range logs {
		c := *l
		copied = append(copied, &c)
	}
	return s.write(func(m *medium) {
		for _, l := range copied {
			m.logs[l.Index] = l
			m.last = l.Index
			if m.first == 0 {
				m.first = l.Index
			}
		}
	})
}

func (s *store) DeleteRange(lo, hi uint64) error {
	return s.write(func(m *medium) {
		for i := lo; i <= hi; i++ {
			delete(m.logs, i)
		}
		if lo <= m.first {
			m.first = hi + 1
		}
		if hi >= m.last {
			m.last = lo - 1
		}
		if m.first > m.last {
			m.first, m.last = 0, 0
		}
	})
}

func (s *store) Set(k, v []byte) error {
	v = slices.Clone(v)
	return s.write(func(m *medium) { m.keys[string(k)] = v })
}

func (s *store) SetUint64(k []byte, v uint64) error {
	return s.write(func(m *medium) { m.words[string(k)] = v })
}

var errNoKey = errors.New("not found") // raft tells it by this text

func (s *store) Get(k []byte) (v []byte, err error) {
	s.read(func(m *medium) { v = m.keys[string(k)] })
	if v == nil {
		return nil, errNoKey
	}
	return v, nil
}

func (s *store) GetUint64(k []byte) (v uint64, err error) {
	ok := false
	s.read(func(m *medium) { v, ok = m.words[string(k)] })
	if !ok {
		return 0, errNoKey
	}
	return v, nil
}

func (s *store) write(do func(*medium)) error { return s.d.commit(s.life, s.d.awake, do) }

// Close implements io.Closer: the medium stays.
func (s *store) Close() error { return nil }
