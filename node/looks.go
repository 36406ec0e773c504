package node

import (
	"context"
	"time"
)

// lookFloor is between two looks at the machine that somebody asked for: what is plugged in
// makes many words.
const lookFloor = time.Second

// lookSoon asks for a look at this machine now, and not when its minute is over. It does not
// wait.
func (n *Node) lookSoon() {
	select {
	case n.looks <- struct{}{}:
	default: // one is asked for already, and begins later than this
	}
}

// lookLoop looks at the machine when its hardware changed (RA-111, RA-112) and when a toolchain
// came (RA-110), and registers what is different. The clock does it besides: see renewLoop.
func (n *Node) lookLoop(ctx context.Context) error {
	changes := n.platform().Changes(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.looks:
		case <-changes:
			n.log.Info("hardware changed; this machine is looked at")
		}
		n.refreshing.Lock() // a look that is under way may have been too early
		n.lookAgain(ctx)
		n.refreshing.Unlock()
		if !n.pause(ctx, lookFloor) {
			return nil
		}
	}
}
