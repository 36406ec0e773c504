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

// RA-099, RA-102, RA-104, RA-106, RA-107, RA-109, RA-116, decision 18: what a machine is, is looked at by itself at the start; RA-108, RA-499: the same machine has the same
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

// RA-103: the tools that jobs ask for are found where jobs find them, each with the version
// that it says itself, or without one.
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

// The bounds of the control group that the node runs in bind what it offers, in both layouts,
// and so do those of the groups above it: a container of one and a half cores and 1 GiB is no
// larger for the machine around it (RA-100).
func TestBoundsOfTheOwnGroup(t *testing.T) {
	for name, c := range map[string]struct {
		own         string
		files       map[string]string
		memory, cpu int64
	}{
		"none":       {own: "0::/svc\n"},
		"no bound":   {own: "0::/svc\n", files: map[string]string{"svc/memory.max": "max\n", "svc/cpu.max": "max 100000\n"}},
		"version 2":  {"0::/svc\n", map[string]string{"svc/memory.max": "1073741824\n", "svc/cpu.max": "150000 100000\n"}, 1 << 30, 1500},
		"above":      {"0::/a.slice/b.service\n", map[string]string{"a.slice/cpu.max": "50000 100000\n", "a.slice/b.service/cpu.max": "150000 100000\n", "a.slice/memory.max": "4096\n"}, 4096, 500},
		"container":  {"0::/\n", map[string]string{"memory.max": "8192\n", "cpu.max": "10000 20000\n"}, 8192, 500},
		"version 1":  {"4:memory:/a\n3:cpu,cpuacct:/b\n", map[string]string{"memory/a/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.limit_in_bytes": "65536\n", "cpu/b/cpu.cfs_quota_us": "25000\n", "cpu/b/cpu.cfs_period_us": "100000\n"}, 65536, 250},
		"unbound v1": {"3:cpu,cpuacct:/b\n", map[string]string{"cpu/b/cpu.cfs_quota_us": "-1\n", "cpu/b/cpu.cfs_period_us": "100000\n"}, 0, 0},
		"damaged":    {"x\n0::/svc\n", map[string]string{"svc/memory.max": "", "svc/cpu.max": "lots\n"}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, filepath.Join(root, "own"), c.own)
			for f, text := range c.files {
				write(t, filepath.Join(root, f), text)
			}
			g := groupOf(root, filepath.Join(root, "own"))
			if m, n := g.memory(), g.milliCPU(); m != c.memory || n != c.cpu {
				t.Errorf("%d bytes and %d thousandths of a core, not %d and %d", m, n, c.memory, c.cpu)
			}
		})
	}
	if g := groupOf("/", "/nonexistent"); g.memory() != 0 || g.milliCPU() != 0 {
		t.Error("a bound where nothing is said")
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// slow is an executor that fails as often as it says.
type slow struct {
	fake
	misses *int
}

func (s slow) Probe(ctx context.Context) (job.SandboxCapability, error) {
	*s.misses--
	return fake{kind: s.kind, fail: *s.misses >= 0}.Probe(ctx)
}

// An executor that fails once is tried once more where the caller wants it: a machine in heavy use
// is not one without a sandbox.
func TestProbeTriesAgain(t *testing.T) {
	for _, c := range []struct {
		misses      int
		again       bool
		left, works int
	}{{0, true, 0, 1}, {1, true, 0, 1}, {2, true, 1, 0}, {1, false, 1, 0}} {
		left, asked := 0, 0
		got, err := Probe(t.Context(), Config{
			DataDir: t.TempDir(), Path: t.TempDir(), Executors: []Prober{slow{fake{kind: job.SandboxStrict}, &c.misses}},
			Again:   func(k job.Sandbox, err error) bool { asked++; return c.again && k == job.SandboxStrict && err != nil },
			LeftOut: func(job.Sandbox, error) { left++ },
		})
		if err != nil || len(got.Sandboxes) != c.works || left != c.left || asked > 1 {
			t.Errorf("%+v: %d work, %d left out, asked %d times, %v", c, len(got.Sandboxes), left, asked, err)
		}
	}
}
