package simulation

import (
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/simulation/scenario"
)

// TestShrink: a failing run is cut down to a much shorter one that still fails alike, and
// what it prints as a file fails alike too.
func TestShrink(t *testing.T) {
	faults := func() hooks {
		h := honest()
		h.apply = takesStale
		return h
	}
	shrunk, found := 0, 0
	for seed := uint64(1); found < 3; seed++ {
		long := play(scenario.Draw(seed, loners), Options{}, faults())
		if seed == 90 {
			t.Fatalf("the fault was seen in %d long runs", found)
		}
		if long.Broken == nil || long.Lines < 200 { // one that has something to leave out
			continue
		}
		found++
		short, tried := shrink(long, faults)
		t.Logf("seed %d: %d lines became %d in %d runs:\n%s", seed, long.Lines, short.Lines, tried, short.Scenario.Format())
		if short.Broken.Invariant != long.Broken.Invariant {
			t.Fatalf("%v became %v", long.Broken, short.Broken)
		}
		// Where a draw depends on the jobs before it, one cannot be left out.
		if 3*short.Lines <= 2*long.Lines && 4*len(short.Scenario.Damage) <= len(long.Scenario.Damage) && len(short.Scenario.Jobs) < len(long.Scenario.Jobs) {
			shrunk++
		}
		again, err := scenario.Parse("printed", []byte(short.Scenario.Format()))
		if err != nil {
			t.Fatal(err)
		}
		if r := play(again, Options{}, faults()); r.Broken == nil || *r.Broken != *short.Broken || r.Trace != short.Trace {
			t.Errorf("what was printed breaks %v, not %v", r.Broken, short.Broken)
		}
	}
	if shrunk < 2 {
		t.Errorf("%d of %d long runs became short", shrunk, found)
	}
}

// TestStories plays the files of testdata: each is a case that people met, or a fault that
// was found here, and says what must be so at its end.
func TestStories(t *testing.T) {
	files := storyFiles(t)
	if len(files) < 12 {
		t.Errorf("%d stories, at least 12 are due", len(files))
	}
	for name, text := range files {
		t.Run(strings.TrimSuffix(name, ".txt"), func(t *testing.T) {
			r, err := PlayFile(name, text, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Scenario.Story) == 0 || len(r.Scenario.Expect) == 0 {
				t.Errorf("it has no title, or nothing is expected of it")
			}
			if r.Broken != nil {
				t.Errorf("%v\n%s", r.Broken, strings.Join(r.Tail, "\n"))
			}
		})
	}
}
