package site

import (
	"fmt"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// NextFrom is the checkpoint that the next epoch starts from, false: from nothing. Who looks for a
// machine, and who opens the epoch, ask here. It is the newest good one: what a person passed over
// is set aside, so that no failure of a later one brings it back.
func (j Job) NextFrom() (checkpoint.Commit, bool) {
	if j.Spec.Interruption.Retry == job.RetryRestart {
		return checkpoint.Commit{}, false
	}
	from, ok, _ := checkpoint.Select(j.Checkpoints, j.beyondEffects()...)
	return from, ok
}

// beyondEffects are the checkpoints that an effect keeps from being gone on from.
func (j Job) beyondEffects() (all []forgeyard.Digest) {
	for _, d := range j.afterEffects() {
		all = append(all, d.commit.Manifest)
	}
	return all
}

// Misfits says why a member cannot go on with the job from a checkpoint of it: a hard filter,
// before any thought of where the content is (69§90–92).
func (j Job) Misfits(k checkpoint.Commit, m Member) []string {
	var why []string
	if !k.OpenTo(m.Runner) {
		why = append(why, "its checkpoint "+k.Manifest.Short()+" is restricted, and was not sealed for it: one that is taken now would be")
	}
	if k.Where == nil {
		return why
	}
	for _, f := range j.Spec.Resume.Compatibility.Misfits(*k.Where, machine.Place{OS: m.Caps.OS, Arch: m.Caps.Arch, Machine: m.Caps.MachineFor(j.Spec)}) {
		why = append(why, "its checkpoint does not fit ("+f.What+"): "+f.Why)
	}
	return why
}

// resumeFrom makes a checkpoint the one that a suspended job goes on from, by a person's word. What
// no member could go on from is refused with the reasons, and so is what is not trusted.
func (c *change) resumeFrom(j *Job, b Resume) error {
	no := func(kind forgeyard.Kind, format string, args ...any) *forgeyard.Error {
		return forgeyard.Errorf("resume", kind, format, args...)
	}
	k, ok := j.CheckpointOf(b.From)
	reason := forgeyard.Clip(strings.TrimSpace(b.Reason), checkpoint.MaxText)
	switch {
	case !ok:
		if of, found := c.ownerOf(b.From); found {
			return no(forgeyard.Conflict, "checkpoint %s is of job %s: it serves that job alone", b.From.Short(), of)
		}
		return no(forgeyard.NotFound, "job %s has no checkpoint %s", j.ID, b.From.Short()).WithHint("list them: forgeyard-node checkpoint list %s", j.ID)
	case reason == "":
		return no(forgeyard.Invalid, "the reason is empty").WithHint("say why: it stands in the site's events")
	case j.Spec.Interruption.Retry == job.RetryRestart:
		return no(forgeyard.Conflict, "job %s always begins anew: its interruption.retry is %s", j.ID, job.RetryRestart)
	case k.Dropped || k.State == checkpoint.Gone:
		return no(forgeyard.Conflict, "the payload of checkpoint %s is kept no longer: %s", k.Manifest.Short(), k.Why)
	case slices.Contains(j.beyondEffects(), k.Manifest):
		return no(forgeyard.Conflict, "checkpoint %s was taken after an effect began that goes on from before it", k.Manifest.Short()).WithHint("choose an older one: forgeyard-node checkpoint list %s", j.ID)
	case k.State != checkpoint.Good && !k.PassedOver():
		return no(forgeyard.Conflict, "checkpoint %s is %s: %s", k.Manifest.Short(), k.State, k.Why).WithHint("choose another: forgeyard-node checkpoint list %s", j.ID)
	}
	if err := c.somebodyFits(*j, k); err != nil {
		return err
	}
	next, over, err := checkpoint.Choose(j.Checkpoints, k.Manifest, c.by, reason)
	if err != nil {
		return err
	}
	j.Checkpoints = next
	if n := len(over); n > 0 {
		reason += fmt.Sprintf(" (%s of epoch %d is passed over", over[n-1].Manifest.Short(), over[n-1].Epoch)
		if n > 1 {
			reason += fmt.Sprintf(", and %d before it", n-1)
		}
		reason += ")"
	}
	c.note(KindCheckpoint, "job %s is resumed from %s of epoch %d by %s: %s", j.ID, k.Manifest.Short(), k.Epoch, c.by, reason)
	c.tell(*j, job.EventMessage, "", "resumed by %s from checkpoint %s of epoch %d: %s", c.by, k.Manifest.Short(), k.Epoch, reason)
	return nil
}

// ownerOf is the job that has a checkpoint.
func (c *change) ownerOf(of forgeyard.Digest) (forgeyard.JobID, bool) {
	for _, j := range c.Jobs.All() {
		if _, ok := j.CheckpointOf(of); ok {
			return j.ID, true
		}
	}
	return "", false
}

// maxReasons bounds how many members a refusal speaks of.
const maxReasons = 4

// somebodyFits is nil if a member that is there could go on from the checkpoint.
func (c *change) somebodyFits(j Job, k checkpoint.Commit) error {
	var why []string
	for _, m := range c.Members.All() {
		if m.Removed || m.Session.ID == "" {
			continue
		}
		misfits := j.Misfits(k, m)
		if len(misfits) == 0 {
			return nil
		}
		why = append(why, m.Name+": "+misfits[0])
	}
	if len(why) == 0 {
		return forgeyard.Errorf("resume", forgeyard.Unavailable, "no member is there that could go on from it")
	}
	slices.Sort(why)
	if n := len(why); n > maxReasons {
		why = append(why[:maxReasons], fmt.Sprintf("and %d more", n-maxReasons))
	}
	return forgeyard.Errorf("resume", forgeyard.Conflict, "checkpoint %s is incompatible with every member: %s", k.Manifest.Short(), strings.Join(why, "; "))
}
