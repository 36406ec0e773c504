package node

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/node/executor/ender"
)

// A tree that was killed and lives may still write into whatever it had open: it hangs in
// the kernel, and what holds it there would hold the next one too. So this node takes no
// new work until it is dead (E18); what runs goes on.

func (n *Node) stuckTrees() []ender.Stuck { return n.ender.Stuck() }

// stuckText names the oldest, which a person looks at first.
func stuckText(all []ender.Stuck, now forgeyard.Instant) string {
	s := all[0]
	text := fmt.Sprintf("the process tree of %s (process %d) was killed %s ago and does not end", s.ID, s.PID, now.Sub(s.Since).Round(time.Second))
	if len(all) > 1 {
		text += fmt.Sprintf(", nor do %d others", len(all)-1)
	}
	return text
}

func checkTrees(all []ender.Stuck, now forgeyard.Instant) *forgeyardv1.Health_Check {
	c := check("trees")
	if len(all) == 0 {
		c.Detail = "all that was killed is dead"
		return c
	}
	c.Status, c.Detail = checkFail, stuckText(all, now)+": "+all[0].Why
	c.Fix = fmt.Sprintf("no new work is taken until it is dead; /proc/%d/stack says what it waits for, most often a disk or a device: bring that back, or restart the machine", all[0].PID)
	return c
}
