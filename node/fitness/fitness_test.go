package fitness

import (
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node/job"
)

// fit is a node at which nothing is wrong.
func fit(change func(*Input)) Input {
	in := Input{Probed: true, Sandboxes: 1, Findings: []Finding{{Check: "store", Status: OK}}}
	change(&in)
	return in
}

// RA-339, RA-481: every word of decision 13, what brings it about, and how an offer is answered
// then. What only tells a person rejects nothing.
func TestEveryWord(t *testing.T) {
	failed := func(check string) func(*Input) {
		return func(in *Input) { in.Findings = []Finding{{check, Fail, "why"}} }
	}
	seen := map[Word]bool{}
	for _, c := range []struct {
		name   string
		change func(*Input)
		word   Word
		reject job.RejectReason
	}{
		{"stopping", func(in *Input) { in.Stopping = true }, Draining, job.RejectDraining},
		{"drains", func(in *Input) { in.Draining = true }, Draining, job.RejectDraining},
		{"disabled", func(in *Input) { in.Disabled = true }, Disabled, job.RejectLocalPolicy},
		{"not approved", func(in *Input) { in.Unapproved = true }, NotApproved, job.RejectLocalPolicy},
		{"outdated", func(in *Input) { in.Outdated = "why" }, Version, job.RejectLocalPolicy},
		{"store", failed("store"), Ill, job.RejectPreparation},
		{"spool", failed("spool"), Ill, job.RejectPreparation},
		{"raft disk", failed("raft_disk"), Ill, job.RejectPreparation},
		{"executors", failed("executors"), Ill, job.RejectPreparation},
		{"keeper", failed("keeper"), Ill, job.RejectPreparation},
		{"trees", failed("trees"), Ill, job.RejectPreparation},
		{"checks that hang", failed("checks"), Ill, job.RejectPreparation},
		{"credential over", failed("credential"), Credential, job.RejectPreparation},
		{"clock", failed("clock"), Clock, job.RejectPreparation},
		{"not probed", func(in *Input) { in.Probed = false }, Capacity, job.RejectPreparation},
		{"no disk", func(in *Input) { in.Pressure = Disk }, Pressure, job.RejectDisk},
		{"no memory", func(in *Input) { in.Pressure = "memory" }, Pressure, job.RejectPressure},
		{"no quorum", func(in *Input) { in.NoQuorum = true }, NoQuorum, ""},
		{"no executor", func(in *Input) { in.Sandboxes = 0 }, Capacity, ""},
		{"full", func(in *Input) { in.Full = true }, Capacity, ""},
	} {
		got := Reasons(fit(c.change))
		if len(got) != 1 || got[0].Word != c.word || got[0].Reject != c.reject || got[0].Detail == "" && !slices.Contains([]Word{Pressure}, c.word) {
			t.Errorf("%s: %+v, want %s and %q", c.name, got, c.word, c.reject)
		}
		seen[c.word] = true
	}
	for _, w := range []Word{Draining, Disabled, NotApproved, Version, Ill, Credential, Clock, Pressure, NoQuorum, Capacity} {
		if !seen[w] {
			t.Errorf("nothing shows %s", w)
		}
	}
	if got := Reasons(fit(func(*Input) {})); got != nil {
		t.Errorf("a fit node says %+v", got)
	}
}

// Several reasons stand side by side, the one that a person set first; a word stands once.
func TestReasonsInOrder(t *testing.T) {
	got := Reasons(fit(func(in *Input) {
		in.Stopping, in.Draining, in.NoQuorum, in.Pressure = true, true, true, "thermal"
		in.Findings = []Finding{{"store", Fail, "no"}, {"peers", Fail, "nobody"}, {"trees", Fail, "lives"}}
	}))
	if w := Words(got); !slices.Equal(w, []string{"draining", "unhealthy", "pressure", "no_quorum"}) {
		t.Errorf("%v", w)
	}
	if got[0].Reject != job.RejectDraining {
		t.Errorf("an offer is answered %+v", got[0])
	}
}

// RA-330, RA-340: the three healths. A warning, and a failure of what lies beyond this machine,
// degrade it and keep no work away; a failure here makes it unhealthy.
func TestHealths(t *testing.T) {
	for _, c := range []struct {
		all  []Finding
		want Health
	}{
		{nil, Healthy},
		{[]Finding{{"store", OK, ""}, {"quorum", OK, ""}}, Healthy},
		{[]Finding{{"store", Warn, ""}}, Degraded},
		{[]Finding{{"quorum", Fail, ""}, {"link", Fail, ""}}, Degraded},
		{[]Finding{{"quorum", Fail, ""}, {"store", Fail, ""}}, Unhealthy},
	} {
		if got := Of(c.all); got != c.want {
			t.Errorf("%v: %s, want %s", c.all, got, c.want)
		}
		if got := Reasons(fit(func(in *Input) { in.Findings = c.all })); (len(got) > 0) != (c.want == Unhealthy) {
			t.Errorf("%v: %+v", c.all, got)
		}
	}
}
