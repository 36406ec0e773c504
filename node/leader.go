package node

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// leadership is one term of leading. What it holds dies with it.
type leadership struct {
	n    *Node
	term uint64

	mu        sync.Mutex // guards all below but look
	mem       *controllers.Memory
	flying    map[string]bool // keys of proposals under way
	reshaping bool            // a change of the voters is under way
	look      chan struct{}
}

// refusedPause is how long a leader waits before it makes a refused proposal again.
const refusedPause = 300 * time.Millisecond

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
	l := &leadership{n: n, term: term, mem: controllers.NewMemory(n.clock.Now()), flying: map[string]bool{}, look: make(chan struct{}, 1)}
	n.leading.Store(l)
	n.log.Info("leading", "term", term)
	n.announce(ctx, term)
	var wg sync.WaitGroup
	wg.Go(func() { l.run(ctx) })
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

func (l *leadership) run(ctx context.Context) {
	for {
		changed := l.n.replica.Changed()
		now := l.n.clock.Now()
		l.mu.Lock()
		effects, wake := controllers.Step(now, l.input())
		l.mu.Unlock()
		for _, e := range effects {
			l.carryOut(ctx, e)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-l.look:
		case <-l.n.clock.After(wake.Sub(l.n.clock.Now())):
		}
	}
}

// input is called with mu held.
func (l *leadership) input() controllers.Input {
	used, known := l.n.link.Used()
	return controllers.Input{State: l.n.replica.State(), Mem: l.mem, Used: used, Known: known, Group: l.n.groupMembers(), Term: l.term}
}

// groupMembers is the Raft configuration, with how far each member follows.
func (n *Node) groupMembers() []controllers.GroupMember {
	behind := map[string]uint64{string(n.enrolment.RunnerID): 0}
	for _, f := range n.group.Stats().Followers {
		if f.Known {
			behind[f.ID] = f.Lag
		}
	}
	var out []controllers.GroupMember
	for _, m := range n.group.Members() {
		lag, known := behind[m.ID]
		if !known {
			lag = 1 << 62
		}
		out = append(out, controllers.GroupMember{Runner: forgeyard.RunnerID(m.ID), Voter: m.Voter, Behind: lag})
	}
	return out
}

func (l *leadership) carryOut(ctx context.Context, e controllers.Effect) {
	switch e := e.(type) {
	case controllers.Propose:
		if !l.take(e.Key) {
			return
		}
		go func() {
			reply, err := l.n.proposer.ProposeAs(ctx, "leader", e.Body)
			if err != nil && ctx.Err() == nil {
				l.n.log.Warn("a proposal of the leader failed", "what", e.Key, "err", err)
			} else if refused := reply.Err(); refused != nil {
				// What was decided on is not so any more, or rule and decision differ: either way
				// the same proposal is not made again at once.
				l.n.log.Info("a proposal of the leader was refused", "what", e.Key, "err", refused)
				l.n.pause(ctx, refusedPause)
			}
			l.done(e, err == nil)
		}()
	case controllers.SetVoter:
		l.setVoter(ctx, e)
	}
}

func (l *leadership) take(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying[key] {
		return false
	}
	l.flying[key] = true
	return true
}

// done ends a proposal. A lease whose expiry had an unknown outcome stays refused for
// the rest of this leadership.
func (l *leadership) done(e controllers.Propose, known bool) {
	l.mu.Lock()
	delete(l.flying, e.Key)
	if x, ok := e.Body.(site.Expire); ok && known {
		l.mem.Settled(x.Lease)
	}
	l.mu.Unlock()
	l.again()
}

func (l *leadership) again() {
	select {
	case l.look <- struct{}{}:
	default: // one look is due already
	}
}

// setVoter changes the group, one change at a time.
func (l *leadership) setVoter(ctx context.Context, e controllers.SetVoter) {
	l.mu.Lock()
	busy := l.reshaping
	l.reshaping = true
	l.mu.Unlock()
	if busy {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err := l.reshape(ctx, e)
		if err != nil && ctx.Err() == nil {
			l.n.log.Warn("the group could not be changed", "runner", e.Runner, "to", e.Role, "err", err)
			l.n.pause(ctx, refusedPause)
		} else if err == nil {
			l.n.log.Info("group changed", "runner", e.Runner, "to", e.Role)
		}
		l.mu.Lock()
		l.reshaping = false
		l.mu.Unlock()
		l.again()
	}()
}

func (l *leadership) reshape(ctx context.Context, e controllers.SetVoter) error {
	switch e.Role {
	case controllers.Voter:
		return l.n.group.Promote(ctx, string(e.Runner))
	case controllers.NonVoter:
		return l.n.group.AddNonvoter(ctx, string(e.Runner), e.Peer)
	default:
		return l.n.group.Remove(ctx, string(e.Runner))
	}
}

// renew answers a heartbeat that arrived now. It answers only after a majority has
// confirmed, since, that this leadership still holds (decision 3).
func (l *leadership) renew(ctx context.Context, r forgeyard.RunnerID, sign controllers.Sign, batch []controllers.Renewal) ([]controllers.RenewalAnswer, error) {
	arrived := l.n.clock.Now()
	if _, err := l.n.group.Confirm(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	_, before := l.mem.Runner(r)
	sign.At = arrived
	l.mem.Hello(r, sign)
	out := l.mem.Renew(arrived, l.input(), batch)
	l.mu.Unlock()
	l.n.metrics.renewals.Add(float64(len(batch)))
	if !before {
		l.again() // somebody new may be able to serve what waits
	}
	return out, nil
}

// explain says why a job is where it is, by what this leader knows.
func (l *leadership) explain(id forgeyard.JobID) (string, []controllers.Candidate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.input()
	j, ok := in.State.Jobs.Get(id)
	if !ok {
		return "", nil, forgeyard.Errorf("explain", forgeyard.NotFound, "no job %s", id)
	}
	held, all := controllers.Explain(l.n.clock.Now(), in, j)
	return held, all, nil
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
