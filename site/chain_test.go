package site

import (
	"fmt"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

// CK-320: one job commits five hundred checkpoints. What the site keeps of them does not grow
// with their number, and the newest is always the next start.
func TestChainOfCommits(t *testing.T) {
	const all = 500
	l := newLab(t)
	l.raise()
	a := l.held("one")
	sizes := map[int]int{}
	for seq := 1; seq <= all; seq++ {
		what := []byte(fmt.Sprint("state ", seq))
		l.must(Checkpoint{Authority: a, Commit: checkpoint.Commit{
			Seq: seq, Manifest: cas.Sum(what), Payload: cas.Sum(append(what, 1)), Marker: cas.Sum(append(what, 2)), Bytes: 1 << 30, Attempt: a.Attempt, Epoch: 1, Replicas: []forgeyard.RunnerID{"R1"}, Consistency: checkpoint.Application,
		}})
		j := l.job(a)
		from, ok, _ := checkpoint.Select(j.Checkpoints)
		if !ok || from.Seq != seq {
			t.Fatalf("after %d commits the next start is %d", seq, from.Seq)
		}
		kept := 0
		for _, k := range j.Checkpoints {
			if !k.Dropped {
				kept++
			}
		}
		if kept > checkpoint.DefaultKeep {
			t.Fatalf("after %d commits %d payloads are kept, the retention keeps %d", seq, kept, checkpoint.DefaultKeep)
		}
		sizes[seq] = len(cborx.Marshal(j))
	}
	if n := len(l.job(a).Checkpoints); n > checkpoint.MaxHistory {
		t.Errorf("%d commits are kept, the bound is %d", n, checkpoint.MaxHistory)
	}
	if sizes[all] > sizes[all/5]+sizes[all/5]/10 {
		t.Errorf("the job has %d bytes after %d commits, and had %d after %d", sizes[all], all, sizes[all/5], all/5)
	}
	t.Logf("the job has %d bytes after %d commits, %d after %d; the whole state %d, with the run's events and the answered requests", sizes[all/5], all/5, sizes[all], all, len(l.s.Encode()))
}
