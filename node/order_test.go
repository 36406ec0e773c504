package node

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// RA-574, RA-576: one attempt from end to end, each step where it belongs: registered before
// anything is offered; offered, accepted, prepared, run by an executor and told of, its outputs
// captured and stored, completed, and cleaned up after. No step is skipped and none comes twice.
func TestOrderOfAnAttempt(t *testing.T) {
	one := makeSite(t, 1)[0]
	one.wait("a log that tells of leases", func() bool { return one.node.allows(site.FormatLeases) })
	_, id := one.submit(helloJob)
	j := one.waitDone(id)
	var told []string
	for _, e := range j.Events {
		told = append(told, e.Kind+" "+e.Text)
	}
	for i, step := range []string{
		"status queued build", "lease epoch 1 offered to n1", "lease epoch 1 accepted by n1", "message preparing on n1", "status epoch 1 runs on n1",
		"message uploading on n1", "tool executor greet ended", "lease epoch 1 completed on n1: done", "status done",
	} {
		is := func(s string) bool { return strings.HasPrefix(s, step) }
		at := slices.IndexFunc(told, is)
		if at < 0 || slices.ContainsFunc(told[at+1:], is) {
			t.Fatalf("step %d, %q, is not there once and in its place:\n%s", i+1, step, strings.Join(told, "\n"))
		}
		told = told[at+1:]
	}
	st := one.node.replica.State()
	m, _ := st.Members.Get(one.node.enrolment.RunnerID)
	done, _ := st.Jobs.Get(forgeyard.JobID(id))
	if m.Session.Index == 0 || m.Session.Index >= done.Lease.Token {
		t.Errorf("registered at %d, leased at %d", m.Session.Index, done.Lease.Token)
	}
	if d, err := forgeyard.ParseDigest(j.Outputs[0].Digest); err != nil || !one.node.store.Has(t.Context(), d) {
		t.Errorf("the output is not in the store: %v", err)
	}
	one.wait("the clean-up", func() bool {
		left, err := os.ReadDir(one.node.dir.join(dirWorkspaces))
		return err == nil && len(left) == 0
	})
}
