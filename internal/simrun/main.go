// Command simrun plays simulated sites for `make sim` and `make sim-long`.
//
//	go run ./internal/simrun -seed 7             one site: its trace, which ends with TRACE b3:…
//	go run ./internal/simrun -file story.txt     the same, of a scenario file
//	go run ./internal/simrun -seeds 2000         so many sites, and how fast they went
//	go run ./internal/simrun -for 8h -from 5000  for so long, on fresh seeds
//
// A broken run is cut down to the shortest that was found, printed, and ends the
// program with exit code 1.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/forgeyard/forgeyard-node/simulation"
)

func main() {
	seed := flag.Uint64("seed", 0, "play the site of one seed and print its trace")
	file := flag.String("file", "", "play a scenario file and print its trace")
	seeds := flag.Int("seeds", 0, "play so many sites")
	from := flag.Uint64("from", 1, "the first seed of many")
	long := flag.Duration("for", 0, "play sites for so long, say 8h")
	flag.Parse()
	debug.SetGCPercent(800) // sites are small and die soon: memory is cheaper than time
	var ok bool
	var err error
	switch {
	case *file != "":
		ok, err = one(func(o simulation.Options) (simulation.Result, error) {
			text, err := os.ReadFile(*file)
			if err != nil {
				return simulation.Result{}, err
			}
			return simulation.PlayFile(*file, text, o)
		})
	case *seed > 0:
		ok, err = one(func(o simulation.Options) (simulation.Result, error) { return simulation.Run(*seed, o), nil })
	case *seeds > 0 || *long > 0:
		ok = many(*from, *seeds, *long)
	default:
		err = fmt.Errorf("say what to play: -seed N, -file F, -seeds N or -for 8h")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "simrun:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// one plays a single run; nothing follows the digest of its trace on stdout.
func one(play func(simulation.Options) (simulation.Result, error)) (bool, error) {
	out := bufio.NewWriter(os.Stdout)
	r, err := play(simulation.Options{Trace: out})
	if err == nil {
		err = out.Flush()
	}
	if err != nil || r.Broken == nil {
		return true, err
	}
	fmt.Fprintln(os.Stderr, simulation.Report(r))
	return false, nil
}

// step is how many sites are played between two looks at the time.
const step = 500

// many plays count sites, or sites for so long, and says how fast.
func many(from uint64, count int, long time.Duration) bool {
	var broken *simulation.Result
	start := time.Now()
	for first := from; broken == nil; first += step {
		n := step
		if long == 0 {
			n = count
		}
		fmt.Println(simulation.Batch(first, n, func(r simulation.Result) bool {
			if r.Broken != nil {
				broken = &r
			}
			return broken == nil
		}))
		if long == 0 || time.Since(start) >= long {
			break
		}
	}
	if broken != nil {
		fmt.Println(simulation.Report(*broken))
	}
	return broken == nil
}
