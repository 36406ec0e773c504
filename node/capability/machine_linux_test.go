package capability

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node/job/machine"
)

// CK-109: what a state may depend on is read from the machine, and two looks see the same.
func TestMachineAt(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := machineAt(root); !reflect.DeepEqual(got, &machine.Facts{}) {
		t.Errorf("of an empty machine: %+v", got)
	}
	write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme avx2 avx aes avx512f nopl\n\nprocessor\t: 1\nflags\t\t: fpu avx\n")
	write("lib/ld-musl-x86_64.so.1", "")
	if got, want := machineAt(root), (&machine.Facts{Libc: "musl", CPU: []string{"aes", "avx", "avx2", "avx512f"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	write("lib/x86_64-linux-gnu/libc.so.6", "\x7fELF…GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\nCopyright")
	if got := machineAt(root).Libc; got != "glibc 2.36" {
		t.Errorf("%q", got)
	}
	for release, want := range map[string]string{"6.1.0-13-amd64": "6.1", "5.10": "5.10", "6.12-rc1": "6.12", "odd": "odd"} {
		if got := twoNumbers(release); got != want {
			t.Errorf("%s: %s, want %s", release, got, want)
		}
	}
	if a, b := machineFacts(), machineFacts(); !reflect.DeepEqual(a, b) || a.Kernel == "" {
		t.Errorf("this machine: %+v, then %+v", a, b)
	}
}
