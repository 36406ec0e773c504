// Package provenance says where a job's result comes from: every execution that the site's log
// has of it, what each went on from and how it ended, the checkpoints that lie between them, what
// was done outside and which steps were committed (CK-388). It decides what the statement holds,
// and whether somebody's envelope is one.
//
//	state of the log ─▶ Of ─▶ in-toto Statement v1 ─▶ Payload ─▶ Sealed under a node's key (DSSE)
//	                                                                │
//	        what the log has now ─▶ Contradicts ◀─ Open ◀───────────┘
//
// Invariants: the same state gives the same bytes; an envelope has one spelling, so that no byte
// of it can be changed and it still be one; a statement says up to which entry of the log it
// tells, and what the log had forgotten by then.
//
// The package is pure: it has no key, and no clock.
package provenance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// Types of what is stated. A change that a reader must know of makes new ones.
const (
	StatementType = "https://in-toto.io/Statement/v1"
	PredicateType = "https://github.com/forgeyard/forgeyard-node/execution-chain/v1"
	BuildType     = "https://github.com/forgeyard/forgeyard-node/job/v1"
)

// Names of digests: BLAKE3 of the bytes of a file, of a node of a tree, of a spec's canonical
// bytes, of a checkpoint's manifest.
const blake3 = "blake3"

// Statement is an in-toto Statement v1 (ITE-6).
type Statement struct {
	Type          string       `json:"_type"`
	Subject       []Descriptor `json:"subject"` // the outputs; without any, the spec of the job
	PredicateType string       `json:"predicateType"`
	Predicate     Predicate    `json:"predicate"`
}

// Descriptor names a thing by its digest.
type Descriptor struct {
	Name        string            `json:"name"`
	Digest      map[string]string `json:"digest"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Predicate has the two halves of SLSA's provenance, and the chain.
type Predicate struct {
	BuildDefinition BuildDefinition `json:"buildDefinition"`
	RunDetails      RunDetails      `json:"runDetails"`
	Chain           Chain           `json:"chain"`
}

// BuildDefinition is what was to be done.
type BuildDefinition struct {
	BuildType            string       `json:"buildType"`
	ExternalParameters   Parameters   `json:"externalParameters"`
	ResolvedDependencies []Descriptor `json:"resolvedDependencies,omitempty"`
}

// Parameters are what whoever submitted the job chose.
type Parameters struct {
	Spec       Descriptor `json:"spec"` // its canonical bytes have all others
	Kind       string     `json:"kind"`
	Title      string     `json:"title,omitempty"`
	ResumeMode string     `json:"resumeMode"`
	Effects    string     `json:"effects,omitempty"`
}

// RunDetails is who did it, and when.
type RunDetails struct {
	Builder  Builder  `json:"builder"`
	Metadata Metadata `json:"metadata"`
}

// Builder is the site.
type Builder struct {
	ID      string            `json:"id"`
	Version map[string]string `json:"version,omitempty"` // programs of the runners that had an execution, by runner
}

// Metadata names the run.
type Metadata struct {
	InvocationID string `json:"invocationId"` // the job
	Run          string `json:"run"`
	By           string `json:"by,omitempty"`
	StartedOn    string `json:"startedOn,omitempty"`
	FinishedOn   string `json:"finishedOn,omitempty"`
	Status       string `json:"status"`
	Category     string `json:"category,omitempty"`
	// AsOf is the entry of the site's log up to which all this is told.
	AsOf        uint64 `json:"asOf"`
	Incarnation uint64 `json:"incarnation"`
}

// Chain is how the job came to where it is.
type Chain struct {
	Epochs []Epoch `json:"epochs"`
	// Forgotten are the executions before the first of Epochs, of which the log has only the number.
	Forgotten     uint64       `json:"forgottenEpochs,omitempty"`
	Interruptions int          `json:"interruptions"`
	Checkpoints   []Checkpoint `json:"checkpoints,omitempty"` // of the last attempt: no other one is gone on from
	Effects       []Effect     `json:"effects,omitempty"`
	Steps         []Step       `json:"steps,omitempty"`
	Refused       []Refused    `json:"refusedResults,omitempty"`
}

// Epoch is one execution.
type Epoch struct {
	Epoch       uint64 `json:"epoch"`
	Attempt     string `json:"attempt"`
	Lease       string `json:"lease"`
	Runner      string `json:"runner"`
	Session     string `json:"session"`
	ResumedFrom string `json:"resumedFrom,omitempty"` // a checkpoint
	StartedOn   string `json:"startedOn"`
	EndedOn     string `json:"endedOn,omitempty"`
	Ended       string `json:"ended,omitempty"`
	Detail      string `json:"detail,omitempty"`
}

// Checkpoint is one that was committed, whatever became of it.
type Checkpoint struct {
	ID          string `json:"id"`
	Seq         int    `json:"seq"`
	Epoch       uint64 `json:"epoch"`
	Attempt     string `json:"attempt"`
	Payload     string `json:"payload"`
	Bytes       int64  `json:"bytes"`
	Consistency string `json:"consistency"`
	CommittedOn string `json:"committedOn"`
	State       string `json:"state"`
	Why         string `json:"why,omitempty"`
	By          string `json:"by,omitempty"`
}

// Effect is what was done outside.
type Effect struct {
	Key            string `json:"key"`
	Kind           string `json:"kind,omitempty"`
	IdempotencyKey string `json:"idempotencyKey"`
	Epoch          uint64 `json:"epoch"`
	State          string `json:"state"`
	BegunOn        string `json:"begunOn"`
	EndedOn        string `json:"endedOn,omitempty"`
	By             string `json:"by,omitempty"`
	Why            string `json:"why,omitempty"`
	Evidence       string `json:"evidence,omitempty"` // digest of it
}

// Step is a result that was committed, and not made again.
type Step struct {
	Name        string       `json:"name"`
	Epoch       uint64       `json:"epoch"`
	Evidence    string       `json:"evidence"`
	CommittedOn string       `json:"committedOn"`
	Outputs     []Descriptor `json:"outputs,omitempty"`
}

// Refused is a result that came under an authority which was over.
type Refused struct {
	Epoch   uint64 `json:"epoch"`
	Runner  string `json:"runner"`
	Outcome string `json:"outcome"`
	On      string `json:"on"`
	Why     string `json:"why"`
}

// Of is what the state says of a job.
func Of(s *site.State, j site.Job) Statement {
	spec := Descriptor{Name: "job/" + string(j.ID), Digest: digest(j.SpecID)}
	r, _ := s.Runs.Get(j.Run)
	st := Statement{Type: StatementType, PredicateType: PredicateType, Subject: []Descriptor{spec}}
	if j.Result != nil && len(j.Result.Outputs) > 0 {
		st.Subject = outputs(j.Result.Outputs)
	}
	st.Predicate = Predicate{
		BuildDefinition: BuildDefinition{BuildType: BuildType, ResolvedDependencies: inputs(j.Spec), ExternalParameters: Parameters{
			Spec: spec, Kind: string(cmp.Or(j.Spec.Kind, job.Build)), Title: j.Spec.Title,
			ResumeMode: string(cmp.Or(j.Spec.Resume.Mode, job.ResumeNone)), Effects: string(j.Spec.Effects),
		}},
		RunDetails: RunDetails{Builder: Builder{ID: "forgeyard:site/" + string(s.Site)}, Metadata: Metadata{
			InvocationID: string(j.ID), Run: string(j.Run), By: r.By, StartedOn: at(j.Started), FinishedOn: at(j.Ended),
			Status: string(j.Status), Category: string(j.Category), AsOf: s.Index, Incarnation: s.Incarnation,
		}},
		Chain: chain(j),
	}
	versions := map[string]string{}
	for _, e := range j.History {
		if m, ok := s.Members.Get(e.Runner); ok && m.Session.ID == e.Session && m.Session.Version != "" {
			versions[string(e.Runner)] = m.Session.Version
		}
	}
	st.Predicate.RunDetails.Builder.Version = versions
	return st
}

func chain(j site.Job) Chain {
	c := Chain{Epochs: []Epoch{}, Interruptions: j.Interruptions}
	for _, e := range j.History {
		c.Epochs = append(c.Epochs, epoch(e))
	}
	if len(j.History) > 0 {
		c.Forgotten = j.History[0].Epoch - 1
	}
	for _, k := range j.Checkpoints {
		c.Checkpoints = append(c.Checkpoints, commit(k))
	}
	for _, e := range j.Effects {
		c.Effects = append(c.Effects, Effect{
			Key: e.Key, Kind: e.Kind, IdempotencyKey: e.Idem, Epoch: e.Epoch, State: string(e.State), BegunOn: at(e.Begun), EndedOn: at(e.Ended), By: e.By, Why: e.Why, Evidence: name(e.Digest),
		})
	}
	for _, k := range j.Steps {
		c.Steps = append(c.Steps, Step{Name: k.Name, Epoch: k.Epoch, Evidence: k.Evidence.String(), CommittedOn: at(k.At), Outputs: outputs(k.Outputs)})
	}
	for _, l := range j.Late {
		c.Refused = append(c.Refused, Refused{Epoch: l.Epoch, Runner: string(l.Runner), Outcome: string(l.Outcome), On: at(l.At), Why: l.Why})
	}
	return c
}

func epoch(e site.EpochRecord) Epoch {
	return Epoch{
		Epoch: e.Epoch, Attempt: string(e.Attempt), Lease: string(e.Lease), Runner: string(e.Runner), Session: string(e.Session), ResumedFrom: name(e.Resumed),
		StartedOn: at(e.Started), EndedOn: at(e.Ended), Ended: string(e.Reason), Detail: e.Detail,
	}
}

func commit(k checkpoint.Commit) Checkpoint {
	return Checkpoint{
		ID: k.Manifest.String(), Seq: k.Seq, Epoch: k.Epoch, Attempt: string(k.Attempt), Payload: k.Payload.String(), Bytes: k.Bytes, Consistency: string(k.Consistency),
		CommittedOn: at(k.At), State: k.State.String(), Why: k.Why, By: k.By,
	}
}

func outputs(all []job.Output) []Descriptor {
	var out []Descriptor
	for _, o := range all {
		out = append(out, Descriptor{Name: o.Path, Digest: digest(o.Digest), Annotations: kind(o.Tree)})
	}
	return out
}

func inputs(s job.Spec) []Descriptor {
	var out []Descriptor
	for _, in := range s.Inputs {
		out = append(out, Descriptor{Name: in.Path, Digest: digest(in.Digest), Annotations: kind(in.Tree)})
	}
	return out
}

// kind says that a digest is that of a tree; of a file nothing is said.
func kind(tree bool) map[string]string {
	if tree {
		return map[string]string{"kind": "tree"}
	}
	return nil
}

func digest(d forgeyard.Digest) map[string]string { return map[string]string{blake3: d.Hex()} }

// name is a digest as people type it, or nothing.
func name(d forgeyard.Digest) string {
	if d.IsZero() {
		return ""
	}
	return d.String()
}

func at(w forgeyard.Wall) string {
	if w == 0 {
		return ""
	}
	return w.Time().UTC().Format(time.RFC3339Nano)
}

// Payload is the statement as it is signed.
func (s Statement) Payload() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("provenance: %v", err)) // it has strings and numbers only
	}
	return b
}

// Job is the one that the statement is about.
func (s Statement) Job() forgeyard.JobID {
	return forgeyard.JobID(s.Predicate.RunDetails.Metadata.InvocationID)
}

// Contradicts says what of a statement is not as the state has it, or nothing. What the state
// has more since then, or has forgotten, contradicts nothing; of a job that had ended there is
// nothing more. The state must be no older than the statement.
func Contradicts(s *site.State, st Statement) string {
	d := st.Predicate.RunDetails
	j, ok := s.Jobs.Get(st.Job())
	switch {
	case d.Builder.ID != "forgeyard:site/"+string(s.Site):
		return fmt.Sprintf("it is of %s, this is site %s", forgeyard.Clip(d.Builder.ID, 80), s.Site)
	case !ok:
		return ""
	}
	now := Of(s, j)
	m, was := now.Predicate.RunDetails.Metadata, d.Metadata
	switch {
	case !slices.EqualFunc(now.Predicate.BuildDefinition.ResolvedDependencies, st.Predicate.BuildDefinition.ResolvedDependencies, sameThing):
		return "its inputs are not those of job " + string(j.ID)
	case m.Run != was.Run || m.By != was.By || was.StartedOn != "" && m.StartedOn != was.StartedOn:
		return "its run, who asked for it or when it began is not as the log has it"
	case now.Predicate.BuildDefinition.ExternalParameters.Spec.Digest[blake3] != st.Predicate.BuildDefinition.ExternalParameters.Spec.Digest[blake3]:
		return "its spec is another one than that of job " + string(j.ID)
	case job.Status(was.Status).Terminal() && was.Status != m.Status:
		return fmt.Sprintf("it says that the job is %s, the log says %s", forgeyard.Clip(was.Status, 20), m.Status)
	case job.Status(was.Status).Terminal() && !slices.EqualFunc(st.Subject, now.Subject, sameThing):
		return "its subject is not what the job has delivered"
	}
	if why := chainContradicts(st.Predicate.Chain, now.Predicate.Chain); why != "" {
		return why
	}
	for _, e := range st.Predicate.Chain.Epochs {
		i := slices.IndexFunc(now.Predicate.Chain.Epochs, func(k Epoch) bool { return k.Epoch == e.Epoch })
		if i < 0 && e.Epoch <= now.Predicate.Chain.Forgotten {
			continue
		}
		if i < 0 || !before(e, now.Predicate.Chain.Epochs[i]) {
			return fmt.Sprintf("epoch %d is not as the log has it", e.Epoch)
		}
	}
	if first := st.Predicate.Chain.Forgotten; job.Status(was.Status).Terminal() {
		for _, e := range now.Predicate.Chain.Epochs {
			if e.Epoch > first && !slices.ContainsFunc(st.Predicate.Chain.Epochs, func(k Epoch) bool { return k.Epoch == e.Epoch }) {
				return fmt.Sprintf("it leaves out epoch %d", e.Epoch)
			}
		}
	}
	return ""
}

// chainContradicts compares what was saved, done outside and committed. A checkpoint that the
// log has no more was of an earlier attempt, or was trimmed; its fate may be new.
func chainContradicts(was, now Chain) string {
	for _, c := range was.Checkpoints {
		i := slices.IndexFunc(now.Checkpoints, func(k Checkpoint) bool { return k.ID == c.ID })
		if i < 0 {
			continue
		}
		k := now.Checkpoints[i]
		k.State, k.Why, k.By = c.State, c.Why, c.By
		if k != c {
			return fmt.Sprintf("checkpoint %s is not as the log has it", forgeyard.Clip(c.ID, 20))
		}
	}
	for _, e := range was.Effects {
		i := slices.IndexFunc(now.Effects, func(k Effect) bool { return k.Key == e.Key })
		settled := e.State == string(site.EffectDone)
		if i < 0 || settled && now.Effects[i] != e {
			return fmt.Sprintf("effect %s is not as the log has it", forgeyard.Clip(e.Key, 80))
		}
	}
	for _, w := range was.Steps {
		i := slices.IndexFunc(now.Steps, func(k Step) bool { return k.Name == w.Name && k.Epoch == w.Epoch })
		if i >= 0 && (now.Steps[i].Evidence != w.Evidence || !slices.EqualFunc(now.Steps[i].Outputs, w.Outputs, sameThing)) {
			return fmt.Sprintf("step %s is not as the log has it", forgeyard.Clip(w.Name, 80))
		}
	}
	return ""
}

// before reports that a record may have been what it is now: its end may be new.
func before(was, now Epoch) bool {
	if was.Ended == "" {
		now.EndedOn, now.Ended, now.Detail = "", "", ""
	}
	return was == now
}

func sameThing(a, b Descriptor) bool { return a.Name == b.Name && a.Digest[blake3] == b.Digest[blake3] }
