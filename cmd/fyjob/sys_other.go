//go:build !unix

package main

import "os"

// openToSync opens a file so that it can be read and synced, which needs the right to
// write here.
func openToSync(p string) (*os.File, error) { return os.OpenFile(p, os.O_RDWR, 0) }

// syncDir: the platform makes names durable by itself.
func syncDir(string) error { return nil }

// lockFile: there is no such lock here, so tests are recorded one at a time.
func lockFile(*os.File) error { return nil }
