package node

import (
	"context"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// lookFloor is between two looks at the machine that its hardware asked for: what is plugged in
// makes many words. It doubles after each look that showed nothing new, up to lookCeiling, as
// often as the clock looks: a loose cable makes words for ever, and a look starts every sandbox.
const (
	lookFloor   = time.Second
	lookCeiling = capsEvery
)

// pace is how soon the machine is looked at again.
type pace struct {
	floor time.Duration
	last  forgeyard.Instant // when the last look was over
}

// after is how long the next look waits, after one that ended now. Hardware that was quiet for
// longer than the ceiling begins anew.
func (p *pace) after(now forgeyard.Instant, changed bool) time.Duration {
	if p.floor *= 2; changed || p.last == 0 || now.Sub(p.last) > 2*lookCeiling {
		p.floor = lookFloor
	}
	p.floor, p.last = min(p.floor, lookCeiling), now
	return p.floor
}

// lookLoop looks at the machine when its hardware changed (RA-111, RA-112), and registers what is
// different. The clock does it besides: see renewLoop.
func (n *Node) lookLoop(ctx context.Context) error {
	changes := n.platform().Changes(ctx)
	var p pace
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
			n.log.Info("hardware changed; this machine is looked at")
		}
		was := capsDigest(n.capsNow())
		n.refreshing.Lock() // a look that is under way may have been too early
		n.lookAgain(ctx)
		n.refreshing.Unlock()
		if !n.pause(ctx, p.after(n.clock.Now(), capsDigest(n.capsNow()) != was)) {
			return nil
		}
	}
}

// warmed asks that the site is told which toolchains are ready here (RA-110). It does not wait.
func (n *Node) warmed() {
	select {
	case n.warm <- struct{}{}:
	default: // it is asked for already, and begins later than this
	}
}

// warmLoop registers what is warm when a toolchain came. Of the machine nothing else changed by
// that, so it is not looked at.
func (n *Node) warmLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.warm:
		}
		n.refreshing.Lock()
		n.warmAgain()
		n.tellChange(ctx)
		n.refreshing.Unlock()
		if !n.pause(ctx, lookFloor) {
			return nil
		}
	}
}

// warmAgain says in what was seen last which toolchains are warm now. Before the first look there
// is nothing to say it in.
func (n *Node) warmAgain() {
	n.probing.Lock()
	defer n.probing.Unlock()
	seen := n.caps.Load()
	if seen == nil {
		return
	}
	c := *seen
	c.Toolchains = slices.Clone(c.Toolchains)
	for i, t := range c.Toolchains {
		c.Toolchains[i].Warm = !t.Digest.IsZero() && n.layers.Has(t.Digest)
	}
	c.WarmToolchains = n.warmToolchains(c.Toolchains)
	n.caps.Store(&c)
}
