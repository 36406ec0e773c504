package consensus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// Member is one node of the group.
type Member struct {
	ID    string
	Addr  string
	Voter bool
}

// Members lists the latest configuration this node knows, committed or not.
func (g *Group) Members() []Member {
	g.mu.Lock()
	in, servers := g.in, g.last
	g.mu.Unlock()
	if in != nil {
		servers = in.servers()
	}
	list := make([]Member, 0, len(servers))
	for _, s := range servers {
		list = append(list, Member{ID: string(s.ID), Addr: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return list
}

func (g *Group) voters() []Member {
	var list []Member
	for _, m := range g.Members() {
		if m.Voter {
			list = append(list, m)
		}
	}
	return list
}

func (g *Group) member(op, id string) (Member, error) {
	for _, m := range g.Members() {
		if m.ID == id {
			return m, nil
		}
	}
	return Member{}, forgeyard.Errorf(op, forgeyard.NotFound, "%q is not a member of the group", id)
}

// AddVoter adds a node that votes at once, or moves a member to a new address.
// Prefer AddNonvoter and Promote: a voter that is far behind can hold up commits.
func (g *Group) AddVoter(ctx context.Context, id, addr string) error {
	return g.change(ctx, "add voter", func(r *raft.Raft) raft.Future {
		return r.AddVoter(raft.ServerID(id), raft.ServerAddress(addr), 0, 0)
	})
}

// AddNonvoter adds a node that receives the log and has no vote.
func (g *Group) AddNonvoter(ctx context.Context, id, addr string) error {
	return g.change(ctx, "add nonvoter", func(r *raft.Raft) raft.Future {
		return r.AddNonvoter(raft.ServerID(id), raft.ServerAddress(addr), 0, 0)
	})
}

// Promote gives a member a vote. Look at Stats first: it should be caught up.
func (g *Group) Promote(ctx context.Context, id string) error {
	m, err := g.member("promote", id)
	if err != nil {
		return err
	}
	return g.AddVoter(ctx, m.ID, m.Addr)
}

// Demote takes a member's vote and keeps sending it the log.
func (g *Group) Demote(ctx context.Context, id string) error {
	if _, err := g.member("demote", id); err != nil {
		return err
	}
	return g.change(ctx, "demote", func(r *raft.Raft) raft.Future { return r.DemoteVoter(raft.ServerID(id), 0, 0) })
}

// Remove takes a member out. A removed leader steps down once that is
// committed; a removed node is not told, its owner closes it.
func (g *Group) Remove(ctx context.Context, id string) error {
	if _, err := g.member("remove", id); err != nil {
		return err
	}
	return g.change(ctx, "remove", func(r *raft.Raft) raft.Future { return r.RemoveServer(raft.ServerID(id), 0, 0) })
}

// change commits one change of the configuration. Errors are those of Propose;
// repeating one whose outcome is Unknown is harmless.
func (g *Group) change(ctx context.Context, op string, call func(*raft.Raft) raft.Future) error {
	in, err := g.running(op)
	if err != nil {
		return err
	}
	return g.proposalError(op, in.await(ctx, op, func() raft.Future { return call(in.raft) }))
}

// Stats is one picture of the group from here.
type Stats struct {
	State         string // follower, candidate, leader, down
	Why           error  // while down or quarantined
	Quarantined   bool
	Rebuilding    bool // behind what this node gave up: it does not vote
	Term          uint64
	LeaderID      string
	LastIndex     uint64
	CommitIndex   uint64
	AppliedIndex  uint64
	SnapshotIndex uint64
	Followers     []FollowerStats // on the leader
}

// FollowerStats is what the leader last heard from a member.
type FollowerStats struct {
	Member
	Known     bool // something was heard in this leadership or an earlier one
	LastIndex uint64
	Lag       uint64        // entries behind the leader's last
	Silent    time.Duration // since it was heard
}

// Stats tells what the group does and how far each follower is.
func (g *Group) Stats() Stats {
	id, _, term := g.Leader()
	s := Stats{State: "down", Term: term, LeaderID: id, AppliedIndex: g.Applied(), Quarantined: g.machine.quarantined.Load(), Rebuilding: g.plan.Load() != nil}
	g.mu.Lock()
	in := g.in
	s.Why = g.why
	g.mu.Unlock()
	if s.Quarantined && s.Why == nil {
		s.Why = errQuarantined
	}
	if in == nil {
		return s
	}
	s.State = map[raft.RaftState]string{raft.Follower: "follower", raft.Candidate: "candidate", raft.Leader: "leader"}[in.raft.State()]
	s.LastIndex, s.CommitIndex = in.raft.LastIndex(), in.raft.CommitIndex()
	if at, err := in.snaps.at(); err == nil {
		s.SnapshotIndex = at.Index
	}
	if s.State != "leader" {
		return s
	}
	for _, m := range g.Members() {
		if m.ID == g.cfg.LocalID {
			continue
		}
		f := FollowerStats{Member: m}
		if p, ok := in.trans.follower(m.ID); ok {
			f.Known, f.LastIndex, f.Silent = true, p.lastIndex, g.cfg.Clock.Now().Sub(p.at)
			f.Lag = s.LastIndex - min(s.LastIndex, p.lastIndex)
		}
		s.Followers = append(s.Followers, f)
	}
	return s
}

// transferWatch remembers until when a refusal to take proposals is normal.
type transferWatch struct {
	mu    sync.Mutex
	until forgeyard.Instant
}

func (t *transferWatch) begin(until forgeyard.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = max(t.until, until)
}

func (t *transferWatch) over(now forgeyard.Instant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now >= t.until
}

// Transfer hands leadership to the member with that id, or to the most current
// follower when id is empty. It returns nil once this node no longer leads.
func (g *Group) Transfer(ctx context.Context, id string) error {
	const op = "transfer leadership"
	in, err := g.running(op)
	if err != nil {
		return err
	}
	call := in.raft.LeadershipTransfer
	if id != "" {
		m, err := g.member(op, id)
		if err != nil {
			return err
		}
		call = func() raft.Future {
			return in.raft.LeadershipTransferToServer(raft.ServerID(m.ID), raft.ServerAddress(m.Addr))
		}
	}
	g.transfer.begin(g.cfg.Clock.Now().Add(g.cfg.Timings.Transfer))
	limited, cancel := g.within(ctx, g.cfg.Timings.Transfer)
	defer cancel()
	err = in.await(limited, op, func() raft.Future { return call() })
	if err == nil {
		return nil
	}
	if errors.Is(err, raft.ErrNotLeader) {
		return g.notLeader(op)
	}
	g.spawn(func() { g.awaitTransferEnd(in) })
	return forgeyard.E(op, forgeyard.Unavailable, err).WithHint("the old leader goes on, or another is elected")
}

// awaitTransferEnd watches a failed transfer until the node takes proposals
// again, and restarts raft if it does not: guard (b), hashicorp/raft#696.
func (g *Group) awaitTransferEnd(in *instance) {
	for {
		_, err := in.barrier(g.ctx)
		if !errors.Is(err, raft.ErrLeadershipTransferInProgress) || g.checkTransfer(in) {
			return
		}
		select {
		case <-g.cfg.Clock.After(g.cfg.Timings.Commit):
		case <-in.quit:
			return
		case <-g.quit:
			return
		}
	}
}

// checkTransfer is called when raft refuses an entry because of a transfer. It
// reports whether the time for that is over.
func (g *Group) checkTransfer(in *instance) bool {
	if g.cfg.off.transfer || !g.transfer.over(g.cfg.Clock.Now()) {
		return false
	}
	in.report(fault{kind: TransferStuck, err: forgeyard.Errorf("transfer leadership", forgeyard.Unavailable, "raft refuses proposals %v after a transfer began", g.cfg.Timings.Transfer)})
	return true
}
