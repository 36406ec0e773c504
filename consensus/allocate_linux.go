package consensus

import (
	"errors"
	"io"
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

// writeThrough writes, and returns when that is on the disk and can be found there: what
// pwrite and fdatasync do, in one call that looks at these bytes alone.
func writeThrough(f *os.File, b []byte, at int64) (n int, err error) {
	for n < len(b) {
		k, err := unix.Pwritev2(int(f.Fd()), [][]byte{b[n:]}, at+int64(n), unix.RWF_DSYNC)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS):
			return writeThenSync(f, b, at)
		case err != nil:
			return n, &os.PathError{Op: "write", Path: f.Name(), Err: err}
		case k == 0:
			return n, io.ErrShortWrite
		}
		n += max(k, 0)
	}
	return n, nil
}
