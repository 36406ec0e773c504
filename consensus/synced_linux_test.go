package consensus

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	walfs "github.com/hashicorp/raft-wal/fs"
	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// dirty is how many pages of a file the disk does not have yet.
func dirty(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var s unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &s, 0)
	if errors.Is(err, unix.ENOSYS) {
		needs.Lacking(t, "a kernel that tells which pages are dirty (cachestat, Linux 6.5)")
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.Dirty + s.Writeback
}

// What a write to a segment said it wrote, the disk has: nothing syncs it later.
func TestSegmentWritesAreOnTheDisk(t *testing.T) {
	for name, write := range map[string]func(*os.File, []byte, int64) (int, error){
		"at once": func(f *os.File, b []byte, at int64) (int, error) {
			return segmentFile{f, &spareFile{closed: true}}.WriteAt(b, at)
		},
		"apart": writeThenSync,
	} {
		t.Run(name, func(t *testing.T) {
			f, err := newSegmentFile(filepath.Join(t.TempDir(), "1.wal"), segmentBytes, (*os.File).WriteAt)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			b := make([]byte, 3*4096)
			if _, err := f.WriteAt(b, 0); err != nil {
				t.Fatal(err)
			}
			if dirty(t, f) == 0 {
				needs.Lacking(t, "a file system that writes late in the folder for temporary files")
			}
			if n, err := write(f, b, 0); err != nil || n != len(b) {
				t.Fatal(n, err)
			}
			if n := dirty(t, f); n != 0 {
				t.Errorf("%d pages are dirty", n)
			}
			if n, err := write(f, b, segmentBytes-1); err != nil || n != len(b) || dirty(t, f) != 0 {
				t.Errorf("beyond the end: %d, %v, %d pages are dirty", n, err, dirty(t, f))
			}
		})
	}
	r, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := (segmentFile{r, &spareFile{size: segmentBytes}}).WriteAt([]byte("x"), 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("a file that cannot be written: %v", err)
	}
}

// What an earlier process wrote and did not sync is on the disk once the segment is open:
// what is found in it counts as stored, and no later write syncs it.
func TestSegmentIsOnTheDiskWhenOpened(t *testing.T) {
	dir := t.TempDir()
	f, err := newSegmentFile(filepath.Join(dir, "1.wal"), segmentBytes, (*os.File).WriteAt)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 3*4096), 0); err != nil {
		t.Fatal(err)
	}
	if dirty(t, f) == 0 {
		needs.Lacking(t, "a file system that writes late in the folder for temporary files")
	}
	w, err := careFS{walfs.New(), &spareFile{}}.OpenWriter(dir, "1.wal")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if n := dirty(t, f); n != 0 {
		t.Errorf("%d pages are dirty", n)
	}
}

// A sync of an entry waits for the entry alone, for the file system knows that all of the
// segment is in use.
func TestSegmentsAreWrittenBeforeTheyAreUsed(t *testing.T) {
	for name, write := range map[string]func(*os.File, []byte, int64) (int, error){"at once": (*os.File).WriteAt, "beside the log": writeThrough} {
		f, err := newSegmentFile(filepath.Join(t.TempDir(), "1.wal"), segmentBytes, write)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		hole, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE)
		if err != nil {
			needs.Lacking(t, "a file system that tells where holes are: %v", err)
		}
		if hole != segmentBytes || dirty(t, f) != 0 {
			t.Errorf("%s: written up to %d of %d, %d pages are dirty", name, hole, segmentBytes, dirty(t, f))
		}
	}
}
