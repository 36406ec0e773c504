package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// held is held-waits: a job that a person asked to wait begins no further epoch until a person
// resumes it, or its holder's refusal of that very wish has become known while it held the job.
type held struct {
	silent
	waits map[forgeyard.JobID]uint64 // the epoch at which it was asked to
}

func newHeld() *held { return &held{waits: map[forgeyard.JobID]uint64{}} }

func (c *held) applied(s *sim, e applied) {
	switch b := e.cmd.Body.(type) {
	case site.Ask:
		if j := e.job(b.Job); e.ok() && b.What == site.AskSuspend && j.Held() {
			c.waits[b.Job] = j.Epoch
		}
	case site.Resume:
		if e.ok() {
			delete(c.waits, b.Job)
		}
	case site.StopRefused:
		was, _ := e.before.Jobs.Get(b.Authority.Job)
		if e.ok() && was.Lease.Live() && was.Lease.Authority == b.Authority && was.Wish() == b.Wish && !e.job(b.Authority.Job).Held() {
			delete(c.waits, b.Authority.Job)
		}
	case site.Offer:
		c.begins(s, e, b.Job)
	case site.Checkpoint:
		c.begins(s, e, b.Authority.Job)
	}
}

func (c *held) begins(s *sim, e applied, id forgeyard.JobID) {
	if at, waits := c.waits[id]; waits && e.job(id).Epoch > at {
		s.fail("held-waits", "index %d: epoch %d of job %s begins, and whoever asked it to wait has not resumed it", e.index, e.job(id).Epoch, forgeyard.Short(id))
	}
}

func (c *held) recovered(had, _ *site.State) {
	clear(c.waits)
	for id := range had.Open.All() {
		if j, _ := had.Jobs.Get(id); j.Held() {
			c.waits[id] = j.Epoch
		}
	}
}
