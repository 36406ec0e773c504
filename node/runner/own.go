package runner

import (
	"context"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/ownrun"
)

// A run of kind ingest or garden is an attempt like every other: one step, which is the
// node's own program in a child process. So cancel, kill, deadlines and the clean-up after
// a crash are those of any workload, and the process that is named as its execution is the
// child, never the daemon (RS-106). What the child found out stands in a file of its build
// folder; it speaks of what it did through the daemon's own interface, and so does what it
// asks the daemon to do.

// plan is what is run, one step after the other.
func (a *Attempt) plan() []job.Step {
	if !a.task.Spec.Own() {
		return a.task.Spec.Steps
	}
	return []job.Step{{Name: string(a.task.Spec.Kind), Run: a.run.cfg.Own}}
}

// bounds are what holds a step's tree. The node's own program is bounded by what it does.
func (a *Attempt) bounds() (executor.Limits, job.Network) {
	if a.task.Spec.Own() {
		return executor.Limits{}, job.NetworkHost
	}
	res := a.task.Spec.Resources
	return executor.Limits{MilliCPU: res.MilliCPU, Memory: res.Memory, Pids: res.Pids}, a.task.Spec.Network
}

// ownFailed says in the child's own words why it failed; nil: it left none.
func (a *Attempt) ownFailed() *verdict {
	r, err := ownrun.Read(filepath.Join(a.root, executor.BuildDir))
	if err != nil || r.Error == "" {
		return nil
	}
	if !r.Category.Known() {
		r.Category = job.Internal
	}
	return failure(r.Category, "%s", r.Error)
}

// ownOutputs takes over what the child brought in, kept from here on by the attempt.
func (a *Attempt) ownOutputs(ctx context.Context) error {
	r, err := ownrun.Read(filepath.Join(a.root, executor.BuildDir))
	if err != nil {
		return err
	}
	a.outputs = nil
	for _, o := range r.Outputs {
		a.outputs = append(a.outputs, job.Output{Path: o.Name, Tree: o.Tree, Digest: o.Digest, Manifest: o.Manifest, Size: o.Size})
	}
	if len(a.outputs) != len(a.task.Spec.Ingest) {
		return forgeyard.Errorf("result", forgeyard.Invalid, "%d of %d names are there", len(a.outputs), len(a.task.Spec.Ingest))
	}
	a.summary = forgeyard.Clip(r.Summary, maxMessage)
	return a.pin(ctx)
}

// endHold lets go of what the child put and no name needs: it is for a collection then.
func (a *Attempt) endHold() {
	if !a.task.Spec.Own() {
		return
	}
	if err := a.run.cfg.Store.Unpin(context.WithoutCancel(a.ctx), ownrun.HoldOwner(a.task.Authority.Attempt)); err != nil {
		a.said().Warn("what an ingest put is held until the restart", "err", err)
	}
}
