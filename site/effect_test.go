package site

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
)

// effects are the commands of a story about effects and committed steps.
func (s *story) effects() Body {
	key := s.arg("key", "publish/a")
	switch s.td.Cmd {
	case "effect-begin":
		return EffectIntent{Authority: s.authority(), Key: key, Kind: s.arg("kind", "publish"), Idem: s.arg("idem", "k1"), Ask: uint64(s.num("ask", 0))}
	case "effect":
		b := EffectOutcome{Authority: s.authority(), Key: key, State: EffectState(s.arg("is", "done")), Why: s.arg("why", ""), Reconciled: s.td.HasArg("reconciled")}
		b.Evidence = []byte(s.arg("evidence", ""))
		return b
	case "resolve":
		return EffectResolve{Job: s.jobID(), Key: key, State: EffectState(s.arg("is", "done")), Reason: s.arg("why", "")}
	case "step-commit":
		name := s.arg("step", "s")
		b := StepCommit{Authority: s.authority(), Step: CommittedStep{Name: name, Evidence: cas.Sum([]byte(s.arg("of", "it"))), Result: job.StepResult{Name: name, ExitCode: int(s.num("exit", 0))}}}
		for _, p := range s.list("outputs") {
			b.Step.Outputs = append(b.Step.Outputs, job.Output{Path: p, Digest: cas.Sum([]byte(p))})
		}
		return b
	}
	return nil
}

// effectRules puts the words of a transcript into a spec: effects=POLICY, for all keys,
// before, command, and step=MODE for its step.
func (s *story) effectRules(sp *job.Spec) {
	if p := s.arg("effects", ""); p != "" {
		d := job.EffectDecl{Key: "publish/*", Policy: job.EffectPolicy(p), BeforeCheckpoint: s.td.HasArg("before")}
		if s.td.HasArg("command") {
			d.Reconcile = []string{"there"}
		}
		sp.EffectRules = job.EffectRules{Default: d.Policy, Keys: []job.EffectDecl{d}}
	}
	if m := s.arg("step", ""); m != "" {
		sp.Steps[0].Resume = job.StepResume(m)
		sp.Steps[0].Outputs = s.list("outputs")
	}
}

func (j Job) effectsText() string {
	var all []string
	for _, e := range j.Effects {
		all = append(all, fmt.Sprintf("%s of %d %s", e.Key, e.Epoch, e.State))
	}
	return "effects " + strings.Join(all, ", ")
}

// TestEffectsInTheLog holds the commands of effects and steps, what a spec says of them, and
// both in a snapshot.
func TestEffectsInTheLog(t *testing.T) {
	var intent EffectIntent
	var outcome EffectOutcome
	var resolve EffectResolve
	var step StepCommit
	var begun EffectBegun
	j := Job{ID: "J"}
	for _, v := range []any{&intent, &outcome, &resolve, &step, &begun, &j.Effects, &j.Steps} {
		golden.Fill(t, v)
	}
	asked, open, noted := intent, begun, j.Effects[0]
	intent.Ask, begun.Open, j.Effects[0].Ask = 0, false, 0 // written since
	sp := job.Spec{
		Steps:       []job.Step{{Name: "s", Run: []string{"true"}, Resume: job.StepCommitted, Outputs: []string{"bin"}}, {Name: "t", Run: []string{"true"}, Resume: job.StepReconcile, Reconcile: []string{"there"}}},
		EffectRules: job.EffectRules{Default: job.EffectSafe, Keys: []job.EffectDecl{{Key: "a", Policy: job.EffectReconcile, Reconcile: []string{"there"}}, {Key: "b/*", Policy: job.EffectPrior, BeforeCheckpoint: true}}},
	}.Defaulted()
	sub := Submit{Spec: sp.Canonical()}
	s, err := DecodeState(cborx.Marshal(image{Format: snapshotFormat, Log: FormatLeases, Jobs: []Job{j}}))
	if err != nil {
		t.Fatal(err)
	}
	rows := golden.Rows(t, "testdata/effects.hex", []golden.Row{
		{Name: "EffectIntent", Bytes: cborx.Marshal(intent)}, {Name: "EffectOutcome", Bytes: cborx.Marshal(outcome)}, {Name: "EffectResolve", Bytes: cborx.Marshal(resolve)},
		{Name: "StepCommit", Bytes: cborx.Marshal(step)}, {Name: "EffectBegun", Bytes: cborx.Marshal(begun)}, {Name: "Spec", Bytes: sub.Spec},
		{Name: "snapshot", Bytes: s.Encode()}, {Name: "packed", Bytes: s.Snapshot()},
		{Name: "asked", Bytes: cborx.Marshal(asked)}, {Name: "open", Bytes: cborx.Marshal(open)}, {Name: "noted", Bytes: cborx.Marshal(noted)},
	})
	var effect Effect
	if b, err := decodeBody(kindEffectIntent, rows[8].Bytes); err != nil || !reflect.DeepEqual(b, Body(asked)) {
		t.Errorf("%+v: %v", b, err)
	}
	if err := cborx.Unmarshal(rows[10].Bytes, &effect); err != nil || !reflect.DeepEqual(effect, noted) {
		t.Errorf("%+v: %v", effect, err)
	}
	for i, want := range []Body{intent, outcome, resolve, step} {
		b, err := decodeBody(want.kind(), rows[i].Bytes)
		if err != nil || !reflect.DeepEqual(b, want) || FormatOf(b) != FormatLeases || want.kind() != Kind(50+i) {
			t.Errorf("%+v, of log format %d: %v", b, FormatOf(b), err)
		}
	}
	if got, err := job.DecodeSpec(rows[5].Bytes); err != nil || !reflect.DeepEqual(got, sp) || FormatOf(sub) != FormatLeases {
		t.Errorf("%+v, of log format %d: %v", got, FormatOf(sub), err)
	}
	for _, row := range rows[6:8] {
		back, err := DecodeState(row.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := back.Jobs.Get("J"); !reflect.DeepEqual(got.Effects, j.Effects) || !reflect.DeepEqual(got.Steps, j.Steps) {
			t.Errorf("%s: lost on the way: %+v", row.Name, got)
		}
	}
}

// The ledger is bounded: one more is refused, and what is in it still goes on.
func TestLedgerIsBounded(t *testing.T) {
	c := newChaos(1)
	c.must(Register{Formats: Formats, Runner: "R1", Session: "S1", Caps: job.Capabilities{MilliCPU: 8000, Memory: 1 << 34, Disk: 1 << 40, MaxJobs: 99}})
	raw := job.Spec{Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Effects: job.EffectsProtected}.Defaulted().Canonical()
	apply := func(b Body) Reply {
		c.index++
		next, r := c.s.Apply(c.index, Command{ID: forgeyard.MessageID(fmt.Sprintf("r%d", c.index)), At: forgeyard.WallOf(c.at), By: "x", Body: b}.Encode())
		c.s = next
		return r
	}
	c.must(Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)})
	c.must(Offer{Job: c.someJob().ID, Runner: "R1", Session: "S1"})
	a := c.someJob().Lease.Authority
	c.must(Accept{Authority: a})
	for i := range job.MaxEffects {
		c.must(EffectIntent{Authority: a, Key: fmt.Sprint("k", i), Idem: "i"})
	}
	if r := apply(EffectIntent{Authority: a, Key: "more", Idem: "i"}); r.Kind != forgeyard.Limit || !strings.Contains(r.Error, "the bound is 256") {
		t.Errorf("%+v", r)
	}
	c.must(EffectIntent{Authority: a, Key: "k7", Idem: "i"})
	if r := apply(EffectOutcome{Authority: a, Key: "k7", State: EffectDone, Evidence: make([]byte, job.MaxEvidence+1)}); r.Kind != forgeyard.Limit {
		t.Errorf("%+v", r)
	}
	c.must(EffectOutcome{Authority: a, Key: "k7", State: EffectDone, Evidence: []byte("receipt")})
}

// However a job came to wait in the queue, its next epoch is not granted while only a person
// can tell what an earlier one did.
func TestNoOfferOverAnEffect(t *testing.T) {
	rules := job.EffectRules{Keys: []job.EffectDecl{{Key: "told", Policy: job.EffectReconcile, Reconcile: []string{"there"}}}}
	j := Job{Status: job.Queued, Epoch: 1, Spec: job.Spec{Effects: job.EffectsProtected, EffectRules: rules}}
	for why, c := range map[string]struct {
		e    Effect
		free bool
	}{
		"a command can tell":    {Effect{Key: "told", Epoch: 1, State: EffectOpen}, true},
		"the command could not": {Effect{Key: "told", Epoch: 1, State: EffectUnknown}, false},
		"there is no command":   {Effect{Key: "other", Epoch: 1, State: EffectOpen}, false},
		"it is known":           {Effect{Key: "other", Epoch: 1, State: EffectAborted}, true},
	} {
		j.Effects = []Effect{c.e}
		if err := (&State{}).Offerable(j, 0); (err == nil) != c.free {
			t.Errorf("%s: %v", why, err)
		}
	}
}
