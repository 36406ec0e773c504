package explore

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

var (
	depth   = flag.Int("depth", 0, "steps to explore to; 0: as many as the seconds allow")
	seconds = flag.Float64("seconds", 0, "seconds for all companies together; 0: only a short look")
	only    = flag.String("company", "", "the one company to explore; empty: all")
	rewrite = flag.Bool("rewrite", false, "write testdata anew")
)

// mostStates bounds the memory of one company: about 200 bytes a world.
const mostStates = 5_000_000

// shortLook is the depth to which every `go test` looks.
const shortLook = 5

func stopwatch() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// TestExplore is net 1: the honest rules, everything that can happen, to a depth. All
// ten companies share the seconds, on all cores. Each is looked at until its share is
// over, its memory is full, or there is nothing left.
func TestExplore(t *testing.T) {
	var cs []Company
	for _, c := range Companies() {
		if *only == "" || *only == c.Name {
			cs = append(cs, c)
		}
	}
	if len(cs) == 0 {
		t.Fatalf("there is no company %q", *only)
	}
	rounds := (len(cs) + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0)
	l := Limits{Depth: *depth, States: mostStates, Time: time.Duration(*seconds / float64(rounds) * float64(time.Second))}
	if *seconds == 0 && *depth == 0 {
		l.Depth = shortLook
	}
	now, before := stopwatch(), processorTime()
	var steps, rules, calls, states uint64
	var busy time.Duration
	for _, r := range All(cs, Honest(), l, now) {
		fmt.Println(r)
		steps, rules, calls, states, busy = steps+r.Steps, rules+r.Rules, calls+r.Calls, states+uint64(r.States), busy+r.Took
		if r.Broken != nil {
			t.Errorf("%s, the shortest way:\n%s", r.Company.Name, strings.Join(r.Path, "\n"))
		}
		if r.Depth < shortLook && !r.Whole && *depth == 0 {
			t.Errorf("%s: only depth %d in %s", r.Company.Name, r.Depth, r.Took)
		}
	}
	fmt.Printf("%d worlds, %d steps, %d questions to rules (%d calls), %s: %.0f steps a second a core, %.0f a second of processor time\n",
		states, steps, rules, calls, now().Round(time.Millisecond), float64(steps)/busy.Seconds(), float64(steps)/(processorTime()-before).Seconds())
}

// TestTranscript: a broken invariant is told as a story, one line a step.
func TestTranscript(t *testing.T) {
	r := Honest()
	r.Lead = ignoresDrift
	got := Run(silentRunner, r, Limits{States: 1_000_000}, stopwatch())
	told := strings.Join(got.Path, "\n") + "\n"
	path := filepath.Join("testdata", "ignores_drift.txt")
	if *rewrite {
		if err := os.WriteFile(path, []byte(told), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if told != string(want) {
		t.Errorf("it is told:\n%s\n%s has:\n%s", told, path, want)
	}
}
