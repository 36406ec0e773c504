package central

import (
	"os"

	"golang.org/x/sys/windows"
)

// tryLock locks a byte far behind the text, which others then can still read.
func tryLock(f *os.File) error {
	o := windows.Overlapped{Offset: 1 << 20}
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &o)
}
