package site

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

func (c *change) putJob(j Job) {
	c.Jobs = c.Jobs.Put(j.ID, j)
	if j.Status.Terminal() {
		c.Open = c.Open.Delete(j.ID)
	}
	c.endSuspension(j)
}

func (c *change) jobByID(op string, id forgeyard.JobID) (Job, error) {
	j, ok := c.Jobs.Get(id)
	if !ok {
		return Job{}, forgeyard.Errorf(op, forgeyard.NotFound, "no job %s", forgeyard.Clip(string(id), 40)).WithHint("forgeyard-node job list --all shows them")
	}
	return j, nil
}

func (c *change) submit(b Submit) (Submitted, error) {
	key := b.Key
	if key == "" && c.Allows(FormatLeases) {
		// Its own id: a repeat makes no second job, however many commands came in between
		// and took its place among the remembered ones.
		key = ownKey + string(c.id)
	}
	if key != "" {
		if id, ok := c.Keys.Get(key); ok {
			r, _ := c.Runs.Get(id)
			return Submitted{Run: id, Job: r.Job, Existed: b.Key != ""}, nil
		}
	}
	switch b.Kind {
	case job.Build, job.Ingest, job.Garden:
	default:
		return Submitted{}, forgeyard.Errorf("submit", forgeyard.Invalid, "kind %q is not a run kind; allowed: build, ingest, garden", forgeyard.Clip(string(b.Kind), job.MaxName))
	}
	v, err := c.enqueue(b.Kind, b.Title, key, b.Spec, b.SpecID, nil)
	if err == nil && b.Group != "" {
		err = c.group(b, v)
	}
	if err == nil && b.Via != "" {
		j, _ := c.Jobs.Get(v.Job)
		j.Via = b.Via
		c.putJob(j)
	}
	return v, err
}

// ownKey begins the idempotency key of a submission that came without one.
const ownKey = "request/"

func (c *change) enqueue(kind job.RunKind, title, key string, raw []byte, id forgeyard.Digest, g *lease.Grant) (Submitted, error) {
	if c.Open.Len() >= maxOpenJobs {
		return Submitted{}, forgeyard.Errorf("submit", forgeyard.Limit, "%d jobs have not ended, the bound is %d", c.Open.Len(), maxOpenJobs).WithHint("wait for some to end, or cancel them")
	}
	if got := cas.Sum(raw); got != id {
		return Submitted{}, forgeyard.Errorf("submit", forgeyard.Corrupt, "the spec's bytes are %s, its id says %s", got.Short(), id.Short())
	}
	spec, err := job.DecodeSpec(raw)
	if err != nil {
		return Submitted{}, forgeyard.E("submit", forgeyard.Other, err)
	}
	if err := c.fits(kind, spec); err != nil {
		return Submitted{}, err
	}
	if len(spec.Secrets) > 0 && !c.Allows(FormatRuns) {
		return Submitted{}, forgeyard.Errorf("submit", forgeyard.Invalid, "the job asks for %d secrets, and this version has no provider of secrets", len(spec.Secrets)).WithHint("take them out of the job file")
	}
	j := Job{ID: forgeyard.JobID(c.newID()), Run: forgeyard.RunID(c.newID()), Spec: spec, SpecID: id, Status: job.Queued, Submitted: c.at, Grant: g}
	if g != nil {
		j.Term = g.Term
	}
	r := Run{ID: j.Run, Kind: kind, Title: forgeyard.Clip(title, job.MaxTitle), Status: job.Queued, Created: c.at, Job: j.ID, By: c.by, Key: key}
	c.Open = c.Open.Put(j.ID, c.Step)
	c.putJob(j)
	c.event(&r, job.EventStatus, job.Queued, "queued "+string(kind))
	c.Runs = c.Runs.Put(r.ID, r)
	if key != "" {
		c.Keys = c.Keys.Put(key, r.ID)
	}
	return Submitted{Run: r.ID, Job: j.ID}, nil
}

// fits says why a spec is not one of a run of that kind, here and now, or nil.
func (s *State) fits(kind job.RunKind, spec job.Spec) error {
	want := spec.Kind
	if !spec.Own() {
		want = job.Build
	}
	if kind != want {
		return forgeyard.Errorf("submit", forgeyard.Invalid, "the run is of kind %q, its spec of kind %q", forgeyard.Clip(string(kind), job.MaxName), want)
	}
	if !spec.Own() {
		return nil
	}
	if !s.Allows(FormatRuns) {
		return forgeyard.Errorf("submit", forgeyard.Unavailable, "a run of kind %s needs log format %d and the site's log is at %d", kind, FormatRuns, s.LogFormat())
	}
	if m, ok := s.Members.Get(spec.Node); !ok || m.Removed {
		return forgeyard.Errorf("submit", forgeyard.NotFound, "the run is for %s, which is no member", spec.Node).WithHint("forgeyard-node site members shows them")
	}
	return s.roomForNames(spec.Ingest)
}

// event gives a run its next event: numbers start at 1 and have no gap.
func (c *change) event(r *Run, kind job.EventKind, status job.Status, msg string) {
	c.append(r, job.Event{Kind: kind, Status: status, Message: msg})
}

// say writes an event of a type into the run of a job.
func (c *change) say(j Job, t job.EventType, kind job.EventKind, format string, args ...any) {
	r, ok := c.Runs.Get(j.Run)
	if !ok || r.Status.Terminal() {
		return
	}
	c.append(&r, job.Event{Type: t, Kind: kind, Message: fmt.Sprintf(format, args...)})
	c.Runs = c.Runs.Put(r.ID, r)
}

func (c *change) append(r *Run, e job.Event) {
	e.Type, c.next = cmp.Or(e.Type, c.next), ""
	if r.LastSeq >= maxEvents && !e.Status.Terminal() {
		return
	}
	if !c.Allows(FormatLeases) {
		e.Type = "" // as every version before wrote it
	}
	r.LastSeq++
	e.Seq, e.At, e.Message = r.LastSeq, c.at, forgeyard.Clip(e.Message, job.MaxEventMessage)
	c.Events = c.Events.Put(eventKey(string(r.ID), r.LastSeq), e)
}

// tell writes an event into the run of a job.
func (c *change) tell(j Job, kind job.EventKind, status job.Status, format string, args ...any) {
	r, ok := c.Runs.Get(j.Run)
	if !ok || r.Status.Terminal() {
		return
	}
	c.event(&r, kind, status, fmt.Sprintf(format, args...))
	c.Runs = c.Runs.Put(r.ID, r)
}

// moveRun lets the run follow its job. A terminal status is written once.
func (c *change) moveRun(j Job, msg string) {
	r, ok := c.Runs.Get(j.Run)
	if !ok || r.Status.Terminal() {
		c.next = ""
		return
	}
	to := j.Status.ForRun()
	if to == job.Queued && r.Status == job.Running {
		to = job.Running // between two epochs the run is running (decision 5)
	}
	if j.Status == job.Suspended && j.Epoch == 0 {
		to = r.Status // it never began
	}
	if to == job.Running && r.Started == 0 {
		r.Started = c.at
	}
	r.Status = to
	if to.Terminal() {
		r.Ended, r.Summary, r.Category = c.at, msg, j.Category
		if to == job.Failed {
			r.Error = msg
		}
	}
	c.event(&r, job.EventStatus, to, msg)
	c.Runs = c.Runs.Put(r.ID, r)
}

// finish writes the terminal status of a job, once.
func (c *change) finish(j *Job, status job.Status, category job.FailureCategory, msg string) {
	if j.Status.Terminal() {
		return
	}
	j.Status, j.Category, j.Reason, j.Ended, j.Hold = status, category, forgeyard.Clip(msg, job.MaxEventMessage), c.at, nil
	j.StopKind, j.StopReason = "", ""
	c.releaseDevices(j)
	c.outcome(j)
	c.moveRun(*j, j.Reason)
	c.makeRoomForEnded()
	c.EndedSeq++
	c.Ended = c.Ended.Put(SeqKey(c.EndedSeq), j.ID)
}

// makeRoomForEnded keeps the ended jobs within their bound, the one that ends now included:
// it is not among them yet, so it is never the one that is forgotten. One whose end the
// daemon has not acknowledged is passed over, since nobody would know that it was done if it
// were given anew; what waits for the daemon takes no place of what ended here.
func (c *change) makeRoomForEnded() {
	bound := maxEnded
	if c.Allows(FormatLeases) {
		bound += c.Outbox.Len()
	}
	if c.Ended.Len() < bound {
		return
	}
	left := maxForgotten
	for k, id := range c.Ended.All() { // by age
		j, _ := c.Jobs.Get(id)
		if j.Said > c.Acked {
			continue
		}
		c.Ended = c.Ended.Delete(k)
		c.forget(j)
		if left--; left == 0 || c.Ended.Len() < bound {
			return
		}
	}
}

func (c *change) forget(j Job) {
	r, _ := c.Runs.Get(j.Run)
	for seq := uint64(1); seq <= r.LastSeq; seq++ {
		c.Events = c.Events.Delete(eventKey(string(r.ID), seq))
	}
	c.Runs, c.Jobs = c.Runs.Delete(j.Run), c.Jobs.Delete(j.ID)
	if r.Key != "" {
		c.Keys = c.Keys.Delete(r.Key)
	}
}

// cancel is durable. Who holds the job learns of it by the log or with its next
// renewal; a job that nobody holds ends here (K10).
func (c *change) cancel(b Cancel) (Cancelling, error) {
	j, err := c.jobByID("cancel", b.Job)
	if err != nil {
		return Cancelling{}, err
	}
	if j.Status.Terminal() {
		return Cancelling{Changed: false, Status: j.Status}, nil
	}
	if err := checkCancel(j, b); err != nil {
		return Cancelling{}, err
	}
	if j.CancelAt != 0 && !j.presses(b) {
		return Cancelling{Changed: false, Status: j.Status}, nil
	}
	by := c.by
	if j.CancelAt != 0 && c.Allows(FormatLeases) {
		by = j.CancelBy // one that only presses harder is not the first request
	}
	j.Force = j.Force || b.Force || b.Reason == job.CancelSecurity
	c.noteCancel(&j, b)
	c.askCancel(&j, by, j.cancelAsked())
	c.auditCancel(j, b)
	if c.nobodyHolds(j) {
		c.finish(&j, job.Cancelled, "", j.cancelEnded(c.by))
	}
	c.putJob(j)
	return Cancelling{Changed: true, Status: j.Status}, nil
}

// askCancel notes a request to cancel; the first one counts.
func (c *change) askCancel(j *Job, by, said string) {
	if j.CancelAt == 0 || !c.Allows(FormatLeases) {
		j.CancelAt, j.CancelBy = c.at, by
	}
	if r, ok := c.Runs.Get(j.Run); ok {
		r.CancelAt = j.CancelAt
		c.append(&r, job.Event{Type: job.CancellationRequested, Kind: job.EventStatus, Status: r.Status, Message: said})
		c.Runs = c.Runs.Put(r.ID, r)
	}
}

// nobodyHolds reports that no execution can be under way: the job waits, or its
// last holder has certainly stopped.
func (c *change) nobodyHolds(j Job) bool {
	return !j.Lease.Live() && (j.Status != job.Unknown || j.Certain)
}

func (c *change) stop(b Stop) error {
	j, err := c.jobByID("stop", b.Job)
	if err != nil {
		return err
	}
	if b.Lease != "" && j.Lease.Authority.Lease != b.Lease {
		return forgeyard.Errorf("stop", forgeyard.Stale, "lease %s is not the current one", b.Lease)
	}
	if !j.Lease.Live() || j.Stops() {
		return nil
	}
	j.StopKind, j.StopReason = b.Kind, b.Reason
	c.tell(j, job.EventMessage, "", "asked to stop: %s", b.Reason)
	c.noteLease(j, "asked back from %s: %s", c.memberName(j.Lease.Authority.Runner), b.Reason)
	c.putJob(j)
	return nil
}

func (c *change) stopAll(r forgeyard.RunnerID, kind, reason string) {
	for id := range c.Open.All() {
		if j, _ := c.Jobs.Get(id); j.Lease.Live() && j.Lease.Authority.Runner == r && !j.Stops() {
			j.StopKind, j.StopReason = kind, reason
			c.noteLease(j, "asked back from %s: %s", c.memberName(r), reason)
			c.putJob(j)
		}
	}
}

func (c *change) resume(b Resume) error {
	j, err := c.jobByID("resume", b.Job)
	if err != nil {
		return err
	}
	switch {
	case !b.From.IsZero() && j.Status != job.Suspended:
		return forgeyard.Errorf("resume", forgeyard.Conflict, "job %s is %s: what a suspended job goes on from can be chosen", j.ID, j.Status).WithHint("suspend it first: forgeyard-node job suspend %s", j.ID)
	case j.Held() && !j.Lease.Live() && j.Status == job.Unknown:
		j.Hold, j.StopKind, j.StopReason = nil, "", ""
		c.tell(j, job.EventMessage, "", "the wish to suspend it was withdrawn by %s", c.by)
		c.putJob(j)
		return nil
	case j.Held() && j.Status != job.Suspended:
		return forgeyard.Errorf("resume", forgeyard.Conflict, "job %s is being suspended", j.ID).WithHint("resume it when it is: forgeyard-node job show %s", j.ID)
	case j.AwaitsReconcile():
		return forgeyard.Errorf("resume", forgeyard.Conflict, "job %s waits for a person: %s", j.ID, j.Reason).WithHint("look whether it was done, then: forgeyard-node job effect resolve %s KEY --done|--not-done --reason TEXT", j.ID)
	case j.Status != job.Suspended:
		return forgeyard.Errorf("resume", forgeyard.Conflict, "job %s is %s, only a suspended job can be resumed", j.ID, j.Status)
	}
	if !b.From.IsZero() {
		if err := c.resumeFrom(&j, b); err != nil {
			return err
		}
	}
	if j.Hold != nil {
		h := *j.Hold
		h.State, j.Hold = SuspendResuming, &h
	}
	c.requeue(&j, "resumed by "+c.by)
	c.putJob(j)
	return nil
}

// requeue puts a job whose execution has ended back into the queue.
func (c *change) requeue(j *Job, why string) {
	c.releaseDevices(j)
	if j.CancelAt != 0 {
		c.finish(j, job.Cancelled, "", j.cancelEnded(j.CancelBy))
		return
	}
	if j.Held() {
		c.hold(j)
		return
	}
	if c.effectsStop(j, why) || c.nothingLeft(j, why) {
		return
	}
	j.Status, j.Reason, j.Certain, j.StopKind, j.StopReason = job.Queued, why, false, "", ""
	c.moveRun(*j, "waiting: "+why)
}

// nothingLeft ends a job that goes on from checkpoints only, that has begun, and whose next epoch
// would begin from nothing, whatever took its last one from it. It reports whether it did.
func (c *change) nothingLeft(j *Job, why string) bool {
	if !j.beginsAgain() || j.CancelAt != 0 || !c.Allows(FormatLeases) {
		return false
	}
	c.finish(j, job.Failed, job.RunnerLost, why+"; no checkpoint is left and the job asks for "+j.Spec.Interruption.Retry)
	return true
}

// nothingToWaitFor ends such a job while it waits for a runner, when a person took the last
// checkpoint from it.
func (c *change) nothingToWaitFor(j *Job) {
	if j.Status == job.Queued {
		c.nothingLeft(j, "its last checkpoint was taken away by "+c.by)
	}
}

// beginsAgain reports that the next epoch would do anew what the job never wants done anew.
func (j Job) beginsAgain() bool {
	_, left := j.NextFrom()
	return j.Begun != 0 && !left && j.Spec.Interruption.ResumesOnly()
}

// unbegun takes back that the job has begun: nothing of its current epoch ran.
func (j *Job) unbegun() {
	if j.Begun == j.Epoch {
		j.Begun = 0
	}
}

// committed reports that an epoch has committed a checkpoint.
func (j Job) committed(epoch uint64) bool {
	return slices.ContainsFunc(j.Checkpoints, func(k checkpoint.Commit) bool { return k.Epoch == epoch })
}

// stopsHere says why a job that was interrupted by the loss of something does not go on, or
// nothing.
func (j Job) stopsHere(lost job.FailureCategory) (job.FailureCategory, string) {
	in := j.Spec.Interruption
	over, why := j.overBudget()
	switch {
	case j.asksNever():
		return lost, neverRetried
	case over != "":
		return over, why
	case in.ResumesOnly() && len(j.Checkpoints) == 0:
		return lost, "there is no checkpoint and the job asks for " + in.Retry
	}
	return "", ""
}

// overBudget says that the job was interrupted more often than it allows, or nothing. What its
// own work did wrong is not counted here (CK-202, CK-206).
func (j Job) overBudget() (job.FailureCategory, string) {
	if n, budget := j.Interruptions, j.Spec.Interruption.Budget; n > budget {
		return job.InterruptedBudget, fmt.Sprintf("interrupted %d times, the budget is %d", n, budget)
	}
	return "", ""
}

const neverRetried = "the job asks never to be retried"

// asksNever: once an execution of the job may have begun, no other one begins from nothing.
func (j Job) asksNever() bool { return j.Spec.Interruption.Retry == job.RetryNever }

// neverAgain ends a job that asks for it, whose execution has been taken from its holder
// and may have begun. It reports whether the job has ended. A cancellation ends it as such.
func (c *change) neverAgain(j *Job, lost job.FailureCategory, why string) bool {
	if !j.asksNever() || j.CancelAt != 0 || !c.Allows(FormatLeases) {
		return false
	}
	c.finish(j, job.Failed, lost, why+"; "+neverRetried)
	return true
}

func (j Job) mayGoOn() bool { c, _ := j.stopsHere(job.RunnerLost); return c == "" }

// interrupted charges the interruption budget and requeues, or ends the job. lost is what
// the job is told to have lost if it goes no further.
func (c *change) interrupted(j *Job, lost job.FailureCategory, why string) {
	j.Interruptions++
	if category, stop := j.stopsHere(lost); category != "" && j.CancelAt == 0 {
		c.finish(j, job.Failed, category, why+"; "+stop)
		return
	}
	c.requeue(j, why)
}

func (c *change) endLease(j *Job, why lease.EndReason, detail string) {
	if j.Lease.State == lease.Ended || j.Lease.State == "" {
		return
	}
	j.Lease = j.Lease.End(c.at, why, detail)
	c.noteLease(*j, "%s on %s: %s", why, c.memberName(j.Lease.Authority.Runner), cmp.Or(detail, string(why)))
	if n := len(j.History); n > 0 && j.History[n-1].Lease == j.Lease.Authority.Lease {
		h := slices.Clone(j.History)
		h[n-1].Ended, h[n-1].Reason, h[n-1].Detail = c.at, why, forgeyard.Clip(detail, 300)
		j.History = h
	}
}

func (c *change) fail(b Fail) error {
	j, err := c.jobByID("fail", b.Job)
	if err != nil {
		return err
	}
	if j.Epoch != b.Epoch || !c.nobodyHolds(j) {
		return forgeyard.Errorf("fail", forgeyard.Stale, "job %s is held or at epoch %d, not %d", j.ID, j.Epoch, b.Epoch)
	}
	c.finish(&j, job.Failed, b.Category, b.Reason)
	c.putJob(j)
	return nil
}
