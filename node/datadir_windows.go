package node

import (
	"net"
	"os"

	"golang.org/x/sys/windows"
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
