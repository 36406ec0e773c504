//go:build unix

package tree

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const openNonblock = syscall.O_NONBLOCK

// setLinkTime sets a link's own time.
func setLinkTime(path string, at time.Time) error {
	tv := unix.NsecToTimeval(at.UnixNano())
	return unix.Lutimes(path, []unix.Timeval{tv, tv})
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
