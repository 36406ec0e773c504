//go:build !simoverlay

package raftsim

const overlaid = false

// seedChance: without the overlay the runtime's own choices stay as they fall.
func seedChance(uint64) {}
