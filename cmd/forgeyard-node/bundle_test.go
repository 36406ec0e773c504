package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// One export a file: the second is told who has it, and what a killed one left is free.
func TestPartHasOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.fyb.part")
	f, err := openPart(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openPart(path); forgeyard.KindOf(err) != forgeyard.Conflict || !strings.Contains(err.Error(), path) {
		t.Errorf("a second writer: %v", err)
	}
	if _, err := f.WriteString("begun"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if f, err = openPart(path); err != nil {
		t.Fatal(err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != 5 {
		t.Errorf("what was begun is gone: %v %v", st, err)
	}
	f.Close()
}

// Whoever opens the file just before another finishes it does not write into the finished one.
func TestFinishedPartIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.fyb.part")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for done := 0; done < 200; {
				f, err := openPart(path)
				if forgeyard.KindOf(err) == forgeyard.Conflict {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if st, err := f.Stat(); err != nil || st.Size() != 0 {
					t.Errorf("it has bytes of another: %v %v", st, err)
				}
				if _, err := f.WriteString("whole"); err != nil {
					t.Error(err)
				}
				if err := os.Rename(path, filepath.Join(dir, "a.fyb")); err != nil {
					t.Error(err)
				}
				f.Close()
				done++
			}
		})
	}
	all.Wait()
}
