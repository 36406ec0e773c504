//go:build simoverlay

package raftsim

import "unsafe"

// The overlay provides it; a pull by name is what unsafe is imported for.
//
//go:linkname seedRuntime sim.seedRuntime
func seedRuntime(on bool, seed uint64)

var _ unsafe.Pointer

const overlaid = true

func seedChance(seed uint64) { seedRuntime(true, seed) }
