package bulk

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Conn is what both sides talk over. Close also ends a read or a write under way.
type Conn interface {
	io.ReadWriteCloser
}

// watchdog closes a connection whose other end does not keep its time.
type watchdog struct {
	clk   clock.Clock
	stall time.Duration // allowed besides what the size needs

	read, write atomic.Int64 // forgeyard.Instant by which it must be over; 0: nothing is awaited
	bitten      atomic.Bool
}

// bound arms one of the two for n bytes; the other end has stall and the time of the
// slowest link.
func (w *watchdog) bound(which *atomic.Int64, n int) {
	which.Store(int64(w.clk.Now().Add(w.stall + time.Duration(n)*time.Second/minRate)))
}

// run watches until ctx ends.
func (w *watchdog) run(ctx context.Context, c io.Closer) {
	for {
		select {
		case <-ctx.Done():
			_ = c.Close()
			return
		case <-w.clk.After(w.stall / 4):
		}
		now := w.clk.Now()
		for _, due := range []*atomic.Int64{&w.read, &w.write} {
			if at := forgeyard.Instant(due.Load()); !at.IsZero() && now >= at {
				w.bitten.Store(true)
				_ = c.Close()
				return
			}
		}
	}
}

// why prefers the watchdog's reason to what its bite looked like.
func (w *watchdog) why(err error) error {
	if w.bitten.Load() {
		return forgeyard.Errorf(op, forgeyard.Unavailable, "the other end did not keep its time: a frame was not given or not taken in %v and %d bytes a second", w.stall, minRate)
	}
	return err
}
