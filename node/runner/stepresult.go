package runner

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// chain is what the committed steps so far made: the next one's result follows from it. It
// breaks at the first step whose result is not in the site's log.
type chain struct {
	outputs []job.Output
	broken  bool
}

// commitTime bounds how long the site may take to keep the result of a step: without a
// quorum the work goes on, and the step is run again by whoever follows.
const commitTime = 30 * time.Second

// evidence names all that step i follows from.
func (a *Attempt) evidence(i int, s job.Step) forgeyard.Digest {
	return checkpoint.StepBinding{
		Spec: a.task.Authority.Spec, Index: i, Step: s, Inputs: a.ins, Before: a.chain.outputs, OS: runtime.GOOS, Arch: runtime.GOARCH,
	}.Evidence()
}

// passOver says whether a step is not to be run: its result is committed, or it is an effect
// that is done. A verdict: it cannot be said, and nothing runs.
func (a *Attempt) passOver(i int, s job.Step) (bool, *verdict) {
	switch s.Resume {
	case job.StepCommitted:
		return a.bringBack(i, s), nil
	case job.StepReconcile:
		return a.beginStep(i, s)
	}
	a.chain.broken = true
	return false, nil
}

// bringBack puts the outputs of a committed step where it left them. Only exactly the same
// step counts (69§122); one whose outputs cannot be had is run again.
func (a *Attempt) bringBack(i int, s job.Step) bool {
	if a.chain.broken {
		return false
	}
	ev := a.evidence(i, s)
	k := slices.IndexFunc(a.task.Committed, func(c CommittedStep) bool { return c.Index == i && c.Evidence == ev })
	if k < 0 {
		return false
	}
	c := a.task.Committed[k]
	ctx, cancel := a.bounded(a.task.Spec.Timeouts.Prepare, a.halt())
	defer cancel()
	for _, o := range c.Outputs {
		in := job.Input{Path: path.Join(executor.BuildDir, o.Path), Tree: o.Tree, Digest: o.Digest, Manifest: o.Manifest, Size: o.Size}
		if err := a.input(ctx, in, false); err != nil {
			a.note("step %d (%s) is committed and its output %s cannot be had: %v; it runs again", i+1, s.Name, o.Path, err)
			a.clear(c.Outputs)
			return false
		}
	}
	a.pass(i, s, c.Result, "committed")
	a.chain.outputs = append(a.chain.outputs, c.Outputs...)
	return true
}

// clear removes what was brought back in part.
func (a *Attempt) clear(outs []job.Output) {
	for _, o := range outs {
		p := filepath.Join(a.root, executor.BuildDir, filepath.FromSlash(o.Path))
		if _, err := os.Lstat(p); err != nil {
			continue
		}
		if err := tree.Remove(p); err != nil {
			a.said().Warn("a part of a step's output stays", "path", o.Path, "err", err)
		}
	}
}

// pass writes down that a step was not run.
func (a *Attempt) pass(i int, s job.Step, r job.StepResult, why string) {
	a.steps = append(a.steps, r)
	a.event(i+1, map[string]any{"event": "step_skip", "step": i + 1, "name": s.Name, "why": why})
	a.tool(job.Tool{Source: job.ToolExecutor, Name: s.Name, State: job.ToolEnded}, "not run again: "+why)
}

// beginStep writes the intent of a step that is an effect itself.
func (a *Attempt) beginStep(i int, s job.Step) (bool, *verdict) {
	ctx, cancel := a.bounded(a.task.Spec.Timeouts.Upload, a.halt())
	defer cancel()
	var b Begun
	err := a.retry(ctx, "begin step "+s.Name, func(ctx context.Context) (err error) {
		b, err = a.begin(ctx, checkpoint.EffectNote{Key: job.StepEffect(s.Name), Kind: "step", Idem: fmt.Sprintf("%s/%d", a.task.Authority.Spec.Hex()[:32], i)})
		return err
	}, decided)
	if v := a.interrupted(); v != nil {
		return false, v
	}
	switch {
	case forgeyard.KindOf(err) == forgeyard.Stale:
		a.endLease()
		return false, a.interrupted()
	case err != nil:
		return false, &verdict{end: EndReconcile, message: forgeyard.Clip(fmt.Sprintf("step %s was not begun: %v", s.Name, err), maxMessage)}
	case b.Open:
		return false, &verdict{end: EndReconcile, message: forgeyard.Clip(fmt.Sprintf("step %s was begun in this epoch by another step, and has no outcome", s.Name), maxMessage)}
	case b.Already:
		a.pass(i, s, job.StepResult{Name: s.Name}, "it is done")
	}
	return b.Already, nil
}

// passed does what follows the success of a step: its result is for later epochs, its
// effect is done.
func (a *Attempt) passed(i int, s job.Step) *verdict {
	switch s.Resume {
	case job.StepCommitted:
		return a.commitStep(i, s)
	case job.StepReconcile:
		return a.settle(Settled{Key: job.StepEffect(s.Name), Outcome: EffectDone, Evidence: fmt.Appendf(nil, "step %s exited with 0, %s", s.Name, a.evidence(i, s))})
	}
	return nil
}

// commitStep stores the outputs of a step that passed, and keeps its result. What is not
// committed is garbage, however whole it looks (69§124).
func (a *Attempt) commitStep(i int, s job.Step) *verdict {
	if a.chain.broken {
		return nil
	}
	ev := a.evidence(i, s)
	ctx, cancel := a.bounded(min(commitTime, a.task.Spec.Timeouts.Upload), a.cancelled)
	defer cancel()
	outs, err := a.captureStep(ctx, s)
	if v := a.interruptedByEnd(); v != nil {
		return v
	}
	if err != nil && outputIsWrong(err) {
		return failure(job.OutputInvalid, "%s: %v", called(s), err)
	}
	if err == nil {
		c := CommittedStep{Index: i, Evidence: ev, Outputs: outs, Result: a.steps[len(a.steps)-1]}
		err = a.retry(ctx, "commit step "+s.Name, func(ctx context.Context) error { return a.task.Ledger.CommitStep(ctx, c) }, decided)
	}
	switch {
	case forgeyard.KindOf(err) == forgeyard.Stale:
		a.endLease()
		return a.interrupted()
	case err != nil:
		a.chain.broken = true
		a.note("the result of step %d (%s) is not committed: %v", i+1, s.Name, err)
		return nil
	}
	a.chain.outputs = append(a.chain.outputs, outs...)
	a.event(i+1, map[string]any{"event": "step_commit", "step": i + 1, "name": s.Name, "evidence": ev.String()})
	return nil
}

// captureStep stores the declared outputs of a step, in the order of their declaration.
func (a *Attempt) captureStep(ctx context.Context, s job.Step) ([]job.Output, error) {
	if len(s.Outputs) == 0 {
		return nil, nil
	}
	build := filepath.Join(a.root, executor.BuildDir)
	if err := a.noSecretIn(ctx, build, s.Outputs); err != nil {
		return nil, err
	}
	o := tree.Options{Owner: PinOwner(a.task.Authority.Attempt), Class: cas.Durable, UID: a.owner(), Limits: tree.Limits{MaxFiles: maxOutputFiles, MaxBytes: a.task.Spec.Resources.Disk}}
	got, err := tree.CaptureOutputs(ctx, a.run.cfg.Store, build, s.Outputs, o)
	if err != nil {
		return nil, err
	}
	outs := make([]job.Output, len(s.Outputs))
	for _, it := range got.Items {
		if k := slices.Index(s.Outputs, it.Path); k >= 0 {
			outs[k] = job.Output{Path: it.Path, Tree: it.Kind == cas.Dir, Digest: it.Ref.Digest, Manifest: it.Ref.Manifest, Size: it.Ref.Size}
		}
	}
	return outs, nil
}
