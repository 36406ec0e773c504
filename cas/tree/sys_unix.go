//go:build unix

package tree

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setLinkTime sets a link's own time.
func setLinkTime(path string, at time.Time) error {
	tv := unix.NsecToTimeval(at.UnixNano())
	return unix.Lutimes(path, []unix.Timeval{tv, tv})
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// afterClose has nothing left to do: all was set by handle.
func afterClose(*os.Root, string) error { return nil }

// refusesName tells a filesystem that cannot hold a name, or a link, from one in trouble.
func refusesName(err error) bool {
	for _, e := range []error{syscall.EINVAL, syscall.EILSEQ, syscall.ENAMETOOLONG, syscall.EOPNOTSUPP, syscall.ENOSYS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
