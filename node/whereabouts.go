package node

import (
	"cmp"
	"maps"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node/mesh"
)

// Where the others are stands in the log. But a node that starts applies nothing of its log
// before a leader says what is committed, and without the others there is no leader: so the
// addresses stand in the enrolment too, as they were last.

// notedAddrs are the members by the enrolment on disk.
func (n *Node) notedAddrs() []mesh.PeerAddr {
	if p := n.noted.Load(); p != nil {
		return *p
	}
	return n.enrolment.Peers
}

// memberAddrs is where members may be found: from the log, and from what was noted before.
func (n *Node) memberAddrs() []mesh.PeerAddr {
	byPeer := map[peer.ID]mesh.PeerAddr{}
	for _, p := range n.notedAddrs() {
		byPeer[p.PeerID] = p
	}
	members := n.replica.State().Members
	for _, m := range members.All() {
		if id, err := peer.Decode(m.Peer); err == nil && m.Removed {
			delete(byPeer, id)
		}
	}
	for _, m := range members.All() {
		if id, err := peer.Decode(m.Peer); err == nil && !m.Removed {
			byPeer[id] = mesh.PeerAddr{RunnerID: m.Runner, PeerID: id, Addrs: m.Addrs, GossipAddr: m.Gossip}
		}
	}
	byPeer[n.mesh.PeerID()] = n.ownAddr()
	return slices.Collect(maps.Values(byPeer))
}

// fewAddrs are as many members as an enrolment holds: first those whom the caller names,
// then voters, for they are who must find each other.
func (n *Node) fewAddrs(first ...mesh.PeerAddr) []mesh.PeerAddr {
	rest := others(n.memberAddrs(), n.mesh.PeerID())
	st := n.replica.State()
	rank := func(p mesh.PeerAddr) int {
		if m, ok := st.Members.Get(p.RunnerID); ok && !m.MayLead() {
			return 1
		}
		return 0
	}
	slices.SortFunc(rest, func(a, b mesh.PeerAddr) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.RunnerID, b.RunnerID), cmp.Compare(a.PeerID, b.PeerID))
	})
	var out []mesh.PeerAddr
	room := maxAddrsNoted
	for _, p := range append(first, rest...) {
		size := len(p.GossipAddr)
		for _, a := range p.Addrs {
			size += len(a)
		}
		known := slices.ContainsFunc(out, func(q mesh.PeerAddr) bool { return q.PeerID == p.PeerID })
		if !known && len(p.Addrs) > 0 && len(out) < mesh.MaxPeers && size <= room {
			out, room = append(out, p), room-size
		}
	}
	return out
}

// maxAddrsNoted is the text of all addresses in an enrolment: it is sent in one frame.
const maxAddrsNoted = 32 << 10

// noteAddrs writes down where the others are, if that is new.
func (n *Node) noteAddrs(first ...mesh.PeerAddr) error {
	return n.note(func(e *mesh.Enrolment) bool {
		next := n.fewAddrs(first...)
		same := describe(next) == describe(e.Peers)
		e.Peers = next
		return !same
	})
}

// note changes the enrolment, on disk and then in memory, unless change says that nothing is
// new. One does it at a time: the next one starts from what this one wrote.
func (n *Node) note(change func(*mesh.Enrolment) bool) error {
	n.noting.Lock()
	defer n.noting.Unlock()
	e := n.enrolmentNow()
	if !change(&e) {
		return nil
	}
	if err := e.Check(n.mesh.PeerID()); err != nil {
		return err // it could not be read at the next start
	}
	if err := mesh.SaveEnrolment(n.dir.path, e); err != nil {
		return err
	}
	n.noted.Store(&e.Peers)
	n.credential.Store(e.Credential)
	if !e.SiteKey.IsZero() {
		n.heldKey.Store(&e.SiteKey)
	}
	return nil
}
