package tree

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// clone makes dst share src's blocks, until one of them is written.
func clone(dst, src *os.File) error { return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) }

// cloneNeverWorks tells the refusals that hold for every file of two filesystems.
func cloneNeverWorks(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.ENOSYS)
}
