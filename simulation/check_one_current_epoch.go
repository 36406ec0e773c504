package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// epochs is one-current-epoch: at no log index are two epochs of a job current (E08).
// It keeps its own book of grants, from what the log answered to whoever proposed, and
// closes one only when an entry says that it ended.
type epochs struct {
	silent
	current map[forgeyard.JobID]forgeyard.Authority
	last    map[forgeyard.JobID]uint64
	highest map[forgeyard.JobID]forgeyard.Fence // of any incarnation
}

func newEpochs() *epochs {
	return &epochs{current: map[forgeyard.JobID]forgeyard.Authority{}, last: map[forgeyard.JobID]uint64{}, highest: map[forgeyard.JobID]forgeyard.Fence{}}
}

func (c *epochs) applied(s *sim, e applied) {
	if !e.ok() {
		return
	}
	switch b := e.cmd.Body.(type) {
	case site.Offer:
		a, err := site.Value[forgeyard.Authority](e.reply)
		if err != nil {
			s.fail("one-current-epoch", "offer %d has no authority: %v", e.index, err)
			return
		}
		c.grant(s, e, a)
	case site.Checkpoint:
		if v, err := site.Value[site.Checkpointed](e.reply); err == nil && v.Next != nil && !v.Duplicate {
			if c.current[b.Authority.Job] == b.Authority {
				delete(c.current, b.Authority.Job)
			}
			c.grant(s, e, *v.Next)
		}
	}
	c.closed(e)
}

func (c *epochs) grant(s *sim, e applied, a forgeyard.Authority) {
	if old, held := c.current[a.Job]; held {
		s.fail("one-current-epoch", "index %d grants %s to %s while %s holds %s", e.index, short(a), a.Session, old.Session, short(old))
	}
	if a.Fence.Epoch != c.last[a.Job]+1 {
		s.fail("one-current-epoch", "index %d grants epoch %d after %d", e.index, a.Fence.Epoch, c.last[a.Job])
	}
	if a.Fence.Compare(c.highest[a.Job]) <= 0 {
		s.fail("one-current-epoch", "index %d grants %s, and fence %s was granted before", e.index, short(a), c.highest[a.Job])
	}
	c.current[a.Job], c.last[a.Job], c.highest[a.Job] = a, a.Fence.Epoch, a.Fence
}

// recovered counts on from what the node had: what was current there is, until the command
// that begins the incarnation ends it. What the lost part of the log granted is still below
// whatever is granted from now on.
func (c *epochs) recovered(had, _ *site.State) {
	clear(c.current)
	clear(c.last)
	for id, j := range had.Jobs.All() {
		c.last[id] = j.Epoch
		if j.Lease.Live() {
			c.current[id] = j.Lease.Authority
		}
	}
}

// closed takes note of leases that the state no longer calls live, if an entry ended
// them. Only commands that may end a lease are believed.
func (c *epochs) closed(e applied) {
	switch e.cmd.Body.(type) {
	case site.Reject, site.Release, site.Complete, site.Expire, site.Checkpoint, site.Delegate, site.Register, site.Revoke, site.Recover, site.Stopped:
	default:
		return
	}
	for id := range e.before.Open.All() {
		a, held := c.current[id]
		if !held {
			continue
		}
		j := e.job(id)
		if j.Lease.Authority == a && j.Lease.State == lease.Ended {
			delete(c.current, id)
		}
	}
}
