//go:build !linux

package clock

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
)

type system struct{ start time.Time }

// System is this machine's clock. Outside Linux it is Go's monotonic reading of
// this process; its boot id is empty, so nothing is vouched for across restarts.
func System() Clock { return system{start: time.Now()} }

func (s system) Now() forgeyard.Instant {
	return forgeyard.Instant(time.Since(s.start) + time.Second)
}
func (system) Wall() time.Time                        { return time.Now().UTC().Round(0) }
func (system) BootID() string                         { return "" }
func (system) After(d time.Duration) <-chan time.Time { return time.After(d) }
