package control

import (
	"cmp"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// resumption shows what a job can go on from, and how it went each time that it did (CK-219).
func resumption(s *site.State, j site.Job, v *forgeyardv1.Job) {
	v.ResumeMode = string(cmp.Or(j.Spec.Resume.Mode, job.ResumeNone))
	if n := len(j.Checkpoints); n > 0 {
		v.LatestCheckpoint = j.Checkpoints[n-1].Manifest.String()
	}
	if next, ok := j.NextFrom(); ok && !j.Status.Terminal() {
		v.ResumesFrom = next.Manifest.String()
	}
	for _, e := range j.History {
		if e.Resumed.IsZero() {
			continue
		}
		r := &forgeyardv1.Job_Resume{
			Epoch: e.Epoch, CheckpointId: e.Resumed.String(), Runner: memberName(s, e.Runner), At: stamp(e.Started),
			Outcome: string(e.Reason), Detail: forgeyard.Clip(e.Detail, job.MaxEventMessage),
		}
		if r.Outcome == "" {
			r.Outcome = "starting"
			if j.Phase.Order() >= job.PhaseRunning.Order() {
				r.Outcome = "running"
			}
		}
		v.Resumes = append(v.Resumes, r)
	}
}
