//go:build !linux

package consensus

import "os"

// allocate gives the file its length; where its blocks come from is the file system's
// affair, and writes meet a full disk.
func allocate(f *os.File, size int64) error { return f.Truncate(size) }

// syncData waits until what was written is on the disk.
func syncData(f *os.File) error { return f.Sync() }
