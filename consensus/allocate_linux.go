package consensus

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate gives the file its space now, so that a full disk is met when a segment is
// begun and not in the middle of it. Where the file system cannot, writes meet it.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return f.Truncate(size)
	}
	return err
}

// syncData waits until what was written is on the disk, and can be found there.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
