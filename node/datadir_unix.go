//go:build unix

package node

import (
	"errors"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
)

func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func unlock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// listenPrivate makes a socket that only this account may open, from its first moment.
func listenPrivate(path string) (net.Listener, error) {
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.Listen("unix", path)
}

// kindOfIO is the kind of an error of the file system.
func kindOfIO(err error) forgeyard.Kind {
	switch {
	case err == nil:
		return forgeyard.Other
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return forgeyard.NoSpace
	case errors.Is(err, fs.ErrPermission):
		return forgeyard.Denied
	case errors.Is(err, fs.ErrNotExist):
		return forgeyard.NotFound
	}
	return forgeyard.KindOf(err)
}
