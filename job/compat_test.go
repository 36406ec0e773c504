package job

import (
	"reflect"
	"testing"

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
