//go:build !linux

package capability

import (
	"context"

	"github.com/forgeyard/forgeyard-node/job"
)

// graphics are where a machine shows its graphics processors: here nowhere that is known.
type graphics struct{}

var machineGraphics graphics

func gpus(context.Context, graphics, *Graphics) []job.GPU { return nil }
