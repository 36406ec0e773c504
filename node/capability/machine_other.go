//go:build !linux

package capability

import "github.com/forgeyard/forgeyard-node/job/machine"

// machineFacts is empty where nothing is known beyond the platform: that is the same on each
// such machine.
func machineFacts() *machine.Facts { return &machine.Facts{} }
