//go:build linux

package runner

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// leaping is a clock that goes on while the process stands, as after SIGSTOP or sleep.
type leaping struct {
	clock.Clock
	ahead atomic.Int64
}

func (l *leaping) Now() forgeyard.Instant {
	return l.Clock.Now().Add(time.Duration(l.ahead.Load()))
}

// An attempt whose process stood past the deadline knows it before its next act, though
// nobody has told it: no step is started, no phase told, nothing uploaded, and a renewal
// that is granted afterwards revives nothing (RA-310, RA-311, RA-317, CK-400).
func TestWakesKnowing(t *testing.T) {
	clk := &leaping{Clock: clock.System()}
	b := newBench(t, func(c *Config) { c.Clock = clk })
	s := spec("echo one; sleep 0.5", "echo two > out")
	s.Outputs = []job.OutputDecl{{Path: "out"}}
	tk := task(s)
	tk.Until = clk.Now().Add(time.Minute)
	a := b.start(tk)
	b.await(a, "one")
	if a.Lost() {
		t.Fatal("lost before its deadline")
	}
	clk.ahead.Store(int64(time.Hour))
	a.Extend(clk.Now().Add(time.Hour))
	res, end := b.wait(a)
	if end.Kind != EndLease || len(res.Outputs) != 0 || b.hooks.tries != 0 {
		t.Fatalf("%+v %+v, %d uploads", end, res, b.hooks.tries)
	}
	if len(res.Steps) > 1 || slices.Contains(b.hooks.phases, job.PhaseUploading) {
		t.Errorf("steps %+v, phases %v", res.Steps, b.hooks.phases)
	}
	if !a.Lost() {
		t.Error("it is not for good")
	}
}

// recorder is a keeper that writes down what it is told.
type recorder struct {
	mu     sync.Mutex
	told   []string
	struck bool
	err    error // of Struck
	hold   error
}

func (r *recorder) say(s string) { r.mu.Lock(); defer r.mu.Unlock(); r.told = append(r.told, s) }

func (r *recorder) Hold(_ context.Context, o executor.Orphan, until forgeyard.Instant) error {
	if until == 0 || o.ID == "" {
		return errors.New("nothing to hold")
	}
	r.say("hold")
	return r.hold
}
func (r *recorder) Move(string, forgeyard.Instant) { r.say("move") }
func (r *recorder) Release(string)                 { r.say("release") }
func (r *recorder) Struck(context.Context, string) (bool, error) {
	r.say("ask")
	return r.struck, r.err
}

// The deadline is held outside before anything runs and until the tree is dead, and what
// the keeper ended is no result of the work: neither where it says so, nor where it cannot
// say and the kernel says that something killed it.
func TestKeeperIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		r    *recorder
		step string
		end  End
		cat  job.FailureCategory
		told string
	}{
		"all is well":         {&recorder{}, "true", EndCompleted, "", "hold move ask release"},
		"it ended the tree":   {&recorder{struck: true}, "kill -9 $$", EndLease, "", "hold move ask release"},
		"somebody else did":   {&recorder{}, "kill -9 $$", EndCompleted, job.WorkloadFailed, "hold move ask release"},
		"it cannot say":       {&recorder{err: errors.New("gone")}, "kill -9 $$", EndLease, "", "hold move ask release"},
		"it cannot say, well": {&recorder{err: errors.New("gone")}, "true", EndCompleted, "", "hold move ask release"},
		"it does not hold":    {&recorder{hold: errors.New("gone")}, "true", EndCompleted, job.PreparationFailed, "hold release"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(cfg *Config) { cfg.Keeper = c.r })
			tk := task(spec(c.step))
			tk.Until = clock.System().Now().Add(time.Hour)
			res, end := b.wait(b.start(tk))
			if end.Kind != c.end || (end.Kind == EndCompleted && res.Category != c.cat) {
				t.Errorf("%+v %+v", end, res)
			}
			if got := strings.Join(c.r.told, " "); got != c.told {
				t.Errorf("told %q", got)
			}
		})
	}
}
