//go:build unix

package executor

import (
	"errors"
	"syscall"

	"github.com/forgeyard/forgeyard-node"
)

// KindOfDisk tells a full disk from other trouble with files.
func KindOfDisk(err error) forgeyard.Kind {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return forgeyard.NoSpace
	}
	if k := forgeyard.KindOf(err); k != forgeyard.Other {
		return k
	}
	return forgeyard.Unavailable
}
