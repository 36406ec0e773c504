package simulation

import (
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// A site that lost its voters for good goes on from what one node has, or from a backup
// (decision 0014 of the project): in another world, which has the committed sequence only
// as far as that log or backup has it, and what the node had that nobody ever committed.
// That may happen again, to a site that was recovered before.

// backup is what a person keeps of a site: the state of a node at a place of its log.
type backup struct {
	world *world
	place uint64
}

// backUp keeps the state of a node as it is now.
func (s *sim) backUp(n *node) {
	if n.up && n.state().Members.Has(n.runner) {
		s.backup = &backup{n.world, n.applied}
		s.trace("a backup of %s is made: entry %d", n.name, n.applied)
	}
}

// recover lets a person recover the site by force on a node, or restore the newest backup
// there, after every other voter was lost for good. Who only ran jobs goes on for as long
// as its leases let it, and hears of the new incarnation later.
func (s *sim) recover(n *node, down time.Duration, from *backup) {
	knows := n.state()
	if from != nil {
		knows = from.world.states[from.place]
	}
	if m, ok := knows.Members.Get(n.runner); n.world != s.world || !ok || m.Removed {
		return
	}
	s.trace("every voter but %s is lost for good", n.name)
	for _, m := range s.nodes {
		if m != n && !m.gone && s.votes(m) {
			m.end()
			m.gone = true
		}
	}
	n.end()
	n.upgrade()
	if from != nil {
		n.setAside(from)
	}
	s.reseed(n, from)
	for _, m := range s.nodes {
		if m.world != s.world && !m.gone {
			s.after(int64(s.within(0, 20*time.Second)), m.outdated)
		}
	}
	life := n.life
	s.after(int64(down), func() {
		if !n.up && n.life == life {
			n.start(false)
		}
	})
	s.after(int64(down+time.Second), s.client.bury)
}

// end is the end of a process, whatever it was doing.
func (n *node) end() {
	n.resume()
	n.crash()
}

// votes says whether anybody believes that a node votes.
func (s *sim) votes(m *node) bool {
	return slices.ContainsFunc(s.nodes, func(n *node) bool {
		g, _ := n.group()
		return n.world == s.world && g.voter[m.id]
	})
}

// setAside puts what a backup has in the place of the node's log.
func (n *node) setAside(from *backup) {
	n.log = slices.Clone(from.world.entries[:from.place])
	n.synced, n.cuts, n.groups = n.lastIndex(), n.cuts+1, []groupAt{{0, &group{}}}
}

// reseed makes the node's log the committed one, and what follows from it the state.
func (s *sim) reseed(n *node, from *backup) {
	old, base := s.world, s.world
	if from != nil {
		base = from.world
	}
	same := 0
	for same < len(n.log) && same < len(base.entries) && base.entries[same].term == n.log[same].term {
		same++
	}
	whole := n.log
	if s.faults.dropsTail && from == nil {
		n.cutLog(min(n.commit, n.lastIndex()))
		same = min(same, len(n.log))
	}
	s.world = base.upto(same)
	for _, e := range n.log[same:] {
		s.take(e, func(uint64, *site.State, []byte, site.Reply, *site.State) site.Format { return site.FormatOldest })
	}
	had := s.head()
	if from == nil {
		s.trace("%s recovers the site from entry %d; %d were committed", n.name, n.lastIndex(), len(old.entries))
	} else {
		s.trace("%s restores the site from a backup of entry %d; %d were committed since", n.name, n.lastIndex(), len(old.entries)-same)
	}
	s.keeps(whole, old)
	s.client.forget(had)
	for _, c := range s.checks {
		c.recovered(had, old.states[len(old.states)-1])
	}
	n.founds(s.successor(n, had, old, from))
}

// keeps looks whether everything that was committed, and that the log of the node has, is in
// the world that goes on. Whoever proposed it was told so, and the node may not know it.
func (s *sim) keeps(log []entry, old *world) {
	for i, e := range log {
		committed := i < len(old.entries) && old.entries[i].term == e.term
		if committed && (i >= len(s.world.entries) || s.world.entries[i].term != e.term) {
			s.fail("nothing-lost", "entry %d was committed, is in the log that is recovered, and not in what goes on from it", i+1)
			return
		}
	}
}

// successor is the command that begins the incarnation which follows everything that the
// node knows: its own log, though it is set aside, and the backup.
func (s *sim) successor(n *node, had *site.State, old *world, from *backup) site.Recover {
	inc := had.Incarnation + 1
	if from != nil && !s.faults.fromBackup {
		inc = max(inc, old.states[len(old.states)-1].Incarnation+1)
	}
	b := site.Recover{
		Incarnation: inc, Lineage: fmt.Sprintf("%d-%s", inc, s.newID("lineage")), Runner: n.runner, Node: n.name, Peer: "peer-" + n.name,
		From: had.Index, Backup: from != nil, Formats: n.formats,
	}
	if s.faults.sameLineage && old.lineage != "" {
		b.Lineage = old.lineage
	}
	return b
}

// founds makes the node the only voter of the world that the command begins.
func (n *node) founds(b site.Recover) {
	n.world, n.commit, n.applied, n.term, n.voted = n.s.world, 0, 0, max(n.term, n.termAt(n.lastIndex()))+1, -1
	raw := site.Command{ID: forgeyard.MessageID(n.s.newID("recover")), At: n.clk.wall(), By: "ana", Body: b}.Encode()
	alone := &group{}
	alone.member[n.id], alone.voter[n.id] = true, true
	n.appendEntry(entry{term: n.term, cmds: [][]byte{raw}, group: alone})
	n.synced = n.lastIndex()
	n.world.lineage, n.world.lift = b.Lineage, site.FirstIndex(b.Incarnation)-n.lastIndex()
	n.s.committed(n, n.lastIndex())
}

// outdated is a node that meets the new incarnation. It ends; a person sets its log aside,
// and it comes in again, as a member that knows nothing.
func (n *node) outdated() {
	if n.gone || n.world.lineage == n.s.world.lineage {
		return
	}
	n.s.trace("%s meets a newer incarnation, and ends", n.name)
	n.end()
	n.world, n.commit, n.applied = n.s.world, 0, 0
	n.log, n.synced, n.cuts, n.term, n.voted, n.groups = nil, 0, n.cuts+1, 0, -1, []groupAt{{0, &group{}}}
	n.comesBack(n.s.within(time.Second, 10*time.Second))
}

// outside says that a node is in no group, as far as it knows, and finds its way by asking.
func (n *node) outside() bool {
	g, _ := n.group()
	return n.leads < 0 && !g.member[n.id]
}
