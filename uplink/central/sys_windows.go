package central

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"

	"github.com/forgeyard/forgeyard-node"
)

// tryLock locks a byte far behind the text, which others then can still read.
func tryLock(f *os.File) error {
	o := windows.Overlapped{Offset: 1 << 20}
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &o)
}

// kindOfDisk is the kind of an error of the file system.
func kindOfDisk(err error) forgeyard.Kind {
	switch {
	case errors.Is(err, windows.ERROR_DISK_FULL):
		return forgeyard.NoSpace
	case errors.Is(err, fs.ErrPermission):
		return forgeyard.Denied
	}
	return forgeyard.KindOf(err)
}
