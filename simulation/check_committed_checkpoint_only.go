package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// checkpoints is committed-checkpoint-only: every resume starts from a checkpoint whose
// commit is in the log (K03), is of the same job, and was not put into quarantine before
// the epoch was granted.
type checkpoints struct {
	silent
	committed map[forgeyard.Digest]forgeyard.JobID // as the newest incarnation has it
	ever      map[forgeyard.Digest]forgeyard.JobID // in any
}

func newCheckpoints() *checkpoints {
	return &checkpoints{committed: map[forgeyard.Digest]forgeyard.JobID{}, ever: map[forgeyard.Digest]forgeyard.JobID{}}
}

func (c *checkpoints) applied(s *sim, e applied) {
	if b, ok := e.cmd.Body.(site.Checkpoint); ok && accepts(e) {
		c.committed[b.Commit.Manifest], c.ever[b.Commit.Manifest] = b.Authority.Job, b.Authority.Job
	}
	if _, ok := e.cmd.Body.(site.Offer); ok && e.ok() {
		c.offered(s, e)
	}
}

// recovered takes for committed what the node had, whoever committed it, and nothing else.
// What was committed in the part that is lost serves those who live on in it.
func (c *checkpoints) recovered(had, _ *site.State) {
	clear(c.committed)
	for id, j := range had.Jobs.All() {
		for _, k := range j.Checkpoints {
			c.committed[k.Manifest], c.ever[k.Manifest] = id, id
		}
	}
}

// offered looks at what an offer resumes from: the newest good commit, if there is one.
func (c *checkpoints) offered(s *sim, e applied) {
	id, _ := jobOf(e)
	j := e.job(id)
	if j.ResumeFrom.IsZero() {
		return
	}
	for i := len(j.Checkpoints) - 1; i >= 0; i-- {
		k := j.Checkpoints[i]
		if k.State == 0 {
			if k.Manifest != j.ResumeFrom {
				s.fail("committed-checkpoint-only", "epoch %d resumes from %s, the newest good one is %s", j.Epoch, j.ResumeFrom.Short(), k.Manifest.Short())
			}
			return
		}
	}
	s.fail("committed-checkpoint-only", "epoch %d resumes from %s, and no good one is committed", j.Epoch, j.ResumeFrom.Short())
}

func (c *checkpoints) restored(s *sim, x *execution, from forgeyard.Digest) {
	known := c.committed
	if x.n.world != s.world {
		known = c.ever
	}
	if by, ok := known[from]; !ok || by != x.authority.Job {
		s.fail("committed-checkpoint-only", "%s restores %s from %s, which was never committed for it", x.n.name, short(x.authority), from.Short())
	}
}
