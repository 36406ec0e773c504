package job

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

var rewrite = flag.Bool("rewrite-golden", false, "write the golden spec anew; only for a new version of the format")

func validSpec() Spec {
	return Spec{
		Steps:   []Step{{Name: "a", Run: []string{"make"}, Env: map[string]string{"B": "2", "A": "1"}}},
		Inputs:  []Input{{Path: "source", Tree: true, Digest: forgeyard.Digest{9}, Size: 10}},
		Outputs: []OutputDecl{{Path: "out/x", Optional: true}},
		Env:     map[string]string{"Z": "1", "A": "2"},
		Devices: []DeviceRequest{{Kind: "serial", As: "dut", Labels: map[string]string{"board": "rev4"}}},
		Resume:  Resume{Mode: ResumeApplication, Checkpoint: CheckpointDecl{Files: []string{"state"}}},
	}.Defaulted()
}

// TestGoldenSpec: bytes that an earlier build wrote still decode, and to the same bytes.
func TestGoldenSpec(t *testing.T) {
	const file = "testdata/spec-v1.cbor.hex"
	got := hex.EncodeToString(validSpec().Canonical()) + "\n"
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Fatalf("the encoding of specs changed, and with it the name of every spec:\n%s%s", got, want)
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(want)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := DecodeSpec(b)
	if err != nil || !bytes.Equal(s.Canonical(), b) {
		t.Fatal(err)
	}
}

// TestCanonicalDoesNotDependOnHowItWasMade: nil and empty are one (RA-002, 07§228).
func TestCanonicalDoesNotDependOnHowItWasMade(t *testing.T) {
	a, b := validSpec(), validSpec()
	b.Secrets, b.Requires.Labels, b.Requires.Toolchains, b.Steps[0].Sh = []SecretRef{}, map[string]string{}, []string{}, ""
	b.Env = map[string]string{"A": "2", "Z": "1"}
	if !bytes.Equal(a.Canonical(), b.Canonical()) {
		t.Fatal("two encodings of one spec")
	}
}

// TestDecodeSpecRefuses: RA-165, RA-166, RS-030 and RS-031: malformed work is an error, never a guess.
func TestDecodeSpecRefuses(t *testing.T) {
	good := validSpec().Canonical()
	broken := validSpec()
	broken.Steps = nil
	extra := append(bytes.Clone(good), 0)
	for name, c := range map[string]struct {
		in   []byte
		kind forgeyard.Kind
	}{
		"empty":          {nil, forgeyard.Invalid},
		"truncated":      {good[:len(good)-1], forgeyard.Invalid},
		"trailing":       {extra, forgeyard.Invalid},
		"not a map":      {cborx.Marshal([]int{1}), forgeyard.Invalid},
		"unknown key":    {cborx.Marshal(map[int]int{1: 1, 99: 1}), forgeyard.Invalid},
		"no steps":       {broken.Canonical(), forgeyard.Invalid},
		"too large":      {make([]byte, MaxSpecBytes+1), forgeyard.Limit},
		"not shortest":   {append([]byte{0xb2, 0x18, 0x01}, good[2:]...), forgeyard.Invalid},
		"empty instance": {cborx.Marshal(Spec{}), forgeyard.Invalid},
	} {
		if _, err := DecodeSpec(c.in); forgeyard.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestValidateRefusesWhatNoFileCanSay: a spec may also come from a program. The grace that a
// job asks for itself has a bound too (CK-129). What would hold the work is one of the sandboxes that
// there are; nothing else is taken for one (CK-128).
func TestValidateRefusesWhatNoFileCanSay(t *testing.T) {
	if err := validSpec().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(*Spec){
		`spec: title: "a�" is not UTF-8`:                                                            func(s *Spec) { s.Title = "a\xff" },
		`spec: version: 2 is not a version of the spec; allowed: 1`:                                 func(s *Spec) { s.Version = 2 },
		`spec: resources.cpu: 0 is not in [1, 4096000]`:                                             func(s *Spec) { s.Resources.MilliCPU = 0 },
		`spec: resources.disk: -1 is not in [1048576, 1125899906842624]`:                            func(s *Spec) { s.Resources.Disk = -1 },
		`spec: timeouts.upload: 0s is not in (0s, 720h0m0s]`:                                        func(s *Spec) { s.Timeouts.Upload = 0 },
		`spec: sandbox: "" is unknown; allowed: strict, process`:                                    func(s *Spec) { s.Sandbox = "" },
		`spec: network: "all" is unknown; allowed: none, site, host`:                                func(s *Spec) { s.Network = "all" },
		`spec: inputs[0].digest: is missing`:                                                        func(s *Spec) { s.Inputs[0].Digest = forgeyard.Digest{} },
		`spec: inputs[0].path: "source" is a directory; a single file needs a name below it`:        func(s *Spec) { s.Inputs[0].Tree = false },
		`spec: outputs[0].path: "out/../y" leaves the workspace; .. is not allowed`:                 func(s *Spec) { s.Outputs[0].Path = "out/../y" },
		`spec: outputs[0].path: "out//y" is not clean; write "out/y"`:                               func(s *Spec) { s.Outputs[0].Path = "out//y" },
		`spec: outputs[0].path: "a\nb" holds control characters`:                                    func(s *Spec) { s.Outputs[0].Path = "a\nb" },
		`spec: steps[0].dir: "/work/build" is absolute; a relative path is expected`:                func(s *Spec) { s.Steps[0].Dir = "/work/build" },
		`spec: steps[0].run[0]: the program's name is empty`:                                        func(s *Spec) { s.Steps[0].Run = []string{""} },
		`spec: steps: 257 are given; at most 256 are allowed`:                                       func(s *Spec) { s.Steps = manySteps(257) },
		`spec: devices[1].as: "d_1" is given twice`:                                                 func(s *Spec) { s.Devices = []DeviceRequest{{"serial", nil, "d_1"}, {"serial", nil, "d-1"}} },
		`spec: env: the variables have 65544 bytes together; at most 65536 are allowed`:             func(s *Spec) { s.Env = map[string]string{"A": strings.Repeat("x", 65533), "LONG": "xx"} },
		`spec: resume.stop.signal: "KILL" is unknown; allowed: TERM, INT, HUP, USR1, USR2`:          func(s *Spec) { s.Stop.Signal = "KILL" },
		`spec: resume.stop.grace: 2h0m0s is not in (0s, 1h0m0s]`:                                    func(s *Spec) { s.Stop.Grace = 2 * time.Hour },
		`spec: interruption.budget: -1 is not in [0, 1000]`:                                         func(s *Spec) { s.Interruption.Budget = -1 },
		`spec: resume.checkpoint.files[0]: "../s" leaves the workspace; .. is not allowed`:          func(s *Spec) { s.Resume.Checkpoint.Files = []string{"../s"} },
		`spec: job: the spec has `:                                                                  func(s *Spec) { s.Steps = largeSteps() },
		`spec: requires.labels.-x: "-x"; allowed: letters, digits and . _ / -`:                      func(s *Spec) { s.Requires.Labels = map[string]string{"-x": ""} },
		`spec: steps[0].sh: has 131072 bytes; at most 131071 are allowed`:                           func(s *Spec) { s.Steps[0] = Step{Name: "a", Sh: strings.Repeat("x", 131072)} },
		`spec: secrets[1].env: "P" is given twice`:                                                  func(s *Spec) { s.Secrets = []SecretRef{{Name: "a", Env: "P"}, {Name: "b", Env: "P"}} },
		`spec: secrets[0].file: "../x"; allowed: letters, digits and . _ -`:                         func(s *Spec) { s.Secrets = []SecretRef{{Name: "a", File: "../x"}} },
		`spec: connectivity.policy: "forever" is unknown; allowed: continuous, grace, offline_auth`: func(s *Spec) { s.Connectivity.Policy = "forever" },
	} {
		s := validSpec()
		edit(&s)
		err := s.Validate()
		if forgeyard.KindOf(err) != forgeyard.Invalid || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("\n got: %v\nwant: %s", err, want)
		}
	}
}

func manySteps(n int) []Step {
	out := make([]Step, n)
	for i := range out {
		out[i].Run = []string{"x"}
	}
	return Spec{Steps: out}.Defaulted().Steps
}

func largeSteps() []Step {
	out := manySteps(3)
	for i := range out {
		out[i].Run = nil
		out[i].Sh = strings.Repeat("x", 100<<10)
	}
	return out
}

func TestFaultsAreBounded(t *testing.T) {
	s := validSpec()
	s.Steps = make([]Step, 100)
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "more") || len(err.Error()) > 4096 {
		t.Fatal(err)
	}
}

// TestDefaultedIsIdempotent also holds the zero budget of a declared tolerance.
func TestDefaultedIsIdempotent(t *testing.T) {
	s := validSpec()
	s.Interruption.Budget = 0
	if !bytes.Equal(s.Canonical(), s.Defaulted().Canonical()) {
		t.Fatal("defaults of a complete spec changed it")
	}
}

// RA-471: whatever bytes come, they are a spec that validates, or an error.
func FuzzDecodeSpec(f *testing.F) {
	f.Add(validSpec().Canonical())
	f.Add(Spec{Steps: []Step{{Sh: "true"}}}.Defaulted().Canonical())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSpec(b)
		if err != nil {
			if k := forgeyard.KindOf(err); k != forgeyard.Invalid && k != forgeyard.Limit {
				t.Fatalf("%v: %v", k, err)
			}
			return
		}
		if !bytes.Equal(s.Canonical(), b) {
			t.Fatal("a spec with two encodings")
		}
	})
}
