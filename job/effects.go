package job

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// EffectPolicy says what a later epoch may do about an effect of which the site has an
// intent and no outcome (69§116).
type EffectPolicy string

// Effect policies.
const (
	EffectSafe      EffectPolicy = "safe"                          // doing it twice is as good as once
	EffectReconcile EffectPolicy = "reconcile-before-resume"       // first find out what is there; the default
	EffectPrior     EffectPolicy = "restart-from-prior-safe-point" // go on from the newest checkpoint before it began
	EffectFinal     EffectPolicy = "non-resumable"                 // once it began, the job is never resumed
)

// EffectDecl is the rule for the effects of one key, or of all keys below one: `publish/*`.
type EffectDecl struct {
	Key    string       `cbor:"1,keyasint"`
	Policy EffectPolicy `cbor:"2,keyasint"`
	// BeforeCheckpoint lets a checkpoint be taken while the effect has no outcome yet (69§115).
	BeforeCheckpoint bool `cbor:"3,keyasint,omitempty"`
	// Reconcile is the argv that finds out, in the job's own sandbox, under the new epoch and
	// before its first step. It exits with 0: done, what it printed is the evidence; 1: not
	// done; anything else: it cannot tell, and a person decides.
	Reconcile []string `cbor:"4,keyasint,omitempty"`
}

// EffectRules are the rules for all effects of a job.
type EffectRules struct {
	Default EffectPolicy `cbor:"1,keyasint,omitempty"` // empty: EffectReconcile
	Keys    []EffectDecl `cbor:"2,keyasint,omitempty"` // sorted by key
}

// IsZero reports that the job declares none.
func (r EffectRules) IsZero() bool { return r.Default == "" && len(r.Keys) == 0 }

// StepResume says what a later epoch does about a step that an earlier one ran (69§120).
type StepResume string

// Step resume modes.
const (
	StepRestart    StepResume = "restart"           // it runs again
	StepCheckpoint StepResume = "resume-checkpoint" // it runs again, and finds what the checkpoint has
	StepCommitted  StepResume = "already-committed" // it does not run again once its result is in the log
	StepReconcile  StepResume = "reconcile"         // it is one effect: what became of it is found out first
)

// stepEffect begins the keys of steps that are effects themselves; a job's own keys do not.
const stepEffect = "step/"

// StepEffect is the key under which a step of mode StepReconcile stands in the ledger.
func StepEffect(name string) string { return stepEffect + strings.ReplaceAll(name, " ", "_") }

// Effect returns the rule for a key: its own, else that of the longest prefix, else the
// default.
func (s Spec) Effect(key string) EffectDecl {
	for _, st := range s.Steps {
		if st.Resume == StepReconcile && StepEffect(st.Name) == key {
			return EffectDecl{Key: key, Policy: EffectReconcile, Reconcile: st.Reconcile}
		}
	}
	best, ok := EffectDecl{}, false
	for _, d := range s.EffectRules.Keys {
		prefix, all := strings.CutSuffix(d.Key, "*")
		switch {
		case d.Key == key:
			return d
		case all && strings.HasPrefix(key, prefix) && (!ok || len(d.Key) > len(best.Key)):
			best, ok = d, true
		}
	}
	if !ok {
		best.Policy = s.EffectRules.Default
	}
	best.Key = key
	if best.Policy == "" {
		best.Policy = EffectReconcile
	}
	return best
}

// HasEffects reports whether the job may begin effects at all.
func (s Spec) HasEffects() bool { return s.Effects == EffectsProtected || !s.EffectRules.IsZero() }

// protects reports whether a rule or a step is of an effect that must not be done twice:
// then the next epoch waits until the old holder has certainly stopped.
func (s Spec) protects() bool {
	if !s.EffectRules.IsZero() && s.EffectRules.Default != EffectSafe {
		return true
	}
	return slices.ContainsFunc(s.EffectRules.Keys, func(d EffectDecl) bool { return d.Policy != EffectSafe }) ||
		slices.ContainsFunc(s.Steps, func(st Step) bool { return st.Resume == StepReconcile })
}

// saysEffects reports whether the spec holds what came with effects.
func (s Spec) saysEffects() bool {
	return !s.EffectRules.IsZero() || slices.ContainsFunc(s.Steps, func(st Step) bool {
		return st.Resume != "" || len(st.Outputs)+len(st.Reconcile) > 0
	})
}

// The bounds of effects: the log carries each.
const (
	MaxEffectKeys = 64   // rules of one job
	MaxEffects    = 256  // effects that one job's ledger holds
	MaxEffectKey  = 128  // bytes of a key, a kind or an idempotency key
	MaxSignal     = 32   // bytes of a signal's name
	MaxEvidence   = 1024 // bytes of an evidence: a receipt or a digest, never the thing itself
)

var effectRule = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._@:+/-]*$`)

// CheckEffectKey says why s cannot name an effect, or be its kind or idempotency key, or nil.
func CheckEffectKey(s string) error {
	switch {
	case s == "":
		return forgeyard.Errorf("", forgeyard.Invalid, "is empty")
	case len(s) > MaxEffectKey:
		return forgeyard.Errorf("", forgeyard.Invalid, "%q has %d bytes; at most %d are allowed", forgeyard.Clip(s, 40), len(s), MaxEffectKey)
	case !effectRule.MatchString(s):
		return forgeyard.Errorf("", forgeyard.Invalid, "%q; allowed: letters, digits and . _ @ : + / -", forgeyard.Clip(s, 40))
	}
	return nil
}

var effectPolicies = []string{string(EffectSafe), string(EffectReconcile), string(EffectPrior), string(EffectFinal)}

func (c *check) effects(s Spec) {
	c.oneOf("effects", string(s.Effects), string(EffectsNone), string(EffectsProtected))
	r := s.EffectRules
	if r.Default != "" {
		c.oneOf("effects.default", string(r.Default), slices.Clone(effectPolicies)...)
	}
	c.count("effects.keys", len(r.Keys), MaxEffectKeys)
	seen := map[string]bool{}
	for _, d := range r.Keys {
		at := "effects.keys." + d.Key
		key := d.Key
		if key == "*" {
			c.add(at, "is every key: use effects.default")
			continue
		}
		c.err(at, CheckEffectKey(strings.TrimSuffix(key, "*")))
		c.unique(at, key, seen)
		if strings.HasPrefix(key, stepEffect) {
			c.add(at, "begins with %s, which is for steps: use steps[].resume", stepEffect)
		}
		c.oneOf(at+".policy", string(d.Policy), slices.Clone(effectPolicies)...)
		c.argv(at+".reconcile", d.Reconcile)
		if len(d.Reconcile) > 0 && d.Policy != EffectReconcile {
			c.add(at+".reconcile", "is for policy %s; the policy is %s", EffectReconcile, d.Policy)
		}
	}
	if !slices.IsSortedFunc(r.Keys, func(a, b EffectDecl) int { return strings.Compare(a.Key, b.Key) }) {
		c.add("effects.keys", "are not in the order of their keys")
	}
	if s.protects() && s.Effects != EffectsProtected {
		c.add("effects", "rules other than safe need protected effects; the spec has %q", s.Effects)
	}
	c.stepResumes(s)
}

func (c *check) argv(at string, argv []string) {
	if len(argv) > 0 && argv[0] == "" {
		c.add(at+"[0]", "the program's name is empty")
	}
	c.count(at, len(argv), MaxArgv)
	total := 0
	for i, a := range argv {
		c.text(fmt.Sprintf("%s[%d]", at, i), a, MaxStepBytes-1)
		total += len(a)
	}
	if total > MaxStepBytes {
		c.add(at, "the arguments have %d bytes together; at most %d are allowed", total, MaxStepBytes)
	}
}

// overlap names one of files that is p, holds it or lies below it.
func overlap(p string, files []string) string {
	p = path.Clean(p) + "/"
	for _, f := range files {
		g := path.Clean(f) + "/"
		if strings.HasPrefix(p, g) || strings.HasPrefix(g, p) {
			return f
		}
	}
	return ""
}

func (c *check) stepResumes(s Spec) {
	keys := map[string]bool{}
	loose := -1 // a step that leaves nothing to go on from
	for i, st := range s.Steps {
		at := fmt.Sprintf("steps[%d]", i)
		switch {
		case st.Resume == StepCommitted && loose >= 0:
			c.add(at+".resume", "%s needs that all steps before it are %s or %s; steps[%d] is not, and what it leaves in the workspace is lost", st.Resume, StepCommitted, StepReconcile, loose)
		case st.Resume != StepCommitted && st.Resume != StepReconcile && loose < 0:
			loose = i
		}
		c.oneOf(at+".resume", string(st.Resume), "", string(StepRestart), string(StepCheckpoint), string(StepCommitted), string(StepReconcile))
		if st.Resume == StepCheckpoint && s.Resume.Mode != ResumeApplication {
			c.add(at+".resume", "%s needs resume.mode application; it is %s", st.Resume, s.Resume.Mode)
		}
		if len(st.Outputs) > 0 && st.Resume != StepCommitted {
			c.add(at+".outputs", "are for resume: %s", StepCommitted)
		}
		c.count(at+".outputs", len(st.Outputs), MaxOutputs)
		seen := map[string]bool{}
		for k, p := range st.Outputs {
			c.below(fmt.Sprintf("%s.outputs[%d]", at, k), p)
			c.unique(fmt.Sprintf("%s.outputs[%d]", at, k), p, seen)
			if f := overlap(p, s.Resume.Checkpoint.Files); f != "" {
				c.add(fmt.Sprintf("%s.outputs[%d]", at, k), "%q and resume.checkpoint.files %q hold the same files: one of the two would replace the other when the job goes on; keep them apart", forgeyard.Clip(p, 80), forgeyard.Clip(f, 80))
			}
		}
		c.argv(at+".reconcile", st.Reconcile)
		if len(st.Reconcile) > 0 && st.Resume != StepReconcile {
			c.add(at+".reconcile", "is for resume: %s", StepReconcile)
		}
		if st.Resume == StepReconcile {
			c.err(at+".name", CheckEffectKey(StepEffect(st.Name)))
			c.unique(at+".name", StepEffect(st.Name), keys)
		}
	}
}
