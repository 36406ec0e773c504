//go:build !windows

package consensus

import (
	"errors"
	"syscall"

	"github.com/forgeyard/forgeyard-node"
)

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || forgeyard.KindOf(err) == forgeyard.NoSpace
}
