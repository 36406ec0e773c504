package job

import (
	"strings"
	"testing"
)

func TestLacks(t *testing.T) {
	able := Capabilities{
		OS: "linux", Arch: "amd64", Labels: map[string]string{"bench": "hint"}, Networks: []Network{NetworkNone, NetworkHost},
		Sandboxes: []SandboxCapability{{Kind: SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}}, Toolchains: []Toolchain{{Name: "gcc"}},
	}
	base := Spec{}.Defaulted()
	for name, c := range map[string]struct {
		change func(*Spec, *Capabilities)
		want   string
	}{
		"all of it":     {func(*Spec, *Capabilities) {}, ""},
		"os":            {func(s *Spec, _ *Capabilities) { s.Requires.OS = "windows" }, "os is linux"},
		"arch":          {func(s *Spec, _ *Capabilities) { s.Requires.Arch = "arm64" }, "arch is amd64"},
		"trusted label": {func(s *Spec, _ *Capabilities) { s.Requires.Labels = map[string]string{"bench": "a"} }, ""},
		"label":         {func(s *Spec, _ *Capabilities) { s.Requires.Labels = map[string]string{"bench": "hint"} }, `label bench is "a"`},
		"sandbox":       {func(s *Spec, _ *Capabilities) { s.Sandbox = SandboxProcess }, `cannot enforce sandbox "process"`},
		"limit":         {func(_ *Spec, c *Capabilities) { c.Sandboxes[0].Limits = []string{"cpu"} }, "limit of memory"},
		"network":       {func(s *Spec, _ *Capabilities) { s.Network = NetworkSite }, `network "site"`},
		"network host":  {func(s *Spec, _ *Capabilities) { s.Network = NetworkHost }, ""},
		"toolchain":     {func(s *Spec, _ *Capabilities) { s.Requires.Toolchains = []string{"gcc", "rustc"} }, `toolchain "rustc"`},
		"toolchain gcc": {func(s *Spec, _ *Capabilities) { s.Requires.Toolchains = []string{"gcc"} }, ""},
	} {
		s, k := base, able
		k.Sandboxes = []SandboxCapability{able.Sandboxes[0]}
		c.change(&s, &k)
		got := strings.Join(k.Lacks(s, map[string]string{"bench": "a"}), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
