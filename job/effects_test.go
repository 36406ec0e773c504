package job

import (
	"reflect"
	"strings"
	"testing"
)

const effectFile = `version: 1
kind: build
job:
  steps: [{name: publish, sh: "true"}]
  effects:
    default: non-resumable
    keys:
      publish/*: {policy: reconcile-before-resume, reconcile: [./there]}
      publish/extra: {policy: safe, before_checkpoint_allowed: true}
      count: {}
`

func specOf(t *testing.T, text string, set map[string]string) (Spec, error) {
	t.Helper()
	f, err := ParseFile("job.yaml", []byte(text), set)
	if err != nil {
		return Spec{}, err
	}
	return f.Spec(nil)
}

// CK-162, CK-163: an effect has a boundary and a policy; CK-164: reconcile-before-resume is
// the default of what is protected.
func TestEffectRules(t *testing.T) {
	s, err := specOf(t, effectFile, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Effects != EffectsProtected || !s.HasEffects() || !s.SaysLater() {
		t.Fatalf("%+v", s)
	}
	for key, want := range map[string]EffectDecl{
		"publish/a":     {Key: "publish/a", Policy: EffectReconcile, Reconcile: []string{"./there"}},
		"publish/extra": {Key: "publish/extra", Policy: EffectSafe, BeforeCheckpoint: true},
		"count":         {Key: "count", Policy: EffectFinal},
		"deploy":        {Key: "deploy", Policy: EffectFinal},
	} {
		if got := s.Effect(key); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", key, got, want)
		}
	}
	back, err := DecodeSpec(s.Canonical())
	if err != nil || !reflect.DeepEqual(back.EffectRules, s.EffectRules) {
		t.Errorf("%+v: %v", back.EffectRules, err)
	}
	word, err := specOf(t, effectFile, map[string]string{"job.effects": "protected"})
	if err != nil || word.Effects != EffectsProtected || !word.EffectRules.IsZero() || word.Effect("x").Policy != EffectReconcile {
		t.Errorf("one word for the default: %+v, %v", word.EffectRules, err)
	}
	if none, err := specOf(t, effectFile, map[string]string{"job.effects": "none"}); err != nil || none.HasEffects() || none.SaysLater() {
		t.Errorf("none: %+v, %v", none.EffectRules, err)
	}
	free := strings.NewReplacer("non-resumable", "safe", "policy: reconcile-before-resume, reconcile: [./there]", "policy: safe").Replace(effectFile)
	if s, err := specOf(t, free, nil); err != nil || s.Effects != EffectsNone || !s.HasEffects() {
		t.Errorf("safe effects make nobody wait: %+v, %v", s.Effects, err)
	}
}

// CK-017, CK-168: how each step goes on.
func TestStepResume(t *testing.T) {
	const steps = `version: 1
kind: build
job:
  steps:
    - {name: compile, sh: "true", resume: already-committed, outputs: [bin/]}
    - {name: put out, sh: "true", resume: reconcile, reconcile: [./there]}
    - {name: test, sh: "true"}
`
	s, err := specOf(t, steps, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Effects != EffectsProtected || s.Steps[0].Outputs[0] != "bin" || !reflect.DeepEqual(s.Effect("step/put_out").Reconcile, []string{"./there"}) {
		t.Errorf("%+v", s)
	}
}

func TestWrongEffects(t *testing.T) {
	for text, want := range map[string]string{
		"effects: often":                                                         `"often" is unknown; allowed: none, protected, or a mapping`,
		"effects: {default: sometimes}":                                          "effects.default: ",
		"effects: {keys: {'*': {}}}":                                             "is every key: use effects.default",
		"effects: {keys: {'a b': {}}}":                                           "allowed: letters, digits",
		"effects: {keys: {step/x: {}}}":                                          "which is for steps",
		"effects: {keys: {x: {policy: safe, reconcile: [ls]}}}":                  "is for policy reconcile-before-resume; the policy is safe",
		"steps: [{name: a, sh: ls, resume: resume-checkpoint}]":                  "needs resume.mode application",
		"steps: [{name: a, sh: ls, outputs: [x]}]":                               "are for resume: already-committed",
		"steps: [{name: a, sh: ls, reconcile: [x]}]":                             "is for resume: reconcile",
		"steps: [{name: a, sh: ls, resume: already-committed, outputs: [../x]}]": "leaves the workspace",
		"resume: {mode: application, checkpoint: {files: [model/state]}}\n  steps: [{name: a, sh: ls, resume: already-committed, outputs: [model]}, {name: b, sh: ls, resume: resume-checkpoint}]": "hold the same files",
		"resume: {mode: application, checkpoint: {files: [model/]}}\n  steps: [{name: a, sh: ls, resume: already-committed, outputs: [model/lib]}, {name: b, sh: ls, resume: resume-checkpoint}]":  "hold the same files",
		"steps: [{name: a b, sh: ls, resume: reconcile}, {name: a_b, sh: ls, resume: reconcile}]":                                                                                                  "is given twice",
	} {
		if !strings.Contains(text, "steps: ") {
			text = "steps: [{sh: ls}]\n  " + text
		}
		if _, err := specOf(t, "version: 1\nkind: build\njob:\n  "+text+"\n", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
