package replica

import (
	"context"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/site"
)

// Group is what the proposer needs of the Raft group.
type Group interface {
	Propose(ctx context.Context, data []byte) (consensus.Result, error)
	Leader() (id, addr string, term uint64)
	WaitApplied(ctx context.Context, index uint64) error
	Applied() uint64
}

// Forward carries an encoded command to the node at addr, which leads as far as we
// know, and returns the log index and the encoded reply.
type Forward func(ctx context.Context, addr string, command []byte) (index uint64, reply []byte, err error)

// Proposer gets commands into the log, from any node.
type Proposer struct {
	Group   Group
	Self    string // our own address in the group
	Forward Forward
	Clock   clock.Clock
	NewID   func() forgeyard.MessageID
	By      string // who proposes, unless the call says otherwise
	// Route names whom to ask: the leader, or a member that passes on what is asked, where
	// the leader is not known or cannot be reached; empty if there is none. Nil: the leader.
	Route func(leader string, try int) string
	// Heard is told how asking somebody else than this node went; it may be nil.
	Heard func(ctx context.Context, addr string, err error)
	// MayWrite says why a command may not stand in the site's log yet, or nil: the log's
	// format moves only when every voter reads the next (07§206). It may ask others, within
	// ctx. Nil: all may.
	MayWrite func(ctx context.Context, b site.Body) error
}

// Waits between two tries of the same command.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
	readBack   = 2 * time.Second // for our own copy to reach what was answered
)

// Propose commits a command and returns what Apply answered; the returned error is
// about getting it there, and reply.Err about the command. It tries until the answer
// is known or ctx ends: then Unavailable if the command certainly did not commit,
// Unknown if it may have.
func (p *Proposer) Propose(ctx context.Context, body site.Body) (site.Reply, error) {
	return p.ProposeAs(ctx, p.By, body)
}

// ProposeAs is Propose in somebody's name.
func (p *Proposer) ProposeAs(ctx context.Context, by string, body site.Body) (site.Reply, error) {
	return p.ProposeID(ctx, p.NewID(), by, body)
}

// ProposeID is Propose under a request id of the caller's, who repeats it after a
// restart of its own.
func (p *Proposer) ProposeID(ctx context.Context, id forgeyard.MessageID, by string, body site.Body) (site.Reply, error) {
	if p.MayWrite != nil {
		if err := p.MayWrite(ctx, body); err != nil {
			return site.Reply{}, err
		}
	}
	raw := site.Command{ID: id, At: forgeyard.WallOf(p.Clock.Wall()), By: by, Body: body}.Encode()
	var last error
	maybe := false
	for wait, try := firstRetry, 0; ; wait, try = min(2*wait, lastRetry), try+1 {
		reply, index, err := p.once(ctx, raw, try)
		if err == nil {
			p.awaitOwn(ctx, index)
			return reply, nil
		}
		switch forgeyard.KindOf(err) {
		case forgeyard.Unknown, forgeyard.Interrupted:
			maybe = true
		case forgeyard.Unavailable, forgeyard.NoSpace, forgeyard.Other:
		default:
			return site.Reply{}, err
		}
		last = err
		select {
		case <-ctx.Done():
			return site.Reply{}, gaveUp(last, maybe)
		case <-p.Clock.After(wait):
		}
	}
}

func gaveUp(last error, maybe bool) error {
	if maybe {
		return forgeyard.Errorf("propose", forgeyard.Unknown, "no majority of voters answered in time, so the outcome is not known: %v", last).WithHint("forgeyard-node site status shows who is missing; what was asked for may still happen")
	}
	return forgeyard.Errorf("propose", forgeyard.Unavailable, "no majority of voters answers: %v", last).WithHint("forgeyard-node site status shows who is missing")
}

func (p *Proposer) once(ctx context.Context, raw []byte, try int) (site.Reply, uint64, error) {
	_, addr, _ := p.Group.Leader()
	if addr != p.Self && p.Route != nil {
		addr = p.Route(addr, try)
	}
	if addr == "" {
		return site.Reply{}, 0, forgeyard.Errorf("propose", forgeyard.Unavailable, "no leader is known")
	}
	if addr == p.Self {
		return p.here(ctx, raw)
	}
	index, b, err := p.Forward(ctx, addr, raw)
	if p.Heard != nil {
		p.Heard(ctx, addr, err)
	}
	if err != nil {
		if !wire.Answered(err) {
			// The call may have been cut after the leader took the command.
			return site.Reply{}, 0, forgeyard.E("propose", forgeyard.Unknown, err)
		}
		return site.Reply{}, 0, err
	}
	var r site.Reply
	if err := cborx.Unmarshal(b, &r); err != nil {
		return r, 0, err
	}
	return r, index, nil
}

// Here proposes on this node, which must lead: what a peer's Forward asks for.
func (p *Proposer) Here(ctx context.Context, raw []byte) (uint64, []byte, error) {
	r, index, err := p.here(ctx, raw)
	if err != nil {
		return 0, nil, err
	}
	return index, cborx.Marshal(r), nil
}

func (p *Proposer) here(ctx context.Context, raw []byte) (site.Reply, uint64, error) {
	res, err := p.Group.Propose(ctx, raw)
	if err != nil {
		return site.Reply{}, 0, err
	}
	r, _ := res.Value.(site.Reply)
	return r, res.Index, nil
}

// awaitOwn lets our own copy reach the answer, so that a caller reads what it wrote.
func (p *Proposer) awaitOwn(ctx context.Context, index uint64) {
	if p.Group.Applied() == 0 {
		return // this node is not in the group yet: nothing comes before it is
	}
	ctx, cancel := context.WithTimeout(ctx, readBack)
	defer cancel()
	// Not reaching it in time is no error: the answer is true all the same.
	_ = p.Group.WaitApplied(ctx, index)
}
