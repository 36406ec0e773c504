package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/agent"
)

// link is this node's way to the leader: agent.Link decides it, heartbeats and proposals
// go by it and say how they fared.
type link struct {
	n *Node

	mu    sync.Mutex // guards rules and last
	rules *agent.Link
	last  string // the last error, for people; empty after an answer
}

func newLink(n *Node) *link {
	return &link{n: n, rules: agent.NewLink(n.paceOfLink(), rand.Float64)}
}

func (n *Node) paceOfLink() agent.Pace {
	return agent.Pace{First: firstBackoff, Most: max(n.settings().Reconnect.MaxBackoff, firstBackoff)}
}

// repace takes over what the settings say now.
func (k *link) repace() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rules.SetPace(k.n.paceOfLink())
}

// view is what the node knows of the site at the moment.
func (k *link) view() agent.View {
	n := k.n
	self := n.mesh.PeerID().String()
	_, addr, term := n.group.Leader()
	if h, ok := n.whoSaysItLeads(); ok && (h.term > term || addr == "") {
		addr, term = h.addr, max(term, h.term)
	}
	v := agent.View{Leader: addr, Term: term}
	st := n.replica.State()
	for _, p := range n.memberAddrs() {
		m, known := st.Members.Get(p.RunnerID)
		if id := p.PeerID.String(); id != self && (!known || m.MayLead()) {
			v.Members = append(v.Members, id)
		}
	}
	if n.local.busy() {
		v.Busy = n.renewEvery()
	}
	return v
}

// route names whom to ask; empty: nobody is known.
func (k *link) route() string {
	v := k.view()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rules.Route(k.n.clock.Now(), v)
}

// heard tells how a call went, and returns how long to wait before the next one if it did
// not reach the leader. A refusal by who decides is an answer too.
func (k *link) heard(addr string, err error) time.Duration {
	v := k.view()
	now := k.n.clock.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch forgeyard.KindOf(err) {
	case forgeyard.Stale, forgeyard.Invalid, forgeyard.Conflict, forgeyard.NotFound, forgeyard.Limit:
		if wire.Answered(err) {
			err = nil // Denied is not among them: it may be said at the door, by one member of several
		}
	}
	if err != nil {
		k.last = err.Error()
		k.n.metrics.linkFailures.Inc()
		return k.rules.Failed(now, addr, v)
	}
	k.last = ""
	if k.rules.Answered(now, addr) {
		k.n.metrics.reconnects.Inc()
		k.n.log.Info("the site answers again", "by", k.n.peerName(addr))
	}
	return 0
}

// proposed is heard for a proposal, whose caller may have stopped waiting.
func (k *link) proposed(ctx context.Context, addr string, err error) {
	if err != nil && ctx.Err() != nil {
		return // that says nothing of the way
	}
	k.heard(addr, err)
}

// ended looks whether the site has said for good that it wants nothing of this node: by
// its log, or by what its members say at the door.
func (k *link) ended() error {
	n := k.n
	v := k.view()
	var said []agent.DoorRefusal
	for _, d := range n.mesh.Doors() {
		switch {
		case d.Why == mesh.RefusedRevoked && !d.Ours:
			said = append(said, agent.DoorRefusal{Peer: d.Peer.String(), Why: agent.Revoked})
		case d.Why == mesh.RefusedVersion:
			said = append(said, agent.DoorRefusal{Peer: d.Peer.String(), Why: agent.Incompatible})
		}
	}
	m, ok := n.replica.State().Members.Get(n.enrolment.RunnerID)
	k.mu.Lock()
	if ok && m.Removed && !n.votes(m.Runner) {
		k.rules.Ended(agent.Revoked)
	}
	end := k.rules.Refused(v, said)
	k.mu.Unlock()
	return n.endError(end)
}

// removed is told that the log refused to register this node.
func (k *link) removed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rules.Ended(agent.Revoked)
}

// endError says what an end of the link is for a person; nil for none.
func (n *Node) endError(end agent.End) error {
	switch end {
	case agent.Revoked:
		return forgeyard.Errorf("session", forgeyard.Denied, "%s was removed from site %s", n.enrolment.Name, n.enrolment.SiteName).
			WithHint("its credential is revoked; join again with a new token and an empty data directory")
	case agent.Incompatible:
		return forgeyard.Errorf("session", forgeyard.Denied, "no member of site %s speaks a mesh version that this program (%s) speaks", n.enrolment.SiteName, n.cfg.Version).
			WithHint("install the release that the site runs, or a neighbouring one")
	}
	return nil
}

// status is how the link is, with the last error while there is one.
func (k *link) status() (agent.LinkStatus, string) {
	v := k.view()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rules.Status(v), k.last
}

// peerName is a member's name for people, by its address in the group.
func (n *Node) peerName(addr string) string {
	for _, m := range n.replica.State().Members.All() {
		if m.Peer == addr {
			return m.Name
		}
	}
	return addr
}

// clockTolerance is how far a wall clock may be off before anybody is told: credentials
// and people's timestamps bear that much.
const clockTolerance = 10 * time.Second

// clockDoubt says by how much this machine's wall clock is off; empty while it agrees.
func (n *Node) clockDoubt() string {
	off, of := n.mesh.ClockOff()
	if of == 0 || off.Abs() < clockTolerance {
		return ""
	}
	way := "ahead of"
	if off < 0 {
		way = "behind"
	}
	return fmt.Sprintf("the clock of this machine is off by %s: it is %s the median of %d members", off.Abs().Round(time.Second), way, of)
}
