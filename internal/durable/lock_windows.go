package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// TryLock takes a file's lock, or gives ErrLocked at once because another has it. It ends
// with the process, however that ends, and with the file's closing.
func TryLock(f *os.File) error {
	var o windows.Overlapped
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &o)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return err
}

// Unlock gives it back while the file stays open.
func Unlock(f *os.File) error {
	var o windows.Overlapped
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &o)
}
