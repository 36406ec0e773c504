package simulation

import (
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// A site that lost its voters for good goes on from what one node has (decision 0014 of
// the project): in another world, which has the committed sequence only as far as that
// node's log has it, and what the node had that nobody ever committed.

// recover lets a person recover the site by force on a node, after every other voter was
// lost for good. Who only ran jobs goes on for as long as its leases let it, and hears of
// the new incarnation later.
func (s *sim) recover(n *node, down time.Duration) {
	if n.world != s.world {
		return
	}
	s.trace("every voter but %s is lost for good", n.name)
	var lost []*node
	for _, m := range s.nodes {
		if m != n && !m.gone && s.votes(m) {
			m.end()
			m.gone = true
			lost = append(lost, m)
		}
	}
	n.end()
	n.upgrade()
	s.reseed(n)
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
	s.after(int64(down+time.Second), func() { s.client.bury(lost) })
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

// reseed makes the node's log the committed one, and what follows from it the state.
func (s *sim) reseed(n *node) {
	old := s.world
	same := 0
	for same < len(n.log) && same < len(old.entries) && old.entries[same].term == n.log[same].term {
		same++
	}
	s.world = old.upto(same)
	for _, e := range n.log[same:] {
		s.take(e, func(uint64, *site.State, []byte, site.Reply, *site.State) site.Format { return site.FormatOldest })
	}
	had := s.head()
	s.trace("%s recovers the site from entry %d; %d were committed", n.name, n.lastIndex(), len(old.entries))
	for _, c := range s.checks {
		c.recovered(had, old.states[len(old.states)-1])
	}
	s.client.forget(had)

	n.world, n.commit, n.applied, n.term, n.voted = s.world, 0, 0, n.term+1, -1
	body := site.Recover{
		Incarnation: had.Incarnation + 1, Lineage: fmt.Sprintf("lineage-%d", had.Incarnation+1), Runner: n.runner, Node: n.name, Peer: "peer-" + n.name,
		From: had.Index, Formats: n.formats,
	}
	raw := site.Command{ID: forgeyard.MessageID(s.newID("recover")), At: n.clk.wall(), By: "ana", Body: body}.Encode()
	alone := &group{}
	alone.member[n.id], alone.voter[n.id] = true, true
	n.appendEntry(entry{term: n.term, cmds: [][]byte{raw}, group: alone})
	n.synced = n.lastIndex()
	s.world.lift = site.FirstIndex(body.Incarnation) - n.lastIndex()
	s.committed(n, n.lastIndex())
}

// outdated is a node that meets the new incarnation. It ends; a person sets its log aside,
// and it comes in again, as a member that knows nothing.
func (n *node) outdated() {
	if n.gone || n.world == n.s.world {
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
