package central

import (
	"errors"
	"io/fs"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// kindOfDisk is the kind of an error of the file system.
func kindOfDisk(err error) forgeyard.Kind {
	switch {
	case durable.Full(err):
		return forgeyard.NoSpace
	case errors.Is(err, fs.ErrPermission):
		return forgeyard.Denied
	}
	return forgeyard.KindOf(err)
}
