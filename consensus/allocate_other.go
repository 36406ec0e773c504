//go:build !linux

package consensus

import "os"

// allocate gives the file its length; where its blocks come from is the file system's
// affair, and writes meet a full disk.
func allocate(f *os.File, size int64) error { return f.Truncate(size) }

// writeThrough writes, and returns when that is on the disk.
func writeThrough(f *os.File, b []byte, at int64) (int, error) { return writeThenSync(f, b, at) }
