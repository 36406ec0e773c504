//go:build unix

package durable

import (
	"errors"
	"syscall"
)

// Full reports that a write failed for want of space or inodes, on the disk or in a quota.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
