package disk

import (
	"errors"
	"os"
	"unsafe"

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

// openPast opens a file for writes that go past the kernel's cache; nil where the
// filesystem has no such thing.
func openPast(path string) *os.File {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return f
}

// writePast writes a block from openPast's file on. It reports false when that cannot be
// done with these bytes or on this filesystem, and nothing is lost by writing them otherwise.
func writePast(f *os.File, b []byte, off int64) (bool, error) {
	if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%directAlign != 0 || off%directAlign != 0 || len(b)%directAlign != 0 {
		aligned := blockPool.Get().(*[]byte)
		defer blockPool.Put(aligned)
		if uintptr(unsafe.Pointer(unsafe.SliceData(*aligned)))%directAlign != 0 || len(b) != len(*aligned) {
			return false, nil
		}
		copy(*aligned, b)
		b = *aligned
	}
	_, err := f.WriteAt(b, off)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	return err == nil, err
}
