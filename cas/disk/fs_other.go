//go:build !linux

package disk

import (
	"errors"
	"os"
)

// dataAfter gives the first offset at or after off that may hold data, or -1.
// Here nothing tells holes from data.
func dataAfter(_ *os.File, off int64) int64 { return off }

// writeBack would begin to bring a range to the disk; here the sync does all.
func writeBack(*os.File, int64, int64) {}

// syncAll would sync the filesystem that holds f; here nothing does.
func syncAll(*os.File) error { return errors.ErrUnsupported }

// openPast would open a file for writes past the kernel's cache; here all go by way of it.
func openPast(string) *os.File { return nil }

func writePast(*os.File, []byte, int64) (bool, error) { return false, nil }
