package site

import (
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// AtStake is what an execution would lose if it were ended at wall time without a checkpoint, as
// the log knows it (69§104).
func (j Job) AtStake(wall forgeyard.Wall) checkpoint.Work {
	since := j.Lease.Granted
	for _, c := range j.Checkpoints {
		since = max(since, c.At)
	}
	return checkpoint.Work{
		ID: string(j.ID), Resumable: j.TakesCheckpoints(), MilliCPU: j.Spec.Resources.MilliCPU, Priority: j.Spec.Interruption.Priority,
		Unsaved: max(0, wall.Time().Sub(since.Time())), Write: j.writes(),
	}
}

// copyRate is what a checkpoint is taken to be written and copied with, in bytes a second: the
// order needs no better figure, and the same one for all.
const copyRate = 64 << 20

// writes is how long the next checkpoint of the job may take, as long as the last one, or by its
// size.
func (j Job) writes() time.Duration {
	n := len(j.Checkpoints)
	switch {
	case n == 0:
		return 0
	case j.Checkpoints[n-1].Took > 0:
		return j.Checkpoints[n-1].Took
	}
	return time.Second + time.Duration(j.Checkpoints[n-1].Bytes/(copyRate/1000))*time.Millisecond
}

// Moves reports whether the execution may be ended only so that the job goes on elsewhere: it can
// save what it has, nothing keeps it from going on from that, and nothing else is asked of it.
func (j Job) Moves() bool {
	free := j.CancelAt == 0 && j.StopKind == "" && j.final()+j.waitsFor() == "" && len(j.OpenEffects()) == 0
	never := slices.Contains([]string{job.RetryNever, job.RetryRestart}, string(j.Spec.Interruption.Retry))
	_, saved := j.NextFrom()
	return free && !never && (saved || !j.Spec.Interruption.ResumesOnly()) && j.Lease.State == lease.Accepted && j.TakesCheckpoints()
}
