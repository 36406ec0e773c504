package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// ledger keeps the effects and the committed steps of one epoch in the site's log, which
// checks each against the fence.
type ledger struct{ x *execution }

var _ runner.Ledger = ledger{}

// Begin implements runner.Ledger.
func (l ledger) Begin(ctx context.Context, key, kind, idem string, ask uint64) (runner.Begun, error) {
	reply, err := l.x.n.propose(ctx, site.EffectIntent{Authority: l.x.authority, Key: key, Kind: kind, Idem: idem, Ask: ask})
	if err != nil {
		return runner.Begun{}, err
	}
	b, err := site.Value[site.EffectBegun](reply)
	return runner.Begun{Already: b.Already, Open: b.Open, Evidence: b.Evidence}, err
}

// Settle implements runner.Ledger.
func (l ledger) Settle(ctx context.Context, s runner.Settled) error {
	b := site.EffectOutcome{Authority: l.x.authority, Key: s.Key, State: site.EffectState(s.Outcome), Evidence: s.Evidence, Why: s.Why, Reconciled: s.Reconciled}
	_, err := l.x.n.propose(ctx, b)
	return err
}

// CommitStep implements runner.Ledger: what the step made goes where the job's outputs would,
// and only then its result into the log.
func (l ledger) CommitStep(ctx context.Context, s runner.CommittedStep) error {
	x := l.x
	roots := rootsOf(s.Outputs, nil)
	owner := agent.StepPin(x.authority, s.Index)
	if _, err := x.n.replicate(ctx, x.job.Spec.Durability, pinOf(owner, roots), roots); err != nil {
		return err
	}
	_, err := x.n.propose(ctx, site.StepCommit{Authority: x.authority, Step: site.CommittedStep{
		Name: x.job.Spec.Steps[s.Index].Name, Evidence: s.Evidence, Outputs: s.Outputs, Result: s.Result,
	}})
	return err
}

// withLedger tells a task what earlier epochs left in the ledger.
func (x *execution) withLedger(t *runner.Task) {
	sp := x.job.Spec
	commits := slices.ContainsFunc(sp.Steps, func(s job.Step) bool { return s.Resume == job.StepCommitted })
	if !sp.HasEffects() && !commits {
		return
	}
	t.Ledger = ledger{x}
	for _, e := range x.job.Unreconciled(x.authority.Fence.Epoch) {
		t.Intents = append(t.Intents, runner.Intent{Key: e.Key, Kind: e.Kind, Idem: e.Idem, Epoch: e.Epoch, Reconcile: sp.Effect(e.Key).Reconcile})
	}
	for _, c := range x.job.Steps {
		i := slices.IndexFunc(sp.Steps, func(s job.Step) bool { return s.Name == c.Name })
		t.Committed = append(t.Committed, runner.CommittedStep{Index: i, Evidence: c.Evidence, Outputs: c.Outputs, Result: c.Result})
	}
}

// openEffects are those of the running epoch that keep a checkpoint from being taken, as far
// as this node's copy of the log says. The log itself refuses such a checkpoint.
func (x *execution) openEffects() []string {
	j, ok := x.n.replica.State().Jobs.Get(x.authority.Job)
	if !ok || j.Fence() != x.authority.Fence {
		return nil
	}
	return j.OpenEffects()
}

// mayBeOpen says whether the job's rules permit a checkpoint while an effect has no outcome.
func (x *execution) mayBeOpen(key string) bool { return x.job.Spec.Effect(key).BeforeCheckpoint }

// waitsForEffect gives a job back whose next step must wait for a person, or for the site.
func (x *execution) waitsForEffect(ctx context.Context, e runner.Ended, why string) {
	x.n.log.Warn("an effect of an earlier epoch holds the job", "job", x.authority.Job, "why", why)
	x.release(ctx, site.ReleasedReconcile, forgeyard.Clip(fmt.Sprintf("effects are not reconciled: %s", why), 300), e.Clean, e.Log)
}
