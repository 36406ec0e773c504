package controllers

import (
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// CK-021, CK-150, CK-198, CK-199: capacity that may vanish is preferred for what loses little by it,
// avoided for what would begin a long work anew, and never taken near the time of the job. It
// is a preference: stable capacity neither gains nor loses.
func TestClassSuits(t *testing.T) {
	submitted := forgeyard.Wall(1_800_000_000_000)
	after := func(d time.Duration) forgeyard.Wall { return forgeyard.WallOf(submitted.Time().Add(d)) }
	work := func(tolerance string, run, within time.Duration) site.Job {
		return site.Job{Submitted: submitted, Spec: job.Spec{Timeouts: job.Timeouts{Run: run}, Interruption: job.Interruption{Tolerance: tolerance, FinishWithin: within}}}
	}
	for _, c := range []struct {
		class job.InterruptionClass
		j     site.Job
		now   forgeyard.Wall
		sign  int
	}{
		{"", work(job.ToleranceCheckpointable, time.Hour, 0), after(0), 0},
		{job.Stable, work(job.ToleranceCheckpointable, time.Hour, time.Minute), after(0), 0},
		{job.Spot, work(job.ToleranceCheckpointable, 10*time.Hour, 0), after(0), 1},
		{job.Spot, work(job.ToleranceRestartable, 5*time.Minute, 0), after(0), 1},
		{job.Spot, work(job.ToleranceRestartable, 10*time.Hour, 0), after(0), -1},
		{job.BestEffort, work(job.ToleranceCheckpointable, time.Hour, 4*time.Hour), after(2 * time.Hour), 1},
		{job.BestEffort, work(job.ToleranceCheckpointable, time.Hour, 4*time.Hour), after(3 * time.Hour), -1},
		{job.Preemptible, work(job.ToleranceCheckpointable, time.Hour, 4*time.Hour), after(9 * time.Hour), -1},
	} {
		got := suits(c.class, c.j, c.now)
		if (got > 0) != (c.sign > 0) || (got < 0) != (c.sign < 0) {
			t.Errorf("%s, %+v at %s: %d, want the sign of %d", c.class, c.j.Spec.Interruption, c.now.Time(), got, c.sign)
		}
	}
}
