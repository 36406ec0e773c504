package node

import (
	"context"
	"sync"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/node/leading"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// leaderLoop leads whenever this node is the leader, one leadership at a time.
func (n *Node) leaderLoop(ctx context.Context) error {
	changes := n.group.LeaderChanges()
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case l, ok := <-changes:
			stop()
			stop = func() {}
			if !ok {
				return nil
			}
			if l.IsLeader {
				stop = n.lead(ctx, l.Term)
			}
		}
	}
}

// lead starts a leadership; the returned function ends it and waits until it has.
func (n *Node) lead(ctx context.Context, term uint64) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	l := leading.New(leading.Config{
		Self: n.enrolment.RunnerID, Term: term, Group: n.group, Replica: n.replica, Proposer: n.proposer, Clock: n.clock, Log: n.log,
		Used: n.link.Used, Daemon: n.link.Daemon, Renewed: n.metrics.renewed,
	})
	n.leading.Store(l)
	n.log.Info("leading", "term", term)
	n.announce(ctx, term)
	var wg sync.WaitGroup
	wg.Go(func() { l.Run(ctx) })
	wg.Go(func() {
		if err := n.link.Run(ctx); err != nil && ctx.Err() == nil {
			n.log.Error("the uplink ended", "err", err)
		}
	})
	return func() {
		n.leading.CompareAndSwap(l, nil)
		cancel()
		wg.Wait()
		n.log.Info("not leading any more", "term", term)
	}
}

// announce tells every member that this node leads, so that they renew with it now and
// not with their next heartbeat. Who does not hear it finds the leader by itself.
func (n *Node) announce(ctx context.Context, term uint64) {
	n.local.askRenewal()
	for id, m := range n.replica.State().Members.All() {
		if id == n.enrolment.RunnerID || m.Removed {
			continue
		}
		go func() {
			ctx, cancel := context.WithTimeout(ctx, vouchTimeout)
			defer cancel()
			if _, err := n.peers.to(m.Peer).Leading(ctx, connect.NewRequest(&forgeyardv1.LeadingRequest{Term: term})); err != nil {
				n.log.Debug("a member did not hear who leads", "member", m.Name, "err", err)
			}
		}()
	}
}

// vouch asks this node and every voter how long ago it saw the uplink figure of that
// index applied, by a clock that it can trust (§6).
func (n *Node) vouch(ctx context.Context, marked uint64) []uplink.Vouch {
	at := n.replica.State().Uplink.MarkedAt
	own := n.witness.Elapsed(marked, at)
	own.By = n.enrolment.Name
	var mu sync.Mutex
	out := []uplink.Vouch{own}
	var wg sync.WaitGroup
	for _, m := range n.group.Members() {
		if !m.Voter || m.ID == string(n.enrolment.RunnerID) {
			continue
		}
		wg.Go(func() {
			v := n.askVouch(ctx, m.Addr, marked, at)
			v.By = n.memberName(forgeyard.RunnerID(m.ID))
			mu.Lock()
			out = append(out, v)
			mu.Unlock()
		})
	}
	wg.Wait()
	return out
}

func (n *Node) askVouch(ctx context.Context, addr string, marked uint64, at forgeyard.Wall) uplink.Vouch {
	ctx, cancel := context.WithTimeout(ctx, vouchTimeout)
	defer cancel()
	r, err := n.peers.to(addr).Vouch(ctx, connect.NewRequest(&forgeyardv1.VouchRequest{Marked: marked, AtMs: int64(at)}))
	if err != nil {
		return uplink.Vouch{Why: err.Error()}
	}
	return uplink.Vouch{Known: r.Msg.Known, Elapsed: r.Msg.Elapsed.AsDuration(), How: uplink.How(r.Msg.How), Why: r.Msg.Why}
}

// until waits for a condition on the site's state, or for ctx.
func (n *Node) until(ctx context.Context, ok func(*site.State) bool) error {
	for {
		changed := n.replica.Changed()
		if ok(n.replica.State()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
