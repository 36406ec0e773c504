package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// neverTwice is never-twice: the program of a job that asks never to be retried is started
// from nothing once at most, however its holder lost it. The daemon may give such a job anew
// under a higher term, which is its own decision; and what a forced recovery knows nothing
// of may have run before.
type neverTwice struct {
	silent
	began map[forgeyard.JobID]forgeyard.Authority
}

func newNeverTwice() *neverTwice {
	return &neverTwice{began: map[forgeyard.JobID]forgeyard.Authority{}}
}

func (c *neverTwice) ran(s *sim, x *execution) {
	a := x.authority
	if x.job.Spec.Interruption.Retry != job.RetryNever || !x.job.ResumeFrom.IsZero() || !s.head().Allows(site.FormatLeases) {
		return
	}
	first, ran := c.began[a.Job]
	switch {
	case !ran:
		c.began[a.Job] = a
	case first.Fence.Incarnation != a.Fence.Incarnation || first.Fence.Term != a.Fence.Term:
		c.began[a.Job] = a
	case first != a:
		s.fail("never-twice", "%s starts %s from nothing, and epoch %d had begun", x.n.name, short(a), first.Fence.Epoch)
	}
}
