package explore

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	depth   = flag.Int("depth", 0, "steps to explore to; 0: as many as the seconds allow")
	seconds = flag.Float64("seconds", 0, "seconds for all companies together; 0: only a short look")
	only    = flag.String("company", "", "the one company to explore; empty: all")

	troubles = flag.Int("troubles", 1, "kinds of trouble at once in the small companies, which are explored to the end")

	rewrite = flag.Bool("rewrite", false, "write testdata anew")
)

// mostStates bounds the memory of one company: about 300 bytes a world while it waits.
const mostStates = 3_000_000

// shortLook is the depth to which every `go test` looks; a net that saw less than leastLook
// saw nothing, however busy the machine was.
const (
	shortLook = 5
	leastLook = 3
)

func stopwatch() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// TestExplore is net 1: the honest rules, everything that can happen. The small companies
// are explored to the end, or until half of the seconds are over; the large ones share
// the rest, and each is looked at to the depth that its share or its memory allows.
func TestExplore(t *testing.T) {
	short := *seconds == 0 && *depth == 0
	now, before := stopwatch(), processorTime()
	all := func(d time.Duration) time.Duration { return max(d-now(), time.Second) }
	budget := time.Duration(*seconds * float64(time.Second))
	l := Limits{Depth: *depth, States: mostStates}
	if short {
		l.Depth = shortLook
	}
	var rs []Result
	if *only == "" {
		if !short {
			l.Time = all(budget / 2)
		}
		rs = AllWithin(Small(*troubles), Honest(), l, now)
	}
	if !short {
		l.Time = all(budget)
	}
	rs = append(rs, AllWithin(chosen(t), Honest(), l, now)...)
	report(t, rs, now(), processorTime()-before)
}

func chosen(t *testing.T) (cs []Company) {
	for _, c := range append(Companies(), Small(*troubles)...) {
		if *only == c.Name {
			return []Company{c}
		}
	}
	if *only != "" {
		t.Fatalf("there is no company %q", *only)
	}
	return Companies()
}

func report(t *testing.T, rs []Result, took, used time.Duration) {
	var steps, rules, calls, states, whole uint64
	var busy time.Duration
	for _, r := range rs {
		fmt.Println(r)
		steps, rules, calls, states, busy = steps+r.Steps, rules+r.Rules, calls+r.Calls, states+uint64(r.States), busy+r.Took
		if r.Whole {
			whole++
		}
		if r.Broken != nil {
			t.Errorf("%s, the shortest way:\n%s", r.Company.Name, strings.Join(r.Path, "\n"))
		}
		if r.Depth < leastLook && !r.Whole && *depth == 0 {
			t.Errorf("%s: only depth %d in %s", r.Company.Name, r.Depth, r.Took)
		}
	}
	fmt.Printf("%d companies, %d of them to the end: %d worlds, %d steps, %d questions to rules (%d calls), %s: %.0f steps a second a core, %.0f a second of processor time\n",
		len(rs), whole, states, steps, rules, calls, took.Round(time.Millisecond), float64(steps)/busy.Seconds(), float64(steps)/used.Seconds())
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
