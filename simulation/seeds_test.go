package simulation

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedCount = flag.Int("seeds", 200, "how many sites to simulate")
	firstSeed = flag.Uint64("seed", 1, "the first of them")
)

// TestSeeds simulates whole sites. With -v and one seed it prints the trace, which ends
// with its digest.
func TestSeeds(t *testing.T) {
	if *seedCount == 1 {
		o := Options{}
		if testing.Verbose() {
			o.Trace = os.Stdout
		}
		report(t, Run(*firstSeed, o))
		return
	}
	var virtual, entries, elections, ended, delegated atomic.Int64
	start := time.Now()
	t.Run("site", func(t *testing.T) {
		const step = 25
		for at := 0; at < *seedCount; at += step {
			from, to := *firstSeed+uint64(at), *firstSeed+uint64(min(at+step, *seedCount))
			t.Run(fmt.Sprintf("%d-%d", from, to-1), func(t *testing.T) {
				t.Parallel()
				for seed := from; seed < to; seed++ {
					r := Run(seed, Options{})
					virtual.Add(int64(r.Virtual))
					entries.Add(int64(r.Entries))
					elections.Add(int64(r.Elections))
					ended.Add(int64(r.Ended))
					delegated.Add(int64(r.Delegated))
					report(t, r)
				}
			})
		}
	})
	took := time.Since(start)
	hours := time.Duration(virtual.Load()).Hours()
	fmt.Printf("%d sites, %.1f site-hours in %s: %.0f site-hours per minute on %d processors; %d entries, %d elections, %d jobs ended, %d of them delegated\n",
		*seedCount, hours, took.Round(time.Millisecond), hours/took.Minutes(), runtime.GOMAXPROCS(0), entries.Load(), elections.Load(), ended.Load(), delegated.Load())
}

func report(t *testing.T, r Result) {
	t.Helper()
	if r.Broken != nil {
		t.Errorf("seed %d breaks %v\n%s\n%s\nagain: make sim SEED=%d", r.Seed, r.Broken, strings.Join(r.Tail, "\n"), r.Trace, r.Seed)
	}
}

// TestReplay: the same seed gives the same trace, byte for byte, also beside others.
func TestReplay(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		var first, second strings.Builder
		a, b := Run(seed, Options{Trace: &first}), Run(seed, Options{Trace: &second})
		if a.Trace != b.Trace || first.String() != second.String() {
			one, two := strings.Split(first.String(), "\n"), strings.Split(second.String(), "\n")
			for i := range min(len(one), len(two)) {
				if one[i] != two[i] {
					t.Fatalf("seed %d differs at line %d:\n%s\n%s", seed, i+1, one[i], two[i])
				}
			}
			t.Fatalf("seed %d: %s against %s", seed, a.Trace, b.Trace)
		}
		if !strings.HasSuffix(first.String(), a.Trace+"\n") || !strings.HasPrefix(a.Trace, "TRACE b3:") {
			t.Fatalf("the trace ends with %q", a.Trace)
		}
	}
}
