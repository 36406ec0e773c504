package node

import (
	"context"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/site"
)

// A process that just began knows the site as its disk has it: who was removed since is a
// member there, who came is a stranger, and the log's format may have moved. Nothing that
// it decides for others follows from that before it was up to date once.

// toldFormat is the format of the site's log as the leader said it, to this node of that lineage.
type toldFormat struct {
	lineage string
	format  site.Format
}

// current waits until this node's copy of the log has been up to date, once in the life of
// the process and once in each leadership.
func (n *Node) current(ctx context.Context) error {
	term, leads := n.group.Term(), n.group.IsLeader()
	if leads && n.currentIn.Load() == term || !leads && n.caughtUp.Load() {
		return nil
	}
	if !n.upToDate(ctx) {
		return forgeyard.Errorf("propose", forgeyard.Unavailable, "%s has just begun and does not know yet what the site's log says", n.enrolment.Name)
	}
	n.caughtUp.Store(true)
	if leads {
		n.currentIn.Store(term)
	}
	return nil
}

// allows reports whether what came with a format may be written into the site's log now:
// by this node's own copy of it, or by what the leader said.
func (n *Node) allows(f site.Format) bool {
	if n.replica.State().Allows(f) {
		return true
	}
	t := n.told.Load()
	return t != nil && t.lineage == n.lineage() && f <= t.format
}

// mayWrite says why a command may not stand in the site's log yet, or nil. That this node's
// own copy of the log does not allow it is no answer: the copy may be behind. The format only
// rises, so that a command which it does allow needs no question.
func (n *Node) mayWrite(ctx context.Context, b site.Body) error {
	err := n.replica.State().MayWrite(b)
	if err == nil || n.allows(site.FormatOf(b)) || n.learnFormat(ctx) && n.allows(site.FormatOf(b)) {
		return nil
	}
	return err
}

// learnFormat asks for the format of the site's log as it is now, and reports whether
// somebody knew. What answers may be a member that reaches the leader where this node does
// not: its own copy of the log gets nothing then.
func (n *Node) learnFormat(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, quorumTimeout)
	defer cancel()
	if n.group.IsLeader() {
		return n.group.ReadBarrier(ctx) == nil
	}
	lineage := n.lineage()
	_, c, err := n.peers.leader()
	if err != nil {
		return false
	}
	r, err := c.Barrier(ctx, connect.NewRequest(&forgeyardv1.BarrierRequest{}))
	if err != nil {
		return false
	}
	if r.Msg.LogFormat == 0 { // a program that does not say: our own copy will
		return n.group.WaitApplied(ctx, r.Msg.Index) == nil
	}
	n.told.Store(&toldFormat{lineage, site.Format(r.Msg.LogFormat)})
	return true
}
