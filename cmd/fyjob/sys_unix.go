//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"
)

// openToSync opens a file so that it can be read and synced.
func openToSync(p string) (*os.File, error) { return os.Open(p) }

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lockFile waits until nobody else has the file locked. The lock goes with the file.
func lockFile(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
