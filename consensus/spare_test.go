package consensus

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// files are the segments in a folder of the log, in their order.
func segmentFiles(t *testing.T, dir string) (out []os.FileInfo) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(walDir(dir), "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, st)
	}
	return out
}

// The next segment is made while the last one fills, and once.
func TestNextSegmentIsMadeMeanwhile(t *testing.T) {
	const size = 64 << 10
	dir := t.TempDir()
	l, err := openSegments(dir, size, newHCLog(quiet()))
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	store := func() {
		t.Helper()
		last++
		if err := l.StoreLogs(entries(last, last)); err != nil {
			t.Fatal(err)
		}
	}
	store()
	if l.next.await() {
		t.Error("a spare segment beside an empty one")
	}
	for !l.next.await() {
		store()
		if len(segmentFiles(t, dir)) > 1 {
			t.Fatal("the segment was full before there was another")
		}
	}
	spare, err := os.Stat(l.next.path)
	if err != nil {
		t.Fatal(err)
	}
	for len(segmentFiles(t, dir)) == 1 {
		store()
	}
	if all := segmentFiles(t, dir); len(all) != 2 || !os.SameFile(all[1], spare) || all[1].Size() != size {
		t.Errorf("%d segments, and the second is not the spare one", len(all))
	}
	holds(t, l, 1, last)
	for !l.next.await() {
		store()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(l.next.path); !os.IsNotExist(err) {
		t.Errorf("a closed log keeps a spare segment: %v", err)
	}
}

// What a killed process left is no segment, whatever is in it.
func TestSpareOfBeforeIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	spare := filepath.Join(walDir(dir), "spare.tmp")
	if err := os.MkdirAll(walDir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(spare, bytes.Repeat([]byte("x"), 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := openSegments(dir, 64<<10, newHCLog(quiet()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(spare); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
	if err := l.StoreLogs(entries(1, 500)); err != nil {
		t.Fatal(err)
	}
	holds(t, l, 1, 500)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A spare segment that found no room is tried again, and who needs it makes it.
func TestSpareWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	s := &spareFile{path: filepath.Join(dir, "none", "spare.tmp"), size: 4096}
	s.prepare()
	if s.await() || s.take(filepath.Join(dir, "1.wal"), 4096) {
		t.Fatal("it was made where there is no folder")
	}
	s.path = filepath.Join(dir, "spare.tmp")
	s.prepare()
	if s.take(filepath.Join(dir, "1.wal"), 8192) {
		t.Error("it is as large as another")
	}
	if !s.take(filepath.Join(dir, "1.wal"), 4096) || s.take(filepath.Join(dir, "2.wal"), 4096) {
		t.Error("it cannot be taken once")
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if s.prepare(); s.await() {
		t.Error("it was made after the end")
	}
}
