package node

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// execution is one epoch that this node carries out.
type execution struct {
	n         *Node
	authority forgeyard.Authority
	job       site.Job
	bound     []*boundDevice // set before the attempt starts
	errands   *errands       // what this process does for the child of an own run
	logged    chan struct{}  // there is more in log

	telling sync.Mutex // held while parts of the log are under way to the site; before mu

	mu      sync.Mutex // guards all below
	attempt *runner.Attempt
	phase   job.Phase
	wish    uint64                  // which wish of a person it was, 0: of none
	stopped string                  // the kind of stop that the log asked for
	pending []func(*runner.Attempt) // what was asked before it was started, in order
	killed  bool                    // the lease ended before it was started
	until   forgeyard.Instant       // when it must have stopped, as far as the book knows
	log     []job.LogChunk          // parts of its log that are in the store, and in the site's log not yet
	kept    []job.LogChunk          // all that are in the store
	next    *grantedNext
	asked   map[string]forgeyard.Instant // spans that began when something was asked for
	noted   []runner.Span                // parts of its trace that the runner does not know
}

// grantedNext is the epoch that a checkpoint commit granted in place.
type grantedNext struct {
	authority forgeyard.Authority
	sent      forgeyard.Instant
}

// begin starts the execution of an accepted lease. Preparation happens on its own
// goroutine: the agent's loop waits for nothing.
func (n *Node) begin(ctx context.Context, j site.Job, l lease.Lease) {
	x := &execution{n: n, authority: l.Authority, job: j, phase: job.PhaseAccepted, errands: newErrands(), logged: make(chan struct{}, 1)}
	n.local.mu.Lock()
	x.until = n.local.book.Deadline(l.Authority.Lease)
	n.local.running[l.Authority.Lease] = x
	n.local.mu.Unlock()
	n.metrics.active.Inc()
	n.work.Go(func() {
		defer n.metrics.active.Dec()
		x.run(ctx)
	})
}

func (x *execution) run(ctx context.Context) {
	log := eventLog(x.n.log, x.authority)
	bound, release, err := x.bindDevices(ctx)
	if err != nil {
		log.Warn("a device could not be opened", "err", err)
		x.n.deliver(ctx, x.completion(job.Result{Outcome: job.OutcomeFailed, Category: job.DeviceHostLost, Message: err.Error()}), nil)
		return
	}
	defer release()
	if x.isKilled() {
		x.n.work.Go(func() { x.tellStopped(ctx) }) // nothing of it was ever started
		x.n.over(x.authority.Lease)
		return
	}
	a, err := x.n.runner.Start(ctx, x.task(bound), x)
	if err != nil {
		log.Error("the attempt could not be started", "err", err)
		x.n.deliver(ctx, x.completion(job.Result{Outcome: job.OutcomeFailed, Category: job.PreparationFailed, Message: err.Error()}), nil)
		return
	}
	x.started(a)
	log.Info("started")
	stop := x.shareLog(ctx)
	<-a.Done() // its end is awaited, whatever else ends: its tree must be dead
	stop()
	x.errands.finish()
	result, ended, _ := a.Wait(ctx)
	log.Info("ended", "how", ended.Kind, "outcome", result.Outcome, "category", result.Category)
	if result.Category == job.SandboxSetup {
		x.n.work.Go(func() { x.n.refresh(ctx) }) // before the next job meets the same
	}
	parts := x.notedParts(ended.Spans, x.n.clock.Now())
	x.n.metrics.attempts.ended(ended.Spans)
	x.n.metrics.stops.ended(ended.Spans)
	x.n.metrics.leftOut.Add(float64(ended.LeftOut))
	answered := x.vacateLate(ctx)
	told := x.n.clock.Now()
	x.finish(ctx, result, ended)
	answered()
	began := x.n.clock.Now()
	if err := a.Finish(x.n.keeps(result, ended)); err != nil {
		x.n.notCleaned(x.authority, err)
	}
	over := x.n.clock.Now()
	x.n.metrics.attempts.cleanup.Observe(over.Sub(began).Seconds())
	x.unpin(ctx, ended)
	x.trace(result, ended, append(parts, runner.Span{Name: "complete", Began: told, Ended: began}, runner.Span{Name: "cleanup", Began: began, Ended: over})...)
}

// unpin lets go of what the attempt needed and made: the job's own pins keep its result and
// its log from here on. What did not get them, and what goes on in another epoch, is left to
// the upkeep, which judges by the site's log.
func (x *execution) unpin(ctx context.Context, e runner.Ended) {
	if e.Kind != runner.EndCompleted || e.Undelivered != "" {
		return
	}
	if err := x.n.store.Unpin(ctx, runner.PinOwner(x.authority.Attempt)); err != nil {
		x.n.log.Warn("what an attempt needed stays for a while", "attempt", x.authority.Attempt, "err", err)
	}
}

// notCleaned tells that what an epoch left could not be removed; it never changes a result (07§96).
func (n *Node) notCleaned(a forgeyard.Authority, err error) {
	eventLog(n.log, a).Error("clean-up failed", runner.CleanupFailed.Attr(), "err", err)
	n.metrics.cleanupFailures.Inc()
}

func (x *execution) task(bound []runner.DeviceBinding) runner.Task {
	x.mu.Lock()
	until := x.until
	x.mu.Unlock()
	t := runner.Task{
		Authority: x.authority, Until: until, Spec: x.job.Spec, Interruptions: x.job.Interruptions, Devices: bound, FirstLogSeq: x.job.LogSeq + 1, LastLogSeq: x.job.Tail,
		Diagnostics: runner.Diagnostics(x.n.settings().Policy.Diagnostics), LogParts: max(1, site.MaxLogChunks-len(x.job.Log)),
		MaxGrace: x.n.replica.State().Config.Interruption.MaxStopGrace,
	}
	t.Mark = x.job.Mark
	for _, c := range x.job.Log {
		t.LoggedBytes += c.Size
	}
	if x.authority.Fence.Epoch > 1 {
		t.ResumeID = string(x.authority.Lease)
	}
	if c, ok := x.resumesFrom(); ok {
		t.Restore = &runner.Restore{ID: c.Manifest, Seq: c.Seq, ExitDriven: len(x.job.Spec.Resume.Checkpoint.Files) > 0, Machine: x.machine()}
	}
	if x.job.Spec.Resume.Speaks() {
		t.Checkpoints = newCheckpointer(x)
	}
	t.Advised = x.advised()
	t.FenceToken = x.job.Lease.Token
	x.withLedger(&t)
	return t
}

// advised is the time between checkpoints that loses least, by what the job's last one cost and
// how often it was interrupted (69§24).
func (x *execution) advised() time.Duration {
	c, err := checkpoint.NewContract(x.job.Spec.Resume, checkpoint.Limits{})
	if err != nil {
		return 0
	}
	r := checkpoint.Risk{Interruptions: x.job.Interruptions}
	if n := len(x.job.Checkpoints); n > 0 {
		r.Cost, r.Bytes = x.job.Checkpoints[n-1].Took, x.job.Checkpoints[n-1].Bytes
	}
	if s := x.job.Started; s != 0 {
		r.Ran = x.n.clock.Wall().Sub(s.Time())
	}
	return c.Advise(r)
}

// machine is what the state of the work may depend on, here. Nil while the site has programs
// that read no manifest with it, or when this node does not know.
func (x *execution) machine() *machine.Facts {
	if !x.n.replica.State().Allows(site.FormatCheckpoints) {
		return nil
	}
	m := x.n.capsNow().MachineFor(x.job.Spec)
	if m == nil {
		return nil
	}
	for _, d := range x.job.Devices {
		m.Devices = append(m.Devices, d.As+"="+string(d.Device))
	}
	slices.Sort(m.Devices)
	return m
}

func (x *execution) resumesFrom() (checkpoint.Commit, bool) {
	for _, c := range x.job.Checkpoints {
		if c.Manifest == x.job.ResumeFrom {
			return c, true
		}
	}
	return checkpoint.Commit{}, false
}

// started lets through what was asked for while the attempt was being prepared.
func (x *execution) started(a *runner.Attempt) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.attempt = a
	a.Extend(x.until) // it may have been moved since the task was made
	for _, f := range x.pending {
		f(a)
	}
}

// extend passes on what the book knows of the deadline; zero is nothing.
func (x *execution) extend(until forgeyard.Instant) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if until == 0 || until == x.until {
		return
	}
	x.until = until
	if x.attempt != nil {
		x.attempt.Extend(until)
	}
}

func (x *execution) ask(f func(*runner.Attempt)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.attempt != nil {
		f(x.attempt)
		return
	}
	x.pending = append(x.pending, f)
}

// isOver reports that the attempt has ended here, its tree confirmed dead.
func (x *execution) isOver() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.attempt == nil {
		return false
	}
	select {
	case <-x.attempt.Done():
		return true
	default:
		return false
	}
}

// progress is the phase, and the number of the last frame of the log on this node's disk.
func (x *execution) progress() (job.Phase, uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	last := x.job.LogSeq
	if x.attempt == nil {
		return x.phase, last
	}
	if s := x.attempt.Log(); s != nil {
		last = max(last, s.Last())
	}
	return x.phase, last
}

// isLost reports that the right to act has ended, by the clock now.
func (x *execution) isLost() bool {
	x.mu.Lock()
	a := x.attempt
	x.mu.Unlock()
	return a != nil && a.Lost()
}

func (x *execution) isKilled() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.killed
}

func (x *execution) cancel(c agent.Cancel) {
	e := runner.Ending{Kind: checkpoint.StopCancel, Reason: c.Why, Force: c.Force, Save: c.Save, Within: c.Within}
	if kind, ok := endings[c.Reason]; ok {
		e.Kind = kind
	}
	x.n.metrics.cancels.WithLabelValues(string(cmp.Or(c.Reason, job.CancelUser))).Inc()
	x.wasAsked(spanCancel)
	x.ask(func(a *runner.Attempt) { a.End(e) })
}

// endings are the reasons that a program is told as kinds of their own; any other is told as a
// cancellation, with the reason in words.
var endings = map[job.CancelReason]checkpoint.StopKind{
	job.CancelSuperseded: checkpoint.StopSuperseded, job.CancelTimeout: checkpoint.StopTimeout, job.CancelSecurity: checkpoint.StopSecurity,
}

// stop asks for the job to be given back, with a checkpoint where the contract has one
// and there is time. Work without one is ended all the same: what asks is a drain, or an
// authority that runs out.
func (x *execution) stop(e agent.Stop) {
	kind, why, wish := e.Kind, e.Why, e.Wish
	say, ok := stops[kind]
	if !ok {
		say = checkpoint.StopDrain
	}
	if say != checkpoint.StopCheckpoint { // it asks for the state alone, the work goes on
		x.mu.Lock()
		x.stopped, x.wish = kind, wish
		x.mu.Unlock()
	}
	if name, ok := map[checkpoint.StopKind]string{checkpoint.StopPreempt: spanPreempt, checkpoint.StopSuspend: spanSuspend}[say]; ok {
		x.wasAsked(name)
	}
	if say == checkpoint.StopPreempt {
		x.ask(func(a *runner.Attempt) { a.Preempt(why, e.Until) })
		return
	}
	x.ask(func(a *runner.Attempt) { a.Stop(say, why) })
}

// stops are the log's words for what is asked of a holder, as the program is told
// (`fyjob why`).
var stops = map[string]checkpoint.StopKind{
	"authority": checkpoint.StopAuthority, "preempt": checkpoint.StopPreempt, site.AskSuspend: checkpoint.StopSuspend, site.AskCheckpoint: checkpoint.StopCheckpoint,
}

func (x *execution) leaseEnded(why string) {
	if x.isOver() {
		return // its completion ended the lease
	}
	x.n.log.Warn("execution loses its lease", "job", x.authority.Job, "epoch", x.authority.Fence.Epoch, "why", why)
	x.mu.Lock()
	x.killed = true
	x.mu.Unlock()
	x.ask(func(a *runner.Attempt) { a.LeaseEnded() })
}

func (x *execution) completion(r job.Result) completion {
	return completion{Authority: x.authority, Message: forgeyard.MessageID(NewID(x.n.clock)), Result: r}
}

// finish tells the log how the epoch ended here.
func (x *execution) finish(ctx context.Context, r job.Result, e runner.Ended) {
	if why := x.lostHost(); why != "" && e.Kind == runner.EndCompleted && r.Category == job.WorkloadFailed {
		x.release(ctx, site.ReleasedHostLost, why, e.Clean, e.Log) // it failed for want of its device
		x.n.over(x.authority.Lease)
		return
	}
	switch e.Kind {
	case runner.EndCompleted:
		r.Log = x.unsent(e.Log)
		x.deliver(ctx, r, e.Log, x.attempt.KeepCompletion)
		return
	case runner.EndLease:
		x.n.work.Go(func() { x.tellStopped(ctx) })
	case runner.EndCheckpoint:
		x.afterCheckpoint(ctx, e)
	case runner.EndYielded:
		why := "given back: " + x.stopKind()
		if x.stopKind() == site.ReleasedHostLost {
			why = x.lostHost()
		}
		x.release(ctx, x.stopKind(), why, e.Clean, e.Log)
	case runner.EndRestoreRejected:
		x.release(ctx, "resume_rejected", cmp.Or(r.Message, "the program rejected the restored state"), e.Clean, e.Log)
	case runner.EndReconcile:
		x.waitsForEffect(ctx, e, r.Message)
	case runner.EndTryLater:
		x.release(ctx, "interrupted", "the program asks to be run later", e.Clean, e.Log)
	}
	x.n.over(x.authority.Lease)
}

// deliver delivers a result. The rest of its log is copied before it is proposed where the
// job asks for copies, but not before it is written down: a process that dies while it
// copies would lose a finished result for them.
func (x *execution) deliver(ctx context.Context, r job.Result, log []job.LogChunk, keep func([]byte) error) {
	copies := x.job.Spec.Durability != job.Ephemeral
	x.n.deliver(ctx, x.completion(r), func(b []byte) error {
		err := keep(b)
		if copies {
			x.copyLog(ctx, log)
		}
		return err
	})
	if !copies {
		x.copyLog(ctx, log)
	}
}

// stoppedTime bounds how long the site is told that a tree is dead.
const stoppedTime = time.Minute

// tellStopped says that the tree is dead: for an execution that is unknown this ends the
// doubt, and a lease that nobody has missed yet ends by it. A site that does not hear it finds out when the lease is certainly over, so that
// nothing here waits for it: there may be no quorum to hear it.
func (x *execution) tellStopped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stoppedTime)
	defer cancel()
	_, last := x.progress()
	x.n.tell(ctx, site.Stopped{Authority: x.authority, LogSeq: last})
}

// stopKind is the word of the log for the stop that was followed.
func (x *execution) stopKind() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stopped != "" {
		return x.stopped
	}
	return "drain" // this node's own shutdown
}

func (x *execution) afterCheckpoint(ctx context.Context, e runner.Ended) {
	switch e.Checkpoint.Verdict {
	case runner.VerdictContinue:
		x.mu.Lock()
		next := x.next
		x.mu.Unlock()
		if next == nil {
			return
		}
		x.n.granted(next.authority, x.job.Spec.Resources, next.sent)
	case runner.VerdictCommitted:
		x.release(ctx, x.stopKind(), "checkpointed", e.Clean, e.Log)
	case runner.VerdictStale:
	default:
		x.release(ctx, "interrupted", "its checkpoint was not committed: "+e.Checkpoint.Reason, e.Clean, e.Log)
	}
}

func (x *execution) release(ctx context.Context, kind, detail string, clean bool, log []job.LogChunk) {
	b := site.Release{Authority: x.authority, Kind: kind, Detail: detail, Log: x.unsent(log)}
	if x.n.mayReport() {
		b.Told, b.Clean = x.attempt.Untold(), clean
	}
	x.n.tell(ctx, b)
	x.copyLog(ctx, log)
}

// mayReport says whether the site's log takes what executions tell.
func (n *Node) mayReport() bool { return n.replica.State().Allows(site.FormatRuns) }

// Report implements runner.Hooks.
func (x *execution) Report(ctx context.Context, t job.Told) error {
	if !x.n.mayReport() {
		return forgeyard.Errorf("report", forgeyard.Unavailable, "the site's log does not take events of executions yet")
	}
	_, err := x.n.propose(ctx, site.Report{Authority: x.authority, Told: t})
	return err
}

// Phase implements runner.Hooks.
func (x *execution) Phase(ctx context.Context, p job.Phase) error {
	x.mu.Lock()
	x.phase = p
	a := x.attempt
	x.mu.Unlock()
	b := site.Phase{Authority: x.authority, Phase: p, Exec: site.ExecutionRef{Node: x.n.enrolment.RunnerID}}
	if a != nil {
		pid, birth := a.Process()
		b.Exec.PID, b.Exec.Birth = pid, birth
	}
	_, err := x.n.propose(ctx, b)
	return err
}

// StopRefused implements runner.Hooks. The site waits for the word: it is said until it is
// heard, or the lease is over.
func (x *execution) StopRefused(ctx context.Context, why string) {
	x.n.log.Warn("a suspension was not followed", "job", x.authority.Job, "why", why)
	x.mu.Lock()
	wish := x.wish
	if x.stopped == site.AskSuspend {
		x.stopped = ""
	}
	x.mu.Unlock()
	x.n.work.Go(func() {
		for {
			_, err := x.n.propose(ctx, site.StopRefused{Authority: x.authority, Why: why, Wish: wish})
			if kind := forgeyard.KindOf(err); err == nil || (kind != forgeyard.Unavailable && kind != forgeyard.Unknown) {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-x.n.clock.After(refusalRetry):
			}
		}
	})
}

// refusalRetry is the time between two tries to tell that a suspension was refused.
const refusalRetry = time.Second

// Replicate implements runner.Hooks.
func (x *execution) Replicate(ctx context.Context, d runner.Delivery) (runner.Replicas, error) {
	owner := "job/" + string(x.authority.Job) + "/outputs"
	if x.job.Spec.Own() {
		owner, d.Log = site.NamePin(x.authority.Job), nil // the log's end is copied with the rest of it
	}
	roots, copies := rootsOf(d.Outputs, d.Log), x.job.Spec.Durability
	pin := pinOf(owner, append(roots, rootsOf(d.Private, nil)...)) // all of it is kept here
	if len(roots) == 0 {
		copies = job.Ephemeral // and none of it elsewhere
	}
	r, err := x.n.replicate(ctx, copies, pin, roots)
	if err == nil { // a try that is repeated finds the same copies again
		x.n.metrics.attempts.uploadedOutputs(d.Outputs, len(r.Nodes))
	}
	return r, err
}
