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
	bench := Assignment{Labels: map[string]string{"bench": "a"}}
	held := Assignment{Pool: "release", Trust: []Trust{TrustConfidential}}
	for name, c := range map[string]struct {
		change func(*Spec, *Capabilities)
		want   string
		given  Assignment
	}{
		"all of it":       {func(*Spec, *Capabilities) {}, "", bench},
		"os":              {func(s *Spec, _ *Capabilities) { s.Requires.OS = "windows" }, "os is linux", bench},
		"arch":            {func(s *Spec, _ *Capabilities) { s.Requires.Arch = "arm64" }, "arch is amd64", bench},
		"trusted label":   {func(s *Spec, _ *Capabilities) { s.Requires.Labels = map[string]string{"bench": "a"} }, "", bench},
		"label":           {func(s *Spec, _ *Capabilities) { s.Requires.Labels = map[string]string{"bench": "hint"} }, `label bench is "a"`, bench},
		"sandbox":         {func(s *Spec, _ *Capabilities) { s.Sandbox = SandboxProcess }, `cannot enforce sandbox "process"`, bench},
		"limit":           {func(_ *Spec, c *Capabilities) { c.Sandboxes[0].Limits = []string{"cpu"} }, "limit of memory", bench},
		"network":         {func(s *Spec, _ *Capabilities) { s.Network = NetworkSite }, `network "site"`, bench},
		"network host":    {func(s *Spec, _ *Capabilities) { s.Network = NetworkHost }, "", bench},
		"toolchain":       {func(s *Spec, _ *Capabilities) { s.Requires.Toolchains = []string{"gcc", "rustc"} }, `toolchain "rustc"`, bench},
		"toolchain gcc":   {func(s *Spec, _ *Capabilities) { s.Requires.Toolchains = []string{"gcc"} }, "", bench},
		"pool":            {func(s *Spec, _ *Capabilities) { s.Requires.Pool = "release" }, "", held},
		"no pool":         {func(s *Spec, _ *Capabilities) { s.Requires.Pool = "release" }, `it is in no pool, the job requires pool "release"`, bench},
		"another pool":    {func(s *Spec, _ *Capabilities) { s.Requires.Pool = "slow" }, `it is in pool "release", the job requires pool "slow"`, held},
		"set apart":       {func(*Spec, *Capabilities) {}, `set apart for jobs that ask for pool "release"`, held},
		"of its own node": {func(s *Spec, _ *Capabilities) { s.Kind = Garden }, "", held},
		"trust": {func(s *Spec, _ *Capabilities) {
			s.Requires = Requires{Pool: "release", Trust: []Trust{TrustConfidential}}
		}, "", held},
		"no trust": {func(s *Spec, _ *Capabilities) { s.Requires = Requires{Pool: "release", Trust: []Trust{TrustNetwork}} }, `has not given it trust "trusted-network"`, held},
		// RA-118, RA-119, RA-358, RA-400: what a machine says of itself puts it into no pool and gives it no trust.
		"its own word": {func(s *Spec, c *Capabilities) {
			s.Requires = Requires{Pool: "release", Trust: []Trust{TrustConfidential}}
			c.Labels = map[string]string{"pool": "release", "trust": "confidential", "confidential": "true"}
		}, `it is in no pool, the job requires pool "release"; the site has not given it trust "confidential"`, bench},
	} {
		s, k := base, able
		k.Sandboxes = []SandboxCapability{able.Sandboxes[0]}
		c.change(&s, &k)
		got := strings.Join(k.Lacks(s, c.given), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
