package site

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// CancelState is how far a cancellation has come (69§63).
type CancelState string

// States of a cancellation (CK-113).
const (
	CancelNone      CancelState = "none"
	CancelRequested CancelState = "requested"
	CancelGraceful  CancelState = "graceful_stopping" // its holder has asked the work to end
	CancelForced    CancelState = "force_stopping"    // its holder kills it
	CancelDone      CancelState = "cancelled"
	CancelFailed    CancelState = "cancellation_failed" // the work ended otherwise before
)

// Cancellation is what is known of a job's cancellation besides who asked for it and when.
type Cancellation struct {
	Reason job.CancelReason `cbor:"1,keyasint"`
	Note   string           `cbor:"2,keyasint,omitempty"` // in the words of whoever asked
	After  bool             `cbor:"3,keyasint,omitempty"` // a checkpoint is to be taken first, where there is time
	Within int64            `cbor:"4,keyasint,omitempty"` // nanoseconds that the checkpoint may take; 0: as the contract says
	Stage  CancelState      `cbor:"5,keyasint,omitempty"` // by the holder's word
	By     forgeyard.RunID  `cbor:"6,keyasint,omitempty"` // the run that supersedes it
}

// maxWithin bounds how long a cancellation waits for a checkpoint.
const maxWithin = 24 * time.Hour

// CancelState is how far the job's cancellation has come.
func (j Job) CancelState() CancelState {
	switch {
	case j.CancelAt == 0:
		return CancelNone
	case j.Status == job.Cancelled:
		return CancelDone
	case j.Status.Terminal():
		return CancelFailed
	case j.Cancel != nil && j.Cancel.Stage != "" && j.Lease.Live():
		return j.Cancel.Stage
	}
	return CancelRequested
}

// CancelReason is why the job is cancelled; empty: it is not.
func (j Job) CancelReason() job.CancelReason {
	switch {
	case j.CancelAt == 0:
		return ""
	case j.Cancel == nil:
		return job.CancelUser
	}
	return j.Cancel.Reason
}

// checkCancel says what is wrong with a wish to cancel, or nil.
func checkCancel(j Job, b Cancel) error {
	bad := func(kind forgeyard.Kind, format string, args ...any) *forgeyard.Error {
		return forgeyard.Errorf("cancel", kind, format, args...)
	}
	switch {
	case b.Reason != "" && !b.Reason.Known():
		return bad(forgeyard.Invalid, "reason %q is not known", forgeyard.Clip(string(b.Reason), 40)).WithHint("one of %v", job.CancelReasons)
	case b.Within < 0 || time.Duration(b.Within) > maxWithin:
		return bad(forgeyard.Invalid, "a checkpoint within %s is not in [0, %s]", time.Duration(b.Within), maxWithin)
	case b.After && (b.Force || b.Reason == job.CancelSecurity):
		return bad(forgeyard.Invalid, "a cancellation by force waits for no checkpoint")
	case b.After && b.Reason != "" && !b.Reason.Saves():
		return bad(forgeyard.Invalid, "a cancellation for reason %s takes no checkpoint", b.Reason)
	case b.After && !j.TakesCheckpoints():
		return noCheckpoints("cancel", j).WithHint("cancel it without --after-checkpoint")
	}
	return nil
}

// presses reports whether a request to cancel asks for more than the one before: force, not
// to wait for a checkpoint, or that nothing of it is trusted.
func (j Job) presses(b Cancel) bool {
	return (b.Force && !j.Force) ||
		(j.Cancel != nil && j.Cancel.After && !b.After) ||
		(b.Reason == job.CancelSecurity && j.CancelReason() != job.CancelSecurity)
}

// noteCancel keeps why and how. The first reason stays; security takes the place of any other,
// and what the epoch has saved is withdrawn until somebody has looked at it (69§80).
func (c *change) noteCancel(j *Job, b Cancel) {
	if b.Reason == "" {
		b.Reason = job.CancelUser
	}
	if j.Cancel == nil && b.Reason == job.CancelUser && b.Note == "" && !b.After {
		return // as in every version before
	}
	n := Cancellation{Reason: b.Reason, Note: forgeyard.Clip(b.Note, maxNote), After: b.After, Within: b.Within, By: b.Run}
	if j.CancelAt != 0 {
		n = Cancellation{Reason: j.CancelReason()}
		if j.Cancel != nil {
			n = *j.Cancel
		}
		n.After = n.After && b.After
		if b.Reason == job.CancelSecurity {
			n.Reason, n.Note = b.Reason, forgeyard.Clip(b.Note, maxNote)
		}
	}
	j.Cancel = &n
	if b.Reason == job.CancelSecurity && j.Epoch > 0 {
		j.Checkpoints, _ = checkpoint.Revoke(j.Checkpoints, checkpoint.Cause{Epoch: j.Epoch}, j.origins(), c.by, "a security stop of its epoch, pending review")
	}
}

// auditCancel writes down what is out of the ordinary, for the site as a whole.
func (c *change) auditCancel(j Job, b Cancel) {
	switch {
	case !c.Allows(FormatLeases):
	case b.Reason == job.CancelSecurity:
		c.note("cancel", "job %s: security stop by %s: what epoch %d saved is revoked pending review", forgeyard.Short(j.ID), c.by, j.Epoch)
	case b.Force:
		c.note("cancel", "job %s cancelled by force, by %s", forgeyard.Short(j.ID), c.by)
	}
}

// stopping is the holder's word of how far it is with the end of the work.
func (c *change) stopping(b Stopping) error {
	j, err := c.current("stopping", b.Authority, false)
	if err != nil {
		return err
	}
	if b.Stage != CancelGraceful && b.Stage != CancelForced {
		return forgeyard.Errorf("stopping", forgeyard.Invalid, "%q is not %s or %s", forgeyard.Clip(string(b.Stage), 40), CancelGraceful, CancelForced)
	}
	if j.CancelAt == 0 || j.CancelState() == CancelForced || j.CancelState() == b.Stage {
		return nil
	}
	n := Cancellation{Reason: j.CancelReason()}
	if j.Cancel != nil {
		n = *j.Cancel
	}
	n.Stage, j.Cancel = b.Stage, &n
	said := "asked to end, with its grace"
	if b.Stage == CancelForced {
		said = "being killed"
	}
	c.tell(j, job.EventMessage, "", "cancellation (%s): %s on %s", n.Reason, said, c.memberName(b.Authority.Runner))
	c.putJob(j)
	return nil
}

// supersede ends what a newer run of the same group replaces, and refuses one that is older
// than what the group has: a run that is started anew must not end its successor (K07).
func (c *change) supersedeRuns(j Job, r *Run, order uint64) error {
	if order == 0 {
		order = c.Step
	}
	for _, old := range c.Runs.All() {
		if old.Group != r.Group || old.ID == r.ID {
			continue
		}
		if old.Order > order {
			return forgeyard.Errorf("submit", forgeyard.Conflict, "run %s of group %q has order %d and supersedes this one, of order %d", old.ID, r.Group, old.Order, order).
				WithHint("give a higher --order, or leave it out")
		}
	}
	r.Order = order
	for _, old := range c.Runs.All() {
		o, _ := c.Jobs.Get(old.Job)
		if old.Group != r.Group || old.ID == r.ID || o.Status.Terminal() {
			continue
		}
		old.SupersededBy = r.ID
		c.Runs = c.Runs.Put(old.ID, old)
		if _, err := c.cancel(Cancel{Job: o.ID, Reason: job.CancelSuperseded, Note: "run " + string(r.ID) + " supersedes it", Run: r.ID}); err != nil {
			return err
		}
	}
	return nil
}

// maxGroup bounds the name of a group.
const maxGroup = 200

// group puts a new run into its group.
func (c *change) group(b Submit, v Submitted) error {
	if len(b.Group) > maxGroup {
		return forgeyard.Errorf("submit", forgeyard.Invalid, "a group of %d bytes, the bound is %d", len(b.Group), maxGroup)
	}
	j, _ := c.Jobs.Get(v.Job)
	r, _ := c.Runs.Get(v.Run)
	r.Group = b.Group
	if err := c.supersedeRuns(j, &r, b.Order); err != nil {
		return err
	}
	c.Runs = c.Runs.Put(r.ID, r)
	return nil
}

// revoked reports that nothing which the current epoch saves is to be used.
func (j Job) revoked() bool { return j.CancelReason() == job.CancelSecurity }

// cancelAsked is what the run is told of a request.
func (j Job) cancelAsked() string {
	n := j.Cancel
	if n == nil {
		return "cancellation requested"
	}
	said := "cancellation requested (" + string(n.Reason) + ")"
	if n.After {
		said += ", after a checkpoint"
	}
	if n.Note != "" {
		said += ": " + n.Note
	}
	return said
}

// cancelEnded is the text of a cancelled job.
func (j Job) cancelEnded(by string) string {
	if r := j.CancelReason(); r != "" && r != job.CancelUser {
		return "cancelled by " + by + ": " + string(r)
	}
	return "cancelled by " + by
}
