package raftsim

import (
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// nodeClock is what a machine sees of true time: its rate is 1 + ppm/1e6. While the
// machine is stopped its clock goes on and nothing that waits for it wakes.
type nodeClock struct {
	start time.Time
	ppm   int64

	mu      sync.Mutex // guards what is below
	stopped chan struct{}
	stops   int
}

func (c *nodeClock) span(d time.Duration, ppm int64) time.Duration {
	return d + time.Duration(int64(d)/1_000_000*ppm)
}

// Now implements clock.Clock. The count began an hour before the run.
func (c *nodeClock) Now() forgeyard.Instant {
	return forgeyard.Instant(c.span(time.Since(c.start), c.ppm) + time.Hour)
}

// Wall implements clock.Clock.
func (c *nodeClock) Wall() time.Time { return time.Now().UTC() }

// BootID implements clock.Clock.
func (c *nodeClock) BootID() string { return "boot" }

// After implements clock.Clock.
func (c *nodeClock) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	time.AfterFunc(c.span(d, -c.ppm), func() {
		c.awake()
		ch <- time.Now()
	})
	return ch
}

// awake returns when the machine is not stopped.
func (c *nodeClock) awake() {
	for {
		c.mu.Lock()
		stopped := c.stopped
		c.mu.Unlock()
		if stopped == nil {
			return
		}
		<-stopped
	}
}

func (c *nodeClock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped == nil {
		c.stopped = make(chan struct{})
		c.stops++
	}
}

func (c *nodeClock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped != nil {
		close(c.stopped)
		c.stopped = nil
	}
}

// stopCount counts stops: who finds another figure than before was stopped meanwhile.
func (c *nodeClock) stopCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stops
}
