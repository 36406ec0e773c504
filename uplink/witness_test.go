package uplink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// world is true time; a machine's clocks are derived from it.
type world struct {
	mu  sync.Mutex
	now time.Duration
}

func (w *world) pass(d time.Duration) { w.mu.Lock(); w.now += d; w.mu.Unlock() }

func (w *world) time() time.Duration { w.mu.Lock(); defer w.mu.Unlock(); return w.now }

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// machine has a boot clock that begins with each boot, and a wall clock that may be wrong.
type machine struct {
	w      *world
	booted time.Duration
	boots  int
	skew   time.Duration
	noRTC  bool
}

func (m *machine) Now() forgeyard.Instant {
	return forgeyard.Instant(time.Hour + m.w.time() - m.booted)
}
func (m *machine) Wall() time.Time                      { return epoch.Add(m.w.time() + m.skew) }
func (m *machine) BootID() string                       { return fmt.Sprintf("boot-%d", m.boots) }
func (m *machine) After(time.Duration) <-chan time.Time { panic("a witness does not wait") }

func (m *machine) reboot() { m.boots++; m.booted = m.w.time() }

func (m *machine) witness(t *testing.T, path string) *Witness {
	t.Helper()
	w, err := OpenWitness(WitnessConfig{Path: path, Clock: m, TimeSource: func() bool { return !m.noRTC }})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func figure(m *machine, index uint64) lease.Uplink {
	return lease.Uplink{Marked: index, MarkedAt: forgeyard.WallOf(m.Wall())}
}

func TestWitness(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	m := &machine{w: &world{now: time.Hour}}
	w := m.witness(t, path)
	if v := w.Elapsed(7, 0); v.Known {
		t.Fatalf("it has seen nothing: %+v", v)
	}
	u := figure(m, 7)
	w.Saw(u)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", st, err)
	}
	m.w.pass(90 * time.Second)
	want := func(what string, v Vouch, d time.Duration, how How) {
		t.Helper()
		if !v.Known || v.Elapsed != d || v.How != how {
			t.Errorf("%s: %+v, want %s by %s", what, v, d, how)
		}
	}
	want("live", w.Elapsed(7, 0), 90*time.Second, reckon.ByBoot)
	want("another index, by the wall", w.Elapsed(6, u.MarkedAt), 90*time.Second, reckon.ByWall)
	if v := w.Elapsed(6, 0); v.Known {
		t.Errorf("nothing is known of another index: %+v", v)
	}
	w = m.witness(t, path)
	want("restart in the same boot", w.Elapsed(7, 0), 90*time.Second, reckon.ByBoot)
	m.skew = -time.Hour // the wall clock is set back: the boot clock does not care
	want("same boot, wall set back", w.Elapsed(7, 0), 90*time.Second, reckon.ByBoot)
	m.skew = 0
	m.w.pass(8 * time.Hour)
	m.reboot()
	w = m.witness(t, path)
	want("a night without power", w.Elapsed(7, 0), 8*time.Hour+90*time.Second, reckon.ByWall)
	m.skew = -9 * time.Hour
	if v := w.Elapsed(7, 0); v.Known || v.Why == "" {
		t.Errorf("a clock that reads earlier than the log says nothing: %+v", v)
	}
	m.skew, m.noRTC = -8*time.Hour, true // a board that saved its clock at the stop: plausible, and wrong
	if v := w.Elapsed(7, 0); v.Known {
		t.Errorf("a clock that was never set says nothing: %+v", v)
	}
}

func TestWitnessNotLive(t *testing.T) {
	m := &machine{w: &world{now: time.Hour}}
	w := m.witness(t, filepath.Join(t.TempDir(), "witness"))
	u := figure(m, 9)
	m.w.pass(10*time.Second + time.Second) // paused between commit and apply
	w.Saw(u)
	if v := w.Elapsed(9, 0); v.Known {
		t.Errorf("applied long after it was true, it was not seen live: %+v", v)
	}
	u = figure(m, 10)
	m.w.pass(3 * time.Second)
	w.Saw(u)
	if v := w.Elapsed(10, 0); v.Elapsed != 3*time.Second {
		t.Errorf("what passed between figure and apply counts: %+v", v)
	}
	w.Saw(u)
	m.w.pass(time.Second)
	w.Saw(u)
	if v := w.Elapsed(10, 0); v.Elapsed != 4*time.Second {
		t.Errorf("seeing it again changes nothing: %+v", v)
	}
}

func TestWitnessRunWritesAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	m := &machine{w: &world{now: time.Hour}}
	w := m.witness(t, path)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	w.Saw(figure(m, 3))
	cancel()
	<-done
	if v := m.witness(t, path).Elapsed(3, 0); !v.Known {
		t.Fatalf("%+v", v)
	}
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := m.witness(t, path).Elapsed(3, 0); v.Known {
		t.Fatalf("a damaged file vouches for nothing: %+v", v)
	}
}

// TestNeverStretched plays leader changes, restarts, reboots, nights, pauses and
// clocks that are set against the rules, and holds the committed figure against
// the true silence (within-allowance). Any wall clock may be wrong, a little or by
// days, but at each election one voter in reach has a right one: that is what the
// design claims; with none, there is doubt or luck.
func TestNeverStretched(t *testing.T) {
	for seed := range uint64(150) {
		neverStretched(t, seed)
		if t.Failed() {
			return
		}
	}
}

type voter struct {
	machine
	path string
	w    *Witness
	down bool
}

func neverStretched(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	w := &world{now: time.Hour}
	vs := make([]*voter, 3)
	for i := range vs {
		vs[i] = &voter{machine: machine{w: w}, path: filepath.Join(dir, fmt.Sprint(i))}
		vs[i].w = vs[i].witness(t, vs[i].path)
	}
	terms := lease.UplinkTerms{SilentAfter: 10 * time.Second, Grace: time.Minute, Allowance: 10 * time.Hour}
	u := lease.Uplink{}.Connect(forgeyard.WallOf(vs[0].Wall()), 1, terms)
	since := w.time() // the true last contact
	leader, c := 0, reckon.Keeper{}
	lead := func() {
		var says []Vouch
		right := slices.ContainsFunc(vs, func(v *voter) bool { return !v.down && v.skew == 0 })
		if !right {
			vs[leader].skew = 0
		}
		for i, v := range vs {
			if !v.down {
				at := u.MarkedAt
				if i != leader && v.skew != 0 && rng.IntN(2) == 0 {
					at = 0 // it has not applied that far
				}
				says = append(says, v.w.Elapsed(u.Marked, at))
			}
		}
		base := reckon.Resume(u, says)
		if base.Doubt != "" {
			u = u.Doubted(forgeyard.WallOf(vs[leader].Wall()), u.Marked+1, base.Doubt)
		}
		c = reckon.Keeper{}
		c.Begin(base.Used, vs[leader].Now())
	}
	used := func() time.Duration { d, _ := c.Used(vs[leader].Now()); return d }
	lead()
	index := uint64(1)
	for step := range 60 {
		switch rng.IntN(8) {
		case 0, 1, 2: // a figure is committed; who is up applies it live
			index++
			u = u.Observe(forgeyard.WallOf(vs[leader].Wall()), index, used(), false, 0)
			for _, v := range vs {
				if !v.down {
					v.w.Saw(u)
					if rng.IntN(3) == 0 {
						must(t, v.w.Flush())
					}
				}
			}
		case 3: // another leader
			leader = rng.IntN(3)
			vs[leader].down = false
			lead()
		case 4: // a process restarts
			v := vs[rng.IntN(3)]
			v.w = v.witness(t, v.path)
			lead()
		case 5: // a night without power, for all or for one
			one := rng.IntN(3)
			w.pass(time.Duration(rng.IntN(3600)) * time.Second)
			for i, v := range vs {
				if i == one || rng.IntN(2) == 0 {
					v.reboot()
					v.w = v.witness(t, v.path)
				}
			}
			lead()
		case 6: // a voter is cut off or paused; when it is back it applies what it missed, late
			v := vs[(leader+1)%3]
			if v.down = rng.IntN(2) == 0; !v.down {
				v.w.Saw(u)
			}
		case 7: // a clock is set back before what the log says, and put right later
			v := vs[rng.IntN(3)]
			v.skew = -[]time.Duration{0, time.Second, time.Minute, 100 * time.Hour}[rng.IntN(4)]
		}
		w.pass(time.Duration(rng.IntN(20_000)) * time.Millisecond)
		truth := w.time() - since
		mine := used()
		if u.Doubt == "" && mine+time.Millisecond < truth {
			t.Errorf("seed %d step %d: the leader counts %s, in truth it was %s", seed, step, mine, truth)
			return
		}
	}
}
