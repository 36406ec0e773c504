//go:build unix

package durable

import (
	"os"

	"golang.org/x/sys/unix"
)

// TryLock takes a file's lock, or fails at once because another has it. It ends with the
// process, however that ends, and with the file's closing.
func TryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// Unlock gives it back while the file stays open.
func Unlock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
