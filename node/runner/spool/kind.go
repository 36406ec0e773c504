package spool

import (
	"errors"
	"os"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// kindOf sorts trouble with files.
func kindOf(err error) forgeyard.Kind {
	if errors.Is(err, os.ErrNotExist) {
		return forgeyard.NotFound
	}
	return executor.KindOfDisk(err)
}
