package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// placeOf is where this platform says that the holder of a lock runs.
func placeOf(lock *os.File, boot string) forgeyard.Digest { return native{}.Place(lock, boot) }

// E09: a process that is started again in the same data dir names the same place as the one
// before; a copy of the data dir, another boot, or a boot that is not known does not.
func TestPlaceOfADataDir(t *testing.T) {
	open := func(path string) *dataDir {
		d, err := openDataDir(path)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	d := open(first)
	was := placeOf(d.lock, "boot-1")
	if was.IsZero() || placeOf(d.lock, "boot-1") != was {
		t.Fatalf("%s, then %s", was, placeOf(d.lock, "boot-1"))
	}
	if placeOf(d.lock, "boot-2") == was || !placeOf(d.lock, "").IsZero() {
		t.Error("another boot, or none that is known, is the same place")
	}
	if out, err := exec.Command("cp", "-a", first, second).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := open(second) // while the first one runs
	if placeOf(c.lock, "boot-1") == was {
		t.Error("a copy is the same place")
	}
	for _, x := range []*dataDir{c, d} {
		if err := x.close(); err != nil {
			t.Fatal(err)
		}
	}
	again := open(first)
	if placeOf(again.lock, "boot-1") != was {
		t.Error("a process that is started again is elsewhere")
	}
	if err := again.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(first, fileLock)); err != nil { // as a restore of files does
		t.Fatal(err)
	}
	keep, err := os.Create(filepath.Join(first, "keeps the number of the file that was removed"))
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	if last := open(first); placeOf(last.lock, "boot-1") == was {
		t.Error("a lock file that was made anew is the same place")
	}
}
