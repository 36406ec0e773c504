// Package scrub reads what a store holds again from time to time, so that a copy that
// rotted is found while somebody still has a good one.
//
//	waiting ──due──▶ reading ──a page──▶ reading ──the last──▶ waiting
//	                    └─no room, or a stop─▶ goes on there, also after a restart
//
// A pass reads every object once, in the order of the names, and keeps to a rate: a
// quarter of it while work runs here, nothing while the disk is short. What is found
// damaged was set aside by the store and is asked for from others at once; what nobody had
// is asked for again, every Retry, until it is here or the store forgets it.
//
// Invariants: where it stands is on the disk before it is counted on; a pass that was cut
// goes on where it was, and no object is read twice for it but those of the last moments.
//
// It decides nothing about what is kept. Times are the wall clock's, since they must hold
// over restarts: they say when disks are read, and nothing else hangs on them.
package scrub

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

const (
	version = 1

	// Retry is how long a look at whether something is to do holds, and how often what is
	// lost is asked for.
	Retry = 10 * time.Minute
	// pause is how long reading stops when the node has no room for it.
	pause = 10 * time.Second
	// saveEvery is how much of a pass may be read twice after a kill.
	saveEvery = time.Minute
	// page is how many objects are read between two looks at the node: one, since a large
	// one takes hours, and what a stop cuts off of a page is read again.
	page = 1
	// most is how many lost objects are asked for and told of at once.
	most = 64
	// jitter is the part of the interval by which nodes come earlier, each by its own: they
	// shall not all read on the same night.
	jitter = 4
)

// Load is what else the node does.
type Load int

// Loads.
const (
	Idle    Load = iota // nothing
	Working             // work runs
	Short               // it lacks something, the disk most of all
)

// Store is what is read.
type Store interface {
	// VerifySome reads up to most objects whose names come after one; done: those were the
	// last. What is damaged is set aside. pace is told of all that is read, and holds it back.
	VerifySome(ctx context.Context, after forgeyard.Digest, most int, pace disk.Pace) (c disk.Checked, last forgeyard.Digest, done bool, err error)
	// Lost names objects after one that were set aside, and that nobody brought again.
	Lost(ctx context.Context, after forgeyard.Digest, most int) ([]forgeyard.Digest, error)
}

// Config of a scrubber.
type Config struct {
	Store Store
	File  string        // where it writes down how far it is
	Name  string        // of this node, from which its share of the jitter is drawn
	Every time.Duration // from the end of a pass to the next; 0: it never reads, but asks for what is lost
	Rate  int64         // bytes a second
	Load  func() Load
	// Heal brings an object from elsewhere.
	Heal  func(ctx context.Context, d forgeyard.Digest) error
	Clock clock.Clock
	Log   *slog.Logger
}

// state is what is written down. Append only.
type state struct {
	Version int              `json:"version"`
	First   time.Time        `json:"first"`          // when this node began to count
	Began   time.Time        `json:"began,omitzero"` // the pass under way; zero: none is
	After   forgeyard.Digest `json:"after,omitzero"` // how far it is
	Ended   time.Time        `json:"ended,omitzero"` // the last whole pass
	Objects int64            `json:"objects"`        // of the last whole pass
	Bytes   int64            `json:"bytes"`          // of the last whole pass
	Passing struct {
		Objects int64 `json:"objects"`
		Bytes   int64 `json:"bytes"`
	} `json:"passing,omitzero"` // so far
}

// Scrubber is one store's. Run is its one goroutine; the rest may be called by anybody.
type Scrubber struct {
	cfg  Config
	bell chan struct{} // somebody else found something

	asked forgeyard.Digest // of the lost ones the last that was asked for; Run's alone

	every atomic.Int64 // of Config, in nanoseconds, as SetPace changed it
	full  atomic.Int64 // its rate

	mu     sync.Mutex // guards what follows
	st     state
	lost   []forgeyard.Digest // of those that were asked for last
	totals Status
}

// Status tells how it stands.
type Status struct {
	Last           time.Time // end of the last whole pass; zero: there was none
	Next           time.Time // when the next begins; zero: never
	Reading        bool
	Overdue        bool
	Objects, Bytes int64 // of the last whole pass
	Lost           []forgeyard.Digest

	Read, Damaged, Healed int64 // bytes and objects, in this process's life
}

// Open reads where it was. A file that cannot be read is told and begun anew: it holds
// nothing but when disks are to be read.
func Open(cfg Config) (*Scrubber, error) {
	if cfg.Every < 0 || (cfg.Every > 0 && cfg.Rate <= 0) {
		return nil, forgeyard.Errorf("scrub", forgeyard.Invalid, "every %v at %d bytes a second cannot be", cfg.Every, cfg.Rate)
	}
	s := &Scrubber{cfg: cfg, bell: make(chan struct{}, 1)}
	s.every.Store(int64(cfg.Every))
	s.full.Store(cfg.Rate)
	b, err := os.ReadFile(cfg.File)
	if err == nil {
		err = json.Unmarshal(b, &s.st)
	}
	if err == nil && s.st.Version != version {
		err = forgeyard.Errorf("scrub", forgeyard.Invalid, "version %d is not known", s.st.Version)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		cfg.Log.Warn("when the store was read last is not known; it is counted anew", "file", cfg.File, "err", err)
	}
	if err != nil {
		s.st = state{Version: version, First: cfg.Clock.Wall()}
	}
	s.st = settle(s.st, cfg.Clock.Wall())
	return s, nil
}

// settle makes a state that a clock wrote which was ahead fit the time it is.
func settle(st state, now time.Time) state {
	for _, t := range []*time.Time{&st.First, &st.Began, &st.Ended} {
		if t.After(now) {
			*t = now
		}
	}
	return st
}

// since is what the interval counts from.
func (st state) since() time.Time {
	if st.Ended.IsZero() {
		return st.First
	}
	return st.Ended
}

// next says when a pass begins: after the interval, less this node's share of the jitter.
func next(st state, every time.Duration, name string) time.Time {
	if every == 0 {
		return time.Time{}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // a hash never fails
	return st.since().Add(every - time.Duration(int64(every)/jitter*int64(h.Sum32()%1024)/1024))
}

// overdue says that the last whole pass is longer ago than one and a half intervals.
func overdue(st state, every time.Duration, now time.Time) bool {
	return every > 0 && now.Sub(st.since()) > every+every/2
}

// rate is how fast it may read now; 0: not at all.
func rate(full int64, l Load) int64 {
	switch l {
	case Idle:
		return full
	case Working:
		return max(full/4, 1)
	}
	return 0
}

// Run reads when it is time, until ctx ends.
func (s *Scrubber) Run(ctx context.Context) {
	for {
		s.mend(ctx)
		if !s.due() {
			select {
			case <-ctx.Done():
				return
			case <-s.bell:
			case <-s.cfg.Clock.After(s.wait()):
			}
			continue
		}
		if err := s.pass(ctx); ctx.Err() != nil {
			return
		} else if err != nil {
			s.cfg.Log.Warn("the store could not be read through", "err", err)
			select {
			case <-ctx.Done():
				return
			case <-s.cfg.Clock.After(Retry):
			}
		}
	}
}

// SetPace changes how often and how fast it reads, from now on; zero for the first is never.
// What Open would refuse changes nothing.
func (s *Scrubber) SetPace(every time.Duration, rate int64) {
	if every < 0 || every > 0 && rate <= 0 {
		return
	}
	s.every.Store(int64(every))
	s.full.Store(rate)
	select {
	case s.bell <- struct{}{}:
	default: // it looks again anyway
	}
}

func (s *Scrubber) interval() time.Duration { return time.Duration(s.every.Load()) }

func (s *Scrubber) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.interval() > 0 && (!s.st.Began.IsZero() || !s.cfg.Clock.Wall().Before(next(s.st, s.interval(), s.cfg.Name)))
}

// wait is how long nothing is to do.
func (s *Scrubber) wait() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := next(s.st, s.interval(), s.cfg.Name); !n.IsZero() {
		return max(min(n.Sub(s.cfg.Clock.Wall()), Retry), time.Second)
	}
	return Retry
}

// pass reads to the end, from where it was.
func (s *Scrubber) pass(ctx context.Context) error {
	s.mu.Lock()
	if s.st.Began.IsZero() {
		s.st.Began = s.cfg.Clock.Wall()
	}
	after := s.st.After
	s.mu.Unlock()
	saved := s.cfg.Clock.Now()
	for {
		if rate(s.full.Load(), s.cfg.Load()) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.cfg.Clock.After(pause):
			}
			continue
		}
		c, last, done, err := s.cfg.Store.VerifySome(ctx, after, page, s.pace)
		s.found(ctx, c.Damaged)
		if err != nil {
			return errors.Join(err, s.save())
		}
		after = last
		if s.step(c, last, done) {
			return s.save()
		}
		if now := s.cfg.Clock.Now(); now.Sub(saved) >= saveEvery {
			if err := s.save(); err != nil {
				return err
			}
			saved = now
		}
	}
}

// step notes what was read, and reports whether the pass is over: at its end, or because
// somebody else read all of the store meanwhile.
func (s *Scrubber) step(c disk.Checked, last forgeyard.Digest, done bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.Read += c.Bytes
	if s.st.Began.IsZero() {
		return true
	}
	s.st.After = last
	s.st.Passing.Objects += c.Objects
	s.st.Passing.Bytes += c.Bytes
	if !done {
		return false
	}
	s.st.Objects, s.st.Bytes = s.st.Passing.Objects, s.st.Passing.Bytes
	s.cfg.Log.Info("the store was read through", "objects", s.st.Objects, "bytes", s.st.Bytes, "began", s.st.Began)
	s.endPass()
	return true
}

// endPass begins the interval anew. Under mu.
func (s *Scrubber) endPass() {
	s.st.Ended, s.st.Began, s.st.After = s.cfg.Clock.Wall(), time.Time{}, forgeyard.Digest{}
	s.st.Passing.Objects, s.st.Passing.Bytes = 0, 0
}

// pace holds reading back to the rate of the moment.
func (s *Scrubber) pace(ctx context.Context, n int64) error {
	r := rate(s.full.Load(), s.cfg.Load())
	if r == 0 {
		r = max(s.full.Load()/64, 1) // in the middle of an object: what is begun is ended
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.cfg.Clock.After(time.Duration(float64(n) / float64(r) * float64(time.Second))):
		return nil
	}
}

// found asks for what was set aside.
func (s *Scrubber) found(ctx context.Context, damaged []forgeyard.Digest) {
	if len(damaged) == 0 {
		return
	}
	s.mu.Lock()
	s.totals.Damaged += int64(len(damaged))
	s.mu.Unlock()
	s.cfg.Log.Error("copies in the store were damaged and are set aside", "objects", len(damaged), "first", damaged[0])
	s.mend(ctx)
}

// mend asks for what is lost, some of it each time.
func (s *Scrubber) mend(ctx context.Context) {
	lost, err := s.cfg.Store.Lost(ctx, s.asked, most)
	if err == nil && len(lost) == 0 && !s.asked.IsZero() {
		s.asked = forgeyard.Digest{}
		lost, err = s.cfg.Store.Lost(ctx, s.asked, most)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Log.Warn("what is lost cannot be listed", "err", err)
		}
		return
	}
	var left []forgeyard.Digest
	for _, d := range lost {
		if err := s.cfg.Heal(ctx, d); err != nil {
			if ctx.Err() != nil {
				return
			}
			s.cfg.Log.Warn("a damaged object could not be fetched again", "digest", d, "err", err)
			left = append(left, d)
			continue
		}
		s.cfg.Log.Info("a damaged object was fetched again", "digest", d)
		s.mu.Lock()
		s.totals.Healed++
		s.mu.Unlock()
	}
	s.asked = forgeyard.Digest{}
	if len(lost) == most {
		s.asked = lost[most-1]
	}
	s.mu.Lock()
	s.lost = left
	s.mu.Unlock()
}

// Passed tells that somebody else read the whole store, now.
func (s *Scrubber) Passed(c disk.Checked) {
	s.mu.Lock()
	s.st.Objects, s.st.Bytes = c.Objects, c.Bytes
	s.totals.Read += c.Bytes
	s.totals.Damaged += int64(len(c.Damaged))
	s.endPass()
	s.mu.Unlock()
	if err := s.save(); err != nil {
		s.cfg.Log.Warn("when the store was read cannot be written down", "err", err)
	}
	select {
	case s.bell <- struct{}{}:
	default: // it is rung
	}
}

func (s *Scrubber) save() error {
	s.mu.Lock()
	b, err := json.Marshal(s.st)
	s.mu.Unlock()
	if err == nil {
		err = durable.WriteFile(s.cfg.File, append(b, '\n'), 0o600)
	}
	if err != nil {
		return forgeyard.E("scrub", forgeyard.Unavailable, err)
	}
	return nil
}

// Status tells how it stands.
func (s *Scrubber) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.totals
	t.Last, t.Next, t.Reading = s.st.Ended, next(s.st, s.interval(), s.cfg.Name), !s.st.Began.IsZero()
	t.Overdue = overdue(s.st, s.interval(), s.cfg.Clock.Wall())
	t.Objects, t.Bytes = s.st.Objects, s.st.Bytes
	t.Lost = append([]forgeyard.Digest(nil), s.lost...)
	return t
}
