package node

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/consensus/roll"
	"github.com/forgeyard/forgeyard-node/node/control"
	"github.com/forgeyard/forgeyard-node/site"
)

// membersOf reads "v" for a voter, "V" for a dead one, "r" for one that does not vote, "x" for
// one that was removed and whose vote still counts.
func membersOf(word string) []*forgeyardv1.Member {
	var out []*forgeyardv1.Member
	for _, x := range word {
		m := &forgeyardv1.Member{State: "alive", Voter: x != 'r'}
		switch x {
		case 'V':
			m.State = "dead"
		case 'x':
			m.State, m.Name = stateRemoved, "gone"
		}
		out = append(out, m)
	}
	return out
}

// What the voters survive, and what a person is warned of.
func TestVotersAreJudged(t *testing.T) {
	for word, want := range map[string]struct {
		spare  int
		status string
	}{
		"v": {0, checkOK}, "vr": {0, checkOK}, // small: `quorum` speaks of two nodes
		"vrr": {0, checkWarn}, "vvr": {0, checkWarn}, "vvv": {1, checkOK}, "vvV": {0, checkOK}, "vVV": {-1, checkOK},
		"vvvv": {1, checkWarn}, "vvvvv": {2, checkOK}, "vvvrr": {1, checkOK}, "rrr": {-1, checkWarn}, "vvx": {0, checkWarn}, "vvvvx": {1, checkWarn},
	} {
		_, spare := voting(membersOf(word))
		c := judgeVoters(membersOf(word), 3)
		if spare != want.spare || c.Status != want.status || (c.Status == checkWarn) != (c.Fix != "") {
			t.Errorf("%s: %d may be lost; %v", word, spare, c)
		}
		if strings.Contains(word, "x") != strings.Contains(c.Detail, "gone was removed, and its vote still counts") {
			t.Errorf("%s: %s", word, c.Detail)
		}
		for _, line := range control.Advice(membersOf(word), 3) {
			if !strings.Contains(c.Detail, line) {
				t.Errorf("%s: %q is not said: %q", word, line, c.Detail)
			}
		}
	}
}

// Who is refused is told to stop, and the others who it is that two processes speak as.
func TestIdentityIsJudged(t *testing.T) {
	v := roll.Verdict{Reason: roll.Behind, Number: 3, Index: 100, At: 90}
	name := func(id string) string { return strings.ToUpper(id) }
	old := []consensus.Refusal{{Member: "n2", Verdict: v}}
	for status, c := range map[string]*forgeyardv1.Health_Check{
		checkOK:   judgeIdentity("N1", name, nil, nil),
		checkWarn: judgeIdentity("N1", name, old, nil),
		checkFail: judgeIdentity("N1", name, old, old),
	} {
		if c.Name != "identity" || c.Status != status || (c.Fix == "") != (status == checkOK) {
			t.Errorf("%s: %v", status, c)
		}
		if status != checkOK && !strings.Contains(c.Detail, "ends at 90, and it had acknowledged 100") {
			t.Errorf("%s: %s", status, c.Detail)
		}
	}
}

// A member that was removed while another voter is away keeps its vote: the rest could decide
// nothing without it. It stays on the list until then, as removed.
func TestRemovedIsListedWhileItsVoteCounts(t *testing.T) {
	all := makeSite(t, 3)
	one, two, three := all[0], all[1], all[2]
	one.wait("three voters", func() bool { return votersOf(one) == 3 })
	two.end()
	one.wait("the leader has missed n2 for long", func() bool {
		h, err := one.node.Heard(t.Context(), two.node.enrolment.RunnerID)
		return err == nil && h.Ago.AsDuration() > 12*one.node.renewEvery()
	})
	yes := true
	if _, err := three.node.proposer.Propose(t.Context(), site.MemberSet{Runner: three.node.enrolment.RunnerID, Removed: &yes}); err != nil {
		t.Fatal(err)
	}
	listed := func(p *proc) string {
		for _, m := range p.node.Members() {
			if m.Name == "n3" {
				return m.Role + " " + m.State
			}
		}
		return ""
	}
	one.wait("n3 is listed as removed", func() bool { return listed(one) == "voter removed" })
	if c := one.node.checkVoters(); c.Status != checkWarn || !strings.Contains(c.Detail, "n3 was removed, and its vote still counts") {
		t.Errorf("%v", c)
	}
	two = startNode(t, two.dir, "n2")
	one.wait("n3 is gone", func() bool { return listed(one) == "" })
	<-three.done
	three.done <- nil
}

// The voters that keep the log's format down are named; one that does not vote keeps
// nothing down.
func TestFormatIsJudged(t *testing.T) {
	st := &site.State{Incarnation: 3, Format: 2}
	for id, reads := range map[forgeyard.RunnerID]site.Format{"a": 4, "b": 2, "c": 3, "d": 0} {
		st.Members = st.Members.Put(id, site.Member{Runner: id, Name: "bench-" + string(id), Session: site.Session{ID: "s", Formats: site.FormatRange{Max: reads}}})
	}
	for _, c := range []struct {
		voters []forgeyard.RunnerID
		read   string
		fix    string
	}{
		{[]forgeyard.RunnerID{"a"}, "up to 4", ""},
		{[]forgeyard.RunnerID{"a", "c"}, "up to 3", "upgrade and restart bench-c"},
		{[]forgeyard.RunnerID{"c", "a", "b"}, "up to 2", "upgrade and restart bench-b, bench-c"},
		{nil, "up to 2", ""},
	} {
		got := judgeFormat(st, c.voters, 4)
		if !strings.HasPrefix(got.Detail, "incarnation 3, log format 2; all voters read "+c.read+",") || got.Fix != c.fix || (got.Status == checkWarn) != (c.fix != "") {
			t.Errorf("%v: %v", c.voters, got)
		}
	}
}

// `doctor` and /metrics of a node that runs show the same.
func TestDoctorAndMetricsShowTheVoters(t *testing.T) {
	p := makeSite(t, 1)[0]
	p.wait("the format of this program", func() bool { return p.node.replica.State().LogFormat() == site.FormatNow })
	checks := map[string]*forgeyardv1.Health_Check{}
	for _, c := range p.node.Doctor(t.Context()).Health.Checks {
		checks[c.Name] = c
	}
	if c := checks["voters"]; c == nil || c.Status != checkOK || !strings.Contains(c.Detail, "one node: the site stops when it does") {
		t.Errorf("%v", c)
	}
	if c := checks["format"]; c == nil || c.Status != checkOK || !strings.HasPrefix(c.Detail, fmt.Sprintf("incarnation 1, log format %d;", site.FormatNow)) {
		t.Errorf("%v", c)
	}
	families, err := p.node.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if len(f.GetMetric()) == 1 {
			got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"forgeyard_site_incarnation": 1, "forgeyard_log_format": float64(site.FormatNow), "forgeyard_log_format_readable": float64(site.FormatNow),
		"forgeyard_raft_voters": 1, "forgeyard_raft_voters_spare": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
}

// TestApprovalIsAsked: who waits for approval is named until somebody decides, one way or the
// other.
func TestApprovalIsAsked(t *testing.T) {
	st := &site.State{}
	for _, m := range []site.Member{{Runner: "R1", Name: "a"}, {Runner: "R2", Name: "c", Waiting: true}, {Runner: "R3", Name: "b", Waiting: true}, {Runner: "R4", Name: "d", Waiting: true, Removed: true}} {
		st.Members = st.Members.Put(m.Runner, m)
	}
	if c := judgeApproval(st); c.Status != checkWarn || !strings.HasPrefix(c.Detail, "b, c: no work") || !strings.Contains(c.Fix, "runner approve") {
		t.Errorf("%+v", c)
	}
	for _, id := range []forgeyard.RunnerID{"R2", "R3"} {
		m, _ := st.Members.Get(id)
		m.Waiting = false
		st.Members = st.Members.Put(id, m)
	}
	if c := judgeApproval(st); c.Status != checkOK {
		t.Errorf("%+v", c)
	}
}

// What a site of so many nodes cannot do is said in these words, by `site status` and doctor.
func TestAdviceIsPlain(t *testing.T) {
	for word, want := range map[string]string{
		"v":    "one node: the site stops when it does; add two",
		"vr":   "two nodes: a second vote would only be a second way to stop, so one of them votes and the site stops when that one does; add a third",
		"vvr":  "2 voters survive the loss of as many as 1 would: add one, or demote one",
		"vvv":  "",
		"vvvv": "4 voters survive the loss of as many as 3 would: add one, or demote one",
		"vrr":  "1 voters of 3: the others are not ready, or may not vote; forgeyard-node site members shows them",
	} {
		if got := strings.Join(control.Advice(membersOf(word), 3), "\n"); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

// Two nodes are told by both of them that the site stops with its one voter, and what to do.
func TestTwoNodesAreToldPlainly(t *testing.T) {
	all := makeSite(t, 2)
	for _, p := range all {
		p.wait("both members are known", func() bool { return p.node.membersInSite() == 2 && p.node.Quorum(t.Context()) })
		c := p.node.checkQuorum(t.Context())
		if c.Status != checkWarn || !strings.HasPrefix(c.Detail, "1 voters, ") || !strings.HasSuffix(c.Detail, "; a site of two nodes stops when its one voter does") || c.Fix != "add a third node" {
			t.Errorf("%s: %v", p.node.enrolment.Name, c)
		}
		r, err := p.sites().Status(t.Context(), connect.NewRequest(&forgeyardv1.SiteStatusRequest{}))
		if err != nil || len(r.Msg.Advice) != 1 || !strings.HasPrefix(r.Msg.Advice[0], "two nodes: ") {
			t.Errorf("%s: %v, %v", p.node.enrolment.Name, r, err)
		}
	}
}
