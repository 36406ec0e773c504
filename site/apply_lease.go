package site

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// Offerable says why the next epoch of a job may not be granted now, or nil.
func (s *State) Offerable(j Job, used time.Duration) error {
	no := func(kind forgeyard.Kind, format string, args ...any) error {
		return forgeyard.Errorf("offer", kind, format, args...)
	}
	switch {
	case j.Status.Terminal():
		return no(forgeyard.Conflict, "the job is %s", j.Status)
	case j.Lease.Live():
		return no(forgeyard.Conflict, "epoch %d is held under lease %s", j.Epoch, j.Lease.Authority.Lease)
	case j.CancelAt != 0:
		return no(forgeyard.Conflict, "cancellation was requested")
	case j.Held() && j.Status != job.Suspended:
		return no(forgeyard.Conflict, "it waits until epoch %d has stopped: it is to be suspended, as %s asked", j.Epoch, j.Hold.By)
	case j.Status == job.Suspended:
		return no(forgeyard.Conflict, "the job is suspended: %s", j.Reason)
	case j.Status == job.Unknown && j.Lease.Protected && !j.Certain:
		return no(forgeyard.Conflict, "its effects are protected and epoch %d has not certainly stopped", j.Epoch)
	case j.Status == job.Unknown && j.Lease.WaitsForCertain() && !j.Certain:
		return no(forgeyard.Conflict, "it asks for no replacement and epoch %d has not certainly stopped", j.Epoch)
	case j.Status == job.Unknown && !j.Certain && !j.mayGoOn():
		return no(forgeyard.Conflict, "its interruption budget is spent and epoch %d has not certainly stopped", j.Epoch)
	case j.Status == job.Unknown && !j.Certain && j.beginsAgain():
		return no(forgeyard.Conflict, "no checkpoint is left, it asks for %s, and epoch %d has not certainly stopped", j.Spec.Interruption.Retry, j.Epoch)
	case j.waitsFor() != "":
		return no(forgeyard.Conflict, "%s%s", reconcileReason, j.waitsFor())
	case j.Status != job.Queued && j.Status != job.Unknown:
		return no(forgeyard.Conflict, "the job is %s", j.Status)
	}
	if j.Grant != nil && s.Outbox.Len() >= maxOutbox {
		return no(forgeyard.Limit, "%d records wait for the central daemon, the bound is %d", s.Outbox.Len(), maxOutbox)
	}
	if j.Grant != nil {
		if left := j.Grant.Left(s.Uplink, used); left <= 0 && !s.Allows(FormatLeases) {
			return no(forgeyard.Denied, "the central daemon's grant is used up: %s of silence, %s were allowed", used.Round(time.Second), j.Grant.Span(s.Uplink.Terms))
		}
		if why := j.Grant.Ended(s.Uplink, used); why != "" {
			return no(forgeyard.Denied, "%s", why)
		}
		resumable := j.Spec.Resume.TakesCheckpoints()
		if why := j.Grant.Finishes(s.Uplink, used, j.Spec.Timeouts.Run, resumable); why != "" && s.Allows(FormatLeases) {
			return no(forgeyard.Denied, "%s", why)
		}
	}
	return nil
}

// offer grants epoch n+1; this is what fences epoch n.
func (c *change) offer(b Offer) (forgeyard.Authority, error) {
	var none forgeyard.Authority
	j, err := c.jobByID("offer", b.Job)
	if err != nil {
		return none, err
	}
	if err := c.Offerable(j, max(c.Uplink.Used, time.Duration(b.Used))); err != nil {
		return none, err
	}
	m, ok := c.Members.Get(b.Runner)
	switch {
	case j.Epoch != b.Epoch:
		return none, forgeyard.Errorf("offer", forgeyard.Stale, "the job is at epoch %d, the offer was made at %d", j.Epoch, b.Epoch)
	case !ok || m.Removed || m.Disabled || m.Draining || m.Notice != nil:
		return none, forgeyard.Errorf("offer", forgeyard.Conflict, "runner %s takes no work", b.Runner)
	case m.Waiting:
		return none, forgeyard.Errorf("offer", forgeyard.Conflict, "runner %s waits for approval", m.Name)
	case j.Spec.Node != "" && j.Spec.Node != b.Runner:
		return none, forgeyard.Errorf("offer", forgeyard.Conflict, "the run is for %s, not for %s", c.memberName(j.Spec.Node), m.Name)
	case len(m.Assigned.Lacks(j.Spec)) > 0:
		return none, forgeyard.Errorf("offer", forgeyard.Conflict, "runner %s: %s", m.Name, strings.Join(m.Assigned.Lacks(j.Spec), "; "))
	case j.OnlyStable() && m.Assigned.Class.MayVanish():
		return none, forgeyard.Errorf("offer", forgeyard.Conflict, "runner %s is %s capacity, the job was interrupted %d times and goes to stable capacity only", m.Name, m.Assigned.Class, j.Interruptions)
	case m.Session.ID != b.Session:
		return none, forgeyard.Errorf("offer", forgeyard.Stale, "session %s of %s is not the current one", forgeyard.Short(b.Session), m.Name)
	}
	c.openEpoch(&j, b.Runner, b.Session, lease.Offered)
	if c.Allows(FormatLeases) {
		j.StopKind, j.StopReason = "", "" // what the holder before was asked for is not asked of this one
	}
	if err := c.leaseDevices(&j, b.Devices); err != nil {
		return none, err
	}
	j.Status, j.Phase, j.Certain = job.Leased, job.PhaseOffered, false
	j.Reason = "offered to " + m.Name
	c.putJob(j)
	c.noteLease(j, "offered to %s: policy %s, fence %s", m.Name, policyText(j.Lease.Policy), j.Lease.Authority.Fence)
	c.next = j.ifResumes(job.ResumeScheduled)
	c.moveRun(j, "epoch "+strconv.FormatUint(uint64(j.Epoch), 10)+" "+j.Reason)
	return j.Lease.Authority, nil
}

// ifResumes is the type for a job whose current epoch goes on from a checkpoint, and none for
// one that begins anew.
func (j Job) ifResumes(t job.EventType) job.EventType {
	if j.ResumeFrom.IsZero() {
		return ""
	}
	return t
}

// openEpoch raises the epoch and makes its lease. An execution that goes on from a
// checkpoint keeps its attempt; one that starts from nothing is a new attempt (E16).
func (c *change) openEpoch(j *Job, r forgeyard.RunnerID, session forgeyard.SessionID, st lease.State) {
	c.dropAfter(j)
	from, resumes := j.NextFrom()
	j.Epoch++
	j.ResumeFrom, j.Told, j.Asks = from.Manifest, 0, 0
	if j.Lease.Reason != lease.EndExpired && j.Lease.Reason != lease.EndRejected {
		j.Tail = 0 // where nothing ran in between, what the last execution left behind is still due
	}
	if j.Attempt == "" || !resumes {
		j.Attempt, j.Checkpoints = forgeyard.AttemptID(c.newID()), nil
	}
	a := forgeyard.Authority{
		Job: j.ID, Attempt: j.Attempt, Lease: forgeyard.LeaseID(c.newID()), Spec: j.SpecID, Runner: r, Session: session,
		Fence: forgeyard.Fence{Incarnation: c.Incarnation, Term: j.Term, Epoch: j.Epoch},
	}
	j.Lease = lease.Lease{
		Authority: a, Token: c.Step, State: st, Granted: c.at, Protected: j.Spec.Effects == job.EffectsProtected,
		Policy: c.policy(j.Spec), Terms: c.terms(),
	}
	rec := EpochRecord{Epoch: j.Epoch, Attempt: j.Attempt, Lease: a.Lease, Runner: r, Session: session, Resumed: j.ResumeFrom, Started: c.at}
	j.History = append(slices.Clone(j.History), rec)
	if len(j.History) > maxEpochs {
		j.History = j.History[len(j.History)-maxEpochs:]
	}
}

// policy is what the job asks, with the site's grace where it gives no length.
func (c *change) policy(s job.Spec) lease.Policy {
	p := s.Connectivity
	if p.Policy == job.Grace && p.For == 0 {
		p.For = c.Config.Lease.Grace
	}
	return p
}

func (c *change) terms() lease.Terms {
	t := lease.DefaultTerms()
	l := c.Config.Lease
	t.TTL, t.Reassign, t.DriftPPM = l.TTL, l.Reassign(), int64(l.Drift)
	return t
}

// current returns the job if the authority is its current one and the lease can
// still be acted under. grace also admits a lease that ended by silence while no
// newer epoch was granted and no newer process registered: what was finished under the
// current fence is not lost.
func (c *change) current(op string, a forgeyard.Authority, grace bool) (Job, error) {
	j, err := c.jobByID(op, a.Job)
	if err != nil {
		return Job{}, err
	}
	if err := lease.Check(j.Lease.Authority, a); err != nil {
		return j, err
	}
	if a.Fence.Term != j.Term || a.Fence.Incarnation != c.Incarnation {
		return j, forgeyard.Errorf(op, forgeyard.Stale, "fence is %s, the job is now of term %d, incarnation %d", a.Fence, j.Term, c.Incarnation)
	}
	silent := grace && j.Status == job.Unknown && j.Lease.Reason == lease.EndExpired
	if m, _ := c.Members.Get(a.Runner); silent && m.Session.ID != a.Session {
		return j, forgeyard.Errorf(op, forgeyard.Stale, "session %s was superseded by %s", forgeyard.Short(a.Session), forgeyard.Short(m.Session.ID))
	}
	if j.Lease.Live() || silent {
		return j, nil
	}
	return j, forgeyard.Errorf(op, forgeyard.Stale, "lease %s ended: %s", a.Lease, j.Lease.Reason)
}

func (c *change) accept(b Accept) error {
	j, err := c.current("accept", b.Authority, false)
	if err != nil {
		return err
	}
	l, err := j.Lease.Accept(b.Authority)
	if err != nil {
		return err
	}
	if l.State == j.Lease.State {
		return nil
	}
	j.Lease, j.Phase, j.Reason = l, job.PhaseAccepted, ""
	if !j.Held() {
		j.Hold = nil // what became of an earlier wish is over
	}
	if j.Begun == 0 && c.Allows(FormatLeases) {
		j.Begun = j.Epoch
	}
	c.putJob(j)
	c.noteLease(j, "accepted by %s", c.memberName(b.Authority.Runner))
	return nil
}

func (c *change) reject(b Reject) error {
	j, err := c.current("reject", b.Authority, false)
	if err != nil {
		return err
	}
	if j.Lease.State != lease.Offered {
		return forgeyard.Errorf("reject", forgeyard.Conflict, "lease %s was accepted; after that an attempt ends with a result", b.Authority.Lease)
	}
	why := string(b.Reason) + ": " + b.Detail
	c.endLease(&j, lease.EndRejected, why)
	j.Phase = job.PhaseRejected
	c.avoid(&j, b.Authority, why)
	told := string(b.Reason)
	if b.Detail != "" && c.Allows(FormatLeases) {
		told = forgeyard.Clip(why, 200)
	}
	c.requeue(&j, fmt.Sprintf("%s rejected it: %s", c.memberName(b.Authority.Runner), told))
	c.putJob(j)
	return nil
}

func (c *change) avoid(j *Job, a forgeyard.Authority, why string) {
	kept := slices.DeleteFunc(slices.Clone(j.Avoid), func(v Avoidance) bool { return v.Runner == a.Runner })
	j.Avoid = append(kept, Avoidance{Runner: a.Runner, Session: a.Session, Reason: forgeyard.Clip(why, 200), Index: c.Step})
	if len(j.Avoid) > maxAvoid {
		j.Avoid = j.Avoid[1:]
	}
}

func (s *State) memberName(r forgeyard.RunnerID) string {
	if m, ok := s.Members.Get(r); ok {
		return m.Name
	}
	return string(r)
}

func (c *change) phase(b Phase) error {
	j, err := c.current("phase", b.Authority, false)
	if err != nil {
		return err
	}
	if j.Lease.State != lease.Accepted {
		return forgeyard.Errorf("phase", forgeyard.Conflict, "lease %s is not accepted yet", b.Authority.Lease)
	}
	if b.Phase.Order() <= j.Phase.Order() {
		return nil
	}
	if b.Phase.Order() >= job.PhaseRunning.Order() {
		if err := j.reconciled("phase"); err != nil {
			return err
		}
	}
	j.Phase = b.Phase
	if b.Phase == job.PhaseRunning {
		j.Status, j.Reason = job.Running, ""
		if j.Started == 0 {
			j.Started = c.at
		}
		if r, ok := c.Runs.Get(j.Run); ok {
			r.Exec = b.Exec
			c.Runs = c.Runs.Put(r.ID, r)
		}
		c.next = j.ifResumes(job.ResumeCompleted)
		c.moveRun(j, fmt.Sprintf("epoch %d runs on %s", j.Epoch, c.memberName(b.Authority.Runner)))
	} else {
		if b.Phase == job.PhasePreparing {
			c.next = j.ifResumes(job.ResumeStarted)
		}
		c.tell(j, job.EventMessage, "", "%s on %s", b.Phase, c.memberName(b.Authority.Runner))
	}
	c.putJob(j)
	return nil
}

func (c *change) checkpoint(b Checkpoint) (Checkpointed, error) {
	j, err := c.jobByID("checkpoint", b.Authority.Job)
	if err != nil {
		return Checkpointed{}, err
	}
	if r, ok := repeated(j, b); ok {
		return r, nil
	}
	if j, err = c.current("checkpoint", b.Authority, false); err != nil {
		return Checkpointed{}, err
	}
	rec := b.Commit
	rec.At, rec.Origin = c.at, checkpoint.Origin{}
	if c.Allows(FormatCheckpoints) {
		rec.Origin = checkpoint.Origin{Runner: b.Authority.Runner, From: j.ResumeFrom}
	}
	switch {
	case j.revoked():
		return Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Denied, "the epoch was stopped for security: nothing of it is kept")
	case j.Lease.State != lease.Accepted:
		return Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Conflict, "lease %s is not accepted yet", b.Authority.Lease)
	case !j.Spec.Resume.TakesCheckpoints():
		return Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Denied, "the job's contract has mode %q, which makes no checkpoints", j.Spec.Resume.Mode)
	case rec.Epoch != j.Epoch || rec.Attempt != j.Attempt:
		return Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Stale, "it was made at epoch %d, the current one is %d", rec.Epoch, j.Epoch)
	case len(rec.Replicas) < c.CopiesNeeded():
		return Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Invalid, "%d nodes acknowledged a durable copy, %d are needed", len(rec.Replicas), c.CopiesNeeded())
	}
	if open := j.OpenEffects(); len(open) > 0 {
		return Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Conflict, "%s: effect %s has no outcome yet", checkpoint.CodeEffects, open[0])
	}
	if err := j.reconciled("checkpoint"); err != nil {
		return Checkpointed{}, err
	}
	if why := j.startedFromRevoked(); why != "" {
		return Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Denied, "what this execution went on from was revoked: %s", why)
	}
	if err := c.sealedRight(j, rec, b.Authority.Runner); err != nil {
		return Checkpointed{}, err
	}
	next, err := checkpoint.Record(j.Checkpoints, rec)
	if err != nil {
		return Checkpointed{}, err
	}
	before := j.Checkpoints
	j.Checkpoints = next
	c.letGoSurplus(&j)
	if b.Productive && !j.ResumeFrom.IsZero() {
		if well, err := checkpoint.ResumedWell(j.Checkpoints, j.ResumeFrom); err == nil {
			j.Checkpoints = well
		}
	}
	c.addLog(&j, b.Log)
	c.told(&j, b.Told)
	c.say(j, job.CheckpointCreated, job.EventMessage, "checkpoint %d of epoch %d committed: %s %s", rec.Seq, j.Epoch, rec.Manifest.Short(), progress(rec))
	var out Checkpointed
	switch {
	case b.Continue && c.stuck(&j, before, rec):
		c.endLease(&j, lease.EndCompleted, "a loop without progress")
		c.finish(&j, job.Failed, job.WorkloadFailed, fmt.Sprintf("a loop: it asked %d times in a row to be begun anew, and its checkpoints brought nothing", j.Stuck))
	case b.Continue:
		out.Next = c.continueInPlace(&j, b.Authority)
	}
	c.putJob(j)
	return out, nil
}

// CopiesNeeded is how many nodes must hold what is committed: what the site's policy
// asks, and never more than it has members.
func (s *State) CopiesNeeded() int {
	if s.Config.Durability.AcceptFewer {
		return 1
	}
	members := 0
	for _, m := range s.Members.All() {
		if !m.Removed {
			members++
		}
	}
	return max(1, min(s.Config.Durability.Copies, members))
}

func progress(r checkpoint.Commit) string {
	if r.Progress.Unit == "" && r.Progress.Done == 0 {
		return ""
	}
	return fmt.Sprintf("(%v/%v %s)", r.Progress.Done, r.Progress.Total, r.Progress.Unit)
}

// repeated answers a commit that was committed before: the same sequence with
// the same manifest is the same checkpoint, also after it opened the next epoch.
func repeated(j Job, b Checkpoint) (Checkpointed, bool) {
	for _, k := range j.Checkpoints {
		if k.Seq != b.Commit.Seq || k.Manifest != b.Commit.Manifest || k.Epoch != b.Authority.Fence.Epoch {
			continue
		}
		r := Checkpointed{Duplicate: true}
		a := j.Lease.Authority
		if b.Continue && j.ResumeFrom == k.Manifest && j.Lease.Live() && a.Session == b.Authority.Session && a.Fence.Epoch == k.Epoch+1 {
			r.Next = &a
		}
		return r, true
	}
	return Checkpointed{}, false
}

// continueInPlace grants epoch n+1 to the session that holds epoch n: its tree is
// dead, so no wait is needed, and it is no interruption (FYCP/1 §4).
func (c *change) continueInPlace(j *Job, a forgeyard.Authority) *forgeyard.Authority {
	c.endLease(j, lease.EndContinued, "")
	m, _ := c.Members.Get(a.Runner)
	if j.CancelAt != 0 || j.StopKind != "" || j.final()+j.waitsFor() != "" || m.Draining || m.Disabled || m.Notice != nil || m.Session.ID != a.Session {
		c.afterStop(j, "checkpointed")
		return nil
	}
	devs := j.Devices
	c.openEpoch(j, a.Runner, a.Session, lease.Accepted)
	j.Devices = devs
	c.rebindDevices(j)
	j.Phase, j.Status = job.PhaseAccepted, job.Leased
	c.say(*j, job.ResumeScheduled, job.EventMessage, "epoch %d continues on %s from checkpoint %s", j.Epoch, m.Name, j.ResumeFrom.Short())
	return &j.Lease.Authority
}

// afterStop decides where a job goes whose holder gave it back in order.
func (c *change) afterStop(j *Job, why string) {
	kind := j.StopKind
	switch {
	case j.CancelAt != 0:
		c.requeue(j, why)
	case kind == stopPreempt && !j.Held() && c.Allows(FormatLeases):
		c.preempted(j, why)
	case kind == stopAuthority && !j.Held():
		c.suspend(j)
	default:
		c.requeue(j, why)
	}
}

// stopAuthority is the kind of a stop for want of the central daemon's authority.
const stopAuthority = "authority"

// The reasons of a job that waits for the uplink; contact with the central daemon puts it
// back into the queue.
const (
	suspendedForAuthority    = "the central daemon's allowance is used up"
	suspendedForDisconnected = "the site was disconnected from its central daemon"
)

// suspend lets a job whose execution has ended wait for the uplink.
func (c *change) suspend(j *Job) {
	c.releaseDevices(j)
	j.Status, j.Reason, j.StopKind, j.StopReason = job.Suspended, suspendedForAuthority, "", ""
	if c.Uplink.State == lease.Standalone && c.Allows(FormatLeases) {
		j.Reason = suspendedForDisconnected
	}
	c.moveRun(*j, "suspended: "+j.Reason)
}

// addLog appends flushed chunks that go on after what the log has. When the list is
// full the run says so once; the numbers go on, so that none repeats.
func (c *change) addLog(j *Job, chunks []job.LogChunk) {
	for _, k := range chunks {
		if k.FirstSeq <= j.LogSeq {
			continue
		}
		switch {
		case len(j.Log) < MaxLogChunks:
			j.Log = append(slices.Clone(j.Log), k)
		case !j.LogFull:
			j.LogFull = true
			c.tell(*j, job.EventError, "", "the log has %d parts, the bound; what follows number %d is not kept", MaxLogChunks, j.LogSeq)
		}
		j.LogSeq = k.LastSeq
	}
}

func (c *change) release(b Release) error {
	j, err := c.current("release", b.Authority, true)
	if err != nil {
		return err
	}
	c.addLog(&j, b.Log)
	c.told(&j, b.Told)
	if j.Status == job.Unknown {
		j.Interruptions-- // charged when the doubt began, which has ended in order
	}
	c.endLease(&j, lease.EndReleased, b.Detail)
	if !j.ResumeFrom.IsZero() && (b.Kind == "resume_failed" || b.Kind == "resume_rejected") {
		if !j.rejected() { // it was charged when the program said so
			c.resumeFailed(&j, b.Kind == "resume_rejected", b.Detail)
		}
		from, left := j.NextFrom()
		c.next = job.ResumeFailed
		switch {
		case !left && j.Spec.Interruption.ResumesOnly() && j.CancelAt == 0 && c.Allows(FormatLeases):
			c.finish(&j, job.Failed, job.WorkloadFailed, b.Detail+"; no checkpoint is left and the job asks for "+j.Spec.Interruption.Retry)
		case from.Manifest == j.ResumeFrom || !c.neverAgain(&j, job.RunnerLost, b.Detail):
			c.requeue(&j, b.Detail)
		}
		c.putJob(j)
		return nil
	}
	if b.Kind == ReleasedReconcile && c.Allows(FormatLeases) { // nothing of it ran: it is no interruption
		c.unknownEffects(&j, b.Detail)
		c.requeue(&j, b.Detail)
		c.putJob(j)
		return nil
	}
	if b.Clean && !j.committed(j.Epoch) {
		j.unbegun()
	}
	if b.Kind == "drain" || b.Kind == stopAuthority || j.StopKind != "" {
		if j.StopKind == "" {
			j.StopKind = b.Kind
		}
		if b.Clean || (j.Held() && j.savedHere()) || !c.neverAgain(&j, takenBy(j.StopKind), b.Detail) {
			c.afterStop(&j, b.Detail)
		}
	} else {
		c.interrupted(&j, c.lostBy(b.Kind), b.Detail)
	}
	c.putJob(j)
	return nil
}

// ReleasedHostLost is the kind of a release by a holder whose work lost a device: the node
// that hosts it went away. It is an interruption like the loss of the runner.
const ReleasedHostLost = string(job.DeviceHostLost)

// ReleasedReconcile is the kind of a release by a holder who could not find out what became
// of an effect of an earlier epoch.
const ReleasedReconcile = "reconcile"

// lostBy is what a job lost whose holder gave it back.
func (s *State) lostBy(kind string) job.FailureCategory {
	if kind == ReleasedHostLost && s.Allows(FormatLeases) {
		return job.DeviceHostLost
	}
	return job.RunnerLost
}

// takenBy is what a job lost whose holder was asked for it.
func takenBy(kind string) job.FailureCategory {
	if kind == stopAuthority {
		return job.AuthorityEnded
	}
	return job.RunnerLost
}

// resumeFailed counts a resume that died unproductive; at the limit the checkpoint
// is quarantined and the one before is next (K01).
func (c *change) resumeFailed(j *Job, rejected bool, why string) {
	limit := c.Config.Interruption.ResumeFailures
	if own := j.Spec.Interruption.ResumeFailures; own > 0 {
		limit = min(limit, own)
	}
	contract, err := checkpoint.NewContract(j.Spec.Resume, checkpoint.Limits{ResumeFailures: limit})
	if err != nil {
		c.note("checkpoint", "contract of job %s: %v", forgeyard.Short(j.ID), err)
		return
	}
	next, quarantined, err := checkpoint.ResumeFailed(j.Checkpoints, j.ResumeFrom, contract, rejected)
	if err != nil {
		return
	}
	j.Checkpoints = next
	if quarantined {
		c.say(*j, job.CheckpointValidationFailed, job.EventMessage, "checkpoint %s quarantined: %s", j.ResumeFrom.Short(), why)
	}
}

// complete answers a completion with one of its four answers. All but the first
// change nothing that anybody decides by.
func (c *change) complete(b Complete) (Completed, error) {
	j, err := c.jobByID("complete", b.Authority.Job)
	if err != nil {
		return Completed{Verdict: StaleRejected, Reason: "the job is not known here"}, nil
	}
	if b.Message == "" {
		return Completed{Verdict: InvalidRejected, Reason: "the message id is empty"}, nil
	}
	if j.Message == b.Message {
		return Completed{Verdict: DuplicateAccepted}, nil
	}
	if _, err := c.current("complete", b.Authority, true); err != nil {
		c.keepLate(&j, b, err)
		return Completed{Verdict: StaleRejected, Reason: err.Error()}, nil
	}
	if why := invalidResult(j, b.Result); why != "" {
		return Completed{Verdict: InvalidRejected, Reason: why}, nil
	}
	if why := j.startedFromRevoked(); why != "" && b.Result.Outcome == job.OutcomeDone {
		return c.fromDoubt(&j, b, why), nil
	}
	c.accepted(&j, b)
	c.putJob(j)
	return Completed{Verdict: Accepted}, nil
}

// fromDoubt refuses what was made from a revoked checkpoint: it is evidence, and the job goes
// on from an older one, or begins anew.
func (c *change) fromDoubt(j *Job, b Complete, doubt string) Completed {
	err := forgeyard.Errorf("complete", forgeyard.Stale, "what it worked from was revoked: %s", doubt)
	c.keepLate(j, b, err)
	c.addLog(j, b.Result.Log)
	c.told(j, b.Result.Told)
	c.endLease(j, lease.EndReleased, err.Error())
	if !c.neverAgain(j, job.RunnerLost, err.Error()) {
		c.afterStop(j, err.Error())
	}
	c.putJob(*j)
	return Completed{Verdict: StaleRejected, Reason: err.Error()}
}

// keepLate keeps a refused result as evidence (E27). It never touches a status.
func (c *change) keepLate(j *Job, b Complete, why error) {
	for _, l := range j.Late {
		if l.Message == b.Message {
			return
		}
	}
	late := append(slices.Clone(j.Late), LateResult{At: c.at, Epoch: b.Authority.Fence.Epoch, Runner: b.Authority.Runner, Message: b.Message, Outcome: b.Result.Outcome, Why: forgeyard.Clip(why.Error(), 200)})
	if len(late) > maxLate {
		late = late[1:]
	}
	j.Late = late
	c.Jobs = c.Jobs.Put(j.ID, *j)
	c.note("stale", "completion of job %s at epoch %d refused: %s", forgeyard.Short(j.ID), b.Authority.Fence.Epoch, why)
}

func invalidResult(j Job, r job.Result) string {
	if left := j.Unreconciled(j.Epoch); r.Outcome == job.OutcomeDone && len(left) > 0 {
		return fmt.Sprintf("effect %s of epoch %d is not reconciled", left[0].Key, left[0].Epoch)
	}
	switch r.Outcome {
	case job.OutcomeDone, job.OutcomeFailed, job.OutcomeCancelled:
	default:
		return fmt.Sprintf("outcome %q is not known", forgeyard.Clip(string(r.Outcome), 40))
	}
	if r.Outcome != job.OutcomeDone || len(r.Diagnostics) > 0 {
		return invalidDiagnostics(j, r)
	}
	if j.Spec.Own() {
		return invalidSet(j.Spec.Ingest, r.Outputs)
	}
	for _, o := range r.Outputs {
		declared := slices.ContainsFunc(j.Spec.Outputs, func(d job.OutputDecl) bool { return d.Path == o.Path })
		if !declared || o.Digest.IsZero() {
			return fmt.Sprintf("output %q is not declared by the job, or has no digest", forgeyard.Clip(o.Path, 100))
		}
	}
	if j.Spec.NoCommit {
		return ""
	}
	for _, d := range j.Spec.Outputs {
		given := slices.ContainsFunc(r.Outputs, func(o job.Output) bool { return o.Path == d.Path })
		if !given && !d.Optional {
			return fmt.Sprintf("declared output %q is missing from the result", d.Path)
		}
	}
	return ""
}

// invalidDiagnostics says why what was kept of failed work is not what its spec asks for:
// each path that it names once at most, captured or left out for a reason.
func invalidDiagnostics(j Job, r job.Result) string {
	if len(r.Diagnostics) > 0 && r.Outcome != job.OutcomeFailed {
		return fmt.Sprintf("diagnostics are of work that failed; this is %s", r.Outcome)
	}
	seen := map[string]bool{}
	for _, d := range r.Diagnostics {
		asked := slices.Contains(j.Spec.OnFailure, job.DiagnosticDecl{Path: d.Path, Sensitive: d.Sensitive})
		if !asked || seen[d.Path] || d.Digest.IsZero() == (d.LeftOut == "") || len(d.LeftOut) > job.MaxLeftOut {
			return fmt.Sprintf("diagnostic %q is not asked for by the job, given twice, or neither captured nor left out", forgeyard.Clip(d.Path, 100))
		}
		seen[d.Path] = true
	}
	return ""
}

func (c *change) accepted(j *Job, b Complete) {
	res := b.Result
	if res.Outcome == job.OutcomeFailed && !res.Category.Known() && c.Allows(FormatLeases) {
		res.Category = job.Internal // what failed is told in a word that everybody knows
	}
	if j.Status == job.Unknown {
		j.Interruptions-- // the doubt ended in order: it was no interruption
	}
	c.addLog(j, res.Log)
	c.told(j, res.Told)
	res.Log, res.Told = nil, job.Told{}
	c.endLease(j, lease.EndCompleted, string(res.Outcome))
	j.Phase = job.PhaseCompleted
	retry := res.Outcome == job.OutcomeFailed && res.Category.RetryElsewhere() && j.CancelAt == 0 && j.Spec.Node == "" // for one node there is no elsewhere
	if len(res.Steps) > 0 && (j.asksNever() || j.beginsAgain()) && c.Allows(FormatLeases) {
		retry = false // something of it ran
	}
	if res.Overran && c.Allows(FormatLeases) {
		retry = false // it would take as much elsewhere
	}
	if retry && j.Retries < maxRetries {
		j.Retries++
		if len(res.Steps) == 0 {
			j.unbegun()
		}
		c.avoid(j, b.Authority, string(res.Category)+": "+res.Message)
		c.requeue(j, fmt.Sprintf("%s on %s: %s", res.Category, c.memberName(b.Authority.Runner), res.Message))
		j.Message = b.Message
		return
	}
	j.Result, j.Message = &res, b.Message
	switch res.Outcome {
	case job.OutcomeDone:
		c.done(j, res)
	case job.OutcomeCancelled:
		c.finish(j, job.Cancelled, "", "cancelled: "+res.Message)
	default:
		c.finish(j, job.Failed, res.Category, res.Message)
	}
}

// expire ends a lease by silence. The execution is then unknown, never failed
// (69§107), until the fence or certainty allows the next step.
func (c *change) expire(b Expire) error {
	j, err := c.jobByID("expire", b.Job)
	if err != nil {
		return err
	}
	if j.Lease.Authority.Lease != b.Lease || j.Status.Terminal() {
		return forgeyard.Errorf("expire", forgeyard.Stale, "lease %s is not the current one", b.Lease)
	}
	if b.Term != 0 && c.term != 0 && b.Term != c.term {
		return forgeyard.Errorf("expire", forgeyard.Stale, "the silence was counted in term %d, this is term %d", b.Term, c.term)
	}
	if b.State != "" && b.State != j.Lease.State {
		return forgeyard.Errorf("expire", forgeyard.Stale, "the lease is %s, its silence was counted while it was %s", j.Lease.State, b.State)
	}
	name := c.memberName(j.Lease.Authority.Runner)
	switch {
	case j.Lease.State == lease.Offered:
		c.endLease(&j, lease.EndExpired, "the offer was not answered")
		c.avoid(&j, j.Lease.Authority, "did not answer an offer")
		c.requeue(&j, name+" did not answer the offer")
	case j.Lease.State == lease.Accepted:
		c.endLease(&j, lease.EndExpired, name+" fell silent")
		j.Status, j.Phase, j.Certain, j.Reason = job.Unknown, job.PhaseUnknown, b.Certain, name+" fell silent"
		j.Tail = b.LogSeq
		j.Interruptions++
		c.releaseDevices(&j)
		c.next = job.EventRunnerLost
		c.moveRun(j, "unknown: "+j.Reason)
	}
	if b.Certain && j.Status == job.Unknown {
		j.Certain = true
		c.noteLease(j, "has certainly stopped on %s: what it was granted is over by every clock", cmp.Or(name, "whoever had it"))
		c.settleUnknown(&j)
	}
	c.putJob(j)
	return nil
}

// settleUnknown ends the doubt when the old holder has certainly stopped. The
// interruption was charged when the doubt began; that the central daemon gave the job
// anew is none.
func (c *change) settleUnknown(j *Job) {
	if j.Lease.Reason == lease.EndRevoked {
		anew := j.Lease.Authority.Fence.Term != j.Term // the daemon's own word is no retry
		if anew || !c.neverAgain(j, job.AuthorityEnded, j.Reason) {
			c.requeue(j, j.Reason)
		}
		return
	}
	j.Interruptions--
	c.interrupted(j, job.RunnerLost, j.Reason)
}
