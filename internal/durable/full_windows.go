package durable

import (
	"errors"
	"syscall"
)

const (
	errHandleDiskFull = syscall.Errno(39)
	errDiskFull       = syscall.Errno(112)
)

// Full reports that a write failed for want of space.
func Full(err error) bool {
	return errors.Is(err, errDiskFull) || errors.Is(err, errHandleDiskFull)
}
