package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/site"
)

// A node that has just begun, and reaches nobody who leads, judges nobody by what its disk
// says: it does not pass on, and does not call anybody denied.
func TestJudgesNobodyByAnOldCopy(t *testing.T) {
	all := makeSite(t, 4)
	one := all[0]
	for _, p := range all { // who has not heard of the others can reach none without the first
		p.wait("three voters", func() bool { return votersOf(p) == 3 })
	}
	// Any two of the others may be the voters beside the first.
	members, rest := one.node.group.Members(), all[1:]
	i := slices.IndexFunc(rest, func(p *proc) bool {
		return !slices.ContainsFunc(members, func(m consensus.Member) bool { return m.Voter && m.ID == string(p.node.enrolment.RunnerID) })
	})
	asks := rest[i]
	rest = slices.Delete(slices.Clone(rest), i, i+1)
	two, three := rest[0], rest[1]
	name, second := three.node.enrolment.Name, two.node.enrolment.Name
	three.end()
	one.end()
	two.end()
	three = startNode(t, three.dir, name)
	propose := func(b site.Body) error {
		cmd := site.Command{ID: forgeyard.MessageID(asks.node.NewID()), By: "test", Body: b}
		_, err := asks.node.peers.to(three.node.mesh.PeerID().String()).Propose(t.Context(), connect.NewRequest(&forgeyardv1.ProposeRequest{Command: cmd.Encode()}))
		return err
	}
	for _, b := range []site.Body{site.Cancel{Job: "no job"}, site.Revoke{Job: "no job"}} {
		if err := propose(b); forgeyard.KindOf(err) != forgeyard.Unavailable || !strings.Contains(err.Error(), name+" has just begun") {
			t.Errorf("%T: %v", b, err)
		}
	}
	two = startNode(t, two.dir, second)
	// The fourth may have got the vote of one that was stopped in order.
	three.wait("they have a leader", func() bool { return three.leads() || two.leads() || asks.leads() })
	// Its copy is up to date now: who is no voter is told so.
	asks.wait("the third knows", func() bool { return forgeyard.KindOf(propose(site.Revoke{Job: "no job"})) != forgeyard.Unavailable })
	if err := propose(site.Cancel{Job: "no job"}); err != nil {
		t.Errorf("%v", err)
	}
}

// A node whose own copy of the log gets nothing learns the log's format from whoever reaches
// the leader, and says at once where it runs; what it proposes is not refused for the copy.
func TestFormatIsLearntFromOthers(t *testing.T) {
	all := makeSite(t, 2)
	one, two := all[0], all[1]
	one.wait("the log is in the newest format", func() bool { return one.node.replica.State().Allows(site.FormatNow) })
	one.wait("the second knows it", func() bool { return two.node.replica.State().Allows(site.FormatNow) })
	follower := all[slices.IndexFunc(all, func(p *proc) bool { return !p.leads() })]
	other := all[slices.IndexFunc(all, func(p *proc) bool { return p != follower })]
	r, err := other.node.peers.to(follower.node.mesh.PeerID().String()).Barrier(t.Context(), connect.NewRequest(&forgeyardv1.BarrierRequest{}))
	if err != nil || site.Format(r.Msg.LogFormat) != site.FormatNow {
		t.Errorf("through a follower: %v, %v", r, err)
	}

	f := follower.node
	behind := &Node{clock: f.clock, enrolment: f.enrolment, group: f.group, peers: f.peers, way: f.way, dir: f.dir, replica: replica.New()}
	began := time.Now()
	if err := behind.awaitFormat(t.Context()); err != nil || behind.place().IsZero() {
		t.Errorf("after %s: place %v, %v", time.Since(began), behind.place(), err)
	}
	if err := behind.mayWrite(t.Context(), site.Revoke{}); err != nil {
		t.Error(err)
	}
	// What another incarnation's leader said is about another log.
	behind.told.Store(&toldFormat{"another", site.FormatNow})
	if behind.allows(site.FormatNow) {
		t.Error("the format of another lineage is taken for ours")
	}
}
