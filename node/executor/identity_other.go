//go:build !linux

package executor

import (
	"context"

	"github.com/forgeyard/forgeyard-node"
)

// BootID names this boot; empty where the system does not tell.
func BootID() string { return "" }

// KillOrphan needs process identities, which only the Linux port reads.
func KillOrphan(context.Context, int, uint64) error {
	return forgeyard.Errorf("kill", forgeyard.Unavailable, "process identities are not read on this platform")
}

// Used needs process identities too.
func Used(map[int]uint64) (map[int]Use, error) {
	return nil, forgeyard.Errorf("list processes", forgeyard.Unavailable, "process identities are not read on this platform")
}
