package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// copied is a person who starts a copy of a node's data dir on another machine, thinking
// that the first one is dead. That one is cut off from then on and knows nothing of it: its
// work goes on until its own clock ends it. Whoever registered last is the runner (E09).
// Nodes with devices are left alone, since those stay where they are, and so is the only
// voter: two of it are two sites, and no rule of a lease helps against that. Nor is there
// help before all voters know what a place is.
func (s *sim) copied(n *node, down time.Duration) {
	if g, _ := n.group(); !n.up || n.paused || !s.head().Allows(site.FormatPlaces) || s.sc.Devices[n.id] > 0 || (g.voter[n.id] && g.majority() == 1) {
		return
	}
	c := n.copyOf()
	n.lost, n.gone = true, true
	s.nodes[n.id] = c
	s.ghosts = append(s.ghosts, n)
	if s.client.leaving == n {
		s.client.leaving = c
	}
	if c.world != s.world { // the first one will not hear any more that the site was recovered
		s.after(int64(s.within(0, 20*time.Second)), c.outdated)
	}
	life := c.life
	s.after(int64(down), func() {
		if !c.up && c.life == life && !c.gone {
			c.start(true)
		}
	})
}

// copyOf is what stands on the disk of a node, on a machine of its own.
func (n *node) copyOf() *node {
	s := n.s
	clk := &nodeClock{s: s, ppm: s.rng.Int64N(9_600) - 4_800, name: n.clk.name + "'", trusted: true}
	c := &node{
		s: s, world: n.world, id: n.id, name: n.name, clk: clk, runner: n.runner, life: n.life, facts: n.facts, formats: n.formats,
		dataDir: n.dataDir + "'", spool: slices.Clone(n.spool), witnessed: n.witnessed, hosted: map[forgeyard.DeviceID]*hosted{},
		raftState: raftState{term: n.term, voted: n.voted, log: slices.Clone(n.log), synced: n.lastIndex(), leads: -1, groups: slices.Clone(n.groups)},
	}
	for _, sp := range c.spool {
		sp.safe = true
	}
	c.objects = objects{of: map[forgeyard.Digest]*object{}, lost: maps.Clone(n.objects.lost)}
	for _, o := range n.objects.list {
		x := &object{digest: o.digest, owners: slices.Clone(o.owners), safe: true, bad: o.bad}
		c.objects.of[x.digest], c.objects.list = x, append(c.objects.list, x)
	}
	return c
}

// exorcise ends the machines that somebody copied.
func (s *sim) exorcise() {
	for _, n := range s.ghosts {
		if n.up {
			n.resume()
			n.crash()
		}
	}
}
