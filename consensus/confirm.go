package consensus

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// rounds shares confirmations: whoever comes while a round is under way waits
// for the next one, because only a round that began after a caller's arrival
// proves anything to it (decision 3).
type rounds struct {
	mu      sync.Mutex
	running bool
	next    *round
}

type round struct {
	done  chan struct{}
	index uint64
	err   error
}

// Confirm proves that no newer leader had been elected when the call began,
// and returns the index that was committed then: whoever has applied it reads
// current state.
//
// A majority of voters, this one included, must answer after the call began
// that their term on disk is this leader's. A voter raises its term on disk
// before it votes, so whoever could have elected a newer leader by then would
// have answered otherwise. raft's VerifyLeader proves less: a reply to an
// older heartbeat satisfies it (decision 26d).
//
// Where a majority does not answer in time, one empty log entry decides.
// Unavailable: not the leader, or not to be had.
func (g *Group) Confirm(ctx context.Context) (uint64, error) {
	g.rounds.mu.Lock()
	r := g.rounds.next
	if r == nil {
		r = &round{done: make(chan struct{})}
		g.rounds.next = r
	}
	if !g.rounds.running {
		g.rounds.running = g.spawn(g.runRounds)
		if !g.rounds.running {
			g.rounds.next = nil
			g.rounds.mu.Unlock()
			return 0, forgeyard.E("confirm", forgeyard.Unavailable, errClosed)
		}
	}
	g.rounds.mu.Unlock()
	select {
	case <-r.done:
		return r.index, r.err
	case <-ctx.Done():
		return 0, waitError("confirm", ctx)
	}
}

func (g *Group) runRounds() {
	for {
		g.rounds.mu.Lock()
		r := g.rounds.next
		g.rounds.next = nil
		if r == nil {
			g.rounds.running = false
			g.rounds.mu.Unlock()
			return
		}
		g.rounds.mu.Unlock()
		r.index, r.err = g.confirmOnce()
		close(r.done)
	}
}

func (g *Group) confirmOnce() (uint64, error) {
	const op = "confirm"
	in, err := g.running(op)
	if err != nil {
		return 0, err
	}
	ctx, cancel := g.within(g.ctx, g.cfg.Timings.Confirm)
	defer cancel()
	lead := g.leadership.get()
	if !lead.IsLeader || !in.leads(lead.Term) {
		return 0, g.notLeader(op)
	}
	index := in.raft.CommitIndex()
	if g.cfg.off.confirm {
		return index, in.await(ctx, op, func() raft.Future { return in.raft.VerifyLeader() })
	}
	err = g.majorityIn(ctx, lead.Term)
	if errors.Is(err, errNoMajority) {
		return g.confirmByEntry(in, lead.Term)
	}
	if err == nil && !in.leads(lead.Term) {
		err = errDeposed
	}
	if err != nil {
		return 0, forgeyard.E(op, forgeyard.Unavailable, err)
	}
	return index, nil
}

// confirmByEntry is the fallback. raft commits nothing for a deposed leader.
func (g *Group) confirmByEntry(in *instance, term uint64) (uint64, error) {
	ctx, cancel := g.within(g.ctx, g.cfg.Timings.RPC)
	defer cancel()
	at, err := in.barrier(ctx)
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return 0, g.notLeader("confirm")
	case err != nil:
		return 0, forgeyard.E("confirm", forgeyard.Unavailable, err)
	case at.Term != term:
		return 0, forgeyard.E("confirm", forgeyard.Unavailable, errDeposed)
	}
	return at.Index, nil
}

// majorityIn asks the voters for their terms. It returns errNoMajority when
// too few answered, errDeposed as soon as one is ahead.
func (g *Group) majorityIn(ctx context.Context, term uint64) error {
	voters := g.voters()
	if g.Term() != term {
		return errDeposed
	}
	need := len(voters)/2 + 1
	have, asked := 0, 0
	answers := make(chan uint64, len(voters))
	for _, v := range voters {
		switch {
		case v.ID == g.cfg.LocalID:
			have++
		case g.cfg.TermOf != nil:
			if !g.spawn(func() {
				t, err := g.cfg.TermOf(ctx, v.Addr)
				if err != nil {
					t = 0 // no vote; terms begin at 1
				}
				answers <- t
			}) {
				return errClosed
			}
			asked++
		}
	}
	for have < need && asked > 0 {
		select {
		case t := <-answers:
			asked--
			if t > term {
				return errDeposed
			}
			if t == term {
				have++
			}
		case <-ctx.Done():
			return errNoMajority
		}
	}
	if have < need {
		return errNoMajority
	}
	return nil
}

// ReadBarrier returns when this leader's state holds everything that was
// committed when the call began.
func (g *Group) ReadBarrier(ctx context.Context) error {
	index, err := g.Confirm(ctx)
	if err != nil {
		return err
	}
	return g.WaitApplied(ctx, index)
}
