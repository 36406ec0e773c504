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

// syncAll syncs the filesystem that holds f. Since Linux 5.8 it reports lost writes.
func syncAll(f *os.File) error { return unix.Syncfs(int(f.Fd())) }
