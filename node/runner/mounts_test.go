//go:build linux

package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// 07§176: what is mounted in a workspace when its tree is dead was mounted by something that is
// not dead. The folder is not cleaned through it, which would delete what lies behind; the
// clean-up fails, says where, changes nothing of the result, and goes well once it is gone.
func TestMountThatIsLeft(t *testing.T) {
	needs.Root(t, "mount a small tmpfs")
	b := newBench(t, func(c *Config) {
		c.Workspaces = filepath.Join(c.Workspaces, "with space") // the kernel writes that in its own way
		if err := os.MkdirAll(c.Workspaces, 0o711); err != nil {
			t.Fatal(err)
		}
	})
	s := spec("mkdir kept; echo made > out")
	s.Outputs = []job.OutputDecl{{Path: "out"}}
	s.Sandbox = job.SandboxProcess
	res, _, a := b.run(s)
	if res.Outcome != job.OutcomeDone {
		t.Fatalf("%+v", res)
	}
	place := filepath.Join(a.root, executor.BuildDir, "kept")
	if err := unix.Mount("left", place, "tmpfs", 0, "size=1m"); err != nil {
		needs.Lacking(t, "no tmpfs can be mounted: %v", err)
	}
	mounted := true
	t.Cleanup(func() {
		if mounted {
			_ = unix.Unmount(place, unix.MNT_DETACH)
		}
	})
	behind := filepath.Join(place, "not the job's")
	if err := os.WriteFile(behind, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := a.Finish(false)
	if err == nil || !strings.Contains(err.Error(), place+" is mounted in it") {
		t.Fatalf("cleaned up: %v", err)
	}
	if _, err := os.Stat(behind); err != nil {
		t.Errorf("what lies behind the mount: %v", err)
	}
	if a.result.Outcome != job.OutcomeDone || len(b.r.Active()) != 1 {
		t.Errorf("%+v, %d attempts are held", a.result, len(b.r.Active()))
	}
	if err := unix.Unmount(place, 0); err != nil {
		t.Fatal(err)
	}
	mounted = false
	if err := a.Finish(false); err != nil || len(b.r.Active()) != 0 {
		t.Errorf("once it is gone: %v, %d attempts are held", err, len(b.r.Active()))
	}
	if _, err := os.Stat(a.root); !os.IsNotExist(err) {
		t.Errorf("the workspace: %v", err)
	}
}
