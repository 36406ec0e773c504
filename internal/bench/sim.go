package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/bench/report"
	"github.com/forgeyard/forgeyard-node/simulation"
	"github.com/forgeyard/forgeyard-node/simulation/explore"
)

// simSuite measures the nets that run in one process.
func (b *bench) simSuite(ctx context.Context) error {
	if err := b.sites(); err != nil {
		return err
	}
	if err := b.explorer(ctx); err != nil {
		return err
	}
	return b.realRaft(ctx)
}

// Sites with the real Raft are played by the script that make sim-raft runs, a process a
// seed on all processors, because each must be built with the overlay of the runtime.
const (
	raftSites  = 8
	raftRounds = 5
)

var siteHours = regexp.MustCompile(`([0-9.]+) site-hours per minute`)

func (b *bench) realRaft(ctx context.Context) error {
	var all []float64
	for i := range raftRounds {
		c := exec.CommandContext(ctx, "scripts/sim-raft.sh")
		c.Env = append(os.Environ(), fmt.Sprint("SEEDS=", raftSites), fmt.Sprint("FIRST=", 1+i*raftSites), "SEED=", "TESTS=", "FAULT=")
		out, err := c.CombinedOutput()
		if err != nil {
			return fmt.Errorf("sim-raft: %w: %.300s", err, out)
		}
		m := siteHours.FindSubmatch(out)
		if m == nil {
			return fmt.Errorf("sim-raft: it does not say how fast it was: %.300s", out)
		}
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return fmt.Errorf("sim-raft: %w", err)
		}
		all = append(all, v)
	}
	b.Add(report.Measured("sim.real_raft_site_hours_a_minute", report.Tenths, 10, all).AtLeast())
	return nil
}

// benchSites are played in each of benchRounds: some minutes of each site.
const (
	benchSites  = 100
	benchRounds = 5
)

// sites measures how many hours of whole sites pass in a minute of two cores, by the
// processor time that was used.
func (b *bench) sites() error {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // as simrun does
	var all []float64
	for i := range benchRounds {
		before, err := processorTime()
		if err != nil {
			return err
		}
		t := simulation.Batch(uint64(1+i*benchSites), benchSites, func(simulation.Result) bool { return true })
		after, err := processorTime()
		if err != nil {
			return err
		}
		fmt.Fprintln(b.Out, "sites:", t)
		all = append(all, t.Virtual.Hours()/((after-before).Minutes()/2))
	}
	b.Add(report.Measured("sim.site_hours_a_minute_of_two_cores", report.Count, 300, all).AtLeast())
	return nil
}

// exploreRounds of the whole list of companies are measured; each company has its share of
// exploreFor, on one core.
const (
	exploreRounds = 5
	exploreFor    = 15 * time.Second
)

// explorer measures steps for each second of processor time, so that what else runs on
// the machine counts less. A step is one action tried in one world, with every invariant
// checked; the questions that it asks the rules are printed beside.
func (b *bench) explorer(ctx context.Context) error {
	var all []float64
	for range exploreRounds {
		var steps, questions, calls uint64
		var used time.Duration
		cs := explore.Companies()
		for _, c := range cs {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			before, err := processorTime()
			if err != nil {
				return err
			}
			began := time.Now()
			r := explore.Run(c, explore.Honest(), explore.Limits{States: 3_000_000, Time: exploreFor / time.Duration(len(cs))}, func() time.Duration { return time.Since(began) })
			if r.Broken != nil {
				return r.Broken
			}
			after, err := processorTime()
			if err != nil {
				return err
			}
			steps, questions, calls, used = steps+r.Steps, questions+r.Rules, calls+r.Calls, used+after-before
		}
		fmt.Fprintf(b.Out, "explorer: %d steps, %d questions to rules, %d calls, %s of processor time\n", steps, questions, calls, used.Round(time.Millisecond))
		all = append(all, float64(steps)/used.Seconds())
	}
	b.Add(report.Measured("sim.explorer_steps_a_second_a_core", report.Count, 1_000_000, all).AtLeast())
	return nil
}

// processorTime is what this process has used of all cores.
func processorTime() (time.Duration, error) {
	c, err := report.CostOf(os.Getpid())
	return c.CPU, err
}
