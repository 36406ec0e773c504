package checkpoint_test

import (
	"math"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// CK-063 067 197: what the job declares is advised as it stands; else the time that loses least,
// by what a checkpoint of this job costs and how often it is interrupted.
func TestAdvise(t *testing.T) {
	declares := declared()
	declares.Checkpoint.Interval = 7 * time.Minute
	free := contract(t, declared(), checkpoint.Limits{})
	for _, c := range []struct {
		name string
		of   checkpoint.Contract
		risk checkpoint.Risk
		want time.Duration
	}{
		{"declared", contract(t, declares, checkpoint.Limits{}), checkpoint.Risk{Cost: time.Hour}, 7 * time.Minute},
		{"the site's bound on what is declared", contract(t, declares, checkpoint.Limits{MinInterval: time.Hour}), checkpoint.Risk{}, time.Hour},
		{"nothing known", free, checkpoint.Risk{}, 131 * time.Second},
		{"a gigabyte", free, checkpoint.Risk{Bytes: 1 << 30}, 22*time.Minute + 6*time.Second},
		{"ten seconds each", free, checkpoint.Risk{Cost: 10 * time.Second}, 21*time.Minute + 45*time.Second},
		{"and interrupted each hour", free, checkpoint.Risk{Cost: 10 * time.Second, Ran: 24 * time.Hour, Interruptions: 47}, 4*time.Minute + 18*time.Second},
		{"dearer than what it saves", free, checkpoint.Risk{Cost: time.Hour, Ran: time.Hour, Interruptions: 99}, 15 * time.Minute},
		{"the site's bound", contract(t, declared(), checkpoint.Limits{MinInterval: 6 * time.Hour}), checkpoint.Risk{Cost: time.Second}, 6 * time.Hour},
		{"never interrupted in a month", free, checkpoint.Risk{Cost: 10 * time.Minute, Ran: 30 * 24 * time.Hour}, 4 * time.Hour},
		{"always interrupted, and cheap", free, checkpoint.Risk{Cost: time.Millisecond, Interruptions: 1e6}, 10 * time.Second},
		{"a clock that went back", free, checkpoint.Risk{Cost: 10 * time.Second, Ran: -time.Hour, Interruptions: -3}, 21*time.Minute + 45*time.Second},
		{"no checkpoints", contract(t, job.Resume{Mode: job.ResumeRestartStage}, checkpoint.Limits{}), checkpoint.Risk{}, 0},
	} {
		if got := c.of.Advise(c.risk).Round(time.Second); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// The advice is held against a slow twin: the expected part of the time that is lost, for every
// interval by the second. No other one loses 1 % less.
func TestAdviseLosesLeast(t *testing.T) {
	free := contract(t, declared(), checkpoint.Limits{})
	lost := func(interval, cost, mean time.Duration) float64 { // e^((T+C)/M)−1, per second of work
		return (math.Exp((interval+cost).Seconds()/mean.Seconds()) - 1) * mean.Seconds() / interval.Seconds()
	}
	for _, cost := range []time.Duration{time.Second, 10 * time.Second, time.Minute, 5 * time.Minute} {
		for _, hits := range []int{0, 3, 11, 47} {
			mean := 24 * time.Hour / time.Duration(hits+1)
			if cost > mean/10 {
				continue // the formula is for what is cheap beside what it saves
			}
			got := free.Advise(checkpoint.Risk{Cost: cost, Interruptions: hits})
			best := math.Inf(1)
			for i := leastTried; i < 4*time.Hour; i += time.Second {
				best = min(best, lost(i, cost, mean))
			}
			if l := lost(got, cost, mean); l > best*1.01 {
				t.Errorf("cost %s, interrupted each %s: %s loses %.4f of each second, the least is %.4f", cost, mean, got, l, best)
			}
		}
	}
}

const leastTried = 10 * time.Second
