package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// exTempFail is sysexits' "cannot run now, try later" (FYCP/1 §6).
const exTempFail = 75

// runSteps runs one step after the other; nil when all passed.
func (a *Attempt) runSteps() *verdict {
	late := a.run.cfg.Clock.After(a.task.Spec.Timeouts.Run)
	if a.task.Spec.Timeouts.Run <= 0 {
		late = nil
	}
	a.watchDisk()
	if a.over != "" {
		return failure(job.DiskFull, "before the first step the attempt %s", a.over)
	}
	for i, s := range a.plan() {
		if v := a.interrupted(); v != nil && (v.end == EndLease || !(a.started && a.unsaved())) {
			return v
		}
		over, v := a.passOver(i, s)
		if v == nil && !over {
			v = a.timed(SpanStep, s.Name, func() *verdict { return a.runStep(i, s, late) })
			if v == nil {
				v = a.passed(i, s)
			}
		}
		if v != nil {
			return v
		}
	}
	return nil
}

// runStep runs one step to the confirmed end of its tree.
func (a *Attempt) runStep(i int, s job.Step, late <-chan time.Time) *verdict {
	n := i + 1
	a.event(n, map[string]any{"event": "step_start", "step": n, "name": s.Name})
	a.tool(job.Tool{Source: job.ToolExecutor, Name: s.Name, State: job.ToolStarted}, "")
	began := a.run.cfg.Clock.Now()
	h, v := a.startStep(n, s)
	if v != nil {
		a.tool(job.Tool{Source: job.ToolExecutor, Name: s.Name, State: job.ToolFailed, Code: v.code}, v.message)
		return v
	}
	a.tellUse(h)
	w := &watch{a: a, h: h, late: late, folders: a.folders()}
	endEffects := a.followEffects(w.folders)
	w.run()
	a.run.cfg.Ender.End(a.id, h)
	endEffects()
	w.lastCount()
	w.last()
	x := h.Wait()
	a.endStreams()
	r := job.StepResult{Name: s.Name, ExitCode: x.Code, Took: a.run.cfg.Clock.Now().Sub(began)}
	if x.Signal != 0 {
		r.Signal = signalName(x.Signal)
	}
	a.steps = append(a.steps, r)
	a.told.Mark(a.log.Last())
	a.tool(stepTool(r, x), "")
	a.event(n, map[string]any{"event": "step_end", "step": n, "name": s.Name, "exit_code": x.Code, "signal": r.Signal, "oom": x.OOM, "took_ms": r.Took.Milliseconds()})
	return a.judge(s, x)
}

// tellUse says what the tree took once its main process ended. It does not wait for the rest of the
// end: until it is told, the use of processes that nobody sees any more seems to be somebody else's.
func (a *Attempt) tellUse(h executor.Handle) {
	if used := a.run.cfg.Used; used != nil {
		go func() { used(h.PID(), h.Wait().CPU) }() // the step ends no earlier than this wait
	}
}

// stepTool is the end of a step as an event.
func stepTool(r job.StepResult, x executor.Exit) job.Tool {
	t := job.Tool{Source: job.ToolExecutor, Name: r.Name, State: job.ToolEnded, Took: r.Took, Code: r.ExitCode}
	if x.Code != 0 {
		t.State = job.ToolFailed
	}
	return t
}

// startStep starts the program, and writes down who it is.
func (a *Attempt) startStep(n int, s job.Step) (executor.Handle, *verdict) {
	if a.Lost() {
		return nil, a.interrupted()
	}
	h, err := a.exec.Start(a.ctx, a.request(n, s))
	if err == nil {
		if !a.started {
			a.started = true
			a.enter(job.PhaseRunning) // only now: it really runs (07§66)
			a.happened(ExecutorStarted, "executor started")
		}
		// Its name was written down before; with its number as well it is found sooner.
		a.saveBeside(func(st *state) { st.Orphan = h.Orphan() }, func(err error) {
			if err != nil {
				a.said().Warn("recovery state not written", "err", err)
			}
		})
		return h, nil
	}
	a.note("step %d (%s) did not start: %v", n, s.Name, err)
	if v := a.interrupted(); v != nil {
		return nil, v
	}
	switch forgeyard.KindOf(err) {
	case forgeyard.NotFound: // as a shell says it
		a.steps = append(a.steps, job.StepResult{Name: s.Name, ExitCode: 127})
		v := failure(job.WorkloadFailed, "step %d (%s): %v", n, s.Name, err)
		v.code = 127
		return nil, v
	case forgeyard.NoSpace:
		return nil, failure(job.DiskFull, "step %d (%s): %v", n, s.Name, err)
	}
	return nil, failure(job.SandboxSetup, "step %d (%s): %v", n, s.Name, err)
}

func (a *Attempt) request(n int, s job.Step) executor.Request {
	dir := path.Join(a.view, executor.BuildDir)
	if s.Dir != "" {
		dir = path.Join(a.view, s.Dir)
	}
	limits, network := a.bounds()
	r := executor.Request{
		ID: a.id, Root: a.root, User: a.user, Argv: s.Argv(), Dir: dir, Env: a.secretEnv(a.environment(s)), Files: a.secretFiles(),
		Limits: limits, Network: network, ReadOnly: a.binds,
		Stdout: counted{a.stream(spool.Stdout, n), &a.told, false}, Stderr: counted{a.stream(spool.Stderr, n), &a.told, true},
	}
	for _, d := range a.devices {
		r.Devices = append(r.Devices, d.bind)
	}
	return r
}

func (a *Attempt) folders() Folders {
	in := func(d string) string { return filepath.Join(a.root, d) }
	f := Folders{Ckpt: in(executor.CkptDir), Ctl: in(executor.CtlDir), Build: in(executor.BuildDir), Secrets: a.secretValues()}
	if a.restored != nil {
		f.Restored, f.Was = filepath.Join(a.root, executor.RestoreDir, payloadDir), a.was
	}
	return f
}

// judge says what a step's end means; nil: go on with the next.
func (a *Attempt) judge(s job.Step, x executor.Exit) *verdict {
	o := a.asked()
	resumable := a.contract.Speaks()
	if a.struck(x) {
		a.endLease() // its end says nothing about the work
	}
	switch {
	case resumable && o.save && x.Code == a.contract.ExitCode && x.Signal == 0 && !a.Lost():
		return a.exitCheckpoint(o)
	case a.Lost() || o.ends():
		return a.withCode(a.interrupted(), x)
	case a.over != "":
		return a.withCode(failure(job.DiskFull, "%s %s", called(s), a.over), x)
	case a.contract.Resumable() && x.Code == a.contract.ExitCode && x.Signal == 0:
		return a.exitCheckpoint(o)
	case x.Code == 0:
		return nil // while a stop is in progress too: it is complete if its outputs commit
	case o.gives() && !a.unsaved():
		return a.withCode(a.interrupted(), x)
	case resumable && a.task.Restore != nil && (x.Code == a.contract.RejectCode || a.unusable != ""):
		return &verdict{end: EndRestoreRejected, message: a.rejection(), code: x.Code}
	case resumable && x.Code == exTempFail:
		return &verdict{end: EndTryLater, message: "the program cannot run now", code: x.Code}
	}
	return a.withCode(a.whyFailed(s, x), x)
}

// rejection is what a program that rejects its restored state said, or did not say. One that
// said so and fails, by whatever code or signal, fails for that.
func (a *Attempt) rejection() string {
	const what = "the program rejects the restored state"
	if a.unusable == "" {
		return what
	}
	return forgeyard.Clip(what+": "+a.unusable, maxMessage)
}

// unsaved reports a suspend that no checkpoint of this epoch backs: the job is not
// suspended by it, whatever happens meanwhile.
func (a *Attempt) unsaved() bool {
	return a.asked().kind == checkpoint.StopSuspend && a.taken.Verdict != VerdictCommitted && a.taken.Verdict != VerdictContinue
}

func (a *Attempt) withCode(v *verdict, x executor.Exit) *verdict {
	if v != nil && v.code == 0 {
		v.code = x.Code
	}
	return v
}

// called is what a message calls a step; one without a name of its own is "step 2" already.
func called(s job.Step) string {
	if strings.HasPrefix(s.Name, "step ") {
		return s.Name
	}
	return "step " + s.Name
}

// whyFailed tells memory, disk and signals apart from a program that failed.
func (a *Attempt) whyFailed(s job.Step, x executor.Exit) *verdict {
	if v := a.ownFailed(); a.task.Spec.Own() && v != nil {
		return v
	}
	if x.OOM {
		return failure(job.OutOfMemory, "%s was killed for memory: the limit is %d bytes", called(s), a.task.Spec.Resources.Memory)
	}
	free, err := diskFree(a.root)
	if err == nil && (free < lowDisk || inodesFree(a.root) == 0) {
		return failure(job.DiskFull, "%s exited with %d on a disk with %d bytes free", called(s), x.Code, free)
	}
	if x.Signal != 0 {
		return failure(job.WorkloadFailed, "%s was ended by %s", called(s), signalName(x.Signal))
	}
	return failure(job.WorkloadFailed, "%s exited with %d", called(s), x.Code)
}

// exitCheckpoint commits what a program left that exited to be checkpointed. Its tree
// is confirmed dead, so no other writer can exist: the strongest level.
func (a *Attempt) exitCheckpoint(o order) *verdict {
	a.enter(job.PhaseUploading)
	ctx, cancel := a.bounded(a.task.Spec.Timeouts.Upload, a.cancelled)
	defer cancel()
	a.endGap()
	// The log goes with the commit: the next epoch's numbers go on after what it names, so
	// nothing may be written after this that a granted next epoch would not know of.
	if err := a.flush(ctx); err != nil {
		a.note("log not flushed before the checkpoint: %v", err)
	}
	c, err := a.task.Checkpoints.Exit(ctx, a.folders(), o.gives() || o.save)
	if v := a.interruptedByEnd(); v != nil {
		if o.save && err == nil {
			a.taken = c
			a.tellCheckpoint(c)
		}
		return v
	}
	if err != nil {
		a.note("checkpoint not taken: %v", err)
		c = Captured{Verdict: VerdictHeld, Reason: err.Error()}
		if errors.Is(context.Cause(ctx), errTimeout) {
			c.Reason = fmt.Sprintf("no decision within %v: %v", a.task.Spec.Timeouts.Upload, err)
		}
	}
	a.taken, a.saved = c, c.Verdict == VerdictCommitted
	if c.Verdict != VerdictContinue {
		a.tellCheckpoint(c)
	}
	switch {
	case c.Verdict == VerdictStale:
		a.endLease()
		return a.interrupted()
	case o.gives():
		return &verdict{end: EndYielded, message: o.reason, code: a.contract.ExitCode}
	}
	return &verdict{end: EndCheckpoint, message: c.Reason, code: a.contract.ExitCode}
}

// interruptedByEnd is interrupted without the stops that give the job back.
func (a *Attempt) interruptedByEnd() *verdict {
	if a.Lost() || a.asked().ends() {
		return a.interrupted()
	}
	return nil
}

func (a *Attempt) tellCheckpoint(c Captured) {
	t := job.Tool{Source: job.ToolCheckpoint, Name: checkpointName(c.Seq), State: job.ToolEnded}
	if c.Verdict != VerdictCommitted && c.Verdict != VerdictContinue {
		t.State = job.ToolFailed
	}
	a.tool(t, c.Reason)
	a.event(0, map[string]any{"event": "checkpoint", "verdict": c.Verdict, "seq": c.Seq, "id": c.ID.String(), "reason": forgeyard.Clip(c.Reason, maxMessage)})
}

// device is a leased device as the workload gets it.
type device struct {
	as   string
	bind executor.Bind
}

// bindDevices makes the places for devices and lets the workload's user open them.
func (a *Attempt) bindDevices(context.Context) error {
	for _, b := range a.task.Devices {
		d := device{as: b.As, bind: executor.Bind{Host: b.HostPath, Inside: b.HostPath}}
		if a.view != a.root { // the executor has a file namespace
			d.bind.Inside = path.Join(a.view, executor.DevicesDir, b.As)
			place := filepath.Join(a.root, executor.DevicesDir, b.As)
			if !filepath.IsLocal(b.As) || filepath.Base(b.As) != b.As {
				return forgeyard.Errorf("device", forgeyard.Invalid, "%q cannot name a device", b.As)
			}
			if err := os.WriteFile(place, nil, 0o644); err != nil {
				return forgeyard.E("device", executor.KindOfDisk(err), err)
			}
		}
		g, err := lend(b.HostPath, a.user.UID)
		if err != nil {
			return forgeyard.E("device "+b.As, forgeyard.Unavailable, err)
		}
		a.devices = append(a.devices, d)
		a.tool(job.Tool{Source: job.ToolDevice, Name: b.As, State: job.ToolStarted}, "")
		if g == nil {
			continue
		}
		if err := a.save(func(s *state) { s.Grants = append(s.Grants, *g) }); err != nil {
			return errors.Join(err, g.giveBack())
		}
	}
	return nil
}

// returnDevices gives borrowed devices back to who owned them.
func (a *Attempt) returnDevices() {
	a.mu.Lock()
	grants := a.state.Grants
	a.mu.Unlock()
	for _, d := range a.devices {
		a.tool(job.Tool{Source: job.ToolDevice, Name: d.as, State: job.ToolEnded}, "")
	}
	for _, g := range grants {
		if err := g.giveBack(); err != nil {
			a.said().Error("a device keeps the workload's owner", "err", err)
		}
	}
}
