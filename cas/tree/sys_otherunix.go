//go:build unix && !linux

package tree

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// setFileTime sets the time of an open file.
func setFileTime(f *os.File, at time.Time) error {
	tv := unix.NsecToTimeval(at.UnixNano())
	return unix.Futimes(int(f.Fd()), []unix.Timeval{tv, tv})
}
