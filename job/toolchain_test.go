package job

import (
	"reflect"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// RA-122 to RA-127: what a machine has of its own is told from what comes from the store, and
// what is ready from what can be made. Being ready draws work, and is never required.
func TestToolchains(t *testing.T) {
	one, two := forgeyard.Digest{1}, forgeyard.Digest{2}
	has := Capabilities{
		Sandboxes: []SandboxCapability{{Kind: SandboxStrict}, {Kind: SandboxProcess}}, Networks: []Network{NetworkNone},
		Toolchains:     []Toolchain{{Name: "gcc", Source: ToolchainHost}, {Name: "go", Source: ToolchainStore, Verified: true, Digest: one, Warm: true}},
		WarmToolchains: []forgeyard.Digest{two},
	}
	brings := func(d forgeyard.Digest) Spec {
		return Spec{Sandbox: SandboxStrict, Network: NetworkNone, Inputs: []Input{{Path: "source", Tree: true, Digest: two}, {Path: "toolchains/zig", Tree: true, Digest: d}}}
	}
	byName := Spec{Sandbox: SandboxStrict, Network: NetworkNone, Requires: Requires{Toolchains: []string{"go", "gcc"}}}
	weak := byName
	weak.Sandbox = SandboxProcess
	for name, c := range map[string]struct {
		spec Spec
		warm int
		why  string
	}{
		"by its name":            {spec: byName, warm: 1},
		"brought, listed":        {spec: brings(one), warm: 1},
		"brought, ready":         {spec: brings(two), warm: 1}, // and a source is no toolchain
		"brought, to be made":    {spec: brings(forgeyard.Digest{3})},
		"where nothing keeps it": {spec: weak, warm: 1, why: `toolchain "go" comes from the store, and only sandbox "strict" shows it`},
	} {
		if got := has.Warm(c.spec); got != c.warm {
			t.Errorf("%s: %d are warm, not %d", name, got, c.warm)
		}
		if got := strings.Join(has.Lacks(c.spec, Assignment{}), "; "); got != c.why {
			t.Errorf("%s: %q, want %q", name, got, c.why)
		}
	}
	if !brings(one).SaysLater() || byName.SaysLater() || !has.SaysLater() {
		t.Error("a program of log format 1 reads it, or does not read what it always read")
	}
	if !(Capabilities{WarmToolchains: []forgeyard.Digest{one}}).SaysLater() {
		t.Error("a program of log format 1 reads what is warm")
	}
	if early := has.Early(); early.SaysLater() || !reflect.DeepEqual(early.Toolchains, has.Toolchains[:1]) || len(has.Toolchains) != 2 {
		t.Errorf("for a program of log format 1: %+v", early)
	}
}
