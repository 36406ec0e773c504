//go:build !linux

package uplink

// HasTimeSource says whether the wall clock means anything. Machines of these
// platforms have a clock of their own.
func HasTimeSource() bool { return true }
