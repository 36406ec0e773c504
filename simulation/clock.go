package simulation

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// epoch is the true wall time at which every run begins.
var epoch = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)

// nodeClock is what one machine sees of true time.
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

// Now counts through sleep, from the boot.
func (c *nodeClock) Now() forgeyard.Instant {
	return forgeyard.Instant(firstInstant + c.local(c.s.now-c.bootAt))
}

func (c *nodeClock) Wall() time.Time { return epoch.Add(time.Duration(c.s.now + c.wallOff)) }

func (c *nodeClock) BootID() string { return fmt.Sprintf("%s-boot-%d", c.name, c.boots) }

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

// reading is one look at the machine's clocks.
func (n *node) reading() reckon.Reading {
	return reckon.Reading{Now: n.clk.Now(), Wall: n.clk.Wall(), Boot: n.clk.BootID(), TimeSet: n.clk.trusted}
}
