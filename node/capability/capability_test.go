//go:build linux

package capability

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// fake is an executor of which only the probe matters.
type fake struct {
	kind job.Sandbox
	fail bool
}

func (f fake) Kind() job.Sandbox { return f.kind }

func (f fake) Probe(context.Context) (job.SandboxCapability, error) {
	if f.fail {
		return job.SandboxCapability{}, forgeyard.Errorf("probe", forgeyard.Unavailable, "does not hold")
	}
	return job.SandboxCapability{Kind: f.kind, Limits: []string{"pids", "memory", "network"}}, nil
}

// RA-099, decision 18: what a machine is, is looked at, RA-499: the same machine has the same
// digest, and what a probe refused is not there (RA-004, RA-487, RA-533).
func TestProbe(t *testing.T) {
	cfg := Config{
		DataDir: t.TempDir(), Labels: map[string]string{"rack": "2", "room": "lab"}, ReserveMilliCPU: 500, ReserveMemory: 1 << 20, HostNetwork: true,
		Executors: []Prober{fake{kind: job.SandboxStrict}, fake{kind: job.SandboxProcess}},
		Devices:   []job.DeviceFact{{ID: "b", Kind: "serial"}, {ID: "a", Kind: "serial"}},
	}
	c, err := Probe(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", c)
	if c.OS != "linux" || c.MilliCPU <= 0 || c.MilliCPU%1000 != 500 || c.Memory <= 0 || c.Disk <= 0 || c.MaxJobs < 1 {
		t.Errorf("%+v", c)
	}
	if len(c.Sandboxes) != 2 || c.Sandboxes[0].Kind != job.SandboxProcess || c.Devices[0].ID != "a" || len(c.Networks) != 2 {
		t.Errorf("%+v", c)
	}
	again, err := Probe(t.Context(), cfg)
	if err != nil || Digest(again) != Digest(c) {
		t.Errorf("%s and %s, %v", Digest(c), Digest(again), err)
	}
	cfg.Executors = []Prober{fake{kind: job.SandboxStrict, fail: true}}
	less, err := Probe(t.Context(), cfg)
	if err != nil || len(less.Sandboxes) != 0 || len(less.Networks) != 1 || Digest(less) == Digest(c) {
		t.Errorf("%+v %v", less, err)
	}
	cfg.DataDir = filepath.Join(cfg.DataDir, "none")
	if _, err := Probe(t.Context(), cfg); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Errorf("%v", err)
	}
}

func TestToolchains(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{"gcc": "echo 13.2.0", "go": "echo go version go1.26.8 linux/amd64", "git": "exit 1", "make": "echo GNU Make 4.3; echo 9.9"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "perl"), nil, 0o644); err != nil { // not executable
		t.Fatal(err)
	}
	want := []job.Toolchain{{Name: "gcc", Version: "13.2.0", Source: "host"}, {Name: "git", Source: "host"}, {Name: "go", Version: "1.26.8", Source: "host"}, {Name: "make", Version: "4.3", Source: "host"}}
	got := toolchains(t.Context(), dir)
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, not %+v", got[i], want[i])
		}
	}
}

func TestMemoryBounds(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	if err := os.WriteFile(own, []byte("4:memory:/a\n3:cpu:/b\n0::/svc\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := boundFiles("/cg", own)
	want := []string{"/cg/memory/a/memory.limit_in_bytes", "/cg/memory/memory.limit_in_bytes", "/cg/svc/memory.max"}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%q", got)
	}
	for text, want := range map[string]int64{"max\n": 0, "1073741824\n": 1 << 30, "": 0} {
		if err := os.WriteFile(own, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if n := bound(own); n != want {
			t.Errorf("%q is %d", text, n)
		}
	}
}
