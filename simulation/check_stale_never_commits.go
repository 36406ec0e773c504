package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// stale is stale-never-commits: nothing is accepted under an authority that is not the
// current one (E16, E27). What was finished while nobody else was granted the work is
// still current.
type stale struct {
	silent
	newest map[forgeyard.JobID]forgeyard.Authority // of the last grant
	ended  map[forgeyard.LeaseID]bool              // for good: a silence alone is not
}

func newStale() *stale {
	return &stale{newest: map[forgeyard.JobID]forgeyard.Authority{}, ended: map[forgeyard.LeaseID]bool{}}
}

func (c *stale) applied(s *sim, e applied) {
	if a, ok := site.AuthorityOf(e.cmd.Body); ok && accepts(e) {
		switch {
		case c.newest[a.Job] != a:
			s.fail("stale-never-commits", "index %d: %s under %s, the newest grant is %s", e.index, describe(e), short(a), short(c.newest[a.Job]))
		case c.ended[a.Lease] && !lastWord(e.cmd.Body):
			s.fail("stale-never-commits", "index %d: %s under %s, whose lease has ended", e.index, describe(e), short(a))
		}
	}
	if !e.ok() {
		return
	}
	switch e.cmd.Body.(type) {
	case site.Offer:
		if a, err := site.Value[forgeyard.Authority](e.reply); err == nil {
			c.newest[a.Job] = a
		}
	case site.Checkpoint:
		if v, err := site.Value[site.Checkpointed](e.reply); err == nil && v.Next != nil {
			c.newest[v.Next.Job] = *v.Next
		}
	}
	if e.still() {
		return
	}
	for id := range e.before.Open.All() {
		j := e.job(id)
		if l := j.Lease; l.State == lease.Ended && (l.Reason != lease.EndExpired || j.Status != job.Unknown) {
			c.ended[l.Authority.Lease] = true
		}
	}
}

// lastWord says that the command is a holder's word that its tree is dead. It may be for a
// lease that has ended, and commits nothing of the work.
func lastWord(b site.Body) bool {
	_, ok := b.(site.Stopped)
	return ok
}

// recovered ends every lease, the ones that only the lost part of the log knew among them.
func (c *stale) recovered(_, _ *site.State) {
	for _, a := range c.newest {
		c.ended[a.Lease] = true
	}
}

// accepts says that a command was taken, and changed something.
func accepts(e applied) bool {
	if !e.ok() {
		return false
	}
	switch e.cmd.Body.(type) {
	case site.Complete:
		v, err := site.Value[site.Completed](e.reply)
		return err == nil && v.Verdict == site.Accepted
	case site.Checkpoint:
		v, err := site.Value[site.Checkpointed](e.reply)
		return err == nil && !v.Duplicate
	}
	return true
}
