package job

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/job/machine"
)

// What a job sees of its machine is what it asked for, and no more.
func TestMachineFor(t *testing.T) {
	c := Capabilities{
		Machine:    &machine.Facts{Kernel: "6.1", Libc: "glibc 2.36", CPU: []string{"avx"}},
		GPUs:       []GPU{{Vendor: "nvidia", Model: "L4", Driver: "535"}},
		Toolchains: []Toolchain{{Name: "go", Version: "1.26", Source: ToolchainHost}, {Name: "gcc", Version: "12", Source: ToolchainHost}, {Name: "zig", Source: ToolchainStore}},
	}
	got := c.MachineFor(Spec{Requires: Requires{Toolchains: []string{"go", "zig"}}})
	want := &machine.Facts{Kernel: "6.1", Libc: "glibc 2.36", CPU: []string{"avx"}, GPUs: []string{"nvidia L4 535"}, Tools: []string{"go 1.26"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	c.Machine = nil
	if got := c.MachineFor(Spec{}); got != nil {
		t.Errorf("a runner that does not say: %+v", got)
	}
}

// CK-055…062 183 184 185 186 311 331 332 348 380 394: all seven modes have a name. What this version does not do is
// refused by it, with what to do instead; none is taken for another. A whole machine's memory
// is refused for its secrets before anything else. CK-182: nor is what must be encrypted kept
// in the clear.
func TestModesByName(t *testing.T) {
	ok := func(s Spec) Spec {
		s.Steps = []Step{{Name: "s", Run: []string{"true"}}}
		return s.Defaulted()
	}
	secret := []SecretRef{{Name: "pin", Env: "PIN"}}
	for name, c := range map[string]struct {
		spec Spec
		want string
	}{
		"none":              {Spec{Resume: Resume{Mode: ResumeNone}}, ""},
		"restart-stage":     {Spec{Resume: Resume{Mode: ResumeRestartStage}}, ""},
		"application":       {Spec{Resume: Resume{Mode: ResumeApplication}}, ""},
		"files":             {Spec{Resume: Resume{Mode: "filesystem-snapshot"}}, "use mode application"},
		"vm":                {Spec{Resume: Resume{Mode: "vm-snapshot"}}, "needs the site's policy"},
		"vm with a secret":  {Spec{Resume: Resume{Mode: "vm-snapshot"}, Secrets: secret}, "never taken of a job with secrets"},
		"custom":            {Spec{Resume: Resume{Mode: "custom"}}, "fyjob ckpt"},
		"unheard of":        {Spec{Resume: Resume{Mode: "magic"}}, "magic"},
		"confidential":      {Spec{Resume: Resume{Mode: ResumeApplication, Sensitivity: SensConfidential}}, ""},
		"restricted":        {Spec{Resume: Resume{Mode: ResumeApplication, Sensitivity: SensRestricted}}, ""},
		"top secret":        {Spec{Resume: Resume{Mode: ResumeApplication, Sensitivity: "top-secret"}}, "resume.sensitivity"},
		"of no checkpoints": {Spec{Resume: Resume{Mode: ResumeRestartStage, Sensitivity: SensPublic}}, "takes none"},
		"sameness":          {Spec{Resume: Resume{Mode: ResumeApplication, Compatibility: machine.Compatibility{CPU: "alike"}}}, "resume.compatibility.cpu"},
		"class of a cpu":    {Spec{Resume: Resume{Mode: ResumeApplication, Compatibility: machine.Compatibility{CPU: machine.Class}}}, "resume.compatibility.cpu"},
		"class of a gpu":    {Spec{Resume: Resume{Mode: ResumeApplication, Compatibility: machine.Compatibility{GPU: machine.Class}}}, ""},
	} {
		s := ok(c.spec)
		_, err := DecodeSpec(s.Canonical())
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// CK-373, CK-380, CK-394: nothing but the program's own checkpoints is promised. The fault takes
// a snapshot of a machine, of files or of a process for one of them, and is seen.
func TestNoSnapshotIsTakenForACheckpoint(t *testing.T) {
	const named = "a snapshot is taken for a checkpoint"
	accepted := func(decode func(Spec) error) (out []string) {
		for _, mode := range []ResumeMode{"filesystem-snapshot", "vm-snapshot", "process-snapshot", "custom"} {
			s := Spec{Steps: []Step{{Name: "s", Run: []string{"true"}}}, Resume: Resume{Mode: mode}}.Defaulted()
			if decode(s) == nil {
				out = append(out, string(mode))
			}
		}
		return out
	}
	honest := func(s Spec) error {
		_, err := DecodeSpec(s.Canonical())
		return err
	}
	if got := accepted(honest); got != nil {
		t.Errorf("accepted: %v", got)
	}
	faulty := func(s Spec) error {
		s.Resume.Mode = ResumeApplication
		return honest(s.Defaulted())
	}
	if got := accepted(faulty); len(got) != 4 {
		t.Errorf("%s: only %v is seen", named, got)
	}
}

// CK-064 076 077 078 194: the file says it in the words of the protocol; hardware is short for three.
func TestCompatibilityOfAFile(t *testing.T) {
	f := FileResume{
		Mode: ResumeApplication, Compatibility: FileCompatibility{Arch: machine.Exact, Baseline: machine.Compatible, Hardware: machine.Any, CPU: machine.Compatible},
		Checkpoint: FileCheckpoint{MaxAge: time.Hour, KeepOnFailure: time.Minute}, Sensitivity: SensPublic,
	}
	got := f.contract()
	want := machine.Compatibility{Arch: machine.Exact, Baseline: machine.Compatible, CPU: machine.Compatible, GPU: machine.Any, Device: machine.Any}
	no := false
	f.Checkpoint.OnNotice = &no
	if s := (Spec{Resume: f.contract()}); got.Checkpoint.NoneOnNotice || !s.Resume.Checkpoint.NoneOnNotice {
		t.Errorf("on a notice: %+v, and where it is declined %+v", got.Checkpoint, s.Resume.Checkpoint)
	}
	if s := (Spec{Resume: Resume{Mode: ResumeApplication, Checkpoint: CheckpointDecl{NoneOnNotice: true}}}); !s.SaysLater() {
		t.Error("a program of log format 1 is given what it does not read")
	}
	if got.Compatibility != want || got.Sensitivity != SensPublic || got.Checkpoint.MaxAge != time.Hour || got.Checkpoint.KeepOnFailure != time.Minute || !got.saysLater() {
		t.Errorf("%+v", got)
	}
}
