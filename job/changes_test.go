package job

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/job/machine"
)

// usage are fields that are no facts: they come and go with what jobs brought.
var usage = []string{"WarmToolchains", "Toolchain.Warm"}

// RA-483: which ability of a machine changed is said in words, and none changes unsaid. What is
// merely warm is told to nobody: it changes with every job that brings a toolchain.
func TestChangesOfCapabilities(t *testing.T) {
	old := Capabilities{
		OS: "linux", MilliCPU: 4000, Memory: 4 << 30, Sandboxes: []SandboxCapability{{Kind: SandboxStrict, Limits: []string{"memory", "pids"}}},
		Toolchains: []Toolchain{{Name: "go", Version: "1.26.1", Source: "host"}}, Labels: map[string]string{"bench": "a"},
	}
	now := old
	now.MilliCPU, now.Memory = 2000, 1<<30+1
	now.Sandboxes = []SandboxCapability{{Kind: SandboxStrict, Limits: []string{"memory"}}}
	now.Toolchains = []Toolchain{{Name: "go", Version: "1.26.2", Source: "host"}}
	now.Devices = []DeviceFact{{ID: "dut", Kind: "serial", Labels: map[string]string{"b": "2", "a": "1"}}}
	now.Networks = []Network{NetworkNone}
	now.GPUs = []GPU{{Bus: "0000:01:00.0", Vendor: "nvidia", Model: "NVIDIA L4", Driver: "nvidia", Memory: 23034 << 20}, {Bus: "soc", Driver: "v3d"}}
	now.Labels = nil
	want := []string{
		"cpu 2000m, was 4000m", "memory 1073741825 bytes, was 4096 MiB",
		"device dut (serial a=1 b=2) is new",
		"gpu 0000:01:00.0 (nvidia NVIDIA L4 nvidia 23034 MiB) is new", "gpu soc (v3d) is new", "label bench=a is gone", "network none is new",
		"sandbox strict (memory) is new", "sandbox strict (memory pids) is gone",
		"toolchain go 1.26.2 (host) is new", "toolchain go 1.26.1 (host) is gone",
	}
	if got := old.ChangesTo(now); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := old.ChangesTo(old); len(got) != 0 {
		t.Errorf("nothing changed: %q", got)
	}
	for i := range reflect.TypeFor[Capabilities]().NumField() {
		var c Capabilities
		f := reflect.ValueOf(&c).Elem().Field(i)
		some(t, f)
		name := reflect.TypeFor[Capabilities]().Field(i).Name
		was := Capabilities{}
		if name == "Machine" { // said for the first time it is no change
			if got := was.ChangesTo(c); len(got) != 0 {
				t.Errorf("a machine that said nothing of itself before: %q", got)
			}
			was.Machine = &machine.Facts{}
		}
		if got := was.ChangesTo(c); len(got) == 0 != (told(name, 1) == 0) {
			t.Errorf("%s changed: %q", name, got)
		}
		for k := 0; f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct && k < f.Type().Elem().NumField(); k++ {
			one := func() (c Capabilities, e reflect.Value) {
				list := reflect.ValueOf(&c).Elem().Field(i)
				list.Set(reflect.MakeSlice(list.Type(), 1, 1))
				return c, list.Index(0)
			}
			was, _ := one()
			is, e := one()
			some(t, e.Field(k))
			name := e.Type().Name() + "." + e.Type().Field(k).Name
			if got := was.ChangesTo(is); len(got) != told(name, 2) { // it is new, and what was is gone
				t.Errorf("%s changed: %q", name, got)
			}
		}
	}
}

// told is in how many words a field's change is told: not at all when it is usage.
func told(field string, words int) int {
	if slices.Contains(usage, field) {
		return 0
	}
	return words
}

// some puts a value that is not zero into v.
func some(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8:
		v.SetUint(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Array:
		some(t, v.Index(0))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		some(t, v.Index(0))
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		some(t, k)
		some(t, e)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.Struct:
		some(t, v.Field(0))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		some(t, v.Elem())
	default:
		t.Fatalf("a fact of kind %s: teach this test", v.Kind())
	}
}
