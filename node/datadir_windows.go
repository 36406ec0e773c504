package node

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"

	"github.com/forgeyard/forgeyard-node"
)

func tryLock(f *os.File) error {
	var o windows.Overlapped
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &o)
}

// kindOfIO is the kind of an error of the file system.
func kindOfIO(err error) forgeyard.Kind {
	switch {
	case err == nil:
		return forgeyard.Other
	case errors.Is(err, windows.ERROR_DISK_FULL):
		return forgeyard.NoSpace
	case errors.Is(err, fs.ErrPermission):
		return forgeyard.Denied
	case errors.Is(err, fs.ErrNotExist):
		return forgeyard.NotFound
	}
	return forgeyard.KindOf(err)
}
