//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

func TestLocate(t *testing.T) {
	for _, c := range []struct {
		name, mounts, own string
		v1                map[string]string
		v2                string
	}{
		{"pure v2", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/system.slice/forgeyard.service\n", nil, "/sys/fs/cgroup/system.slice/forgeyard.service"},
		{
			"hybrid", "31 1 0:1 / /cg/memory rw - cgroup cgroup rw,memory\n32 1 0:2 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n33 1 0:3 / /cg/unified rw - cgroup2 cgroup2 rw\n",
			"4:memory:/a\n1:cpu,cpuacct:/b\n0::/c\n", map[string]string{"memory": "/cg/memory/a", "cpu": "/cg/cpu,cpuacct/b"}, "/cg/unified/c",
		},
		{"container", "31 1 0:1 /docker/x /cg/pids rw - cgroup cgroup rw,pids\n", "4:pids:/docker/x/y\n", map[string]string{"pids": "/cg/pids/y"}, ""},
		{"escaped", "31 1 0:1 / /c\\040g rw - cgroup2 cgroup2 rw\n", "0::/\n", nil, "/c g"},
		{"none", "1 1 8:1 / / rw - ext4 /dev/sda rw\n", "", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v1, v2 := locate([]byte(c.mounts), []byte(c.own))
			if !maps.Equal(v1, c.v1) || v2 != c.v2 {
				t.Errorf("%v %q", v1, v2)
			}
		})
	}
}

// A pure version 2 tree, played by plain files: what is written where.
func TestDetectV2PassesControllersDown(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "cg", "svc")
	if err := os.MkdirAll(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		filepath.Join(own, "cgroup.controllers"): "cpu io memory pids\n",
		filepath.Join(dir, "mi"):                 "30 20 0:26 / " + filepath.Join(dir, "cg") + " rw - cgroup2 cgroup2 rw\n",
		filepath.Join(dir, "own"):                "0::/svc\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h, err := Detect(Options{MountInfo: filepath.Join(dir, "mi"), Own: filepath.Join(dir, "own")})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Enforces(); len(got) != 3 {
		t.Errorf("enforces %v (%s)", got, h.Describe())
	}
	is := func(want string, at ...string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(append([]string{own, "forgeyard"}, at...)...))
		if err != nil || string(b) != want {
			t.Errorf("%v has %q, want %q: %v", at, b, want, err)
		}
	}
	is("+memory +pids +cpu", "cgroup.subtree_control")
	// What an attempt asks for holds for its whole tree, which ends as one when it runs out of
	// memory; all of them together stand behind the daemon, for cores and for disks.
	if _, err := h.Create("a-1", executor.Limits{MilliCPU: 1500, Memory: 64 << 20, Pids: 32}); err != nil {
		t.Fatal(err)
	}
	is("67108864", "a-1", "memory.max")
	is("1", "a-1", "memory.oom.group")
	is("32", "a-1", "pids.max")
	is("150000 100000", "a-1", "cpu.max")
	is("25", "cpu.weight")
	is("default 25", "io.weight")
}

// The same in version 1, where each controller has a tree of its own.
func TestLimitsV1(t *testing.T) {
	dir := t.TempDir()
	mounts, own := "", ""
	for i, c := range []string{"memory", "pids", "cpu,cpuacct", "freezer"} {
		if err := os.MkdirAll(filepath.Join(dir, c, "svc"), 0o755); err != nil {
			t.Fatal(err)
		}
		mounts += fmt.Sprintf("%d 1 0:%d / %s rw - cgroup cgroup rw,%s\n", 30+i, i, filepath.Join(dir, c), c)
		own += fmt.Sprintf("%d:%s:/svc\n", i+1, c)
	}
	swap := filepath.Join(dir, "memory", "svc", "forgeyard", "a-1", "memory.memsw.limit_in_bytes") // a kernel that counts swap
	if err := errors.Join(os.MkdirAll(filepath.Dir(swap), 0o755), os.WriteFile(swap, nil, 0o644),
		os.WriteFile(filepath.Join(dir, "mi"), []byte(mounts), 0o644), os.WriteFile(filepath.Join(dir, "own"), []byte(own), 0o644)); err != nil {
		t.Fatal(err)
	}
	h, err := Detect(Options{MountInfo: filepath.Join(dir, "mi"), Own: filepath.Join(dir, "own")})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Enforces(); len(got) != 3 {
		t.Errorf("enforces %v (%s)", got, h.Describe())
	}
	if _, err := h.Create("a-1", executor.Limits{MilliCPU: 1500, Memory: 64 << 20, Pids: 32}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create("a-2", executor.Limits{MilliCPU: 1}); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		"memory/svc/forgeyard/a-1/memory.limit_in_bytes": "67108864", "memory/svc/forgeyard/a-1/memory.memsw.limit_in_bytes": "67108864",
		"pids/svc/forgeyard/a-1/pids.max":                 "32",
		"cpu,cpuacct/svc/forgeyard/a-1/cpu.cfs_quota_us":  "150000",
		"cpu,cpuacct/svc/forgeyard/a-1/cpu.cfs_period_us": "100000",
		"cpu,cpuacct/svc/forgeyard/a-2/cpu.cfs_quota_us":  "1000", // the kernel takes no less
		"cpu,cpuacct/svc/forgeyard/cpu.shares":            "256",
	} {
		if b, err := os.ReadFile(filepath.Join(dir, at)); err != nil || string(b) != want {
			t.Errorf("%s has %q, want %q: %v", at, b, want, err)
		}
	}
	// What nobody asked for is not bounded, and where swap is not counted nothing is said of it.
	for _, at := range []string{"memory/svc/forgeyard/a-2/memory.limit_in_bytes", "memory/svc/forgeyard/a-2/memory.memsw.limit_in_bytes", "pids/svc/forgeyard/a-2/pids.max"} {
		if _, err := os.Stat(filepath.Join(dir, at)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", at, err)
		}
	}
}

func TestNothingHere(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Detect(Options{MountInfo: empty, Own: empty}); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Errorf("%v", err)
	}
	if _, err := Open([]string{t.TempDir()}); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("a folder outside the cgroup file systems was taken: %v", err)
	}
}
