package job

import (
	"fmt"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job/machine"
)

// Canonical is the one encoding of the spec. Its digest (cas.Sum) names the
// spec: SpecID (RA-166, 07§228).
func (s Spec) Canonical() []byte { return cborx.Marshal(s) }

// DecodeSpec reads a spec from its canonical bytes and validates it. Bytes that
// Canonical would not have written are refused, so that a spec has one name.
func DecodeSpec(b []byte) (Spec, error) {
	if len(b) > MaxSpecBytes {
		return Spec{}, forgeyard.Errorf("spec", forgeyard.Limit, "%d bytes; at most %d are allowed", len(b), MaxSpecBytes)
	}
	var s Spec
	if err := cborx.UnmarshalCanonical(b, &s); err != nil {
		return Spec{}, forgeyard.E("spec", forgeyard.Invalid, err)
	}
	if err := s.Validate(); err != nil {
		return Spec{}, err
	}
	return s, nil
}

// Validate says everything that is wrong with a complete spec, or nil: a spec in
// the log has no zero that stands for a default (see Defaulted). The error's kind
// is Invalid; keys are named as the job file names them.
func (s Spec) Validate() error { return explain("spec", s.faults()) }

func (s Spec) faults() []fault {
	var c check
	if s.Version != SpecVersion {
		c.add("version", "%d is not a version of the spec; allowed: %d", s.Version, SpecVersion)
	}
	c.text("title", s.Title, MaxTitle)
	c.text("model", s.Model, MaxValue)
	c.text("guidance", s.Guidance, MaxGuidance)
	c.own(s)
	if !s.Own() {
		c.steps(s.Steps)
	}
	c.inputs(s.Inputs, s.Sandbox)
	c.outputs(s.Outputs)
	c.onFailure(s.OnFailure)
	c.env("env", s.Env)
	c.secrets(s)
	c.resources(s)
	c.requires(s.Requires)
	c.devices(s.Devices)
	c.policies(s)
	c.resume(s)
	if len(c.faults) == 0 {
		if n := len(s.Canonical()); n > MaxSpecBytes {
			c.add("job", "the spec has %d bytes; at most %d are allowed: put large scripts into an input", n, MaxSpecBytes)
		}
	}
	return c.faults
}

// own checks a spec that the node's own program carries out: it has nothing of a workload.
func (c *check) own(s Spec) {
	switch s.Kind {
	case "":
		if len(s.Ingest) > 0 || s.Node != "" {
			c.add("node", "a build has no node and no run inputs of its own")
		}
		return
	case Ingest:
		c.faults = append(c.faults, RunSpec{Version: SpecVersion, Kind: Ingest, Inputs: s.Ingest}.faults()...)
	case Garden:
		if len(s.Ingest) > 0 {
			c.add("inputs", "a garden has no run inputs, %d are given", len(s.Ingest))
		}
	default:
		c.add("kind", "%q has no spec of its own; allowed: ingest, garden", forgeyard.Clip(string(s.Kind), MaxName))
	}
	c.name("node", string(s.Node)) // whether it is a member's id, the site knows
	if s.Sandbox != SandboxOwn || s.Network != NetworkNone || s.Effects != EffectsNone || !s.EffectRules.IsZero() || s.Resume.Mode != ResumeNone || s.NoCommit {
		c.add("kind", "a run of kind %s has no sandbox, network, effects or checkpoints", s.Kind)
	}
	if n := len(s.Steps) + len(s.Inputs) + len(s.Outputs) + len(s.Env) + len(s.Secrets) + len(s.Devices) + len(s.OnFailure); n > 0 {
		c.add("kind", "a run of kind %s has no steps, inputs, outputs, variables, secrets, devices or diagnostics; %d are given", s.Kind, n)
	}
}

func (c *check) steps(steps []Step) {
	if len(steps) == 0 {
		c.add("steps", "at least one step is needed")
	}
	c.count("steps", len(steps), MaxSteps)
	seen := map[string]bool{}
	for i, s := range steps {
		at := fmt.Sprintf("steps[%d]", i)
		c.name(at+".name", s.Name)
		c.unique(at+".name", s.Name, seen)
		switch {
		case (len(s.Run) > 0) == (s.Sh != ""):
			c.add(at, "exactly one of run and sh is needed")
		case len(s.Run) > 0 && s.Run[0] == "":
			c.add(at+".run[0]", "the program's name is empty")
		}
		c.count(at+".run", len(s.Run), MaxArgv)
		total := 0
		for j, a := range s.Run {
			c.text(fmt.Sprintf("%s.run[%d]", at, j), a, MaxStepBytes-1)
			total += len(a)
		}
		if total > MaxStepBytes {
			c.add(at+".run", "the arguments have %d bytes together; at most %d are allowed", total, MaxStepBytes)
		}
		c.text(at+".sh", s.Sh, MaxStepBytes-1)
		if s.Dir != "" {
			c.rooted(at+".dir", s.Dir)
		}
		c.env(at+".env", s.Env)
	}
}

func (c *check) inputs(ins []Input, sandbox Sandbox) {
	c.count("inputs", len(ins), MaxInputs)
	seen := map[string]bool{}
	for i, in := range ins {
		at := fmt.Sprintf("inputs[%d]", i)
		c.rooted(at+".path", in.Path, ToolchainsDir)
		c.unique(at+".path", in.Path, seen)
		if in.Digest.IsZero() {
			c.add(at+".digest", "is missing")
		}
		c.between(at+".size", in.Size, 0, MaxBytes)
		c.toolchain(at, in, sandbox)
		if !in.Tree && (in.Path == "source" || in.Path == "build") {
			c.add(at+".path", "%q is a directory; a single file needs a name below it", in.Path)
		}
		for j, other := range ins {
			if i != j && strings.HasPrefix(in.Path, other.Path+"/") {
				c.add(at+".path", "%q lies inside the input %q", in.Path, other.Path)
			}
		}
	}
}

func (c *check) outputs(outs []OutputDecl) {
	c.count("outputs", len(outs), MaxOutputs)
	seen := map[string]bool{}
	for i, o := range outs {
		at := fmt.Sprintf("outputs[%d].path", i)
		c.below(at, o.Path)
		c.unique(at, o.Path, seen)
	}
}

func (c *check) onFailure(decls []DiagnosticDecl) {
	c.count("on_failure.outputs", len(decls), MaxDiagnostics)
	seen := map[string]bool{}
	for i, d := range decls {
		at := fmt.Sprintf("on_failure.outputs[%d].path", i)
		c.below(at, d.Path)
		c.unique(at, d.Path, seen)
		for _, other := range decls {
			if strings.HasPrefix(d.Path, other.Path+"/") {
				c.add(at, "%q lies inside %q, which is captured as a whole", forgeyard.Clip(d.Path, 80), forgeyard.Clip(other.Path, 80))
			}
		}
	}
}

// CheckSecretName says why a text cannot name a secret, or nil.
func CheckSecretName(s string) error { return pattern(s, labelRule, "letters, digits and . _ / -") }

func (c *check) secrets(s Spec) {
	c.count("secrets", len(s.Secrets), MaxSecrets)
	seen := map[string]bool{}
	for i, r := range s.Secrets {
		at := fmt.Sprintf("secrets[%d]", i)
		c.err(at+".name", CheckSecretName(r.Name))
		switch {
		case (r.Env == "") == (r.File == ""):
			c.add(at, "exactly one of env and file is needed")
		case r.Env != "":
			c.err(at+".env", CheckEnvName(r.Env))
			c.unique(at+".env", r.Env, seen)
			if _, ok := s.Env[r.Env]; ok {
				c.add(at+".env", "%q is also in env", r.Env)
			}
		default:
			c.err(at+".file", pattern(r.File, fileRule, "letters, digits and . _ -"))
			c.unique(at+".file", "file "+r.File, seen)
		}
	}
}

func (c *check) resources(s Spec) {
	c.between("resources.cpu", s.Resources.MilliCPU, 1, MaxMilliCPU)
	c.between("resources.memory", s.Resources.Memory, MinMemory, MaxBytes)
	c.between("resources.disk", s.Resources.Disk, MinDisk, MaxBytes)
	c.between("resources.pids", s.Resources.Pids, 1, MaxPids)
	c.span("timeouts.prepare", s.Timeouts.Prepare, MaxTimeout)
	c.span("timeouts.run", s.Timeouts.Run, MaxTimeout)
	c.span("timeouts.upload", s.Timeouts.Upload, MaxTimeout)
}

func (c *check) requires(r Requires) {
	c.oneOf("requires.os", r.OS, "", "linux", "darwin", "windows")
	c.oneOf("requires.arch", r.Arch, "", "amd64", "arm64")
	c.labels("requires.labels", r.Labels)
	c.count("requires.toolchains", len(r.Toolchains), MaxLabels)
	seen := map[string]bool{}
	for i, t := range r.Toolchains {
		at := fmt.Sprintf("requires.toolchains[%d]", i)
		c.name(at, t)
		c.unique(at, t, seen)
	}
	if r.Pool != "" {
		c.name("requires.pool", r.Pool)
	}
	c.trust("requires.trust", r.Trust)
}

func (c *check) devices(reqs []DeviceRequest) {
	c.count("devices", len(reqs), MaxDevices)
	seen := map[string]bool{}
	for i, d := range reqs {
		at := fmt.Sprintf("devices[%d]", i)
		c.word(at+".kind", d.Kind)
		c.labels(at+".labels", d.Labels)
		c.word(at+".as", d.As)
		// FORGEYARD_DEVICE_<AS> cannot tell - from _.
		c.unique(at+".as", strings.ReplaceAll(d.As, "-", "_"), seen)
	}
}

func (c *check) policies(s Spec) {
	if !s.Own() {
		c.oneOf("sandbox", string(s.Sandbox), string(SandboxStrict), string(SandboxProcess))
	}
	c.oneOf("network", string(s.Network), string(NetworkNone), string(NetworkSite), string(NetworkHost))
	c.oneOf("durability", string(s.Durability), string(Ephemeral), string(DurSite), string(DurCentral))
	c.effects(s)
	c.oneOf("connectivity.policy", string(s.Connectivity.Policy), string(Continuous), string(Grace), string(OfflineAuthorized))
	switch s.Connectivity.Policy {
	case Continuous:
		if s.Connectivity.For != 0 {
			c.add("connectivity.for", "%v; continuous has no length", s.Connectivity.For)
		}
	case Grace:
		if s.Connectivity.For != 0 { // zero is the site's own length
			c.span("connectivity.for", s.Connectivity.For, MaxOffline)
		}
	case OfflineAuthorized:
		c.span("connectivity.for", s.Connectivity.For, MaxOffline)
	}
}

// exitTempFail is EX_TEMPFAIL: "cannot run now" (FYCP/1 §6).
const exitTempFail = 75

func (c *check) resume(s Spec) {
	r, i := s.Resume, s.Interruption
	c.mode(s)
	c.oneOf("resume.stop.signal", s.Stop.Signal, "TERM", "INT", "HUP", "USR1", "USR2")
	c.span("resume.stop.grace", s.Stop.Grace, MaxGrace)
	c.oneOf("interruption.tolerance", i.Tolerance, ToleranceNone, ToleranceRestartable, ToleranceCheckpointable)
	c.oneOf("interruption.retry", i.Retry, RetryResumeOrRestart, RetryResumeLatest, RetryResumeOnly, RetryRestart, RetryNever)
	c.between("interruption.budget", int64(i.Budget), 0, MaxBudget)
	c.between("interruption.stable_after", int64(i.StableAfter), 0, MaxBudget)
	c.between("interruption.resume_failures_per_checkpoint", int64(i.ResumeFailures), 0, MaxBudget)
	if i.FinishWithin != 0 {
		c.span("interruption.finish_within", i.FinishWithin, MaxFinishWithin)
	}
	if i.Priority != "" {
		c.oneOf("interruption.priority", string(i.Priority), string(PriorityCritical), string(PriorityHigh), string(PriorityNormal), string(PriorityLow))
	}
	if r.FormatName != "" {
		c.name("resume.format.name", r.FormatName)
	}
	c.between("resume.format.version", int64(r.FormatVersion), 0, 1<<31-1)
	c.conventions(r)
	if r.Speaks() {
		c.checkpoint(r.Checkpoint)
	} else if !r.Checkpoint.isZero() {
		c.add("resume.checkpoint", "is for the modes application and framework only; the mode is %s", r.Mode)
	}
	if r.TakesCheckpoints() {
		return
	}
	mode := string(r.Mode)
	if r.Isolation == Ordered {
		mode += " with isolation ordered, which begins anew"
	}
	if i.Tolerance == ToleranceCheckpointable {
		c.add("interruption.tolerance", "checkpointable needs resume.mode application or framework; it is %s", mode)
	}
	if i.ResumesOnly() {
		c.add("interruption.retry", i.Retry+" needs resume.mode application or framework; it is %s", mode)
	}
}

// refusedModes are those that the protocol names and this version does not do: what is refused
// is never faked (69§19–21).
var refusedModes = map[ResumeMode]string{
	"filesystem-snapshot": "files as they lie when a job is stopped are no state that it promises to go on from, and no runner of this version has an adapter that is declared to take them: name the files in resume.checkpoint.files and use mode application, or restart-stage",
	"vm-snapshot":         "it holds all that a job has in memory, and needs the site's policy and a hypervisor's adapter, which no runner of this version has: use mode application",
	"custom":              "no runner of this version runs an adapter command: let the job's own command call `fyjob ckpt` around its program, with mode application",
}

// mode checks how the job goes on, and who may see what it writes for that.
func (c *check) mode(s Spec) {
	r := s.Resume
	why, refused := refusedModes[r.Mode]
	switch {
	case r.Mode == "vm-snapshot" && len(s.Secrets) > 0:
		c.add("resume.mode", "vm-snapshot is never taken of a job with secrets: they would be in it; use mode application, which leaves them out")
	case refused:
		c.add("resume.mode", "%s is not done: %s", r.Mode, why)
	default:
		c.oneOf("resume.mode", string(r.Mode), string(ResumeNone), string(ResumeRestartStage), string(ResumeApplication), string(ResumeFramework))
	}
	if r.Sensitivity != "" {
		c.oneOf("resume.sensitivity", string(r.Sensitivity), string(SensPublic), string(SensInternal), string(SensConfidential), string(SensRestricted))
	}
	for _, f := range []struct {
		what string
		is   machine.Sameness
	}{{"arch", r.Compatibility.Arch}, {"os", r.Compatibility.OS}, {"baseline", r.Compatibility.Baseline}, {"cpu", r.Compatibility.CPU}, {"device", r.Compatibility.Device}} {
		if f.is != "" {
			c.oneOf("resume.compatibility."+f.what, string(f.is), string(machine.Exact), string(machine.Compatible), string(machine.Any))
		}
	}
	if g := r.Compatibility.GPU; g != "" {
		c.oneOf("resume.compatibility.gpu", string(g), string(machine.Exact), string(machine.Class), string(machine.Compatible), string(machine.Any))
	}
	if !r.TakesCheckpoints() && (!r.Compatibility.IsZero() || r.Sensitivity != "") {
		c.add("resume.compatibility", "compatibility and sensitivity are of checkpoints; the mode %s takes none", r.Mode)
	}
}

// conventions checks what depends on the mode.
func (c *check) conventions(r Resume) {
	if r.Mode == ResumeFramework {
		c.oneOf("resume.isolation", string(r.Isolation), string(Isolated), string(Suite), string(Ordered))
		c.between("resume.checkpoint.results", int64(r.Checkpoint.Results), 1, MaxResults)
		if len(r.Checkpoint.Files) > 0 {
			c.add("resume.checkpoint.files", "are for mode application; in mode framework the cursor is what is kept")
		}
	} else {
		if r.Isolation != "" {
			c.add("resume.isolation", "is for mode framework; the mode is %s", r.Mode)
		}
		if r.Checkpoint.Results != 0 {
			c.add("resume.checkpoint.results", "is for mode framework; the mode is %s", r.Mode)
		}
	}
	switch r.Profile {
	case "":
	case ProfileHTCondor:
		if r.Mode != ResumeApplication || len(r.Checkpoint.Files) == 0 {
			c.add("resume.compat_profile", "htcondor puts the files of resume.checkpoint.files back: it needs them, and mode application")
		}
	case ProfileSlurm:
		if !r.Speaks() {
			c.add("resume.compat_profile", "slurm is for the modes application and framework; the mode is %s", r.Mode)
		}
	default:
		c.add("resume.compat_profile", "%q is not native, htcondor or slurm", forgeyard.Clip(string(r.Profile), 40))
	}
}

func (c *check) checkpoint(d CheckpointDecl) {
	at := "resume.checkpoint."
	c.between(at+"exit_code", int64(d.ExitCode), 2, 125)
	c.between(at+"restore_reject_code", int64(d.RejectCode), 2, 125)
	if d.ExitCode == d.RejectCode {
		c.add(at+"restore_reject_code", "%d is also the exit_code", d.RejectCode)
	}
	if d.ExitCode == exitTempFail || d.RejectCode == exitTempFail {
		c.add(at+"exit_code", "%d means try again later (EX_TEMPFAIL); choose another", exitTempFail)
	}
	c.count(at+"files", len(d.Files), MaxOutputs)
	seen := map[string]bool{}
	for i, f := range d.Files {
		p := fmt.Sprintf("%sfiles[%d]", at, i)
		c.below(p, f)
		c.unique(p, f, seen)
	}
	if d.Interval != 0 {
		c.span(at+"interval", d.Interval, MaxTimeout)
	}
	if d.MaxAge != 0 {
		c.span(at+"max_age", d.MaxAge, MaxTimeout)
	}
	if d.KeepOnFailure != 0 {
		c.span(at+"keep_on_failure", d.KeepOnFailure, MaxTimeout)
	}
	c.span(at+"window", d.Window, MaxGrace)
	c.between(at+"max_bytes", d.MaxBytes, 1, MaxBytes)
	c.between(at+"keep", int64(d.Keep), 1, MaxKeep)
	c.oneOf(at+"signal", d.Signal, "none", "USR1", "USR2", "HUP")
}

func (d CheckpointDecl) isZero() bool {
	return d.ExitCode == 0 && d.RejectCode == 0 && len(d.Files) == 0 && d.Interval == 0 && d.Window == 0 &&
		d.MaxBytes == 0 && d.Keep == 0 && d.Signal == "" && d.MaxAge == 0 && d.KeepOnFailure == 0 && !d.OnCancel && !d.NoneOnNotice && d.Results == 0
}
