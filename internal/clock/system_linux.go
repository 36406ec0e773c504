package clock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

type system struct{ boot string }

// System is this machine's clock: CLOCK_BOOTTIME, because Go's own monotonic
// reading stops while the machine sleeps.
func System() Clock {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		b = nil // an unknown boot never equals a known one, so nothing is vouched for across restarts
	}
	return system{boot: strings.TrimSpace(string(b))}
}

func (system) Now() forgeyard.Instant {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	invariant.NoError(err, "CLOCK_BOOTTIME can be read")
	return forgeyard.Instant(ts.Nano())
}

func (system) Wall() time.Time                        { return time.Now().UTC().Round(0) }
func (s system) BootID() string                       { return s.boot }
func (system) After(d time.Duration) <-chan time.Time { return time.After(d) }
