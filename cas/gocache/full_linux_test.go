package gocache

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// C11: in a folder on a full disk a put fails in its answer and the conversation goes on;
// what was put is still there, half an output never, and the same helper keeps outputs
// again once there is room.
func TestFullFolder(t *testing.T) {
	needs.Root(t, "mount a small tmpfs")
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=256k"); err != nil {
		needs.Lacking(t, "no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	g := start(t, Config{Dir: filepath.Join(dir, "cache")})
	if r := g.put("kept", []byte("kept")); r.Err != "" {
		t.Fatal(r.Err)
	}
	hog := filepath.Join(dir, "hog")
	if err := os.WriteFile(hog, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	late := bytes.Repeat([]byte("late"), 10_000)
	if r := g.put("late", late); !strings.Contains(r.Err, "no space left") {
		t.Fatalf("%+v", r)
	}
	if got, ok := g.get("kept"); !ok || got != "kept" {
		t.Errorf("%q %v", got, ok)
	}
	if got, ok := g.get("late"); ok || got != "" {
		t.Errorf("%d bytes of what was not kept", len(got))
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	if r := g.put("late", late); r.Err != "" {
		t.Fatal(r.Err)
	}
	if got, ok := g.get("late"); !ok || got != string(late) {
		t.Errorf("%d bytes, %v", len(got), ok)
	}
	err := folder{dir: dir}.failed(&os.PathError{Op: "write", Err: unix.ENOSPC})
	if forgeyard.KindOf(err) != forgeyard.NoSpace {
		t.Errorf("%v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "cache", "*", "*", ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	g.end()
}
