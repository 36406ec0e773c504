package job

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// interfaceExample is the job file that the interface promises.
const interfaceExample = `version: 1
kind: build
title: firmware image
job:
  steps:
    - name: compile
      run: ["make", "-C", "/work/source", "image"]     # argv
  inputs:
    - {path: source, from: ./src}
  outputs:
    - {path: out/image.bin}
  env: {BOARD: rev4}
  secrets: [{name: SIGN_PIN, env: SIGN_PIN}]
  resources: {cpu: 2, memory: 2GiB, disk: 10GiB, pids: 512}
  timeouts: {prepare: 5m, run: 2h, upload: 10m}
  sandbox: strict
  network: none
  requires: {os: linux, arch: amd64, labels: {bench: a}, toolchains: [gcc]}
  devices: [{kind: serial, labels: {board: rev4}, as: dut}]
  connectivity: {policy: offline_authorized, for: 8h}
  durability: site
  effects: none
  interruption: {tolerance: checkpointable, budget: 5, retry: resume-or-restart}
  resume: {mode: application, checkpoint: {exit_code: 85, files: [state/], interval: 10m}}
`

const minimal = "version: 1\nkind: build\njob:\n  steps: [{run: [make]}]\n"

func parse(t *testing.T, text string) File {
	t.Helper()
	f, err := ParseFile("job.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestInterfaceExampleParses(t *testing.T) {
	f := parse(t, interfaceExample)
	if !f.AutoCommit || f.Kind != Build || f.Title != "firmware image" {
		t.Fatalf("%+v", f)
	}
	digest := forgeyard.Digest{7}
	s, err := f.Spec([]Input{{Path: "source", Tree: true, Digest: digest, Size: 99}})
	if err != nil {
		t.Fatal(err)
	}
	// RA-167: a planned job has all these parts.
	switch {
	case len(s.Steps) != 1 || s.Steps[0].Argv()[3] != "image",
		len(s.Inputs) != 1 || s.Inputs[0].Digest != digest || s.Inputs[0].Size != 99,
		s.Outputs[0].Path != "out/image.bin",
		s.Env["BOARD"] != "rev4",
		s.Secrets[0] != SecretRef{Name: "SIGN_PIN", Env: "SIGN_PIN"},
		s.Resources != Resources{2000, 2 << 30, 10 << 30, 512},
		s.Timeouts != Timeouts{5 * time.Minute, 2 * time.Hour, 10 * time.Minute},
		s.Sandbox != SandboxStrict || s.Network != NetworkNone,
		s.Requires.Toolchains[0] != "gcc" || s.Requires.Labels["bench"] != "a",
		s.Devices[0].As != "dut" || s.Devices[0].Labels["board"] != "rev4",
		s.Connectivity != Connectivity{OfflineAuthorized, 8 * time.Hour, false},
		s.Interruption != Interruption{Tolerance: "checkpointable", Budget: 5, Retry: "resume-or-restart"},
		s.Resume.Checkpoint.ExitCode != 85 || s.Resume.Checkpoint.RejectCode != 86 || s.Resume.Checkpoint.Files[0] != "state",
		s.Resume.Checkpoint.Interval != 10*time.Minute:
		t.Fatalf("%+v", s)
	}
	back, err := DecodeSpec(s.Canonical())
	if err != nil || string(back.Canonical()) != string(s.Canonical()) {
		t.Fatalf("RA-166: %v", err)
	}
}

// RA-308: work that asks for nothing gets a short grace when its runner hears nothing.
func TestDefaultsAreWrittenIntoTheSpec(t *testing.T) {
	s, err := parse(t, minimal).Spec(nil)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case s.Resources != Resources{1000, 1 << 30, 10 << 30, 512},
		s.Timeouts != Timeouts{5 * time.Minute, 2 * time.Hour, 10 * time.Minute},
		s.Sandbox != SandboxStrict, s.Network != NetworkNone, s.Durability != DurSite, s.Effects != EffectsNone,
		s.Connectivity != Connectivity{Grace, 0, false},
		s.Stop != Stop{"TERM", 30 * time.Second},
		s.Interruption != Interruption{Tolerance: ToleranceRestartable, Budget: 5, Retry: RetryResumeOrRestart},
		s.Resume.Mode != ResumeNone || !s.Resume.Checkpoint.isZero(),
		s.Steps[0].Name != "step 1":
		t.Fatalf("%+v", s)
	}
	s, err = parse(t, minimal+"  resume: {mode: application}\n").Spec(nil)
	if err != nil || s.Interruption.Tolerance != ToleranceCheckpointable || s.Resume.Checkpoint.ExitCode != 85 || s.Resume.Checkpoint.Keep != 3 {
		t.Fatalf("%v %+v", err, s)
	}
	s, err = parse(t, minimal+"  interruption: {tolerance: none}\n").Spec(nil)
	if err != nil || s.Interruption != (Interruption{Tolerance: ToleranceNone, Retry: RetryNever}) {
		t.Fatalf("%v %+v", err, s.Interruption)
	}
	s, err = parse(t, minimal+"  resume: {interruption: {budget: 0}, stop: {signal: INT, grace: 5s}}\n").Spec(nil)
	if err != nil || s.Interruption.Budget != 0 || s.Stop != (Stop{"INT", 5 * time.Second}) {
		t.Fatalf("%v %+v", err, s)
	}
}

// RA-266, RA-269: a job says what is to be kept of it when it fails, and what of it is
// sensitive; a spec that says nothing has the bytes, and so the name, that it always had.
func TestOnFailure(t *testing.T) {
	s, err := parse(t, minimal+"  on_failure: {outputs: [{path: ./report/}, {path: core, sensitive: true}]}\n").Spec(nil)
	if err != nil || !slices.Equal(s.OnFailure, []DiagnosticDecl{{"report", false}, {"core", true}}) {
		t.Fatalf("%+v %v", s.OnFailure, err)
	}
	back, err := DecodeSpec(s.Canonical())
	if err != nil || !slices.Equal(back.OnFailure, s.OnFailure) {
		t.Fatalf("%+v %v", back.OnFailure, err)
	}
	without, err := parse(t, minimal).Spec(nil)
	s.OnFailure = []DiagnosticDecl{}
	if err != nil || string(without.Canonical()) != string(s.Canonical()) {
		t.Errorf("%x, then %x: %v", without.Canonical(), s.Canonical(), err)
	}
	s.OnFailure = make([]DiagnosticDecl, MaxDiagnostics+1)
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "on_failure.outputs: 33 are given; at most 32 are allowed") {
		t.Errorf("%v", err)
	}
}

// TestRefusedFiles: RS-011 RS-015 RS-016 RS-017 RS-018 RS-022 RS-023, RA-220.
func TestRefusedFiles(t *testing.T) {
	job := func(s string) string { return minimal + "  " + s + "\n" }
	cases := []struct{ row, in, want string }{
		{"RS-022", "version: 2\nkind: garden\n", `job.yaml:1:10: version: 2 is not a version of the job file; allowed: 1`},
		{"RS-022", "kind: garden\n", `job.yaml:1:1: version: is missing`},
		{"RS-011", "version: 1\nkind: deploy\n", `job.yaml:2:7: kind: "deploy" is unknown; allowed: build, ingest, garden`},
		{"RS-016", "version: 1\nkind: ingest\n", `job.yaml:1:1: inputs: an ingest needs at least one input`},
		{"RS-017", minimal + "inputs: [{name: a, from: x}]\n", `job.yaml:5:9: inputs: a build has no run inputs, 1 are given; a job's inputs stand in job.inputs`},
		{"RS-018", "version: 1\nkind: garden\ninputs: [{name: a, from: x}]\n", `job.yaml:3:9: inputs: a garden has no run inputs, 1 are given`},
		{"RS-015", "version: 1\nkind: garden\njob: {steps: []}\n", `job.yaml:3:6: job: a run of kind garden has no job`},
		{"RS-015", "version: 1\nkind: build\n", `job.yaml:1:1: job: is missing; a build needs one`},
		{"RS-023", minimal + "harness: docker\n", `job.yaml:5:10: harness: "docker" is unknown; allowed: sandbox, process`},
		{"RS-023", job("sandbox: strict") + "harness: process\n", `job.yaml:6:10: harness: "process" runs a job with sandbox process; job.sandbox says strict`},
		{"RS-023", "version: 1\nkind: garden\nharness: process\n", `job.yaml:3:10: harness: "process"; only a build chooses an executor`},
		{"", job("resurces: {}"), `job.yaml:5:3: unknown key "resurces" in job; allowed: steps, inputs, outputs, env, secrets, resources, timeouts, sandbox, network, requires, devices, connectivity, durability, effects, interruption, resume, on_failure (did you mean "resources"?)`},
		{"RA-220", job("inputs: [{path: ../etc, from: x}]"), `job.yaml:5:19: job.inputs[0].path: "../etc" leaves the workspace; .. is not allowed`},
		{"RA-220", job("inputs: [{path: source/../../x, from: x}]"), `job.yaml:5:19: job.inputs[0].path: "source/../../x" leaves the workspace; .. is not allowed`},
		{"RA-220 RA-455", job("inputs: [{path: /etc/passwd, from: x}]"), `job.yaml:5:19: job.inputs[0].path: "/etc/passwd" is absolute; a relative path is expected`},
		{"", job("inputs: [{path: lib, from: x}]"), `job.yaml:5:19: job.inputs[0].path: "lib"; a path below source or build is expected`},
		{"", job("inputs: [{path: toolchains/go/bin, from: x}]"), `job.yaml:5:19: job.inputs[0].path: "toolchains/go/bin"; a toolchain is named directly below toolchains`},
		{"", job("inputs: [{path: toolchains, from: x}]"), `job.yaml:5:19: job.inputs[0].path: "toolchains"; a toolchain is named directly below toolchains`},
		{"", job("sandbox: process\n  inputs: [{path: toolchains/go, from: x}]"), `job.yaml:6:19: job.inputs[0].path: "toolchains/go" needs sandbox strict, which shows it read-only; the job has process`},
		{"", job("inputs: [{path: source/a}]"), `job.yaml:5:12: job.inputs[0]: exactly one of from, digest and named is needed`},
		{"", job("inputs: [{path: source, from: x}, {path: source/a, from: y}]"), `job.yaml:5:44: job.inputs[1].path: "source/a" lies inside the input "source"`},
		{"", job("inputs: [{path: source, from: x}, {path: ./source/, from: y}]"), `job.yaml:5:44: job.inputs[1].path: "source" is given twice`},
		{"", job("inputs: [{path: source, digest: b3:zz}]"), `job.yaml:5:35: job.inputs[0].digest: parse: "b3:zz" is not a digest: b3: and 64 lower-case hex digits are expected`},
		{"RA-220", job("outputs: [{path: ../x}]"), `job.yaml:5:20: job.outputs[0].path: "../x" leaves the workspace; .. is not allowed`},
		{"RA-267", job("on_failure: {outputs: [{path: ../x}]}"), `job.yaml:5:33: job.on_failure.outputs[0].path: "../x" leaves the workspace; .. is not allowed`},
		{"", job("on_failure: {outputs: [{path: a}, {path: a/b}]}"), `job.yaml:5:44: job.on_failure.outputs[1].path: "a/b" lies inside "a", which is captured as a whole`},
		{"", job("on_failure: {outputs: [{path: a}, {path: ./a}]}"), `job.yaml:5:44: job.on_failure.outputs[1].path: "a" is given twice`},
		{"", job("on_failure: {inputs: []}"), `job.yaml:5:16: unknown key "inputs" in job.on_failure; allowed: outputs`},
		{"", job("outputs: [{path: .}]"), `job.yaml:5:20: job.outputs[0].path: "." is the whole of /work/build; name a file or directory in it`},
		{"", job(`outputs: [{path: 'a\b'}]`), `job.yaml:5:20: job.outputs[0].path: "a\\b" holds a backslash; separate with /`},
		{"", job("env: {A-B: x}"), `job.yaml:5:14: job.env.A-B: "A-B"; allowed: letters, digits and _, no digit first`},
		{"", job("env: {FORGEYARD_EPOCH: '9'}"), `job.yaml:5:26: job.env.FORGEYARD_EPOCH: "FORGEYARD_EPOCH": names that begin with FORGEYARD_ are the runner's`},
		{"", job(`env: {A: "x\0y"}`), `job.yaml:5:12: job.env.A: "x\x00y" holds a NUL byte`},
		{"", job("secrets: [{name: PIN}]"), `job.yaml:5:13: job.secrets[0]: exactly one of env and file is needed`},
		{"", job("env: {PIN: x}\n  secrets: [{name: PIN, env: PIN}]"), `job.yaml:6:30: job.secrets[0].env: "PIN" is also in env`},
		{"", job("timeouts: {run: 0s}"), `job.yaml:5:19: job.timeouts.run: 0s is no run; leave the key out for the default`},
		{"", job("timeouts: {run: 9000h}"), `job.yaml:5:19: job.timeouts.run: 9000h0m0s is not in (0s, 720h0m0s]`},
		{"", job("resources: {memory: 1KiB}"), `job.yaml:5:23: job.resources.memory: 1024 is not in [1048576, 1125899906842624]`},
		{"", job("devices: [{kind: serial}, {kind: serial}]"), `job.yaml:5:29: job.devices[1].as: "serial" is given twice`},
		{"", job("connectivity: {policy: offline_authorized}"), `job.yaml:5:17: job.connectivity.for: 0s is not in (0s, 2160h0m0s]`},
		{"", job("connectivity: {policy: continuous, for: 1h}"), `job.yaml:5:43: job.connectivity.for: 1h0m0s; continuous has no length`},
		{"", job("resume: {mode: filesystem-snapshot}"), `job.yaml:5:18: job.resume.mode: filesystem-snapshot is not done: files as they lie when a job is stopped are no state that it promises to go on from, and no runner of this version has an adapter that is declared to take them: name the files in resume.checkpoint.files and use mode application, or restart-stage`},
		{"", job("resume: {mode: framework, isolation: loose}"), `job.yaml:5:40: job.resume.isolation: "loose" is unknown; allowed: isolated, suite, ordered`},
		{"", job("resume: {mode: framework, checkpoint: {files: [a]}}"), `job.yaml:5:49: job.resume.checkpoint.files: are for mode application; in mode framework the cursor is what is kept`},
		{"", job("resume: {mode: framework, checkpoint: {results: 100001}}"), `job.yaml:5:51: job.resume.checkpoint.results: 100001 is not in [1, 100000]`},
		{"", job("resume: {mode: application, checkpoint: {results: 5}}"), `job.yaml:5:53: job.resume.checkpoint.results: is for mode framework; the mode is application`},
		{"CK-094", job("resume: {mode: framework, minimum_consistency: application}"), `job.yaml:5:50: job.resume.minimum_consistency: mode framework gives framework; it is never application`},
		{"CK-176", job("resume: {mode: framework, isolation: ordered}\n  interruption: {tolerance: checkpointable}"), `job.yaml:6:29: job.interruption.tolerance: checkpointable needs resume.mode application or framework; it is framework with isolation ordered, which begins anew`},
		{"", job("resume: {mode: none, checkpoint: {exit_code: 85}}"), `job.yaml:5:36: job.resume.checkpoint: is for the modes application and framework only; the mode is none`},
		{"", job("resume: {isolation: suite}"), `job.yaml:5:23: job.resume.isolation: is for mode framework; the mode is none`},
		{"", job("resume: {mode: application, checkpoint: {triggers: [commit]}}"), `job.yaml:5:44: key "triggers" in job.resume.checkpoint is not supported by this version: every trigger that the mode has is on`},
		{"", job("resume: {compat_profile: slurm}"), `job.yaml:5:28: job.resume.compat_profile: slurm is for the modes application and framework; the mode is none`},
		{"", job("resume: {mode: application, compat_profile: htcondor}"), `job.yaml:5:47: job.resume.compat_profile: htcondor puts the files of resume.checkpoint.files back: it needs them, and mode application`},
		{"", job("resume: {mode: application, checkpoint: {exit_code: 86}}"), `job.yaml:5:43: job.resume.checkpoint.restore_reject_code: 86 is also the exit_code`},
		{"", job("resume: {mode: application, checkpoint: {exit_code: 75}}"), `job.yaml:5:55: job.resume.checkpoint.exit_code: 75 means try again later (EX_TEMPFAIL); choose another`},
		{"CK-149", job("interruption: {tolerance: checkpointable}"), `job.yaml:5:29: job.interruption.tolerance: checkpointable needs resume.mode application or framework; it is none`},
		{"", job("interruption: {stable_after: -1}"), `job.yaml:5:32: job.interruption.stable_after: -1 is not in [0, 1000]`},
		{"", job("interruption: {}\n  resume: {interruption: {budget: 1}}"), `job.yaml:6:26: job.resume.interruption: is given as job.interruption too; one of them is needed`},
		{"", "version: 1\nkind: build\njob: {steps: [{name: a, run: [x], sh: y}, {name: a, sh: z}]}\n", "job.yaml:3:15: job.steps[0]: exactly one of run and sh is needed\njob.yaml:3:50: job.steps[1].name: \"a\" is given twice"},
		{"", "version: 1\nkind: build\njob: {steps: []}\n", `job.yaml:3:14: job.steps: at least one step is needed`},
		{"", "version: 1\nkind: build\ntitle: \"" + strings.Repeat("x", 201) + "\"\njob: {steps: [{run: [a]}]}\n", `job.yaml:3:8: title: has 201 bytes; at most 200 are allowed`},
	}
	for _, c := range cases {
		_, err := ParseFile("job.yaml", []byte(c.in), nil)
		if forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s %q: %v", c.row, c.in, err)
			continue
		}
		if err.Error() != c.want {
			t.Errorf("%s %q\n got: %v\nwant: %s", c.row, c.in, err, c.want)
		}
	}
}

// TestIngestTakesOneAndManyInputs: RS-019, RS-021.
func TestIngestTakesOneAndManyInputs(t *testing.T) {
	one := parse(t, "version: 1\nkind: ingest\ntitle: scope\nguidance: keep\nmodel: m1\nauto_commit: false\ninputs: [{name: a, from: /data}]\n").RunSpec()
	if len(one.Inputs) != 1 || one.Inputs[0].From != "/data" || one.AutoCommit || one.Guidance != "keep" || one.Model != "m1" {
		t.Fatalf("%+v", one)
	}
	many := parse(t, "version: 1\nkind: ingest\ninputs:\n  - {name: a, from: x}\n  - {name: b, digest: 'b3:"+strings.Repeat("0a", 32)+"'}\n").RunSpec()
	if len(many.Inputs) != 2 || many.Inputs[1].Digest.IsZero() {
		t.Fatalf("%+v", many)
	}
	if _, err := parse(t, "version: 1\nkind: garden\n").Spec(nil); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatal("a garden run has no job")
	}
}

// TestRunFieldsReachTheJob: RS-023–026, decision 21; none is dropped in silence.
func TestRunFieldsReachTheJob(t *testing.T) {
	s, err := parse(t, minimal+"harness: process\nmodel: m1\nguidance: be careful\nauto_commit: false\n").Spec(nil)
	if err != nil || s.Sandbox != SandboxProcess || s.Model != "m1" || s.Guidance != "be careful" || !s.NoCommit {
		t.Fatalf("%v %+v", err, s)
	}
}

func TestOverrides(t *testing.T) {
	f, err := ParseFile("job.yaml", []byte(interfaceExample), map[string]string{
		"title": "nightly", "job.env.BOARD": "rev5", "job.env.N": "1", "job.timeouts.run": "3h", "job.requires.toolchains": "gcc,go", "job.steps.0.name": "all",
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.Title != "nightly" || f.Job.Env["BOARD"] != "rev5" || f.Job.Env["N"] != "1" || f.Job.Timeouts.Run != 3*time.Hour || len(f.Job.Requires.Toolchains) != 2 || f.Job.Steps[0].Name != "all" {
		t.Fatalf("%+v", f)
	}
	_, err = ParseFile("job.yaml", []byte(interfaceExample), map[string]string{"job.timeouts.run": "0s"})
	if err == nil || err.Error() != `--set job.timeouts.run: job.timeouts.run: 0s is no run; leave the key out for the default` {
		t.Fatal(err)
	}
}

func TestSpecNeedsEveryInput(t *testing.T) {
	f := parse(t, minimal+"  inputs:\n    - {path: source, from: ./src}\n    - {path: build/seed, digest: 'b3:"+strings.Repeat("0a", 32)+"', tree: true}\n")
	d := forgeyard.Digest{1}
	if _, err := f.Spec(nil); err == nil || err.Error() != `spec: inputs[0]: "./src" was not stored under a digest` {
		t.Fatal(err)
	}
	s, err := f.Spec([]Input{{Path: "source", Tree: true, Digest: d, Size: 5}})
	if err != nil || len(s.Inputs) != 2 || !s.Inputs[1].Tree {
		t.Fatalf("%v %+v", err, s.Inputs)
	}
	if _, err := f.Spec([]Input{{Path: "source", Tree: true, Digest: d}, {Path: "build/seed", Digest: d, Tree: true}}); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatal("another digest than the file's")
	}
	if _, err := f.Spec([]Input{{Path: "source", Tree: true, Digest: d}, {Path: "build/x", Digest: d}}); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatal("an input nobody asked for")
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add(interfaceExample, "title", "x")
	f.Add(minimal, "job.env.A", "1")
	f.Add("version: 1\nkind: ingest\ninputs: [{name: a, from: x}]\n", "", "")
	f.Add("version: 1\nkind: garden\n", "kind", "build")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		set := map[string]string{}
		if key != "" {
			set[key] = value
		}
		file, err := ParseFile("f", []byte(text), set)
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.Invalid {
				t.Fatal(err)
			}
			return
		}
		if err := file.RunSpec().Validate(); err != nil {
			t.Fatal(err)
		}
		if file.Kind != Build {
			return
		}
		var in []Input
		for _, i := range file.Job.Inputs {
			if i.Digest.IsZero() {
				in = append(in, Input{Path: tidy(i.Path), Tree: true, Digest: forgeyard.Digest{1}})
			}
		}
		s, err := file.Spec(in)
		if err != nil {
			t.Fatalf("a file that parsed has no spec: %v", err)
		}
		if _, err := DecodeSpec(s.Canonical()); err != nil {
			t.Fatalf("a spec that validated does not decode: %v", err)
		}
	})
}

// CK-058, CK-175: mode framework with what it has when nothing is said, and the profiles.
func TestFrameworkContract(t *testing.T) {
	s, err := parse(t, minimal+"  resume: {mode: framework}\n").Spec(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := s.Resume
	if r.Isolation != Isolated || r.Checkpoint.Results != DefaultResults || r.Checkpoint.Interval != DefaultCursorInterval || r.Checkpoint.ExitCode != 85 || s.Interruption.Tolerance != ToleranceCheckpointable || !r.TakesCheckpoints() || !r.Speaks() || !s.SaysLater() {
		t.Errorf("%+v %+v", r, s.Interruption)
	}
	s, err = parse(t, minimal+"  resume: {mode: framework, isolation: ordered}\n").Spec(nil)
	if err != nil || s.Resume.TakesCheckpoints() || !s.Resume.Speaks() || s.Interruption.Tolerance != ToleranceRestartable {
		t.Errorf("ordered: %v %+v %+v", err, s.Resume, s.Interruption)
	}
	s, err = parse(t, minimal+"  resume: {mode: application, compat_profile: slurm}\n").Spec(nil)
	if err != nil || s.Resume.Profile != ProfileSlurm || s.Resume.Checkpoint.Signal != "USR1" || !s.SaysLater() {
		t.Errorf("slurm: %v %+v", err, s.Resume)
	}
	s, err = parse(t, minimal+"  resume: {mode: application, compat_profile: native}\n").Spec(nil)
	if err != nil || s.Resume.Profile != "" || s.SaysLater() {
		t.Errorf("native: %v %+v", err, s.Resume)
	}
	old, err := parse(t, minimal+"  resume: {mode: application}\n").Spec(nil)
	if err != nil || string(old.Canonical()) != string(s.Canonical()) {
		t.Errorf("the native profile is another spec: %v", err)
	}
}
