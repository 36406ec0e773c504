package node

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// keeps reports whether a node has a checkpoint whole, and holds it for its job.
func (p *proc) keeps(t *testing.T, j forgeyard.JobID, c checkpoint.Commit) bool {
	t.Helper()
	pins, err := p.node.store.Pins(context.Background())
	if err != nil {
		t.Error(err)
	}
	i := slices.IndexFunc(pins, func(p cas.Pin) bool { return p.Owner == checkpointPin(j, c.Manifest) })
	return i >= 0 && p.node.store.Has(context.Background(), c.Manifest) && slices.Contains(append(pins[i].Roots, pins[i].Trees...), c.Payload)
}

// CK-089: while the second copy of a checkpoint is acknowledged by nobody, its commit is not
// even proposed. When the log has it, who acknowledged that copy had fetched it, and held it,
// before: at that moment it cannot have heard of the commit yet.
func TestCommitWaitsForTheSecondCopy(t *testing.T) {
	var one, two atomic.Pointer[proc]
	var commits, unkept atomic.Int64
	id := atomic.Pointer[forgeyard.JobID]{}
	seen := func() {
		j, x := id.Load(), two.Load()
		if j == nil {
			return
		}
		held, _ := one.Load().node.Site().Jobs.Get(*j)
		for _, c := range held.Checkpoints[min(int(commits.Load()), len(held.Checkpoints)):] {
			commits.Add(1)
			if len(c.Replicas) != 2 || x == nil || !x.keeps(t, *j, c) {
				unkept.Add(1)
			}
		}
	}
	all := makeSite(t, 2, func(c *Config) {
		if c.Settings.Name == "n1" {
			c.Committed = seen
		}
	})
	one.Store(all[0])
	all[1].end()
	_, name := all[0].submit(strings.Replace(checkpointJob, "-ge 6", "-ge 3", 1))
	j := forgeyard.JobID(name)
	id.Store(&j)
	counted := func(result string) float64 {
		return values(t, all[0].node.metrics.registry)["forgeyard_checkpoint_created_total{result="+result+",resumability_mode=application}"]
	}
	all[0].wait("a checkpoint without its second copy", func() bool { return counted(resultFailed)+counted(resultRejected) > 0 })
	if n := counted(resultRejected); commits.Load() != 0 || n != 0 {
		t.Fatalf("%d were committed without it, %v were proposed and refused", commits.Load(), n)
	}
	two.Store(startNode(t, all[1].dir, "n2"))
	if got := all[0].waitDone(name); got.Status != "done" || len(got.Checkpoints) == 0 {
		t.Fatalf("%s with %d checkpoints: %s", got.Status, len(got.Checkpoints), got.Reason)
	}
	if commits.Load() == 0 || unkept.Load() != 0 {
		t.Errorf("of %d commits %d came before the second node had fetched and held the checkpoint", commits.Load(), unkept.Load())
	}
}
