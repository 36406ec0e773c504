package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// Programs of two versions: an older one is the same code as far as the log's format goes
// that it reads, and knows nothing of what came later (decision 0015 of the project).

func (n *node) reads() site.Format { return max(n.formats.Max, site.FormatOldest) }

// mayWrite says why this node's program cannot propose a command now, or nil.
func (n *node) mayWrite(b site.Body) error {
	if f := site.FormatOf(b); f > n.reads() {
		return forgeyard.Errorf("propose", forgeyard.Unavailable, "the program of %s knows no %T", n.name, b)
	}
	if n.s.faults.writesEarly {
		return nil
	}
	return n.state().MayWrite(b)
}

// readable is up to where this node's program can apply the log, and whether the log's
// format has left it behind there. What it would answer differently than a newer program
// does must not come before that.
func (n *node) readable(upto uint64) (last uint64, halts bool) {
	w := n.world
	for i := n.applied + 1; i <= upto; i++ {
		if w.needs[i] > n.reads() {
			n.s.fail("same-state", "%s applies entry %d, which needs log format %d, with a program that reads %d", n.name, i, w.needs[i], n.reads())
			return i, false
		}
		if !n.formats.Reads(w.states[i].LogFormat()) && !n.s.faults.readsOn {
			return i, true
		}
	}
	return upto, false
}

// halt ends a program that the log has left behind. Somebody finds that out and upgrades it.
func (n *node) halt() {
	n.s.trace("%s ends: its program reads log formats up to %d", n.name, n.reads())
	n.crash()
	n.comesBack(n.s.within(time.Second, 20*time.Second))
}

// upgrade puts the newer program in place of one that runs the older.
func (n *node) upgrade() bool {
	was := n.formats
	n.formats = site.Formats
	return was != n.formats
}

// comesBack begins a newer program after a while.
func (n *node) comesBack(after time.Duration) {
	n.upgrade()
	life := n.life
	n.s.after(int64(after), func() {
		if !n.up && n.life == life && !n.gone {
			n.start(false)
		}
	})
}
