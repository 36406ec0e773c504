package site

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// RunSuspension is the record of a run that waits as a whole (69§200).
type RunSuspension struct {
	ID     forgeyard.RunSuspensionID `cbor:"1,keyasint"`
	By     string                    `cbor:"2,keyasint"`
	At     forgeyard.Wall            `cbor:"3,keyasint"`
	Or     string                    `cbor:"4,keyasint,omitempty"`
	Ended  forgeyard.Wall            `cbor:"5,keyasint,omitempty"` // somebody resumed it
	Wish   uint64                    `cbor:"6,keyasint"`           // Hold.Step of the wish that its job got
	EndsBy string                    `cbor:"7,keyasint,omitempty"`
}

// suspendable says why an active job of a run can neither be completed, saved nor cancelled
// safely, or nothing (CK-212).
func (j Job) suspendable(or string) error {
	bad := func(format string, args ...any) *forgeyard.Error {
		return forgeyard.Errorf("run suspend", forgeyard.Conflict, format, args...)
	}
	active := j.Lease.Live() || j.Status == job.Unknown
	switch {
	case !active || j.TakesCheckpoints():
		return nil
	case j.Spec.Effects == job.EffectsProtected && or != OrRunOn:
		return bad("job %s has protected effects and no checkpoints: it can neither be saved nor stopped safely", j.ID).
			WithHint("let it complete: forgeyard-node job attach %s", j.ID)
	}
	return nil
}

// runSuspend lets a run wait until somebody resumes it.
func (c *change) runSuspend(b RunSuspend) (RunSuspended, error) {
	r, ok := c.Runs.Get(b.Run)
	if !ok {
		return RunSuspended{}, forgeyard.Errorf("run suspend", forgeyard.NotFound, "no run %s", forgeyard.Clip(string(b.Run), 40))
	}
	j, err := c.jobByID("run suspend", r.Job)
	if err != nil {
		return RunSuspended{}, err
	}
	if s := r.Suspension; s != nil && s.Ended == 0 && j.Held() && j.Hold.Step == s.Wish {
		return RunSuspended{ID: s.ID, Status: j.Status}, nil
	}
	if err := j.suspendable(b.Or); err != nil {
		return RunSuspended{}, err
	}
	a, err := c.ask(Ask{Job: j.ID, What: AskSuspend, Or: b.Or})
	if err != nil {
		return RunSuspended{}, err
	}
	j, _ = c.Jobs.Get(j.ID)
	r, _ = c.Runs.Get(b.Run) // its events have moved it
	r.Suspension = &RunSuspension{ID: forgeyard.RunSuspensionID(c.newID()), By: c.by, At: c.at, Or: b.Or, Wish: j.Hold.Step}
	c.Runs = c.Runs.Put(r.ID, r)
	return RunSuspended{ID: r.Suspension.ID, Changed: a.Changed, Status: a.Status}, nil
}

// endSuspension closes the record of a suspension whose wish does not hold any more, however
// it ended: by a resume of the job or the run, by a cancellation, or with the job.
func (c *change) endSuspension(j Job) {
	r, ok := c.Runs.Get(j.Run)
	if !ok || r.Suspension == nil || r.Suspension.Ended != 0 {
		return
	}
	if j.Held() || j.Hold != nil && j.Hold.Step == r.Suspension.Wish && j.Hold.State != SuspendResuming {
		return
	}
	s := *r.Suspension
	s.Ended, s.EndsBy = c.at, c.by
	r.Suspension = &s
	c.Runs = c.Runs.Put(r.ID, r)
}

// runResume ends a suspension of a run.
func (c *change) runResume(b RunResume) error {
	r, ok := c.Runs.Get(b.Run)
	switch {
	case !ok:
		return forgeyard.Errorf("run resume", forgeyard.NotFound, "no run %s", forgeyard.Clip(string(b.Run), 40))
	case r.Suspension == nil || r.Suspension.Ended != 0:
		return forgeyard.Errorf("run resume", forgeyard.Conflict, "run %s is not suspended", r.ID).WithHint("forgeyard-node run show %s", r.ID)
	}
	return c.resume(Resume{Job: r.Job})
}
