package node

import (
	"context"
	"sync"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/site"
)

// hints are what the log says of who has what: the nodes that acknowledged a durable copy
// of an output or a checkpoint before it was committed. Of the parts of a log it says only
// what they are: who has those is asked for. Hints are in memory: the first question reads
// the jobs once, and from then on each commit adds its own. A hint that is out of date costs
// a question.
type hints struct {
	mu    sync.Mutex // guards all below
	asked bool       // somebody wanted to know
	base  copies     // of the jobs that there were then; nil while they are read
	fresh copies     // of what was committed since
}

type copies map[forgeyard.Digest][]forgeyard.RunnerID

// maxFreshHints bounds what is learned since the jobs were read. Above it they are read
// again, without those that the site has forgotten.
const maxFreshHints = 64 << 10

func (h *hints) of(d forgeyard.Digest, state func() *site.State) []forgeyard.RunnerID {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.asked {
		h.asked, h.fresh = true, copies{}
		h.mu.Unlock()
		base := copies{}
		for _, j := range state().Jobs.All() {
			base.learn(j)
		}
		h.mu.Lock()
		h.base = base
	}
	if who, ok := h.fresh[d]; ok {
		return who
	}
	return h.base[d]
}

// applied learns from an entry of the log.
func (h *hints) applied(a replica.Applied) {
	var of forgeyard.JobID
	switch b := a.Command.Body.(type) {
	case site.Complete:
		of = b.Authority.Job
	case site.Checkpoint:
		of = b.Authority.Job
	default:
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.asked {
		return
	}
	if j, ok := a.State.Jobs.Get(of); ok {
		h.fresh.learn(j)
	}
	if len(h.fresh) > maxFreshHints {
		h.asked, h.base, h.fresh = false, nil, nil
	}
}

func (c copies) learn(j site.Job) {
	if r := j.Result; r != nil {
		for _, o := range r.Outputs {
			c[o.Digest] = r.Replicas
		}
		for _, d := range r.Diagnostics {
			if d.Digest.IsZero() {
				continue // it was left out
			}
			who := r.Replicas
			if d.Sensitive || len(who) == 0 {
				who = []forgeyard.RunnerID{j.Lease.Authority.Runner} // it has them, whoever else has
			}
			c[d.Digest] = who
		}
	}
	for _, k := range j.Checkpoints {
		c[k.Manifest], c[k.Payload] = k.Replicas, k.Replicas
	}
}

// copiesOf are the members that acknowledged a durable copy, as the log has it.
func (n *Node) copiesOf(d forgeyard.Digest) []forgeyard.RunnerID {
	var out []forgeyard.RunnerID
	members := n.replica.State().Members
	for _, r := range n.hints.of(d, n.replica.State) {
		if m, ok := members.Get(r); ok && !m.Removed {
			out = append(out, r)
		}
	}
	return out
}

// hintsOf implements the exchange's Config.Providers.
func (n *Node) hintsOf(_ context.Context, d forgeyard.Digest) []string {
	var out []string
	for _, r := range n.copiesOf(d) {
		if r != n.enrolment.RunnerID {
			out = append(out, string(r))
		}
	}
	return out
}

// Acknowledged implements control.Node.
func (n *Node) Acknowledged(d forgeyard.Digest) []string {
	var out []string
	for _, r := range n.copiesOf(d) {
		out = append(out, n.memberName(r))
	}
	return out
}
