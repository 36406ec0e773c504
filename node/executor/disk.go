package executor

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// KindOfDisk tells a full disk from other trouble with files.
func KindOfDisk(err error) forgeyard.Kind {
	if durable.Full(err) {
		return forgeyard.NoSpace
	}
	if k := forgeyard.KindOf(err); k != forgeyard.Other {
		return k
	}
	return forgeyard.Unavailable
}
