// Package clock is the one place where time is read.
//
// Deadlines are measured on a clock that nobody can set back and that keeps
// counting while the machine sleeps; wall time is for people. Rules never read
// either: they are told.
package clock

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Clock reads time and waits for it. Implementations are safe for concurrent use.
type Clock interface {
	// Now reads the sleep-proof monotonic clock.
	Now() forgeyard.Instant
	// Wall reads the wall clock, in UTC. Never compare it for authority.
	Wall() time.Time
	// BootID names the boot that Now counts in; instants of two boots do not compare.
	BootID() string
	// After delivers once, when d has passed. It may be late, never early.
	After(d time.Duration) <-chan time.Time
}
