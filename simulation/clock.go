package simulation

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// epoch is the true wall time at which every run begins.
var epoch = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)

// nodeClock is what one machine sees of true time. It implements clock.Clock for
// the witness; nothing here waits on channels.
type nodeClock struct {
	s       *sim
	ppm     int64 // its rate is 1 + ppm/1e6
	bootAt  int64 // true time of the boot
	boots   int
	wallOff int64 // nanoseconds that the wall clock is wrong by
	name    string
	trusted bool // the wall clock has a source of time
}

// firstInstant is what a clock reads at its boot: zero would mean "unset".
const firstInstant = int64(time.Second)

func (c *nodeClock) local(t int64) int64 { return t + t/1_000_000*c.ppm }

// Now implements clock.Clock.
func (c *nodeClock) Now() forgeyard.Instant {
	return forgeyard.Instant(firstInstant + c.local(c.s.now-c.bootAt))
}

// Wall implements clock.Clock.
func (c *nodeClock) Wall() time.Time { return epoch.Add(time.Duration(c.s.now + c.wallOff)) }

// BootID implements clock.Clock.
func (c *nodeClock) BootID() string { return fmt.Sprintf("%s-boot-%d", c.name, c.boots) }

// After implements clock.Clock. The simulation waits by events, not by channels.
func (c *nodeClock) After(time.Duration) <-chan time.Time { return nil }

func (c *nodeClock) wall() forgeyard.Wall { return forgeyard.WallOf(c.Wall()) }

// span is how long d of this clock takes in true time: never shorter.
func (c *nodeClock) span(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64(d)/(1_000_000+c.ppm)*1_000_000 + 1_000_000
}

func (c *nodeClock) reboot() {
	c.boots++
	c.bootAt = c.s.now
}
