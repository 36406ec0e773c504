package job

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/strictyaml"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// File is a parsed job file: what a person submits. It becomes a RunSpec and, for
// a build, a Spec once its local inputs have digests.
type File struct {
	Version    int        `yaml:"version" strict:"required"`
	Kind       RunKind    `yaml:"kind" strict:"required" enum:"build|ingest|garden"`
	Title      string     `yaml:"title"`
	Guidance   string     `yaml:"guidance"`
	Harness    string     `yaml:"harness" enum:"sandbox|process"`
	Model      string     `yaml:"model"`
	AutoCommit bool       `yaml:"auto_commit"` // default true
	Inputs     []RunInput `yaml:"inputs"`      // ingest only
	Node       string     `yaml:"node"`        // ingest and garden: whose data, or what is looked after; default the node that is asked
	Job        FileJob    `yaml:"job"`         // build only
}

// FileJob is the job of a build.
type FileJob struct {
	Steps        []FileStep        `yaml:"steps"`
	Inputs       []FileInput       `yaml:"inputs"`
	Outputs      []FileOutput      `yaml:"outputs"`
	Env          map[string]string `yaml:"env"`
	Secrets      []FileSecret      `yaml:"secrets"`
	Resources    FileResources     `yaml:"resources"`
	Timeouts     FileTimeouts      `yaml:"timeouts"`
	Sandbox      Sandbox           `yaml:"sandbox" enum:"strict|process"`
	Network      Network           `yaml:"network" enum:"none|site|host"`
	Requires     FileRequires      `yaml:"requires"`
	Devices      []FileDevice      `yaml:"devices"`
	Connectivity FileConnectivity  `yaml:"connectivity"`
	Durability   Durability        `yaml:"durability" enum:"ephemeral|site|central"`
	Effects      FileEffects       `yaml:"effects"`
	Interruption *FileInterruption `yaml:"interruption"`
	Resume       FileResume        `yaml:"resume"`
	OnFailure    FileOnFailure     `yaml:"on_failure"`
}

// FileStep is one command.
type FileStep struct {
	Name string            `yaml:"name"` // default `step N`
	Run  []string          `yaml:"run"`
	Sh   string            `yaml:"sh"`
	Dir  string            `yaml:"dir"`
	Env  map[string]string `yaml:"env"`

	Resume    StepResume `yaml:"resume" enum:"restart|resume-checkpoint|already-committed|reconcile"`
	Outputs   []string   `yaml:"outputs"`
	Reconcile []string   `yaml:"reconcile"`
}

// FileEffects are the rules for what the work does outside. One word stands for rules that
// are the default: `effects: protected`.
type FileEffects struct {
	Word    Effects
	Default EffectPolicy          `yaml:"default" enum:"safe|reconcile-before-resume|restart-from-prior-safe-point|non-resumable"`
	Keys    map[string]FileEffect `yaml:"keys"`
}

// SetWord implements strictyaml.Worded.
func (f *FileEffects) SetWord(s string) error {
	if s != string(EffectsNone) && s != string(EffectsProtected) {
		return forgeyard.Errorf("", forgeyard.Invalid, "%q is unknown; allowed: none, protected, or a mapping with default and keys", forgeyard.Clip(s, MaxName))
	}
	f.Word = Effects(s)
	return nil
}

// FileEffect is the rule for one key, or for all below one: `publish/*`.
type FileEffect struct {
	Policy           EffectPolicy `yaml:"policy" enum:"safe|reconcile-before-resume|restart-from-prior-safe-point|non-resumable"`
	BeforeCheckpoint bool         `yaml:"before_checkpoint_allowed"`
	Reconcile        []string     `yaml:"reconcile"`
}

// rules are those of the spec; a key without a policy takes the default.
func (f FileEffects) rules() EffectRules {
	r := EffectRules{Default: f.Default}
	for _, k := range slices.Sorted(maps.Keys(f.Keys)) {
		d := f.Keys[k]
		policy := cmp.Or(d.Policy, f.Default, EffectReconcile)
		r.Keys = append(r.Keys, EffectDecl{Key: k, Policy: policy, BeforeCheckpoint: d.BeforeCheckpoint, Reconcile: slices.Clone(d.Reconcile)})
	}
	return r
}

// FileInput is content for the workspace: a local path that is ingested at
// submit, a digest that the site has, or what a name points at when it is submitted.
type FileInput struct {
	Path   string           `yaml:"path" strict:"required"`
	From   string           `yaml:"from"`
	Digest forgeyard.Digest `yaml:"digest"`
	Named  string           `yaml:"named"`
	Tree   bool             `yaml:"tree"` // the digest names a directory; for a local path it is found out
}

// FileOutput is a declared output.
type FileOutput struct {
	Path     string `yaml:"path" strict:"required"`
	Optional bool   `yaml:"optional"`
}

// FileOnFailure is what is kept of an attempt that failed.
type FileOnFailure struct {
	Outputs []FileDiagnostic `yaml:"outputs"`
}

// FileDiagnostic is a path that is captured after a failed step.
type FileDiagnostic struct {
	Path      string `yaml:"path" strict:"required"`
	Sensitive bool   `yaml:"sensitive"` // it stays on the node where the work failed
}

// FileSecret is a reference to a secret.
type FileSecret struct {
	Name string `yaml:"name" strict:"required"`
	Env  string `yaml:"env"`
	File string `yaml:"file"`
}

// FileResources are the hard limits.
type FileResources struct {
	CPU    strictyaml.MilliCPU `yaml:"cpu"`
	Memory strictyaml.Size     `yaml:"memory"`
	Disk   strictyaml.Size     `yaml:"disk"`
	Pids   int64               `yaml:"pids"`
}

// FileTimeouts bound the phases.
type FileTimeouts struct {
	Prepare time.Duration `yaml:"prepare"`
	Run     time.Duration `yaml:"run"`
	Upload  time.Duration `yaml:"upload"`
}

// FileRequires are the hard filters of placement.
type FileRequires struct {
	OS         string            `yaml:"os" enum:"linux|darwin|windows"`
	Arch       string            `yaml:"arch" enum:"amd64|arm64"`
	Labels     map[string]string `yaml:"labels"`
	Toolchains []string          `yaml:"toolchains"`
	Pool       string            `yaml:"pool"`
	Trust      []Trust           `yaml:"trust"`
}

// FileDevice asks for a device.
type FileDevice struct {
	Kind   string            `yaml:"kind" strict:"required"`
	Labels map[string]string `yaml:"labels"`
	As     string            `yaml:"as"` // default: the kind
}

// FileConnectivity is the policy for silence.
type FileConnectivity struct {
	Policy ConnectivityPolicy `yaml:"policy" enum:"continuous|grace|offline_authorized"`
	For    time.Duration      `yaml:"for"`
	// Replace false leaves the work to its silent holder until that has certainly stopped.
	Replace bool `yaml:"replace"` // default true
}

// FileInterruption bounds trouble from outside.
type FileInterruption struct {
	Tolerance string `yaml:"tolerance" enum:"none|restartable|checkpointable"`
	Budget    *int   `yaml:"budget"`
	Retry     string `yaml:"retry" enum:"resume-or-restart|resume-latest|resume-only|restart|never"`
	// StableAfter so many interruptions the job goes to stable runners only; default 3.
	StableAfter    int           `yaml:"stable_after"`
	ResumeFailures int           `yaml:"resume_failures_per_checkpoint"` // default and bound: the site's
	Priority       Priority      `yaml:"priority" enum:"critical|high|normal|low"`
	FinishWithin   time.Duration `yaml:"finish_within"` // of its submission
}

// FileResume is the resumability contract (FYCP/1 §1). Of the protocol's keys it
// takes those that this version honours.
type FileResume struct {
	Mode          ResumeMode        `yaml:"mode" enum:"none|restart-stage|application|framework|filesystem-snapshot|vm-snapshot|custom"`
	Format        FileFormat        `yaml:"format"`
	Isolation     Isolation         `yaml:"isolation" enum:"isolated|suite|ordered"` // of mode framework
	Consistency   string            `yaml:"minimum_consistency" enum:"application|framework" later:"crash"`
	Checkpoint    FileCheckpoint    `yaml:"checkpoint"`
	Stop          FileStop          `yaml:"stop"`
	CompatProfile string            `yaml:"compat_profile" enum:"native|htcondor|slurm"`
	Compatibility FileCompatibility `yaml:"compatibility"`
	Sensitivity   Sensitivity       `yaml:"sensitivity" enum:"public|internal|confidential|restricted"`
	Interruption  *FileInterruption `yaml:"interruption"` // the same as job.interruption; only one of them
}

// FileCompatibility is what of the machine must be the same where the job goes on.
type FileCompatibility struct {
	Arch     machine.Sameness `yaml:"arch" enum:"exact|compatible|any"`
	OS       machine.Sameness `yaml:"os" enum:"exact|compatible|any"`
	Baseline machine.Sameness `yaml:"baseline" enum:"exact|compatible|any"`
	Hardware machine.Sameness `yaml:"hardware" enum:"exact|compatible|any"` // cpu, gpu and device, where they say nothing
	CPU      machine.Sameness `yaml:"cpu" enum:"exact|compatible|any"`
	GPU      machine.Sameness `yaml:"gpu" enum:"exact|class|any"`
	Device   machine.Sameness `yaml:"device" enum:"exact|compatible|any"`
}

func (f FileCompatibility) declared() machine.Compatibility {
	c := machine.Compatibility{Arch: f.Arch, OS: f.OS, Baseline: f.Baseline, CPU: f.CPU, GPU: f.GPU, Device: f.Device}
	for _, h := range []*machine.Sameness{&c.CPU, &c.GPU, &c.Device} {
		set(h, f.Hardware)
	}
	return c
}

// RefusedKeys implements strictyaml.Refuser.
func (FileResume) RefusedKeys() map[string]string {
	return map[string]string{
		"effects": "use job.effects",
	}
}

// FileFormat names the program's own checkpoint format.
type FileFormat struct {
	Name    string `yaml:"name"`
	Version int    `yaml:"version"`
}

// FileCheckpoint is the checkpoint part of the contract.
type FileCheckpoint struct {
	ExitCode    int             `yaml:"exit_code"`
	RejectCode  int             `yaml:"restore_reject_code"`
	Files       []string        `yaml:"files"`
	Interval    time.Duration   `yaml:"interval"`
	Window      time.Duration   `yaml:"window"`
	MaxBytes    strictyaml.Size `yaml:"max_bytes"`
	Keep        int             `yaml:"keep"`
	Results     int             `yaml:"results"` // of mode framework
	Signal      string          `yaml:"signal" enum:"none|USR1|USR2|HUP"`
	SignalScope string          `yaml:"signal_scope" enum:"main" later:"group"`
	OnCancel    bool            `yaml:"on_cancel"`
	OnNotice    *bool           `yaml:"on_preemption_notice"` // nil: true
	// How long payloads are kept: the newest `keep`, none but the newest for longer than
	// max_age, and after a failure or a cancellation.
	MaxAge        time.Duration `yaml:"max_age"`
	KeepOnFailure time.Duration `yaml:"keep_on_failure"`
}

// RefusedKeys implements strictyaml.Refuser.
func (FileCheckpoint) RefusedKeys() map[string]string {
	return map[string]string{
		"triggers": "every trigger that the mode has is on",
	}
}

// FileStop is how the workload is asked to end.
type FileStop struct {
	Signal string        `yaml:"signal" enum:"TERM|INT|HUP|USR1|USR2"`
	Grace  time.Duration `yaml:"grace"`
}

// ParseFile reads a job file. The overrides of `--set` replace values by dotted
// path: `title`, `job.env.BOARD`, `job.inputs.0.digest`. What is wrong is reported
// in one error of kind Invalid, one line a fault, each with its place.
func ParseFile(name string, data []byte, overrides map[string]string) (File, error) {
	doc, err := strictyaml.Parse(name, data)
	if err != nil {
		return File{}, err
	}
	for _, k := range slices.Sorted(maps.Keys(overrides)) {
		if err := doc.Override(k, overrides[k], "--set "+k); err != nil {
			return File{}, err
		}
	}
	f := File{AutoCommit: true, Job: FileJob{Connectivity: FileConnectivity{Replace: true}}}
	problems := doc.Problems(&f)
	if len(problems) == 0 {
		for _, x := range f.faults(doc) {
			problems = append(problems, doc.Problem(x.path, "%s", x.text))
		}
	}
	if err := strictyaml.Fail(problems); err != nil {
		return File{}, err
	}
	return f, nil
}

// faults checks the rules that types cannot say. Local inputs have no digest yet,
// so they are checked with a stand-in.
func (f File) faults(doc *strictyaml.Doc) []fault {
	c := check{faults: f.RunSpec().faults()}
	c.text("node", f.Node, MaxName)
	if f.Kind != Build {
		if doc.Has("job") {
			c.add("job", "a run of kind %s has no job", f.Kind)
		}
		return c.faults
	}
	if f.Node != "" {
		c.add("node", "%q; a build goes where it is served: use job.requires", forgeyard.Clip(f.Node, MaxName))
	}
	if !doc.Has("job") {
		c.add("job", "is missing; a build needs one")
		return c.faults
	}
	j := f.Job
	if want := harnessSandbox(f.Harness); j.Sandbox != "" && want != "" && j.Sandbox != want {
		c.add("harness", "%q runs a job with sandbox %s; job.sandbox says %s", f.Harness, want, j.Sandbox)
	}
	if j.Interruption != nil && j.Resume.Interruption != nil {
		c.add("job.resume.interruption", "is given as job.interruption too; one of them is needed")
	}
	c.zeros(f, doc)
	c.consistency(j.Resume)
	s := f.spec()
	for i, in := range j.Inputs {
		at := fmt.Sprintf("job.inputs[%d]", i)
		if in.sources() != 1 {
			c.add(at, "exactly one of from, digest and named is needed")
		}
		c.text(at+".from", in.From, MaxPath)
		if in.Named != "" {
			c.name(at+".named", in.Named)
		}
		s.Inputs = append(s.Inputs, Input{Path: tidy(in.Path), Tree: in.Tree || in.Digest.IsZero(), Digest: forgeyard.Digest{1}})
	}
	for _, x := range s.faults() {
		// The title, the model and the guidance are the run's and were checked there.
		if x.path != "title" && x.path != "model" && x.path != "guidance" {
			c.add(jobPath(x.path), "%s", x.text)
		}
	}
	return c.faults
}

// sources counts where an input is said to come from.
func (in FileInput) sources() (n int) {
	for _, given := range []bool{in.From != "", !in.Digest.IsZero(), in.Named != ""} {
		if given {
			n++
		}
	}
	return n
}

// consistency refuses a level that the mode never has: the mode says which one it gives.
func (c *check) consistency(r FileResume) {
	earned := "application"
	if r.Mode == ResumeFramework {
		earned = "framework"
	}
	if r.Consistency != "" && r.Consistency != earned && !(r.Consistency == "framework" && r.Mode == ResumeApplication) {
		c.add("job.resume.minimum_consistency", "mode %s gives %s; it is never %s", r.Mode, earned, r.Consistency)
	}
}

// zeros refuses a zero that is written out where the spec's zero takes the
// default: who writes `run: 0s` means something else.
func (c *check) zeros(f File, doc *strictyaml.Doc) {
	for _, l := range strictyaml.Leaves(f) {
		group, key := path.Split(strings.ReplaceAll(l.Key, ".", "/"))
		switch group {
		case "job/resources/", "job/timeouts/", "job/connectivity/", "job/resume/stop/", "job/resume/checkpoint/":
			if doc.Has(l.Key) && (l.Value == "0" || l.Value == "0s") {
				c.add(l.Key, "%s is no %s; leave the key out for the default", l.Value, key)
			}
		}
	}
}

func jobPath(p string) string {
	if p == "job" {
		return p
	}
	return "job." + p
}

func harnessSandbox(harness string) Sandbox {
	switch harness {
	case HarnessSandbox:
		return SandboxStrict
	case HarnessProcess:
		return SandboxProcess
	}
	return ""
}

// RunSpec is the run that the file asks for.
func (f File) RunSpec() RunSpec {
	return RunSpec{
		Version: f.Version, Kind: f.Kind, Title: f.Title, Guidance: f.Guidance, Harness: f.Harness,
		Model: f.Model, AutoCommit: f.AutoCommit, Inputs: f.Inputs,
	}
}

// Own is the spec of an ingest or a garden run on the given node, complete with defaults.
// Paths must be absolute by now. The error's kind is Invalid.
func (f File) Own(node forgeyard.RunnerID) (Spec, error) {
	if f.Kind == Build {
		return Spec{}, forgeyard.Errorf("spec", forgeyard.Invalid, "a build has a job")
	}
	for key, given := range map[string]bool{"model": f.Model != "", "guidance": f.Guidance != "", "auto_commit: false": !f.AutoCommit} {
		if given {
			return Spec{}, forgeyard.Errorf("spec", forgeyard.Invalid, "%s is for a workload, and a run of kind %s has none", key, f.Kind)
		}
	}
	s := Spec{Kind: f.Kind, Title: f.Title, Ingest: slices.Clone(f.Inputs), Node: node}.Defaulted()
	for i, in := range s.Ingest {
		if in.From != "" && !path.IsAbs(in.From) {
			return Spec{}, forgeyard.Errorf("spec", forgeyard.Invalid, "inputs[%d].from: %q is not absolute", i, forgeyard.Clip(in.From, 80))
		}
	}
	return s, s.Validate()
}

// Spec is the job that the file asks for, complete with defaults. Each input that
// comes from a local path must be among resolved, under the same path, with the
// digest and size it was stored under; one that is given by digest may be, and then
// brings its size. The error's kind is Invalid.
func (f File) Spec(resolved []Input) (Spec, error) {
	if f.Kind != Build {
		return Spec{}, forgeyard.Errorf("spec", forgeyard.Invalid, "a run of kind %s has no job", f.Kind)
	}
	byPath := make(map[string]Input, len(resolved))
	for _, in := range resolved {
		byPath[in.Path] = in
	}
	s := f.spec()
	var c check
	for i, in := range f.Job.Inputs {
		at := fmt.Sprintf("inputs[%d]", i)
		r, ok := byPath[tidy(in.Path)]
		delete(byPath, tidy(in.Path))
		switch {
		case !ok && in.Digest.IsZero():
			c.add(at, "%q was not stored under a digest", in.From+in.Named)
			continue
		case !ok:
			r = Input{Path: tidy(in.Path), Tree: in.Tree, Digest: in.Digest}
		case !in.Digest.IsZero() && (r.Digest != in.Digest || r.Tree != in.Tree):
			c.add(at, "resolved to %s, the file says %s (tree: %v)", r.Digest.Short(), in.Digest.Short(), in.Tree)
		}
		s.Inputs = append(s.Inputs, r)
	}
	for _, p := range slices.Sorted(maps.Keys(byPath)) {
		c.add("inputs", "%q was resolved and the file does not ask for it", p)
	}
	c.faults = append(c.faults, s.faults()...)
	if err := explain("spec", c.faults); err != nil {
		return Spec{}, err
	}
	return s, nil
}

// spec is everything but the inputs.
func (f File) spec() Spec {
	j := f.Job
	s := Spec{
		Version:      SpecVersion,
		Title:        f.Title,
		Model:        f.Model,
		Guidance:     f.Guidance,
		NoCommit:     !f.AutoCommit,
		Env:          maps.Clone(j.Env),
		Resources:    Resources{int64(j.Resources.CPU), int64(j.Resources.Memory), int64(j.Resources.Disk), j.Resources.Pids},
		Timeouts:     Timeouts(j.Timeouts),
		Sandbox:      j.Sandbox,
		Network:      j.Network,
		Requires:     Requires{j.Requires.OS, j.Requires.Arch, maps.Clone(j.Requires.Labels), slices.Clone(j.Requires.Toolchains), j.Requires.Pool, slices.Clone(j.Requires.Trust)},
		Connectivity: Connectivity{Policy: j.Connectivity.Policy, For: j.Connectivity.For, NoReplace: !j.Connectivity.Replace},
		Durability:   j.Durability,
		Effects:      j.Effects.Word,
		EffectRules:  j.Effects.rules(),
		Stop:         Stop(j.Resume.Stop),
		Resume:       j.Resume.contract(),
	}
	if s.Sandbox == "" {
		s.Sandbox = harnessSandbox(f.Harness)
	}
	for _, st := range j.Steps {
		s.Steps = append(s.Steps, Step{Name: st.Name, Run: slices.Clone(st.Run), Sh: st.Sh, Dir: tidy(st.Dir), Env: maps.Clone(st.Env), Resume: st.Resume, Outputs: tidied(st.Outputs), Reconcile: slices.Clone(st.Reconcile)})
	}
	for _, o := range j.Outputs {
		s.Outputs = append(s.Outputs, OutputDecl{Path: tidy(o.Path), Optional: o.Optional})
	}
	for _, d := range j.OnFailure.Outputs {
		s.OnFailure = append(s.OnFailure, DiagnosticDecl{Path: tidy(d.Path), Sensitive: d.Sensitive})
	}
	for _, r := range j.Secrets {
		s.Secrets = append(s.Secrets, SecretRef(r))
	}
	for _, d := range j.Devices {
		set(&d.As, d.Kind)
		s.Devices = append(s.Devices, DeviceRequest{Kind: d.Kind, Labels: maps.Clone(d.Labels), As: d.As})
	}
	s.interruption(j)
	return s.Defaulted()
}

func (s *Spec) interruption(j FileJob) {
	i := j.Interruption
	if i == nil {
		i = j.Resume.Interruption
	}
	if i == nil {
		return
	}
	s.Interruption = Interruption{
		Tolerance: i.Tolerance, Budget: DefaultBudget, Retry: i.Retry,
		StableAfter: i.StableAfter, ResumeFailures: i.ResumeFailures, Priority: i.Priority, FinishWithin: i.FinishWithin,
	}
	if i.Tolerance == "" {
		s.Interruption.Tolerance = ToleranceRestartable
		if s.Resume.TakesCheckpoints() {
			s.Interruption.Tolerance = ToleranceCheckpointable
		}
	}
	switch {
	case i.Budget != nil:
		s.Interruption.Budget = *i.Budget
	case i.Tolerance == ToleranceNone:
		s.Interruption.Budget = 0
	}
}

func (r FileResume) contract() Resume {
	c := r.Checkpoint
	out := Resume{Mode: r.Mode, FormatName: r.Format.Name, FormatVersion: r.Format.Version, Checkpoint: CheckpointDecl{
		ExitCode: c.ExitCode, RejectCode: c.RejectCode, Interval: c.Interval, Window: c.Window,
		MaxBytes: int64(c.MaxBytes), Keep: c.Keep, Signal: c.Signal, Results: c.Results, OnCancel: c.OnCancel, NoneOnNotice: c.OnNotice != nil && !*c.OnNotice,
		MaxAge: c.MaxAge, KeepOnFailure: c.KeepOnFailure,
	}, Isolation: r.Isolation, Profile: Profile(r.CompatProfile), Compatibility: r.Compatibility.declared(), Sensitivity: r.Sensitivity}
	if out.Profile == "native" {
		out.Profile = ""
	}
	for _, f := range c.Files {
		out.Checkpoint.Files = append(out.Checkpoint.Files, tidy(f))
	}
	return out
}

func tidied(paths []string) (out []string) {
	for _, p := range paths {
		out = append(out, tidy(p))
	}
	return out
}

// tidy writes a path as the spec has it: `state/` and `./state` are `state`. A
// path that leaves its root keeps its `..`, and is refused later.
func tidy(p string) string {
	if p == "" || strings.Contains(p, "..") {
		return p
	}
	return path.Clean(p)
}
