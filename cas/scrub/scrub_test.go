package scrub

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

// bubble is the clock of a synctest bubble.
type bubble struct{ began time.Time }

func (b bubble) Now() forgeyard.Instant                 { return forgeyard.Instant(time.Since(b.began) + 1) }
func (b bubble) Wall() time.Time                        { return time.Now().UTC() }
func (b bubble) BootID() string                         { return "bubble" }
func (b bubble) After(d time.Duration) <-chan time.Time { return time.After(d) }

// shelf is a store of objects of one size.
type shelf struct {
	names   []forgeyard.Digest
	size    int64
	rotten  map[forgeyard.Digest]bool
	lost    map[forgeyard.Digest]bool
	read    map[forgeyard.Digest]int
	refuses error
}

func newShelf(n int, size int64) *shelf {
	s := &shelf{size: size, rotten: map[forgeyard.Digest]bool{}, lost: map[forgeyard.Digest]bool{}, read: map[forgeyard.Digest]int{}}
	for i := range n {
		s.names = append(s.names, cas.Sum([]byte{byte(i), byte(i >> 8)}))
	}
	slices.SortFunc(s.names, func(a, b forgeyard.Digest) int { return slices.Compare(a[:], b[:]) })
	return s
}

func (s *shelf) VerifySome(ctx context.Context, after forgeyard.Digest, most int, pace disk.Pace) (c disk.Checked, last forgeyard.Digest, done bool, err error) {
	if s.refuses != nil {
		return c, last, false, s.refuses
	}
	at, _ := slices.BinarySearchFunc(s.names, after, func(a, b forgeyard.Digest) int { return slices.Compare(a[:], b[:]) })
	if !after.IsZero() {
		at++
	}
	for i := at; i < min(at+most, len(s.names)); i++ {
		d := s.names[i]
		if err := pace(ctx, s.size); err != nil {
			return c, last, false, err
		}
		s.read[d]++
		c.Objects, c.Bytes, last = c.Objects+1, c.Bytes+s.size, d
		if s.rotten[d] {
			delete(s.rotten, d)
			s.lost[d] = true
			c.Damaged = append(c.Damaged, d)
		}
	}
	return c, last, at+most >= len(s.names), nil
}

func (s *shelf) Lost(_ context.Context, after forgeyard.Digest, most int) (out []forgeyard.Digest, err error) {
	for _, d := range s.names {
		if s.lost[d] && slices.Compare(d[:], after[:]) > 0 && len(out) < most {
			out = append(out, d)
		}
	}
	return out, nil
}

type rig struct {
	*shelf
	s    *Scrubber
	cfg  Config
	load Load
	peer map[forgeyard.Digest]bool // has a good copy
	end  func()
}

const week = 7 * 24 * time.Hour

func newRig(t *testing.T, n int, size int64, change ...func(*Config)) *rig {
	r := &rig{shelf: newShelf(n, size), peer: map[forgeyard.Digest]bool{}}
	r.cfg = Config{
		Store: r, File: filepath.Join(t.TempDir(), "scrub"), Name: "node", Every: week, Rate: 1 << 20, Clock: bubble{time.Now()}, Log: slog.New(slog.DiscardHandler),
		Load: func() Load { return r.load },
		Heal: func(_ context.Context, d forgeyard.Digest) error {
			if !r.peer[d] {
				return errors.New("no peer has it")
			}
			delete(r.lost, d)
			return nil
		},
	}
	for _, c := range change {
		c(&r.cfg)
	}
	r.start(t)
	return r
}

func (r *rig) start(t *testing.T) {
	t.Helper()
	var err error
	if r.s, err = Open(r.cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.s.Run(ctx); close(done) }()
	r.end = func() { cancel(); <-done }
	synctest.Wait() // it waits for time to go by: what a test changes now it sees then
}

// after lets so much time go by, and all that was due in it end.
func after(d time.Duration) { time.Sleep(d); synctest.Wait() }

// A store is read through once in each interval, nodes at different times, and no object
// twice in one pass.
func TestReadsWhenItIsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 100, 1<<20) // 100 s
		defer func() { r.end() }()
		first := r.s.Status()
		if until := time.Until(first.Next); until > week || until < week*3/4 || !first.Last.IsZero() || first.Overdue {
			t.Fatalf("%+v", first)
		}
		after(time.Until(first.Next) - time.Minute)
		if len(r.read) != 0 {
			t.Fatal("reads before it is time")
		}
		after(2 * time.Minute)
		if st := r.s.Status(); !st.Reading || st.Read == 0 {
			t.Fatalf("%+v", st)
		}
		after(3 * time.Minute)
		st := r.s.Status()
		if st.Reading || len(r.read) != 100 || st.Objects != 100 || st.Bytes != 100<<20 || time.Since(st.Last) > 4*time.Minute || st.Next.Before(st.Last.Add(week*3/4)) {
			t.Fatalf("%+v, %d read", st, len(r.read))
		}
		for d, n := range r.read {
			if n != 1 {
				t.Errorf("%s was read %d times", d.Short(), n)
			}
		}
		after(week + time.Hour)
		if n := r.read[r.names[0]]; n != 2 {
			t.Errorf("read %d times after two weeks", n)
		}
	})
}

// It keeps to its rate, to a quarter of it beside work, and stops while the node is short.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4000, 1<<20)
		defer func() { r.end() }()
		after(time.Until(r.s.Status().Next) + time.Second)
		for _, c := range []struct {
			load   Load
			lo, hi int
		}{{Idle, 550, 650}, {Working, 140, 200}, {Short, 0, 1}, {Short, 0, 0}, {Idle, 530, 620}} { // an object that was begun is ended
			before := len(r.read)
			r.load = c.load
			after(10 * time.Minute)
			if n := len(r.read) - before; n < c.lo || n > c.hi {
				t.Errorf("load %d: %d MiB in 10 minutes, not %d to %d", c.load, n, c.lo, c.hi)
			}
		}
	})
}

// A pass that was cut goes on where it was, after a restart too: no object is read twice.
func TestGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1000, 1<<20)
		after(time.Until(r.s.Status().Next) + 10*time.Minute)
		r.end()
		before := len(r.read)
		if before < 400 || before > 700 {
			t.Fatalf("%d read", before)
		}
		r.start(t)
		defer func() { r.end() }()
		after(12 * time.Minute)
		twice := 0
		for _, n := range r.read {
			twice += n - 1
		}
		if st := r.s.Status(); st.Reading || len(r.read) != 1000 || twice > 0 {
			t.Errorf("%+v, %d read, %d twice", st, len(r.read), twice)
		}
	})
}

// What rotted is brought from who has it, at once; what nobody has is told, and asked for
// until somebody has.
func TestHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 100, 1<<20)
		defer func() { r.end() }()
		good, gone := r.names[3], r.names[70]
		r.rotten[good], r.rotten[gone], r.peer[good] = true, true, true
		after(time.Until(r.s.Status().Next) + 5*time.Minute)
		if st := r.s.Status(); st.Damaged != 2 || st.Healed != 1 || !slices.Equal(st.Lost, []forgeyard.Digest{gone}) {
			t.Fatalf("%+v", st)
		}
		r.peer[gone] = true // its holder is back
		after(Retry + time.Second)
		if st := r.s.Status(); st.Healed != 2 || len(st.Lost) != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// More that is lost than is asked for at once: each has its turn.
func TestManyLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3*most, 1)
		defer func() { r.end() }()
		last := r.names[3*most-1]
		for _, d := range r.names {
			r.lost[d] = true
		}
		r.peer[last] = true
		after(5 * Retry)
		if r.lost[last] || len(r.s.Status().Lost) == 0 {
			t.Error("the last one never had its turn")
		}
	})
}

// Without an interval nothing is read, but what somebody else found is asked for at once;
// what somebody else read counts.
func TestOnlyWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 10, 1, func(c *Config) { c.Every = 0 })
		defer func() { r.end() }()
		after(10 * week)
		if st := r.s.Status(); len(r.read) != 0 || !st.Next.IsZero() || st.Overdue {
			t.Fatalf("%+v", st)
		}
		d := r.names[0]
		r.lost[d] = true
		r.s.Passed(disk.Checked{Objects: 10, Bytes: 10, Damaged: []forgeyard.Digest{d}})
		synctest.Wait()
		if st := r.s.Status(); !slices.Equal(st.Lost, []forgeyard.Digest{d}) || st.Objects != 10 || time.Since(st.Last) != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// SetPace is in force at once: what was never read is read a week from its beginning, at the
// new rate, and what Open would refuse changes nothing.
func TestPaceChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 100, 1<<20, func(c *Config) { c.Every = 0 })
		defer func() { r.end() }()
		r.s.SetPace(week, 10<<20) // 10 s
		r.s.SetPace(time.Hour, 0)
		synctest.Wait()
		st := r.s.Status()
		if until := time.Until(st.Next); until > week || until < week*3/4 {
			t.Fatalf("%+v", st)
		}
		after(time.Until(st.Next) + 20*time.Second)
		if st := r.s.Status(); len(r.read) != 100 || st.Reading {
			t.Fatalf("%+v, %d read", st, len(r.read))
		}
		r.s.SetPace(0, 0)
		after(10 * week)
		if st := r.s.Status(); r.read[r.names[0]] != 1 || !st.Next.IsZero() {
			t.Fatalf("%+v", st)
		}
	})
}

// What somebody else read through in the middle of a pass ends it: what is left of it is not
// read, does not count as the whole, and is not where the next one begins.
func TestPassedInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1000, 1<<20)
		after(time.Until(r.s.Status().Next) + 5*time.Minute)
		if !r.s.Status().Reading {
			t.Fatal("it does not read")
		}
		r.s.Passed(disk.Checked{Objects: 1000, Bytes: 1000 << 20})
		after(5 * time.Minute)
		r.end()
		r.start(t)
		defer func() { r.end() }()
		if st := r.s.Status(); st.Reading || st.Objects != 1000 || len(r.read) > 400 {
			t.Fatalf("%+v, %d read", st, len(r.read))
		}
		after(week)
		if st := r.s.Status(); st.Reading || st.Objects != 1000 || len(r.read) != 1000 {
			t.Fatalf("a week later: %+v, %d read", st, len(r.read))
		}
	})
}

// A store that cannot be read is overdue in the end, and so is one that nobody had time for.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 10, 1)
		defer func() { r.end() }()
		r.refuses = errors.New("the index is damaged")
		after(week + week/2 + time.Hour)
		if st := r.s.Status(); !st.Overdue || !st.Reading {
			t.Fatalf("%+v", st)
		}
		r.refuses = nil
		after(Retry + time.Minute)
		if st := r.s.Status(); st.Overdue || st.Reading {
			t.Fatalf("%+v", st)
		}
	})
}

// A clock that was ahead, and a file that is no state, cost a pass at most.
func TestBadFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, text := range map[string]string{
			"ahead":        `{"version":1,"first":"2099-01-01T00:00:00Z","ended":"2099-01-01T00:00:00Z","began":"2099-01-01T00:00:00Z"}`,
			"no json":      "\x00\x00\x00",
			"newer":        `{"version":9,"first":"1999-01-01T00:00:00Z"}`,
			"empty":        "",
			"no such name": `{"version":1,"first":"1999-01-01T00:00:00Z","after":"b3:12"}`,
		} {
			file := filepath.Join(t.TempDir(), "scrub")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			r := newRig(t, 10, 1, func(c *Config) { c.File = file })
			st := r.s.Status()
			if st.Next.After(time.Now().Add(week)) || st.Overdue {
				t.Errorf("%s: %+v", name, st)
			}
			after(week + time.Minute)
			if r.s.Status().Objects != 10 {
				t.Errorf("%s: not read in a week: %+v", name, r.s.Status())
			}
			r.end()
		}
	})
	if _, err := Open(Config{Every: week}); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("no rate: %v", err)
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"version":1,"first":"1999-01-01T00:00:00Z","passing":{"objects":-1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := filepath.Join(t.TempDir(), "scrub")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{File: file, Every: week, Rate: 1, Clock: bubble{time.Now()}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if st := s.Status(); st.Next.After(time.Now().Add(week)) {
			t.Fatalf("%q puts it off to %v", b, st.Next)
		}
	})
}
