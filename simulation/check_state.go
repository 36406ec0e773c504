package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// sameState is same-state: a voter that applies the same entries has the same state,
// bit for bit, wherever it starts from a snapshot. One run in ten is applied anew by
// somebody who restarts from a snapshot now and then.
type sameState struct{ silent }

func newSameState() *sameState { return &sameState{} }

func (sameState) end(s *sim) {
	if s.seed%10 != 0 {
		return
	}
	st := &site.State{}
	for i, e := range s.world.entries {
		if e.data == nil {
			continue
		}
		st, _ = st.ApplyEntry(uint64(i)+1, e.term, e.data)
		if s.chance(20) {
			again, err := site.DecodeState(st.Encode())
			if err != nil {
				s.fail("same-state", "the snapshot at index %d cannot be read: %v", i+1, err)
				return
			}
			st = again
		}
		if s.chance(20) && st.Hash() != s.world.states[i+1].Hash() {
			s.fail("same-state", "index %d: %s against %s", i+1, st.Hash().Short(), s.world.states[i+1].Hash().Short())
			return
		}
	}
	if st.Hash() != s.head().Hash() {
		s.fail("same-state", "the end: %s against %s", st.Hash().Short(), s.head().Hash().Short())
	}
}

// nothingLost is nothing-lost: what was acknowledged to a client is in the state of
// every node, after any crash of some and any restart of all.
type nothingLost struct{ silent }

func (nothingLost) end(s *sim) {
	for _, n := range s.nodes {
		for _, v := range s.client.acked {
			j, ok := n.state().Jobs.Get(v.Job)
			if !ok || j.Run != v.Run || !j.Status.Terminal() {
				s.fail("nothing-lost", "job %s was acknowledged and is not in the state of %s", v.Job, n.name)
			}
		}
	}
}

// checkpoints is committed-checkpoint-only: every resume starts from a checkpoint whose
// commit is in the log (K03), is of the same job, and was not put into quarantine before
// the epoch was granted.
type checkpoints struct {
	silent
	committed map[forgeyard.Digest]forgeyard.JobID
}

func newCheckpoints() *checkpoints {
	return &checkpoints{committed: map[forgeyard.Digest]forgeyard.JobID{}}
}

func (c *checkpoints) applied(s *sim, e applied) {
	if b, ok := e.cmd.Body.(site.Checkpoint); ok && accepts(e) {
		c.committed[b.Commit.Manifest] = b.Authority.Job
	}
	if _, ok := e.cmd.Body.(site.Offer); ok && e.ok() {
		c.offered(s, e)
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

func (c *checkpoints) started(s *sim, x *execution) {
	from := x.job.ResumeFrom
	if from.IsZero() {
		return
	}
	if by, ok := c.committed[from]; !ok || by != x.authority.Job {
		s.fail("committed-checkpoint-only", "%s starts %s from %s, which was never committed for it", x.n.name, short(x.authority), from.Short())
	}
}
