package site

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// KindCheckpoint is the kind of the site's events about checkpoints that a person must be able
// to find later: who revoked, let go or read which, and why (69§241).
const KindCheckpoint = "checkpoint"

// CheckpointOf is the commit of that identity, if the job has it.
func (j Job) CheckpointOf(id forgeyard.Digest) (checkpoint.Commit, bool) {
	i := slices.IndexFunc(j.Checkpoints, func(k checkpoint.Commit) bool { return k.Manifest == id })
	if id.IsZero() || i < 0 {
		return checkpoint.Commit{}, false
	}
	return j.Checkpoints[i], true
}

// origins are the epochs of the job that its record still has.
func (j Job) origins() checkpoint.Origins {
	o := checkpoint.Origins{}
	for _, e := range j.History {
		o[e.Epoch] = checkpoint.Origin{Runner: e.Runner, From: e.Resumed}
	}
	return o
}

// startedFromRevoked says why the checkpoint is not trusted any more that the current epoch
// went on from, or why the epoch itself is not, or nothing.
func (j Job) startedFromRevoked() string {
	if j.Tainted == j.Epoch && j.Epoch != 0 {
		return "what this epoch or its runner saved is not trusted"
	}
	if k, ok := j.CheckpointOf(j.ResumeFrom); ok && k.State == checkpoint.Withdrawn {
		return k.Why
	}
	return ""
}

func (c *change) checkpointRevoke(b CheckpointRevoke) (CheckpointRevoked, error) {
	bad := func(format string, args ...any) (CheckpointRevoked, error) {
		return CheckpointRevoked{}, forgeyard.Errorf("checkpoint revoke", forgeyard.Invalid, format, args...)
	}
	named := 0
	for _, is := range []bool{!b.Checkpoint.IsZero(), b.Runner != "", b.Epoch != 0} {
		if is {
			named++
		}
	}
	switch {
	case b.Reason == "" || len(b.Reason) > job.MaxEventMessage/2:
		return bad("the reason has %d bytes: 1 to %d are due", len(b.Reason), job.MaxEventMessage/2)
	case named != 1:
		return bad("a checkpoint, a runner or an epoch: one of them is needed, %d are given", named)
	case b.Job == "" && b.Runner == "":
		return bad("of which job?")
	}
	jobs, err := c.jobsOf(b)
	if err != nil {
		return CheckpointRevoked{}, err
	}
	cause := checkpoint.Cause{Manifest: b.Checkpoint, Runner: b.Runner, Epoch: b.Epoch}
	var out CheckpointRevoked
	for _, j := range jobs {
		next, n := checkpoint.Revoke(j.Checkpoints, cause, j.origins(), c.by, b.Reason)
		before := j.startedFromRevoked()
		if j.meant(b) { // it has the same state in memory, and may save it again
			j.Tainted = j.Epoch
		}
		if n == 0 && before == j.startedFromRevoked() {
			continue
		}
		j.Checkpoints, out.Revoked = next, out.Revoked+n
		c.note(KindCheckpoint, "%d of job %s revoked by %s: %s", n, j.ID, c.by, b.Reason)
		if !j.Status.Terminal() {
			c.say(j, job.CheckpointRevoked, job.EventMessage, "%d checkpoints revoked by %s: %s", n, c.by, b.Reason)
			if before == "" && j.startedFromRevoked() != "" && c.askBackFromRevoked(&j, b.Reason) {
				out.Running = append(out.Running, j.ID)
			}
			c.nothingToWaitFor(&j)
		}
		c.putJob(j)
	}
	if out.Revoked == 0 && len(out.Running) == 0 {
		c.note(KindCheckpoint, "revocation by %s found nothing that was not revoked: %s", c.by, b.Reason)
	}
	return out, nil
}

// meant reports that the execution that runs now is what a revocation names.
func (j Job) meant(b CheckpointRevoke) bool {
	return j.Lease.Live() && (b.Epoch != 0 && b.Epoch == j.Epoch || b.Runner != "" && b.Runner == j.Lease.Authority.Runner)
}

// jobsOf are the jobs whose checkpoints a revocation may mean.
func (c *change) jobsOf(b CheckpointRevoke) ([]Job, error) {
	if b.Job == "" {
		if _, ok := c.Members.Get(b.Runner); !ok {
			return nil, forgeyard.Errorf("checkpoint revoke", forgeyard.NotFound, "runner %s is not known", forgeyard.Clip(string(b.Runner), 40))
		}
		var all []Job
		for _, j := range c.Jobs.All() {
			if len(j.Checkpoints) > 0 || j.meant(b) {
				all = append(all, j)
			}
		}
		return all, nil
	}
	j, err := c.jobByID("checkpoint revoke", b.Job)
	if err != nil {
		return nil, err
	}
	if _, ok := j.CheckpointOf(b.Checkpoint); !ok && !b.Checkpoint.IsZero() {
		return nil, forgeyard.Errorf("checkpoint revoke", forgeyard.NotFound, "job %s has no checkpoint %s", j.ID, b.Checkpoint.Short())
	}
	return []Job{j}, nil
}

// askBackFromRevoked tells whoever goes on from a checkpoint that was revoked, and has the job
// given back: it goes on from an older one, or begins anew.
func (c *change) askBackFromRevoked(j *Job, why string) bool {
	if !j.Lease.Live() {
		return false
	}
	c.tell(*j, job.EventError, "", "what epoch %d works from was revoked: it is asked back, and neither a checkpoint nor a result of it counts", j.Epoch)
	if !j.Stops() {
		j.StopKind, j.StopReason = stopPreempt, "what it went on from was revoked: "+why
		c.noteLease(*j, "asked back from %s: %s", c.memberName(j.Lease.Authority.Runner), j.StopReason)
	}
	return true
}

func (c *change) checkpointLetGo(b CheckpointLetGo) error {
	j, k, err := c.checkpointByID("checkpoint delete", b.Job, b.Checkpoint)
	if err != nil {
		return err
	}
	if k.Dropped {
		return nil
	}
	next, err := checkpoint.LetGo(j.Checkpoints, k.Manifest, c.by, "deleted")
	if err != nil {
		return err
	}
	from, goesOn := j.NextFrom()
	without := j
	without.Checkpoints = next
	_, left := without.NextFrom()
	switch {
	case j.Status.Terminal():
	case j.Lease.Live() && j.ResumeFrom == k.Manifest && j.beforeWork():
		return forgeyard.Errorf("checkpoint delete", forgeyard.Conflict, "epoch %d of job %s is starting from it", j.Epoch, j.ID).WithHint("try again when it runs")
	case goesOn && from.Manifest == k.Manifest && !left && !b.Force:
		return forgeyard.Errorf("checkpoint delete", forgeyard.Conflict, "it is the only one that job %s can go on from: without it the job %s", j.ID, j.withoutAny()).WithHint("--force deletes it all the same")
	}
	j.Checkpoints = next
	c.note(KindCheckpoint, "%s of job %s deleted by %s", k.Manifest.Short(), j.ID, c.by)
	if !j.Status.Terminal() {
		c.say(j, job.CheckpointDeleted, job.EventMessage, "checkpoint %s deleted by %s", k.Manifest.Short(), c.by)
		c.nothingToWaitFor(&j)
	}
	c.putJob(j)
	return nil
}

// withoutAny says what becomes of the job when it has no checkpoint left.
func (j Job) withoutAny() string {
	if j.Spec.Interruption.ResumesOnly() {
		return "fails, as it asks for " + j.Spec.Interruption.Retry
	}
	return "begins anew"
}

// beforeWork reports that what the current epoch goes on from may still be on its way.
func (j Job) beforeWork() bool {
	return j.Lease.State == lease.Offered || j.Phase == job.PhaseAccepted || j.Phase == job.PhasePreparing
}

func (c *change) checkpointByID(op string, id forgeyard.JobID, of forgeyard.Digest) (Job, checkpoint.Commit, error) {
	j, err := c.jobByID(op, id)
	if err != nil {
		return Job{}, checkpoint.Commit{}, err
	}
	k, ok := j.CheckpointOf(of)
	if !ok {
		return Job{}, checkpoint.Commit{}, forgeyard.Errorf(op, forgeyard.NotFound, "job %s has no checkpoint %s", j.ID, of.Short())
	}
	return j, k, nil
}

// checkpointOpen lets a person read a payload, and has it noted for good.
func (c *change) checkpointOpen(b CheckpointOpen) (CheckpointOpened, error) {
	j, k, err := c.checkpointByID("checkpoint fetch", b.Job, b.Checkpoint)
	switch {
	case err != nil:
		return CheckpointOpened{}, err
	case b.Reason == "":
		return CheckpointOpened{}, forgeyard.Errorf("checkpoint fetch", forgeyard.Invalid, "the reason is empty")
	case k.Dropped:
		return CheckpointOpened{}, forgeyard.Errorf("checkpoint fetch", forgeyard.NotFound, "the payload of %s is kept no longer: %s", k.Manifest.Short(), k.Why)
	}
	c.note(KindCheckpoint, "%s of job %s opened by %s: %s", k.Manifest.Short(), j.ID, c.by, b.Reason)
	return CheckpointOpened{Payload: k.Payload}, nil
}

// letGoSurplus gives up what the job's retention does not keep beside what was just committed.
func (c *change) letGoSurplus(j *Job) {
	if !c.Allows(FormatCheckpoints) {
		return
	}
	r, ok := j.Retention()
	if !ok {
		return
	}
	for _, s := range r.Surplus(j.Checkpoints, j.owner(), c.at) {
		next, err := checkpoint.LetGo(j.Checkpoints, s.Commit.Manifest, "", s.Why)
		if err == nil {
			j.Checkpoints = next
		}
	}
}

// Retention says how long the payloads of the job's checkpoints are kept; false: it makes none.
func (j Job) Retention() (checkpoint.Retention, bool) {
	contract, err := checkpoint.NewContract(j.Spec.Resume, checkpoint.Limits{})
	if err != nil || !contract.Resumable() {
		return checkpoint.Retention{}, false
	}
	return checkpoint.RetentionOf(contract), true
}

// PayloadGone reports whether nobody is to keep the payload of a job's checkpoint any more.
func (j Job) PayloadGone(k checkpoint.Commit, now forgeyard.Wall) bool {
	if k.Dropped || !j.Status.Terminal() {
		return k.Dropped
	}
	r, ok := j.Retention()
	return !ok || slices.ContainsFunc(r.Surplus(j.Checkpoints, checkpoint.Owner{Status: j.Status, Ended: j.Ended}, now), func(s checkpoint.Surplus) bool { return s.Commit.Manifest == k.Manifest })
}
