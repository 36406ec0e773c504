package consensus

import (
	"errors"
	"syscall"

	"github.com/forgeyard/forgeyard-node"
)

func isNoSpace(err error) bool {
	const handleDiskFull, diskFull = syscall.Errno(39), syscall.Errno(112)
	return errors.Is(err, handleDiskFull) || errors.Is(err, diskFull) || forgeyard.KindOf(err) == forgeyard.NoSpace
}
