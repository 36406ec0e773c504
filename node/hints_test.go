package node

import (
	"fmt"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/site"
)

func hintJob(id int) site.Job {
	name := func(what string) forgeyard.Digest { return cas.Sum(fmt.Appendf(nil, "%s %d", what, id)) }
	who := []forgeyard.RunnerID{"A", "B"}
	return site.Job{
		ID:          forgeyard.JobID(fmt.Sprint(id)),
		Checkpoints: []checkpoint.Commit{{Manifest: name("manifest"), Payload: name("payload"), Replicas: who[:1]}},
		Result: &job.Result{Outputs: []job.Output{{Digest: name("output")}}, Replicas: who, Diagnostics: []job.Diagnostic{
			{Path: "a", Digest: name("report")}, {Path: "b", Digest: name("core"), Sensitive: true}, {Path: "c", LeftOut: "why"},
		}},
		Lease: lease.Lease{Authority: forgeyard.Authority{Runner: "A"}},
	}
}

// Who acknowledged a durable copy is known of the jobs that were there before anybody
// asked, and of what is committed afterwards; the memory of it is bounded.
func TestHints(t *testing.T) {
	var h hints
	st := &site.State{}
	commit := func(id int) {
		j := hintJob(id)
		next := *st
		next.Jobs = st.Jobs.Put(j.ID, j)
		st = &next
		h.applied(replica.Applied{Command: site.Command{Body: site.Complete{Authority: forgeyard.Authority{Job: j.ID}}}, State: st})
	}
	reads := 0
	state := func() *site.State { reads++; return st }
	knows := func(id int) {
		t.Helper()
		for what, n := range map[string]int{"manifest": 1, "payload": 1, "output": 2, "report": 2, "core": 1} {
			if got := h.of(cas.Sum(fmt.Appendf(nil, "%s %d", what, id)), state); len(got) != n || !slices.Contains(got, "A") {
				t.Errorf("%s %d: %v", what, id, got)
			}
		}
	}
	commit(1)
	knows(1)
	commit(2)
	knows(2)
	if got := h.of(cas.Sum([]byte("nobody's")), state); got != nil {
		t.Errorf("%v", got)
	}
	if reads != 1 {
		t.Errorf("the jobs were read %d times", reads)
	}
	for id := range maxFreshHints/3 + 2 {
		commit(id + 3)
	}
	if len(h.fresh) > maxFreshHints {
		t.Errorf("%d are remembered", len(h.fresh))
	}
	knows(1)
	knows(maxFreshHints/3 + 2)
	if reads != 2 {
		t.Errorf("the jobs were read %d times", reads)
	}
}
