package site

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// CheckpointsAged is the leader's word that a job which has not ended keeps checkpoints longer
// than its retention says: a job that commits none for hours gives up old ones all the same. Of
// log format 2.
type CheckpointsAged struct {
	Job forgeyard.JobID `cbor:"1,keyasint"`
}

func (CheckpointsAged) kind() Kind { return kindCheckpointsAged }

// Surplus lists what the job keeps and is not to keep any more, at a time.
func (j Job) Surplus(now forgeyard.Wall) []checkpoint.Surplus {
	if len(j.Checkpoints) < 2 || j.Status.Terminal() {
		return nil // the newest stays in any case, and what has ended has its window
	}
	r, ok := j.Retention()
	if !ok {
		return nil
	}
	return r.Surplus(j.Checkpoints, j.owner(), now)
}

// owner says what of the job's checkpoints it needs: what its epoch goes on from, and what the
// next one would, which an effect may keep from being the newest.
func (j Job) owner() checkpoint.Owner {
	o := checkpoint.Owner{Status: j.Status, Ended: j.Ended}
	if !j.ResumeFrom.IsZero() {
		o.Needs = append(o.Needs, j.ResumeFrom)
	}
	if next, ok := j.NextFrom(); ok {
		o.Needs = append(o.Needs, next.Manifest)
	}
	return o
}

// checkpointsAged looks by the time of the entry: a leader whose clock is ahead of the log's lets
// nothing go early.
func (c *change) checkpointsAged(b CheckpointsAged) error {
	j, err := c.jobByID("checkpoint age", b.Job)
	if err != nil {
		return err
	}
	gone := j.Surplus(c.at)
	if len(gone) == 0 {
		return nil
	}
	c.letGoSurplus(&j)
	for _, s := range gone {
		c.note(KindCheckpoint, "%s of job %s is kept no longer: %s", s.Commit.Manifest.Short(), j.ID, s.Why)
	}
	c.putJob(j)
	return nil
}
