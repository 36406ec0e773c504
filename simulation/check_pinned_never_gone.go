package simulation

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// pinned is pinned-never-gone: nothing that a live attempt or a committed root needs is
// collected, and what a commit says to be on a node was there, durably, when it was
// committed.
type pinned struct {
	silent
	excused map[loss]bool
}

// loss is an object that a job needed.
type loss struct {
	job forgeyard.JobID
	of  forgeyard.Digest
}

func (c *pinned) collected(s *sim, n *node, d forgeyard.Digest) {
	for _, x := range n.execs {
		if !x.over && slices.Contains(x.needs, d) {
			s.fail("pinned-never-gone", "%s collects %s, which %s needs", n.name, d.Short(), short(x.authority))
		}
	}
	for _, j := range s.head().Jobs.All() {
		if why := needs(s, j, n.runner, d); why != "" && !c.excused[loss{j.ID, d}] {
			s.fail("pinned-never-gone", "%s collects %s, %s of %s", n.name, d.Short(), why, j.Spec.Title)
		}
	}
}

// recovered excuses what the lost part of the log let go of with every right, since the job
// had ended there, or had gone on from something newer: a forced recovery cannot call that
// back. What is committed from then on is needed as ever.
func (c *pinned) recovered(had, lost *site.State) {
	for id, was := range had.Jobs.All() {
		is, ok := lost.Jobs.Get(id)
		if !ok || was.Status.Terminal() {
			continue
		}
		for _, k := range was.Checkpoints {
			still := func(o checkpoint.Commit) bool {
				return o.Manifest == k.Manifest && o.State == k.State && slices.Equal(o.Replicas, k.Replicas)
			}
			if is.Status.Terminal() || !slices.ContainsFunc(is.Checkpoints, still) {
				c.excused[loss{id, k.Manifest}] = true
			}
		}
		for _, in := range was.Spec.Inputs {
			if is.Status.Terminal() {
				c.excused[loss{id, in.Digest}] = true
			}
		}
	}
}

// needs says for what a job needs an object on a node, or nothing.
func needs(s *sim, j site.Job, on forgeyard.RunnerID, d forgeyard.Digest) string {
	if j.Status.Terminal() {
		if j.Spec.Own() && !namesNow(s.head(), j.ID, d) {
			return "" // a name that moved on keeps it for a while, and no longer
		}
		isOutput := slices.ContainsFunc(outputsOf(j), func(o job.Output) bool { return o.Digest == d })
		if isOutput && slices.Contains(j.Result.Replicas, on) {
			return "an output"
		}
		return ""
	}
	for _, k := range j.Checkpoints {
		if k.Manifest == d && k.State == checkpoint.Good && slices.Contains(k.Replicas, on) {
			return "a committed checkpoint"
		}
	}
	if g := j.Grant; g != nil && g.End != 0 && s.up.clock() >= g.End {
		return "" // it came too late to begin: it only waits to be told so
	}
	for _, in := range j.Spec.Inputs {
		if in.Digest == d && !slices.ContainsFunc(s.nodes, func(n *node) bool { return n.holds(d) }) {
			return "the last copy of the input"
		}
	}
	return ""
}

// namesNow says that a name points at what an ingest brought in.
func namesNow(st *site.State, ingest forgeyard.JobID, d forgeyard.Digest) bool {
	for _, n := range st.Names.All() {
		if n.Job == ingest && n.Digest == d {
			return true
		}
	}
	return false
}

// holds says that a node has an object, or had it until damage took it, or a person the
// whole node.
func (n *node) holds(d forgeyard.Digest) bool {
	x := n.objects.of[d]
	_, lost := n.objects.lost[d]
	return lost || (x != nil && x.safe)
}

func (c *pinned) applied(s *sim, e applied) {
	if !accepts(e) {
		return
	}
	switch b := e.cmd.Body.(type) {
	case site.Checkpoint:
		everywhere(s, b.Commit.Manifest, b.Commit.Replicas, e.index)
	case site.Complete:
		for _, o := range b.Result.Outputs {
			everywhere(s, o.Digest, b.Result.Replicas, e.index)
		}
	}
}

func everywhere(s *sim, d forgeyard.Digest, on []forgeyard.RunnerID, index uint64) {
	for _, r := range on {
		if n := s.byRunner(r); n != nil && !n.gone && !n.holds(d) {
			s.fail("pinned-never-gone", "index %d commits %s as being on %s, which does not have it", index, d.Short(), n.name)
		}
	}
}

func (c *pinned) end(s *sim) {
	for _, j := range s.head().Jobs.All() {
		for _, o := range outputsOf(j) {
			if !j.Spec.Own() || namesNow(s.head(), j.ID, o.Digest) {
				everywhere(s, o.Digest, j.Result.Replicas, s.head().Index)
			}
		}
	}
}
