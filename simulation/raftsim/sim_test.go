package raftsim

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var seed = flag.Uint64("seed", 1, "the site to play")

// play runs a seed in a bubble of its own.
func play(t *testing.T, seed uint64, o Options) (r Result) {
	t.Helper()
	t.Chdir(t.TempDir())
	synctest.Test(t, func(t *testing.T) { r = Run(seed, o) })
	return r
}

// TestSeed plays one site. With -v it prints the trace, which ends with its digest.
func TestSeed(t *testing.T) {
	o := Options{}
	if testing.Verbose() {
		o.Trace = os.Stdout
	}
	start := time.Now()
	r := play(t, *seed, o)
	took := time.Since(start)
	fmt.Printf("PLAYED seed=%d virtual_s=%.0f real_s=%.1f commands=%d elections=%d jobs=%d reads=%d restarts=%d installs=%d replays=%d\n",
		r.Seed, r.Virtual.Seconds(), took.Seconds(), r.Entries, r.Elections, r.Acked, r.Reads, r.Restarts, r.Installs, bit(r.Replays))
	if !r.Replays {
		fmt.Println("this run does not replay: it was not built with the runtime overlay, or has more than one processor")
	}
	if r.Broken != nil {
		t.Errorf("seed %d breaks %v\n%s\n%s\nagain: make sim-raft SEED=%d", r.Seed, r.Broken, strings.Join(r.Tail, "\n"), r.Trace, r.Seed)
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
