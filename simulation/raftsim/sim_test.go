package raftsim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seed  = flag.Uint64("seed", 1, "the site to play")
	fault = flag.String("fault", "", "a fault to put in, by its name in faults_test.go")

	collect = flag.Uint64("collect", 0, "MiB that may be allocated before garbage is collected; 0: as always")
)

// play runs a seed in a bubble of its own. What raft leaves behind for ever after a
// transfer whose follower went away (hashicorp/raft#696) is no fault of the run; any
// other goroutine that outlives it is.
func play(t *testing.T, seed uint64, o Options) (r Result) {
	t.Helper()
	t.Chdir(t.TempDir())
	defer func() {
		e := recover()
		if e == nil {
			return
		}
		if r.Trace == "" || !strings.Contains(fmt.Sprint(e), "blocked goroutines remain") {
			panic(e)
		}
		if left := leftOver(); left != "" {
			t.Errorf("seed %d: a goroutine outlives the site:\n%s", seed, left)
		}
	}()
	synctest.Test(t, func(t *testing.T) { r = Run(seed, o) })
	return r
}

// leftOver is a goroutine that is blocked in a bubble and not one of raft's transfers.
func leftOver() string {
	b := make([]byte, 16<<20)
	b = b[:runtime.Stack(b, true)]
	for g := range strings.SplitSeq(string(b), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		if strings.Contains(head, "synctest bubble") && !strings.Contains(g, "raft.(*Raft).leadershipTransfer(") && !strings.Contains(g, "raft.(*Raft).leaderLoop.func2(") {
			return g
		}
	}
	return ""
}

// TestSeed plays one site. With -v it prints the trace, which ends with its digest.
func TestSeed(t *testing.T) {
	f, ok := faults[*fault]
	if !ok && *fault != "" {
		t.Fatalf("no fault is called %q", *fault)
	}
	o := Options{Faults: f.faults, Collect: *collect << 20}
	if testing.Verbose() {
		o.Trace = os.Stdout
	}
	start := time.Now()
	r := play(t, *seed, o)
	took := time.Since(start)
	fmt.Printf("PLAYED seed=%d virtual_s=%.0f real_s=%.1f commands=%d elections=%d jobs=%d reads=%d restarts=%d installs=%d lost=%d replays=%d trace=%s\n",
		r.Seed, r.Virtual.Seconds(), took.Seconds(), r.Entries, r.Elections, r.Acked, r.Reads, r.Restarts, r.Installs, r.Lost, bit(r.Replays), strings.TrimPrefix(r.Trace, "TRACE "))
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
