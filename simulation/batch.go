package simulation

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Total sums up many runs.
type Total struct {
	Sites, Events, Entries, Elections, Ended, Delegated, Collected int
	Virtual, Took                                                  time.Duration
}

func (t Total) String() string {
	return fmt.Sprintf("%d sites, %.1f site-hours in %s: %.0f site-hours a minute on %d processors; %d events, %d entries, %d elections, %d jobs ended, %d delegated, %d objects collected",
		t.Sites, t.Virtual.Hours(), t.Took.Round(time.Millisecond), t.HoursPerMinute(), runtime.GOMAXPROCS(0), t.Events, t.Entries, t.Elections, t.Ended, t.Delegated, t.Collected)
}

// HoursPerMinute is how many hours of one site pass in a minute of ours.
func (t Total) HoursPerMinute() float64 {
	if t.Took <= 0 {
		return 0
	}
	return t.Virtual.Hours() / t.Took.Minutes()
}

// Batch plays the sites of count seeds, as many at once as there are processors, and
// hands each result to see, one at a time and in no order. It stops early when see says so.
func Batch(from uint64, count int, see func(Result) (goOn bool)) Total {
	start := time.Now()
	var mu sync.Mutex // guards what follows
	var total Total
	next, stop := 0, false
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := from + uint64(next)
				over := stop || next >= count
				next++
				mu.Unlock()
				if over {
					return
				}
				r := Run(seed, Options{Quiet: true})
				mu.Lock()
				total.add(r)
				stop = stop || !see(r)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	total.Took = time.Since(start)
	return total
}

func (t *Total) add(r Result) {
	t.Sites++
	t.Events += r.Events
	t.Entries += r.Entries
	t.Elections += r.Elections
	t.Ended += r.Ended
	t.Delegated += r.Delegated
	t.Collected += r.Collected
	t.Virtual += r.Virtual
}
