package node

import (
	"context"

	"connectrpc.com/connect"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// lineageHeader names the lineage of the caller's group (docs/decisions/0014) in each call
// between members that only one group can answer. An older program does not send it, and a
// node with nothing in its log belongs to no lineage yet: both are taken as they come.
const lineageHeader = "Forgeyard-Lineage"

// firstLineage stands for the group that a site begins with, which has no name.
const firstLineage = "first"

// acrossLineages are the calls that nodes of two incarnations may make to each other: they
// find out that they are two, or ask for what belongs to a member and not to a group. Term
// has the lineage in its request, and an answer of its own for it.
var acrossLineages = map[string]bool{
	forgeyardv1connect.PeerServiceLineageProcedure:    true,
	forgeyardv1connect.PeerServiceTermProcedure:       true,
	forgeyardv1connect.PeerServiceCredentialProcedure: true,
	forgeyardv1connect.PeerServiceLogProcedure:        true,
	forgeyardv1connect.PeerServiceConsoleProcedure:    true,
}

// lineage is what this node calls its group before others; empty: it belongs to none yet.
func (n *Node) lineage() string {
	if l := n.group.Lineage(); l != "" {
		return l
	}
	_, last, err := n.group.LastEntry()
	empty := err == nil && last == 0
	if (empty || forgeyard.KindOf(err) == forgeyard.Unavailable) && n.replica.State().Index == 0 {
		return "" // a log that cannot be read is not an empty one
	}
	return firstLineage
}

// ownLineage puts this node's lineage on the calls that leave it, and refuses those that
// come from another: until the two have met, what a leader of an incarnation that was given
// up says or is told must go nowhere.
func (n *Node) ownLineage(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if acrossLineages[r.Spec().Procedure] {
			return next(ctx, r)
		}
		own := n.lineage()
		if r.Spec().IsClient {
			if own != "" {
				r.Header().Set(lineageHeader, own)
			}
			return next(ctx, r)
		}
		if theirs := r.Header().Get(lineageHeader); theirs != "" && own != "" && theirs != own {
			var from peer.ID
			if p, ok := mesh.PeerFrom(ctx); ok {
				from = p.ID
				n.stranger(p.ID.String())
			}
			return nil, n.notOurs(from, theirs)
		}
		return next(ctx, r)
	}
}

// notOurs is an answer that settles nothing: a result that is refused so is kept, and
// offered to the leader of the right incarnation.
func (n *Node) notOurs(from peer.ID, theirs string) error {
	return forgeyard.Errorf("peer", forgeyard.Unavailable, "%s belongs to incarnation %d of the site, %s to another, %d", n.enrolment.Name, incarnationOf(n.group.Lineage()), n.peerName(from.String()), incarnationOf(theirs)).
		WithHint("the later one goes on: on nodes of the other, forgeyard-node site rejoin, then start them again")
}

// hinted takes note of who says that it leads, unless another said so of a later term: a
// word may come late.
func (n *Node) hinted(h leaderHint) {
	for {
		old := n.hint.Load()
		if old != nil && old.lineage == h.lineage && old.term > h.term || n.hint.CompareAndSwap(old, &h) {
			return
		}
	}
}

// whoSaysItLeads is the last member of this node's own group that said it leads.
func (n *Node) whoSaysItLeads() (h leaderHint, ok bool) {
	last := n.hint.Load()
	if last == nil || last.lineage != n.lineage() {
		return h, false // said before this node's group began
	}
	return *last, true
}
