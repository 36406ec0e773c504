package node

import (
	"errors"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/windows"

	"github.com/forgeyard/forgeyard-node"
)

func tryLock(f *os.File) error {
	var o windows.Overlapped
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &o)
}

func unlock(f *os.File) error {
	var o windows.Overlapped
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &o)
}

// listenPrivate makes a socket; the data dir's own access rules protect it.
func listenPrivate(path string) (net.Listener, error) { return net.Listen("unix", path) }

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
