// Package durable replaces files so that a crash leaves the old one or the new one,
// never a part: temp, sync, rename, sync of the folder (07§41). It also tells a full
// disk from other trouble, and locks a file among processes, the same way everywhere.
//
// It decides nothing about what is written or when. Stores that share one sync among
// many files (cas/disk, consensus) order their own.
package durable

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

// ErrLocked is what TryLock gives where another has the lock.
var ErrLocked = errors.New("another process has the lock")

// WriteFile replaces path with data. When it returns nil, the bytes and the name are on
// the disk; on an error path is what it was, and nothing else is left beside it.
func WriteFile(path string, data []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*") // mode 0600 until it is complete
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the error that matters is on its way
		}
	}()
	if _, err = f.Write(data); err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes renames in a folder durable. Windows has no such call, and journals them.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
