//go:build unix

package capture_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
)

// TestRestoreK01OnDisk is K01 on the real store: one byte of a stored file is flipped
// behind its back, and nothing is restored.
func TestRestoreK01OnDisk(t *testing.T) {
	dir := t.TempDir()
	store, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	s := newSlot(t, payload())
	g, err := capture.IngestSealed(t.Context(), store, s.dir, expect(t))
	must(t, err)
	dst := place(t)
	must(t, capture.Restore(t.Context(), store, g.Manifest, dst))
	flipped := false
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() != int64(len(large)) {
			return err
		}
		must(t, os.Chmod(p, 0o644))
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte{'X'}, int64(len(large))/2)
		must(t, err)
		flipped = true
		return f.Close()
	}))
	if !flipped {
		t.Fatal("the store keeps the file in a way that this test does not know")
	}
	again := place(t)
	if err := capture.Restore(t.Context(), store, g.Manifest, again); forgeyard.KindOf(err) != forgeyard.Corrupt && forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Fatalf("a payload with a flipped byte: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(again)); len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
}
