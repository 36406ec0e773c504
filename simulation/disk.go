package simulation

import (
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node/simulation/scenario"
)

// disk is what is wrong with a node's disk. What stands on it is with its owners: the
// log (synced), the spool, the witness's figure, the tokens of devices, the objects. A
// process that dies leaves what it wrote; a machine that loses its power leaves what was
// synced.
type disk struct {
	full       int           // faults under way: nothing can be written
	unreadable int           // nothing can be read
	slow       time.Duration // a sync takes up to this much longer
}

// syncFor is how long a write takes until it is safe.
func (n *node) syncFor() time.Duration {
	d := time.Duration(200+n.s.rng.IntN(2_800)) * time.Microsecond
	if n.disk.slow > 0 {
		d += time.Duration(n.s.rng.Int64N(int64(n.disk.slow)))
	}
	return d
}

// persist makes the log safe as it is now, then goes on. Entries that were cut off
// meanwhile are not its concern any more.
func (n *node) persist(then func()) {
	upto, cuts := n.lastIndex(), n.cuts
	n.after(n.syncFor(), func() {
		if n.cuts == cuts {
			n.synced = max(n.synced, upto)
		}
		then()
	})
}

// blackout is what a loss of power leaves of a disk.
func (n *node) blackout() {
	n.cutLog(n.synced)
	n.spool = slices.DeleteFunc(n.spool, func(c *completion) bool { return !c.safe })
	n.objects.blackout(n)
}

// corrupt damages a file behind the node's back. Its checksum shows that when it is read.
func (s *sim) corrupt(n *node, d scenario.Damage) {
	switch d.Word {
	case "spool":
		n.spool = nil
	case "witness":
		n.witnessed = nil
	case "tokens":
		for _, g := range n.hosted {
			g.lost = true // noticed by the next process: this one has it in memory
		}
	case "objects":
		if all := n.objects.list; len(all) > 0 {
			all[s.rng.IntN(len(all))].bad = true
		}
	}
}
