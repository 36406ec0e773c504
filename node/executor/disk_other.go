//go:build !unix

package executor

import (
	"errors"
	"syscall"

	"github.com/forgeyard/forgeyard-node"
)

// errDiskFull is ERROR_DISK_FULL.
const errDiskFull = syscall.Errno(112)

// KindOfDisk tells a full disk from other trouble with files.
func KindOfDisk(err error) forgeyard.Kind {
	if errors.Is(err, errDiskFull) {
		return forgeyard.NoSpace
	}
	if k := forgeyard.KindOf(err); k != forgeyard.Other {
		return k
	}
	return forgeyard.Unavailable
}
