package central

import (
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// TestJudge is the table of verdicts: one outcome or none, under a fence that was
// not overtaken (E27, exactly-once-upstream).
func TestJudge(t *testing.T) {
	f := func(term, epoch uint64) forgeyard.Fence {
		return forgeyard.Fence{Incarnation: 1, Term: term, Epoch: epoch}
	}
	given := Job{Grant: "g", Term: 2, Status: Delegated}
	taken := Job{Grant: "g", Term: 2, Status: Taken, Fence: f(2, 3)}
	done := Job{Grant: "g", Term: 2, Status: Done, Fence: f(2, 3), Outcomes: 1, Record: 9}
	out := func(fence forgeyard.Fence, st job.Status) site.Record {
		return site.Record{Seq: 5, Kind: site.RecordOutcome, Grant: "g", Fence: fence, Status: st, Result: &job.Result{}}
	}
	acc := site.Record{Seq: 4, Kind: site.RecordAccepted, Grant: "g", Job: "j", Fence: f(2, 0)}
	for name, c := range map[string]struct {
		j       Job
		unknown bool
		r       site.Record
		want    site.Verdict
		status  Status
	}{
		"taken in":                     {given, false, acc, site.Accepted, Taken},
		"unknown grant":                {given, true, acc, site.InvalidRejected, Delegated},
		"outcome":                      {taken, false, out(f(2, 3), job.Done), site.Accepted, Done},
		"outcome of a later epoch":     {taken, false, out(f(2, 4), job.Failed), site.Accepted, Failed},
		"outcome of a lower epoch":     {taken, false, out(f(2, 2), job.Done), site.StaleRejected, Taken},
		"outcome of a lower term":      {taken, false, out(f(1, 9), job.Done), site.StaleRejected, Taken},
		"a lower term, none of this":   {given, false, out(f(1, 9), job.Done), site.StaleRejected, Delegated},
		"a term that was never given":  {taken, false, out(f(3, 1), job.Done), site.InvalidRejected, Taken},
		"outcome without being taken":  {given, false, out(f(2, 0), job.Failed), site.Accepted, Failed},
		"the same outcome again":       {done, false, out(f(2, 3), job.Done), site.DuplicateAccepted, Done},
		"another outcome, same fence":  {done, false, out(f(2, 3), job.Failed), site.InvalidRejected, Done},
		"another outcome, later fence": {done, false, out(f(2, 4), job.Failed), site.InvalidRejected, Done},
		"another outcome, lower fence": {done, false, out(f(2, 2), job.Failed), site.StaleRejected, Done},
		"taken in, after its end":      {done, false, site.Record{Seq: 12, Kind: site.RecordAccepted, Grant: "g", Job: "j", Fence: f(2, 3)}, site.DuplicateAccepted, Done},
		"no outcome at all":            {taken, false, out(f(2, 3), job.Running), site.InvalidRejected, Taken},
		"a kind of a later version":    {taken, false, site.Record{Kind: "poem", Fence: f(2, 3)}, site.InvalidRejected, Taken},
	} {
		next, v, reason := judge(c.j, !c.unknown, c.r, 7)
		if v != c.want || next.Status != c.status || (v != site.Accepted) == (reason == "") {
			t.Errorf("%s: %s (%s), status %s", name, v, reason, next.Status)
		}
		if v != site.Accepted && next.Outcomes != c.j.Outcomes {
			t.Errorf("%s: it counts as an outcome", name)
		}
	}
}

// RA-261: what the daemon is to hold of a result goes by the durability of its job.
func TestObjectsOf(t *testing.T) {
	r := &job.Result{Outputs: []job.Output{{Digest: forgeyard.Digest{1}, Size: 3}, {Digest: forgeyard.Digest{2}, Tree: true}}, Log: []job.LogChunk{{Digest: forgeyard.Digest{3}}}}
	for d, want := range map[job.Durability]int{job.DurSite: 3, job.DurCentral: 3, job.Ephemeral: 0} {
		if got := len(objectsOf(Job{Durability: d, Result: r})); got != want {
			t.Errorf("%s: %d objects, want %d", d, got, want)
		}
	}
}
