package node

import (
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// RA-097: nodes whose program reads only the format before today's (N-1) register, join
// and run work with what this program wrote and serves. Nothing of today's format comes into
// their log, and what needs it is refused with what to do. Upgraded, the same site moves on by
// itself, with all that it had.
func TestSiteOfTheProgramBefore(t *testing.T) {
	now := site.Formats
	t.Cleanup(func() { site.Formats = now }) // when all nodes have ended
	site.Formats = site.FormatRange{Min: site.FormatOldest, Max: site.FormatNow - 1}
	named := func(c *Config) { c.Settings.Labels = map[string]string{"of": c.Settings.Name} }
	all := makeSite(t, 2, named)
	one := all[0]
	on := func(where string) string {
		return strings.Replace(helloJob, "job:\n", "job:\n  requires: "+where+"\n", 1)
	}
	runs := func(p *proc, where, name string) string {
		t.Helper()
		_, id := p.submit(on(where))
		if j := p.waitDone(id); j.Status != string(job.Done) || j.Runner != name {
			t.Fatalf("%s on %s: %s", j.Status, j.Runner, j.Reason)
		}
		return id
	}
	before := []string{runs(one, "{labels: {of: n1}}", "n1"), runs(one, "{labels: {of: n2}}", "n2"), runs(all[1], "{labels: {of: n1}}", "n1")}
	st := one.node.replica.State()
	if st.LogFormat() != site.FormatNow-1 {
		t.Fatalf("the log is at format %d", st.LogFormat())
	}
	for _, m := range st.Members.All() {
		if m.Session.Formats != site.Formats || !m.Session.Place.IsZero() || m.Caps.SaysLater() {
			t.Errorf("%s: %+v %+v", m.Name, m.Session, m.Caps)
		}
	}
	two := all[1].node.enrolment.RunnerID
	assign := site.MemberSet{Runner: two, Assign: &job.Assign{Pool: "release"}}
	if _, err := one.node.Propose(t.Context(), "operator", assign); forgeyard.KindOf(err) != forgeyard.Unavailable || !strings.Contains(err.Error(), "needs log format 2") {
		t.Errorf("a pool in a log of the format before: %v", err)
	}
	for _, p := range all {
		p.end()
	}

	site.Formats = now
	for i, p := range all {
		all[i] = startNode(t, p.dir, []string{"n1", "n2"}[i], named)
	}
	one = all[0]
	one.wait("today's format", func() bool { return one.node.replica.State().LogFormat() == site.FormatNow })
	for _, id := range before {
		if j := one.show(id); j.Status != string(job.Done) {
			t.Errorf("%s is %s after the upgrade", id, j.Status)
		}
	}
	if r, err := one.node.Propose(t.Context(), "operator", assign); err != nil || r.Err() != nil {
		t.Fatalf("%v %v", err, r.Err())
	}
	runs(one, "{pool: release}", "n2")
}
