package site

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// What Ask may be for.
const (
	AskCheckpoint = "checkpoint"
	AskSuspend    = "suspend"
)

// What becomes of a job whose holder refuses to suspend it.
const (
	OrRunOn   = ""        // the suspension has failed; the job runs on
	OrRestart = "restart" // it is stopped all the same, and begins anew from what is committed
	OrCancel  = "cancel"
)

// The states of a suspension (69§84).
const (
	SuspendRequested = "requested"
	Suspended        = "suspended"
	SuspendResuming  = "resuming" // a person asked for it; nobody has accepted the job yet
	SuspendFailed    = "failed"
)

// Hold is a person's wish that a job wait until a person resumes it, and what became of it.
type Hold struct {
	By    string         `cbor:"1,keyasint"`
	At    forgeyard.Wall `cbor:"2,keyasint"`
	Or    string         `cbor:"3,keyasint,omitempty"`
	State string         `cbor:"4,keyasint"`
	Why   string         `cbor:"5,keyasint,omitempty"` // of SuspendFailed
	Step  uint64         `cbor:"6,keyasint"`           // of the log: no two wishes have the same
}

// Held reports that the job is not to be executed once its execution has ended.
func (j Job) Held() bool {
	return j.Hold != nil && (j.Hold.State == SuspendRequested || j.Hold.State == Suspended)
}

// Stops reports that the holder was asked to give the job back whatever it has. A wish to
// suspend it may be refused, and another stop takes its place.
func (j Job) Stops() bool { return j.StopKind != "" && j.StopKind != AskSuspend }

// Stop names what is asked of the holder now, empty: nothing. What is asked for anew after a
// refusal is another one.
func (j Job) Stop() string {
	if w := j.Wish(); w != 0 {
		return fmt.Sprintf("%s %d", j.StopKind, w)
	}
	return j.StopKind
}

// Wish is which wish of a person the holder is asked to follow; 0: none.
func (j Job) Wish() uint64 {
	if j.StopKind == AskSuspend && j.Hold != nil {
		return j.Hold.Step
	}
	return 0
}

// TakesCheckpoints says whether the job's contract has any.
func (j Job) TakesCheckpoints() bool { return j.Spec.Resume.TakesCheckpoints() }

// ask hands a person's wish to whoever holds the job. A wish that nobody can fulfil is
// refused here, before anything is stopped.
func (c *change) ask(b Ask) (Asked, error) {
	j, err := c.jobByID("ask", b.Job)
	if err != nil {
		return Asked{}, err
	}
	switch {
	case b.What != AskCheckpoint && b.What != AskSuspend:
		return Asked{}, forgeyard.Errorf("ask", forgeyard.Invalid, "%q is not checkpoint or suspend", forgeyard.Clip(b.What, 40))
	case b.Or != OrRunOn && b.Or != OrRestart && b.Or != OrCancel:
		return Asked{}, forgeyard.Errorf("ask", forgeyard.Invalid, "%q is not restart or cancel", forgeyard.Clip(b.Or, 40))
	case j.Status.Terminal():
		return Asked{}, forgeyard.Errorf(b.What, forgeyard.Conflict, "job %s has ended: it is %s", j.ID, j.Status)
	case j.CancelAt != 0:
		return Asked{}, forgeyard.Errorf(b.What, forgeyard.Conflict, "job %s is being cancelled", j.ID)
	case b.What == AskCheckpoint:
		return c.askCheckpoint(j)
	}
	return c.askSuspend(j, b.Or)
}

func (c *change) askCheckpoint(j Job) (Asked, error) {
	switch {
	case !j.TakesCheckpoints():
		return Asked{}, noCheckpoints("ask", j).WithHint("declare resume.mode: application in the job file")
	case j.Lease.State != lease.Accepted:
		return Asked{}, forgeyard.Errorf(AskCheckpoint, forgeyard.Conflict, "job %s is %s: nobody runs it who could take one", j.ID, j.Status)
	}
	j.Asks++
	c.say(j, job.CheckpointRequested, job.EventMessage, "checkpoint asked for by %s", c.by)
	c.putJob(j)
	return c.asked(j, true), nil
}

func noCheckpoints(op string, j Job) *forgeyard.Error {
	mode := j.Spec.Resume.Mode
	if mode == "" {
		mode = job.ResumeNone
	}
	return forgeyard.Errorf(op, forgeyard.Conflict, "job %s takes no checkpoints: its resume mode is %s", j.ID, mode)
}

// askSuspend lets a job wait that nobody executes, and asks the holder of one that is
// executed for a checkpoint and the job.
func (c *change) askSuspend(j Job, or string) (Asked, error) {
	if j.Held() && (j.Hold.Or == or || j.Status == job.Suspended) {
		return c.asked(j, false), nil
	}
	waits := !j.Lease.Live() && (j.Status == job.Queued || j.Status == job.Suspended)
	if !waits && !j.TakesCheckpoints() && or == OrRunOn {
		return Asked{}, noCheckpoints("ask", j).WithHint("--or-restart stops it, and begins it anew when it is resumed; --or-cancel ends it")
	}
	if final := j.final(); final != "" && !waits && or != OrCancel {
		return Asked{}, forgeyard.Errorf(AskSuspend, forgeyard.Conflict, "job %s is never resumed: %s", j.ID, final).WithHint("let it end, or cancel it")
	}
	if _, left := j.NextFrom(); or == OrRestart && !left && j.Spec.Interruption.ResumesOnly() && !waits {
		return Asked{}, forgeyard.Errorf(AskSuspend, forgeyard.Conflict, "job %s has no checkpoint yet and asks for %s", j.ID, j.Spec.Interruption.Retry).WithHint("suspend it without --or-restart, or end it: --or-cancel")
	}
	if or == OrRestart && j.asksNever() && !waits {
		return Asked{}, forgeyard.Errorf(AskSuspend, forgeyard.Conflict, "job %s asks never to be begun anew", j.ID).WithHint("suspend it without --or-restart, or end it: --or-cancel")
	}
	j.Hold = &Hold{By: c.by, At: c.at, Step: c.Step, Or: or, State: SuspendRequested}
	if waits {
		c.next = job.SuspensionRequested
		c.hold(&j)
		c.putJob(j)
		return c.asked(j, true), nil
	}
	c.say(j, job.SuspensionRequested, job.EventMessage, "suspension asked for by %s", c.by)
	if j.Lease.Live() && j.StopKind == "" { // a holder that was asked for the job already gives it back anyway
		j.StopKind, j.StopReason = AskSuspend, "suspended by "+c.by
		c.noteLease(j, "asked back from %s: %s", c.memberName(j.Lease.Authority.Runner), j.StopReason)
	}
	c.putJob(j)
	return c.asked(j, true), nil
}

// asked is the answer to a wish.
func (c *change) asked(j Job, changed bool) Asked {
	a := Asked{Changed: changed, Status: j.Status}
	if n := len(j.Checkpoints); n > 0 {
		a.Newest = j.Checkpoints[n-1].Manifest
	}
	return a
}

// savedHere reports that the current epoch has committed a checkpoint: whoever goes on from it
// does not begin from nothing.
func (j Job) savedHere() bool {
	from, ok, _ := checkpoint.Select(j.Checkpoints)
	return ok && from.Epoch == j.Epoch
}

// hold lets a job wait whose execution has ended.
func (c *change) hold(j *Job) {
	h := *j.Hold
	h.State, j.Hold = Suspended, &h
	c.releaseDevices(j)
	j.Status, j.Reason, j.Certain, j.StopKind, j.StopReason = job.Suspended, "suspended by "+h.By, false, "", ""
	c.moveRun(*j, j.Reason)
}

// refused is the word of a holder that cannot follow: what its work did would be lost. What
// then happens was said by whoever asked.
func (c *change) refused(b StopRefused) error {
	j, err := c.current("refuse", b.Authority, false) // of a lost lease the wish holds
	if err != nil {
		return err
	}
	if j.StopKind != AskSuspend || j.Hold == nil || j.Hold.Step != b.Wish {
		return nil // something else is asked of it by now
	}
	why := forgeyard.Clip(b.Why, job.MaxEventMessage/2)
	h := *j.Hold
	switch h.Or {
	case OrCancel:
		j.Hold, j.StopKind, j.StopReason = nil, "", ""
		c.askCancel(&j, h.By, "cancellation requested, as it cannot be suspended: "+why)
	case OrRestart:
		j.StopKind, j.StopReason = stopPreempt, "it cannot be suspended with a checkpoint: "+why
		c.tell(j, job.EventMessage, "", "%s", j.StopReason)
	default:
		h.State, h.Why = SuspendFailed, why
		j.Hold, j.StopKind, j.StopReason = &h, "", ""
		c.tell(j, job.EventError, "", "not suspended, it runs on: %s", why)
	}
	c.putJob(j)
	return nil
}

// Kinds of stops that take a job whether it has a checkpoint or not.
const (
	stopPreempt = "preempt"
	stopDrain   = "drain"
)
