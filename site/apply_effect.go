package site

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// EffectState is what the site knows of an effect. It travels: append only.
//
//	(none) ──intent──▶ open ──outcome──▶ done | aborted ──intent, if aborted──▶ open
//	                    │ its epoch has ended and nobody could tell
//	                    ▼
//	                 unknown ──a person──▶ done | aborted | open
type EffectState string

// Effect states.
const (
	EffectOpen    EffectState = "open"    // intended; it may have been performed
	EffectDone    EffectState = "done"    // performed, with evidence
	EffectAborted EffectState = "aborted" // certainly not performed
	EffectUnknown EffectState = "unknown" // it was looked at, and could not be told
)

// Effect is one line of a job's ledger. It outlives attempts: what is out there does too.
type Effect struct {
	Key      string              `cbor:"1,keyasint"`
	Kind     string              `cbor:"2,keyasint,omitempty"`
	Idem     string              `cbor:"3,keyasint"` // idempotency key: the same is the same effect
	State    EffectState         `cbor:"4,keyasint"`
	Attempt  forgeyard.AttemptID `cbor:"5,keyasint"`
	Epoch    uint64              `cbor:"6,keyasint"`           // of the intent
	Seq      int                 `cbor:"7,keyasint,omitempty"` // last slot that its epoch had committed when it began
	Begun    forgeyard.Wall      `cbor:"8,keyasint"`
	Ended    forgeyard.Wall      `cbor:"9,keyasint,omitempty"`
	Evidence []byte              `cbor:"10,keyasint,omitempty"` // of EffectDone
	Digest   forgeyard.Digest    `cbor:"11,keyasint,omitzero"`  // of Evidence
	By       string              `cbor:"12,keyasint,omitempty"` // who knows its outcome
	Why      string              `cbor:"13,keyasint,omitempty"`
	Ask      uint64              `cbor:"14,keyasint,omitempty"` // EffectIntent.Ask
}

// settled reports that the outcome is known.
func (e Effect) settled() bool { return e.State == EffectDone || e.State == EffectAborted }

// EffectIntent is written before an effect is performed. Of log format 2.
type EffectIntent struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Key       string              `cbor:"2,keyasint"`
	Kind      string              `cbor:"3,keyasint,omitempty"`
	Idem      string              `cbor:"4,keyasint"`
	// Ask tells one request of the program from another, within an epoch: a runner that was
	// given no answer asks again with the same.
	Ask uint64 `cbor:"5,keyasint,omitempty"`
}

// EffectBegun is EffectIntent's reply. Already: it was done before, and is not done again.
// Open: another request of this epoch began it and said nothing of its outcome, so that it
// may have been performed.
type EffectBegun struct {
	Already  bool             `cbor:"1,keyasint,omitempty"`
	Evidence []byte           `cbor:"2,keyasint,omitempty"`
	Digest   forgeyard.Digest `cbor:"3,keyasint,omitzero"`
	Epoch    uint64           `cbor:"4,keyasint,omitempty"` // that intended it
	Open     bool             `cbor:"5,keyasint,omitempty"`
}

// EffectOutcome says what became of an effect. Of log format 2.
type EffectOutcome struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Key       string              `cbor:"2,keyasint"`
	State     EffectState         `cbor:"3,keyasint"`
	Evidence  []byte              `cbor:"4,keyasint,omitempty"`
	Why       string              `cbor:"5,keyasint,omitempty"`
	// Reconciled: the runner looked what became of an effect of an earlier epoch.
	Reconciled bool `cbor:"6,keyasint,omitempty"`
}

// EffectResolve is a person's word for an effect that nobody else can tell. Of log format 2.
type EffectResolve struct {
	Job    forgeyard.JobID `cbor:"1,keyasint"`
	Key    string          `cbor:"2,keyasint"`
	State  EffectState     `cbor:"3,keyasint"` // EffectOpen: it is to be looked at again
	Reason string          `cbor:"4,keyasint"`
}

// StepCommit commits the result of a step of mode job.StepCommitted. Of log format 2.
type StepCommit struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Step      CommittedStep       `cbor:"2,keyasint"` // Epoch and At are set by Apply
}

// CommittedStep is the immutable result of a step: only exactly what Evidence is of counts
// as committed.
type CommittedStep struct {
	Name     string           `cbor:"1,keyasint"`
	Evidence forgeyard.Digest `cbor:"2,keyasint"` // see job.StepEvidence
	Outputs  []job.Output     `cbor:"3,keyasint,omitempty"`
	Result   job.StepResult   `cbor:"4,keyasint"`
	Epoch    uint64           `cbor:"5,keyasint"`
	At       forgeyard.Wall   `cbor:"6,keyasint"`
}

func (EffectIntent) kind() Kind  { return kindEffectIntent }
func (EffectOutcome) kind() Kind { return kindEffectOutcome }
func (EffectResolve) kind() Kind { return kindEffectResolve }
func (StepCommit) kind() Kind    { return kindStepCommit }

// Unreconciled are the effects that must be looked at before epoch's first step: of an
// earlier epoch, without an outcome, and not such that doing them twice is as good as once.
func (j Job) Unreconciled(epoch uint64) (out []Effect) {
	for _, e := range j.Effects {
		if !e.settled() && e.Epoch < epoch && j.Spec.Effect(e.Key).Policy == job.EffectReconcile {
			out = append(out, e)
		}
	}
	return out
}

// waitsFor names an effect that only a person can settle before the next epoch, or nothing.
func (j Job) waitsFor() string {
	for _, e := range j.Unreconciled(j.Epoch + 1) {
		switch {
		case e.State == EffectUnknown:
			return fmt.Sprintf("effect %s of epoch %d: %s", e.Key, e.Epoch, e.Why)
		case len(j.Spec.Effect(e.Key).Reconcile) == 0:
			return fmt.Sprintf("effect %s of epoch %d has no outcome, and its rule no reconcile command", e.Key, e.Epoch)
		}
	}
	return ""
}

// final names an effect after which the job is never resumed, or nothing.
func (j Job) final() string {
	for _, e := range j.Effects {
		if e.State != EffectAborted && j.Spec.Effect(e.Key).Policy == job.EffectFinal {
			return fmt.Sprintf("effect %s of epoch %d is %s", e.Key, e.Epoch, job.EffectFinal)
		}
	}
	return ""
}

// OpenEffects are the keys of the current epoch's effects that have no outcome and do not
// permit a checkpoint before they have (69§119).
func (j Job) OpenEffects() (out []string) {
	for _, e := range j.Effects {
		if e.State == EffectOpen && e.Epoch == j.Epoch && !j.Spec.Effect(e.Key).BeforeCheckpoint {
			out = append(out, e.Key)
		}
	}
	return out
}

// AwaitsReconcile reports that the job waits for a person's word on an effect.
func (j Job) AwaitsReconcile() bool {
	return j.Status == job.Suspended && strings.HasPrefix(j.Reason, reconcileReason)
}

// reconcileReason begins the reason of a job that waits for such a word.
const reconcileReason = "reconcile: "

// effectsStop ends or holds a job that would else be given to its next epoch. It reports
// whether it did.
func (c *change) effectsStop(j *Job, why string) bool {
	if final := j.final(); final != "" {
		c.finish(j, job.Failed, job.RunnerLost, why+"; "+final)
		return true
	}
	if wait := j.waitsFor(); wait != "" {
		j.Status, j.Reason, j.Certain, j.StopKind, j.StopReason = job.Suspended, reconcileReason+wait, false, "", ""
		c.moveRun(*j, j.Reason)
		return true
	}
	return false
}

// unknownEffects notes that a holder looked for what earlier epochs began, and gave up. A
// person is asked, not the next holder, and the one after it.
func (c *change) unknownEffects(j *Job, why string) {
	for _, e := range j.Unreconciled(j.Epoch) {
		if _, i := j.effectAt(e.Key); e.State != EffectUnknown {
			e.State, e.Why = EffectUnknown, forgeyard.Clip(why, job.MaxEventMessage/2)
			j.putEffect(e, i)
		}
	}
}

// effectAt finds a key in the ledger.
func (j Job) effectAt(key string) (Effect, int) {
	i := slices.IndexFunc(j.Effects, func(e Effect) bool { return e.Key == key })
	if i < 0 {
		return Effect{}, i
	}
	return j.Effects[i], i
}

// putEffect changes the ledger; i below zero appends.
func (j *Job) putEffect(e Effect, i int) {
	j.Effects = slices.Clone(j.Effects)
	if i < 0 {
		j.Effects = append(j.Effects, e)
	} else {
		j.Effects[i] = e
	}
}

// acting returns the job of an authority that is the current one and was accepted.
func (c *change) acting(op string, a forgeyard.Authority) (Job, error) {
	j, err := c.current(op, a, false)
	if err == nil && j.Lease.State != lease.Accepted {
		err = forgeyard.Errorf(op, forgeyard.Conflict, "lease %s is not accepted yet", a.Lease)
	}
	return j, err
}

// reconciled says why an epoch may not go on yet, or nil.
func (j Job) reconciled(op string) error {
	if left := j.Unreconciled(j.Epoch); len(left) > 0 {
		return forgeyard.Errorf(op, forgeyard.Conflict, "effect %s of epoch %d is not reconciled", left[0].Key, left[0].Epoch)
	}
	return nil
}

func (c *change) effectIntent(b EffectIntent) (EffectBegun, error) {
	const op = "effect begin"
	j, err := c.acting(op, b.Authority)
	if err != nil {
		return EffectBegun{}, err
	}
	if err := b.check(); err != nil {
		return EffectBegun{}, err
	}
	if !j.Spec.HasEffects() {
		return EffectBegun{}, forgeyard.Errorf(op, forgeyard.Denied, "the job declares no effects").WithHint("say effects: protected, or give rules, in the job file")
	}
	if err := j.reconciled(op); err != nil {
		return EffectBegun{}, err
	}
	e, i := j.effectAt(b.Key)
	switch {
	case i < 0 && len(j.Effects) >= job.MaxEffects:
		return EffectBegun{}, forgeyard.Errorf(op, forgeyard.Limit, "the job has %d effects, the bound is %d", len(j.Effects), job.MaxEffects)
	case i >= 0 && e.State != EffectAborted && e.Idem != b.Idem:
		return EffectBegun{}, forgeyard.Errorf(op, forgeyard.Conflict, "effect %s is %s under idempotency key %s, this is %s", b.Key, e.State, e.Idem, b.Idem)
	case e.State == EffectDone:
		return EffectBegun{Already: true, Evidence: e.Evidence, Digest: e.Digest, Epoch: e.Epoch}, nil
	case e.State == EffectOpen && e.Epoch == j.Epoch:
		return EffectBegun{Epoch: e.Epoch, Open: e.Ask != b.Ask}, nil
	}
	j.putEffect(Effect{Key: b.Key, Kind: b.Kind, Idem: b.Idem, State: EffectOpen, Attempt: j.Attempt, Epoch: j.Epoch, Seq: j.lastSlot(), Begun: c.at, Ask: b.Ask}, i)
	c.tell(j, job.EventMessage, "", "effect %s begins in epoch %d", b.Key, j.Epoch)
	c.putJob(j)
	return EffectBegun{Epoch: j.Epoch}, nil
}

func (b EffectIntent) check() error {
	for _, f := range []struct{ what, text string }{{"key", b.Key}, {"idempotency key", b.Idem}, {"kind", cmp.Or(b.Kind, "none")}} {
		if err := job.CheckEffectKey(f.text); err != nil {
			return forgeyard.Errorf("effect begin", forgeyard.Invalid, "%s: %v", f.what, err)
		}
	}
	return nil
}

// lastSlot is the last slot that the current epoch has committed, 0: none.
func (j Job) lastSlot() (seq int) {
	for _, k := range j.Checkpoints {
		if k.Epoch == j.Epoch {
			seq = k.Seq
		}
	}
	return seq
}

func (c *change) effectOutcome(b EffectOutcome) error {
	const op = "effect outcome"
	j, err := c.acting(op, b.Authority)
	if err != nil {
		return err
	}
	e, i := j.effectAt(b.Key)
	unknown := b.State == EffectUnknown
	switch {
	case i < 0:
		return forgeyard.Errorf(op, forgeyard.NotFound, "no effect %s was begun", forgeyard.Clip(b.Key, 80))
	case b.State != EffectDone && b.State != EffectAborted && !(unknown && b.Reconciled):
		return forgeyard.Errorf(op, forgeyard.Invalid, "outcome %q is not done or aborted", forgeyard.Clip(string(b.State), 40))
	case len(b.Evidence) > job.MaxEvidence:
		return forgeyard.Errorf(op, forgeyard.Limit, "the evidence has %d bytes, the bound is %d", len(b.Evidence), job.MaxEvidence)
	case b.State == EffectDone && len(b.Evidence) == 0:
		return forgeyard.Errorf(op, forgeyard.Invalid, "effect %s is done only with evidence", b.Key)
	case e.settled() && e.State == b.State && bytes.Equal(e.Evidence, b.Evidence):
		return nil
	case e.settled():
		return forgeyard.Errorf(op, forgeyard.Conflict, "effect %s is %s already", b.Key, e.State)
	case e.Epoch != j.Epoch && !b.Reconciled:
		return forgeyard.Errorf(op, forgeyard.Conflict, "effect %s was begun in epoch %d and not in this one", b.Key, e.Epoch)
	case e.Epoch == j.Epoch && b.Reconciled:
		return forgeyard.Errorf(op, forgeyard.Conflict, "effect %s is of this very epoch", b.Key)
	}
	by := "the job"
	if b.Reconciled {
		by = fmt.Sprintf("reconcile in epoch %d", j.Epoch)
	}
	c.settle(&j, i, b.State, b.Evidence, by, b.Why)
	c.putJob(j)
	return nil
}

// settle writes down what is known of an effect.
func (c *change) settle(j *Job, i int, st EffectState, evidence []byte, by, why string) {
	e := j.Effects[i]
	e.State, e.By, e.Why, e.Evidence, e.Digest, e.Ended = st, by, forgeyard.Clip(why, 300), nil, forgeyard.Digest{}, c.at
	if st == EffectDone {
		e.Evidence, e.Digest = evidence, cas.Sum(evidence)
	}
	j.putEffect(e, i)
	text := fmt.Sprintf("effect %s of epoch %d is %s, by %s", e.Key, e.Epoch, st, by)
	if e.Why != "" {
		text += ": " + e.Why
	}
	c.tell(*j, job.EventMessage, "", "%s", text)
}

// effectResolve takes a person's word. It is of an earlier epoch: what the running one does,
// its program tells.
func (c *change) effectResolve(b EffectResolve) error {
	const op = "effect resolve"
	j, err := c.jobByID(op, b.Job)
	if err != nil {
		return err
	}
	e, i := j.effectAt(b.Key)
	switch {
	case b.State != EffectDone && b.State != EffectAborted && b.State != EffectOpen:
		return forgeyard.Errorf(op, forgeyard.Invalid, "%q is not done, aborted or open", forgeyard.Clip(string(b.State), 40))
	case b.Reason == "" || len(b.Reason) > 300:
		return forgeyard.Errorf(op, forgeyard.Invalid, "a reason of %d bytes is not in [1, 300]", len(b.Reason))
	case i < 0:
		return forgeyard.Errorf(op, forgeyard.NotFound, "job %s has no effect %s", j.ID, forgeyard.Clip(b.Key, 80)).WithHint("forgeyard-node job effect list %s", j.ID)
	case e.settled():
		return forgeyard.Errorf(op, forgeyard.Conflict, "effect %s is %s already, by %s", e.Key, e.State, e.By)
	case !c.nobodyHolds(j):
		return forgeyard.Errorf(op, forgeyard.Conflict, "epoch %d of the job has not certainly stopped", j.Epoch).WithHint("wait, or cancel the job first")
	}
	c.settle(&j, i, b.State, []byte("resolved by "+c.by+": "+b.Reason), c.by, b.Reason)
	c.note("effect", "effect %s of job %s: %s by %s: %s", e.Key, forgeyard.Short(j.ID), b.State, c.by, b.Reason)
	if j.AwaitsReconcile() {
		c.requeue(&j, "effect "+e.Key+" was resolved by "+c.by)
	}
	c.putJob(j)
	return nil
}

// afterEffect is a checkpoint that was taken after an effect began which has no outcome.
type afterEffect struct {
	commit checkpoint.Commit
	effect string
}

// afterEffects are the checkpoints that were taken after an effect began which has no
// outcome, where its rule is to go on from before it.
func (j Job) afterEffects() (out []afterEffect) {
	for _, e := range j.Effects {
		if e.settled() || j.Spec.Effect(e.Key).Policy != job.EffectPrior {
			continue
		}
		for _, k := range j.Checkpoints {
			if k.Epoch == e.Epoch && k.Seq > e.Seq && k.State == checkpoint.Good {
				out = append(out, afterEffect{k, e.Key})
			}
		}
	}
	return out
}

// dropAfter quarantines them.
func (c *change) dropAfter(j *Job) {
	for _, d := range j.afterEffects() {
		why := fmt.Sprintf("it was taken after effect %s had begun, which has no outcome", d.effect)
		if next, err := checkpoint.Quarantine(j.Checkpoints, d.commit.Manifest, why); err == nil {
			j.Checkpoints = next
			c.say(*j, job.CheckpointValidationFailed, job.EventMessage, "checkpoint %s quarantined: %s", d.commit.Manifest.Short(), why)
		}
	}
}

// stepCommit keeps the result of a step, once: what has the same evidence is the same step.
func (c *change) stepCommit(b StepCommit) error {
	const op = "step commit"
	j, err := c.acting(op, b.Authority)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(j.Spec.Steps, func(s job.Step) bool { return s.Name == b.Step.Name })
	switch {
	case i < 0 || j.Spec.Steps[i].Resume != job.StepCommitted:
		return forgeyard.Errorf(op, forgeyard.Denied, "step %q does not ask for it", forgeyard.Clip(b.Step.Name, 80))
	case b.Step.Evidence.IsZero() || b.Step.Result.ExitCode != 0 || b.Step.Result.Name != b.Step.Name:
		return forgeyard.Errorf(op, forgeyard.Invalid, "step %q has no evidence, or has failed", b.Step.Name)
	case len(b.Step.Result.Signal) > job.MaxSignal || b.Step.Result.Took < 0 || slices.ContainsFunc(b.Step.Outputs, func(o job.Output) bool { return o.Size < 0 }):
		return forgeyard.Errorf(op, forgeyard.Limit, "the result of step %q is out of bounds", b.Step.Name)
	case !sameOutputs(j.Spec.Steps[i].Outputs, b.Step.Outputs):
		return forgeyard.Errorf(op, forgeyard.Invalid, "step %q has not the outputs that it declares", b.Step.Name)
	}
	if err := j.reconciled(op); err != nil {
		return err
	}
	k := slices.IndexFunc(j.Steps, func(s CommittedStep) bool { return s.Name == b.Step.Name })
	if k >= 0 && j.Steps[k].Evidence == b.Step.Evidence {
		return nil
	}
	s := b.Step
	s.Epoch, s.At = j.Epoch, c.at
	j.Steps = slices.Clone(j.Steps)
	if k >= 0 {
		j.Steps = slices.Delete(j.Steps, k, k+1) // what it was of is no more
	}
	j.Steps = append(j.Steps, s)
	c.tell(j, job.EventMessage, "", "the result of step %s is committed in epoch %d", s.Name, j.Epoch)
	c.putJob(j)
	return nil
}

func sameOutputs(declared []string, got []job.Output) bool {
	return slices.EqualFunc(declared, got, func(p string, o job.Output) bool { return o.Path == p && !o.Digest.IsZero() })
}
