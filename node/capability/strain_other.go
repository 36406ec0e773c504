//go:build !linux

package capability

import "github.com/forgeyard/forgeyard-node/node/pressure"

// Strain reads what this machine feels, which is not read on this platform.
func Strain() pressure.Sample { return pressure.Sample{} }
