package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/layer"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
	"github.com/forgeyard/forgeyard-node/node/runner/redact"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
	"github.com/forgeyard/forgeyard-node/node/runner/telling"
)

// Attempt is one epoch under way. Its exported methods may be called concurrently.
type Attempt struct {
	run      *Runner
	id       string // <attempt>-<epoch>
	task     Task
	hooks    Hooks
	ctx      context.Context // ends when the lease does
	endLease context.CancelFunc
	done     chan struct{}
	bell     chan struct{} // an order came
	flushed  chan struct{} // closed when the flusher has ended; nil before it began

	flushStop chan struct{} // closed to end it
	named     chan error    // whether the name of the tree is on the disk
	ran       chan struct{} // closed when the node was told that the work runs
	news      chan func(context.Context)
	told      telling.Tellings

	// Owned by the life, readable by others after done.
	exec       executor.Executor
	user       users.User // lent to this epoch alone until Finish
	contract   checkpoint.Contract
	root       string // workspace on the host
	view       string // as the workload sees it
	log        *spool.Spool
	mostLogged int64 // the bound of the job's log when this epoch began
	devices    []device
	ins        []job.Input     // those of the spec, and the node's own toolchains that it requires
	layers     []*layer.Lease  // trees that others read too
	binds      []executor.Bind // where the workload sees them
	secrets    []secret        // resolved
	streams    []*redact.Writer
	restored   *checkpoint.Manifest
	was        []checkpoint.File // of what was restored, where it was sealed
	list       string            // digest of the list of tests in what was restored
	disk       *diskWatch
	over       string // what the attempt uses beyond what it asked for
	requests   int    // number of the last request.json
	started    bool
	saved      bool     // the last program ended with the checkpoint that was committed
	taken      Captured // the last checkpoint
	unusable   string   // why the program rejects what was restored
	steps      []job.StepResult
	chain      chain // of committed steps
	outputs    []job.Output
	signs      []job.Diagnostic // of work that failed
	summary    string           // of an own run that did what it was asked
	result     job.Result
	ended      Ended
	spans      []Span // of what has ended

	vacated atomic.Bool // its workspace went before its result was answered
	cutOff  bool        // the store did not take the end of its log; before done

	saving sync.Mutex     // one writer of the state file at a time; taken before mu
	saves  sync.WaitGroup // writes beside the life, which it waits for

	cleaning sync.Mutex // one Finish or Vacate at a time; taken before mu
	finished bool       // guarded by it

	owed []checkpoint.Message // outcomes of effects that nobody decided; of the goroutine that answers them

	mu        sync.Mutex // guards all below
	order     order
	stopping  chan struct{} // closed by the first stop that is more than a checkpoint
	cancelled chan struct{} // closed by the first stop that ends the job
	phase     job.Phase
	state     state // what the state file says
	until     forgeyard.Instant
	redact    *redact.Set       // nil: there is nothing to take out of the log
	lastAsk   uint64            // number of the last request to begin an effect
	unheard   map[string]uint64 // requests of which the program has no answer, by key and idempotency key
}

func newAttempt(ctx context.Context, r *Runner, t Task, h Hooks) *Attempt {
	ctx, end := context.WithCancel(ctx)
	return &Attempt{
		run: r, id: epochName(t.Authority), task: t, hooks: h, ctx: ctx, endLease: end,
		named: make(chan error, 1), ran: make(chan struct{}), done: make(chan struct{}), bell: make(chan struct{}, 1), flushStop: make(chan struct{}),
		news:     make(chan func(context.Context), newsWaiting),
		stopping: make(chan struct{}), cancelled: make(chan struct{}), phase: job.PhaseAccepted, until: t.Until,
	}
}

// Authority is the tuple the attempt acts under.
func (a *Attempt) Authority() forgeyard.Authority { return a.task.Authority }

// Phase is what it is doing.
func (a *Attempt) Phase() job.Phase { a.mu.Lock(); defer a.mu.Unlock(); return a.phase }

// Process names the main process of the step that was started last: its pid, and its
// birth time, so that a reused pid is never taken for it (RSE). Zero before the first.
func (a *Attempt) Process() (pid int, birth uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.Orphan.PID, a.state.Orphan.Birth
}

// Log is the attempt's log, nil until its folder was made.
func (a *Attempt) Log() *spool.Spool { a.mu.Lock(); defer a.mu.Unlock(); return a.log }

// Done is closed when the epoch has ended and its tree is confirmed dead.
func (a *Attempt) Done() <-chan struct{} { return a.done }

// Wait returns the result and how the epoch ended. The result means something only for
// EndCompleted. Interrupted: ctx ended first.
func (a *Attempt) Wait(ctx context.Context) (job.Result, Ended, error) {
	select {
	case <-a.done:
		return a.result, a.ended, nil
	case <-ctx.Done():
		return job.Result{}, Ended{}, forgeyard.E("wait", forgeyard.Interrupted, ctx.Err())
	}
}

// verdict is how the life went: nil while all is well.
type verdict struct {
	end      End
	outcome  job.Outcome
	category job.FailureCategory
	message  string
	code     int
}

func failure(c job.FailureCategory, format string, args ...any) *verdict {
	return &verdict{end: EndCompleted, outcome: job.OutcomeFailed, category: c, message: forgeyard.Clip(fmt.Sprintf(format, args...), maxMessage)}
}

// live is the order of things.
func (a *Attempt) live() {
	defer close(a.done)
	defer a.saves.Wait()
	defer a.endLease()
	var telling sync.WaitGroup
	defer telling.Wait()
	told := make(chan struct{})
	defer close(told)
	telling.Go(func() { a.teller(told) })
	defer a.unkept()
	defer a.releaseLayers()
	v := a.timed(SpanPrepare, "", a.prepare)
	if v == nil {
		v = a.reconcile()
	}
	if v == nil {
		v = a.runSteps()
		a.diagnose(v)
	}
	if v == nil {
		v = a.timed(SpanUpload, "", a.deliver)
	}
	a.awaitRan(v)
	a.conclude(v)
}

// releaseLayers lets go of trees that others read too: nothing of this epoch runs any more.
func (a *Attempt) releaseLayers() {
	for _, l := range a.layers {
		l.Release()
	}
}

// prepare makes everything that the first step needs.
func (a *Attempt) prepare() *verdict {
	a.enter(job.PhasePreparing)
	ctx, cancel := a.bounded(a.task.Spec.Timeouts.Prepare, a.halt())
	defer cancel()
	for _, f := range []func(context.Context) error{a.reserve, a.openLog, a.makeWorkspace, a.kept, a.inputs, a.bindDevices, a.resolve, a.written} {
		if err := f(ctx); err != nil {
			return a.whyNotPrepared(ctx, err)
		}
	}
	v := a.interrupted()
	if v == nil {
		a.happened(WorkspacePrepared, "workspace prepared")
	}
	return v
}

// whyNotPrepared sorts the trouble of a preparation (07§53, decision 6).
func (a *Attempt) whyNotPrepared(ctx context.Context, err error) *verdict {
	a.note("preparation failed: %v", err)
	if v := a.interrupted(); v != nil {
		return v
	}
	if errors.Is(context.Cause(ctx), errTimeout) {
		return failure(job.TimedOut, "preparing took longer than %v: %v", a.task.Spec.Timeouts.Prepare, err)
	}
	if bad := (*unusable)(nil); errors.As(err, &bad) {
		return &verdict{end: EndRestoreRejected, message: bad.Error()}
	}
	switch forgeyard.KindOf(err) {
	case forgeyard.Corrupt:
		return failure(job.CorruptInput, "%v", err)
	case forgeyard.NoSpace:
		return failure(job.DiskFull, "%v", err)
	case forgeyard.NotFound, forgeyard.Unknown:
		return failure(job.InputFetch, "%v", err)
	case forgeyard.Unavailable:
		if a.root != "" && a.exec != nil {
			return failure(job.InputFetch, "%v", err)
		}
	}
	return failure(job.PreparationFailed, "%v", err)
}

// interrupted says what an order or the lease's end makes of the epoch, nil for nothing.
func (a *Attempt) interrupted() *verdict {
	if a.Lost() {
		return &verdict{end: EndLease, message: "the lease ended"}
	}
	o := a.asked()
	switch {
	case o.kind == checkpoint.StopTimeout && !o.cancel:
		return failure(job.TimedOut, "%s", o.reason)
	case o.ends():
		return &verdict{end: EndCompleted, outcome: job.OutcomeCancelled, message: forgeyard.Clip(o.reason, maxMessage)}
	case o.gives():
		return &verdict{end: EndYielded, message: forgeyard.Clip(o.reason, maxMessage)}
	}
	return nil
}

var errTimeout = errors.New("the time for it is over")

// bounded is a context that ends with the lease, after d (0: never), or with stop.
func (a *Attempt) bounded(d time.Duration, stop <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	var late <-chan time.Time
	if d > 0 {
		late = a.run.cfg.Clock.After(d)
	}
	go func() {
		select {
		case <-ctx.Done():
		case <-stop:
			cancel(context.Canceled)
		case <-late:
			cancel(errTimeout)
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

func (a *Attempt) reserve(context.Context) error {
	e, ok := a.run.cfg.Executors[a.task.Spec.Sandbox]
	if !ok {
		return forgeyard.Errorf("run", forgeyard.Invalid, "sandbox %q is not offered here", a.task.Spec.Sandbox)
	}
	a.exec = e
	c, err := checkpoint.NewContract(a.task.Spec.Resume, checkpoint.Limits{})
	if err != nil {
		return err
	}
	a.contract = c
	if err := a.run.mayHave(a.task.Spec); err != nil {
		return err
	}
	err = a.run.room(a.task.Spec, a.id, 0, 0)
	for forgeyard.KindOf(err) == forgeyard.NoSpace && a.run.Evict(1) > 0 { // one tree each time: what there is room for stays
		err = a.run.room(a.task.Spec, a.id, 0, 0)
	}
	return err
}

func (a *Attempt) openLog(ctx context.Context) error {
	epoch := a.task.Authority.Fence.Epoch
	s, err := spool.Open(spool.Config{
		Dir:   filepath.Join(a.run.cfg.Spool, string(a.task.Authority.Attempt), strconv.FormatUint(epoch, 10)),
		Epoch: epoch, First: a.task.FirstLogSeq, Limit: a.run.spoolLimit.Load(),
		Owner: PinOwner(a.task.Authority.Attempt), Pack: a.run.cfg.PackLogs, Clock: a.run.cfg.Clock, Most: a.mostLog(), Parts: a.task.LogParts,
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.log = s
	a.mu.Unlock()
	a.told.Begin(s.Last() + 1)
	mark := map[string]any{"event": "epoch", "epoch": epoch, "runner": a.task.Authority.Runner, "first_seq": s.Last() + 1}
	if a.task.LastLogSeq > s.Last() {
		mark["missing"] = a.task.LastLogSeq - s.Last()
	}
	if err := s.Event(ctx, 0, mark); err != nil {
		return err
	}
	a.startFlusher()
	return nil
}

// written returns when the name of the tree is on the disk: nothing of it exists before.
func (a *Attempt) written(ctx context.Context) error {
	select {
	case err := <-a.named:
		return err
	case <-ctx.Done():
		return forgeyard.E("write state", forgeyard.Interrupted, ctx.Err())
	}
}

func (a *Attempt) makeWorkspace(context.Context) error {
	var err error
	if a.user, err = a.exec.Users().Lend(a.id); err != nil {
		return err
	}
	a.root, err = newWorkspace(a.run.cfg.Workspaces, a.id, func(root string) error { return a.run.cfg.Prepare(a.user, root) })
	if err != nil {
		return err
	}
	a.view = a.exec.View(a.root)
	a.saveBeside(func(s *state) {
		s.Workspace, s.Sandbox, s.User = a.root, a.task.Spec.Sandbox, a.user
		// All steps run under this one name, so a crash at any moment leaves no tree that
		// nobody can find.
		s.Orphan = executor.Orphan{ID: a.id, Boot: executor.BootID()}
	}, func(err error) { a.named <- err })
	if a.speaks() {
		if err := capture.Prepare(filepath.Join(a.root, executor.CtlDir)); err != nil {
			return err
		}
	}
	if g := a.task.Spec.Guidance; g != "" {
		if err := os.WriteFile(filepath.Join(a.root, executor.BinDir, guidanceFile), []byte(g), 0o644); err != nil {
			return forgeyard.E("workspace", executor.KindOfDisk(err), err)
		}
	}
	if a.run.cfg.HelperPath == "" || a.task.Spec.Own() {
		return nil
	}
	return a.giveHelper(a.run.cfg.HelperPath)
}

// awaitRan lets the node hear that the work ran before it hears how it ended: a program may be
// quicker than the site's log. A node that cannot be told in time hears the end alone.
func (a *Attempt) awaitRan(v *verdict) {
	if !a.started || v.end != EndCompleted {
		return
	}
	select {
	case <-a.ran:
	case <-a.ctx.Done():
	case <-a.run.cfg.Clock.After(ranWithin):
	}
}

// enter moves to a phase and tells it. Stale means that the lease is over. The state
// file learns of it with its next write: each costs a disk sync.
func (a *Attempt) enter(p job.Phase) {
	a.mu.Lock()
	a.phase = p
	a.mu.Unlock()
	a.tell(func(ctx context.Context) {
		if p == job.PhaseRunning {
			defer close(a.ran) // the work begins once
		}
		if a.Lost() {
			return
		}
		if forgeyard.KindOf(a.hooks.Phase(ctx, p)) == forgeyard.Stale {
			a.endLease()
		}
	})
}

// said is the node's own log with what every line of an attempt names; the node and its
// session stand in it already. The caller does not hold mu.
func (a *Attempt) said() *slog.Logger {
	t := a.task.Authority
	return a.run.cfg.Log.With("attempt", t.Attempt, "epoch", t.Fence.Epoch, "lease", t.Lease, "phase", a.Phase())
}

// note writes an agent line into the log, for whoever reads the attempt later.
func (a *Attempt) note(format string, args ...any) {
	text := a.clean(fmt.Sprintf(format, args...))
	a.said().Info(text)
	if a.log == nil {
		return
	}
	if err := a.log.Append(a.ctx, spool.Agent, 0, []byte(forgeyard.Clip(text, maxMessage)+"\n")); err != nil {
		a.said().Warn("log line lost", "err", err)
	}
}

// event writes a structured frame; a log that cannot take it is not the work's fault.
func (a *Attempt) event(step int, e map[string]any) {
	if err := a.log.Event(a.ctx, uint16(step), e); err != nil {
		a.said().Warn("log event lost", "err", err)
	}
}

// mostLog is what this epoch may add to its job's log: what earlier ones left of the bound,
// and at least a little, for a later epoch says why the earlier ones ended.
func (a *Attempt) mostLog() int64 {
	most := a.run.jobLog.Load()
	a.mostLogged = most
	if most <= 0 {
		return 0
	}
	return max(most-a.task.LoggedBytes, leastLog)
}

// endGap says in the log how much of it was left out, once.
func (a *Attempt) endGap() {
	if a.ended.LeftOut > 0 {
		return
	}
	n, err := a.log.EndGap(a.ctx)
	if err != nil {
		a.said().Warn("log event lost", "err", err)
	}
	if a.ended.LeftOut = n; n > 0 {
		a.note("%d bytes that the programs wrote were left out: the log of a job may have %d (spool.per_job), in as many parts as its record can name", n, a.mostLogged)
	}
}

// conclude writes down how it ended, with the log flushed as far as it goes.
func (a *Attempt) conclude(v *verdict) {
	v.message = a.clean(v.message)
	a.forgetSecrets() // the tree is dead
	a.returnDevices()
	a.endHold()
	a.ended = Ended{Kind: v.end, Stop: string(a.asked().kind), Checkpoint: a.taken, Undelivered: a.ended.Undelivered, LeftOut: a.ended.LeftOut, Clean: !a.started || a.saved, Spans: a.spans}
	if a.log != nil {
		a.endGap()
		if a.taken.Verdict != VerdictContinue || v.end != EndCheckpoint {
			a.event(0, map[string]any{"event": "end", "end": v.end, "outcome": v.outcome, "category": v.category, "message": v.message, "exit_code": v.code})
		}
		a.lastFlush()
		if err := a.pin(context.WithoutCancel(a.ctx)); err != nil {
			a.said().Warn("result not pinned", "err", err)
		}
		a.ended.Log, a.ended.LastLogSeq = a.log.Chunks(), a.log.Last()
	}
	a.ended.Told = a.Untold()
	a.result.Told = a.ended.Told
	a.result.Outcome, a.result.Category, a.result.Message, a.result.ExitCode = v.outcome, v.category, v.message, v.code
	a.result.Overran = v.category == job.DiskFull && a.over != "" && a.disk.overran()
	a.result.Steps, a.result.Outputs, a.result.Log = a.steps, a.outputs, a.ended.Log
	a.result.Diagnostics = a.signs
	if len(v.message) > 0 {
		a.said().Info("epoch ended", "end", string(v.end), "why", v.message)
	}
}

// Finish gives everything back after the log has answered: workspace, log files, state,
// devices and the disk reservation. The pin of PinOwner stays. keep leaves the workspace for
// a person to look at, unless the job had secrets. An error is a matter of health, never of
// the result (07§96): Tidy tries again.
func (a *Attempt) Finish(keep bool) error {
	<-a.done
	err := a.finish(keep && len(a.task.Spec.Secrets) == 0)
	if err != nil {
		a.run.failedToClean(a.id, a.root, err, func(context.Context) error { return a.finish(false) })
	}
	return err
}

// finish deletes files without holding mu: that takes long, and what the node asks of its
// attempts meanwhile must not wait for it.
func (a *Attempt) finish(keep bool) error {
	a.cleaning.Lock()
	defer a.cleaning.Unlock()
	if a.finished {
		return nil
	}
	var errs []error
	switch {
	case a.root == "" || a.vacated.Load():
	case keep:
		errs = append(errs, a.keep())
	default:
		errs = append(errs, removeWorkspace(a.root))
	}
	if a.cutOff {
		errs = append(errs, a.run.putAside(a.task.Authority))
	} else if a.log != nil {
		errs = append(errs, a.log.Remove(), removeEmpty(filepath.Join(a.run.cfg.Spool, string(a.task.Authority.Attempt))))
	}
	errs = append(errs, a.groupsGone())
	if err := errors.Join(errs...); err != nil {
		return forgeyard.E("clean up "+a.id, forgeyard.Other, err)
	}
	if err := a.run.forget(a.id); err != nil {
		return err
	}
	a.finished = true
	if a.exec != nil {
		a.exec.Users().Return(a.id)
	}
	a.run.mu.Lock()
	delete(a.run.active, a.id)
	a.run.mu.Unlock()
	return nil
}

// groupsGone removes control groups that stayed when the tree had died: the kernel, or
// somebody's group below, may have held them.
func (a *Attempt) groupsGone() error {
	if !a.started {
		return nil
	}
	o := a.exec.Named(a.id)
	if len(o.Cgroups) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), reapTime)
	defer cancel()
	return a.exec.Reap(ctx, o)
}

// Vacate removes the workspace of an attempt whose result waits for its answer, and gives its
// disk back. The result, the log and what else Finish is for stay (07§88).
func (a *Attempt) Vacate() error {
	<-a.done
	a.cleaning.Lock()
	defer a.cleaning.Unlock()
	if a.finished || a.root == "" || a.vacated.Load() {
		return nil
	}
	if err := removeWorkspace(a.root); err != nil {
		return err
	}
	a.vacated.Store(true)
	return nil
}

// removeEmpty removes a folder if nothing is in it.
func removeEmpty(dir string) error {
	l, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || len(l) > 0 {
		return nil
	}
	return errors.Join(err, os.Remove(dir))
}
