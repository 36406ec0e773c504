package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// dataAfter gives the first offset at or after off that may hold data, or -1.
func dataAfter(f *os.File, off int64) int64 {
	at, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if err == unix.ENXIO {
		return -1
	}
	if err != nil {
		return off // a filesystem that cannot tell: everything may be data
	}
	return at
}

// writeBack begins to bring a range to the disk and waits for nothing, so that a sync
// later finds little left.
func writeBack(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE) // the sync tells
}

// syncAll syncs the filesystem that holds f. Since Linux 5.8 it reports lost writes.
func syncAll(f *os.File) error { return unix.Syncfs(int(f.Fd())) }
