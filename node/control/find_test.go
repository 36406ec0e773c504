package control

import (
	"context"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// What people type for a job: the id or its run's, or the last letters of either if they
// name one job alone.
func TestFindJob(t *testing.T) {
	s := &site.State{}
	add := func(id forgeyard.JobID, run forgeyard.RunID) {
		s.Jobs = s.Jobs.Put(id, site.Job{ID: id, Run: run})
		s.Runs = s.Runs.Put(run, site.Run{ID: run, Job: id})
	}
	const one, two = forgeyard.JobID("01HF00000000000000000JAAAA"), forgeyard.JobID("01HF00000000000000000JBBBB")
	add(one, "01HF00000000000000000RAAAC")
	add(two, "01HF00000000000000000RBBAC")
	for _, c := range []struct {
		word string
		want forgeyard.JobID
		kind forgeyard.Kind
	}{
		{string(one), one, 0},
		{"01HF00000000000000000RBBAC", two, 0}, // its run
		{strings.ToLower(string(two)), two, 0},
		{" " + string(one) + "\n", one, 0},
		{"AAAA", one, 0},
		{"jbbbb", two, 0},
		{"BBAC", two, 0},                 // the last letters of a run
		{"AAAC", one, 0},                 // of the other
		{"0RBBAC", two, 0},               //
		{"BAC", "", forgeyard.NotFound},  // too few to mean anything
		{"", "", forgeyard.NotFound},     //
		{"HF00", "", forgeyard.NotFound}, // not the last letters
		{"XXXX" + string(one), "", forgeyard.NotFound},
		{strings.Repeat("A", 500), "", forgeyard.NotFound},
	} {
		j, err := findJob(s, c.word)
		if j.ID != c.want || (c.want == "") != (err != nil) || (err != nil && forgeyard.KindOf(err) != c.kind) {
			t.Errorf("%.40q: %s %v", c.word, j.ID, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%.40q: an error of %d bytes", c.word, len(err.Error()))
		}
	}
	add("01HF00000000000000000KAAAA", "01HF00000000000000000SAAAA")
	if _, err := findJob(s, "AAAA"); forgeyard.KindOf(err) != forgeyard.Conflict || !strings.Contains(err.Error(), "2 jobs") {
		t.Errorf("two jobs that end so: %v", err)
	}
	if j, err := findJob(s, "KAAAA"); err != nil || j.ID != "01HF00000000000000000KAAAA" {
		t.Errorf("one more letter: %v %v", j.ID, err)
	}
	add("01HF0000000000000000PZZZZ0", "01HF0000000000000000QZZZZ0") // job and run both end so: still one
	if j, err := findJob(s, "ZZZZ0"); err != nil || j.ID != "01HF0000000000000000PZZZZ0" {
		t.Errorf("a job and its own run: %v %v", j.ID, err)
	}
}

// A name belongs to the member that is there, not to one that was removed before it.
func TestFindMember(t *testing.T) {
	s := &site.State{}
	s.Members = s.Members.Put("R1", site.Member{Runner: "R1", Name: "bench", Removed: true}).Put("R2", site.Member{Runner: "R2", Name: "bench"})
	for word, want := range map[string]forgeyard.RunnerID{"R1": "R1", "R2": "R2", "bench": "R2", "benc": "", "": ""} {
		m, err := findMember(s, word)
		if m.Runner != want || (want == "") != (forgeyard.KindOf(err) == forgeyard.NotFound) {
			t.Errorf("%q: %s %v", word, m.Runner, err)
		}
	}
}

func TestCheckStatus(t *testing.T) {
	for _, s := range []job.Status{"", job.Queued, job.Leased, job.Running, job.Suspended, job.Unknown, job.Done, job.Failed, job.Cancelled} {
		if err := checkStatus(string(s)); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	if err := checkStatus("gone"); forgeyard.KindOf(err) != forgeyard.Invalid || !strings.Contains(err.Error(), "queued") {
		t.Errorf("%v", err)
	}
}

// behind is a node whose copy of the log stands still, or comes up while it is asked.
type behind struct {
	Node
	now, then *site.State
	err       error
}

func (b *behind) Site() *site.State { return b.now }

func (b *behind) Current(context.Context) (uint64, error) {
	b.now = b.then
	return 1, b.err
}

// "Not found" is said by a copy of the log that has everything: one that stands still does not
// know, and one that is a moment behind is waited for.
func TestLookUpInACopyThatIsBehind(t *testing.T) {
	const id = "01HF00000000000000000KAAAA"
	empty := &site.State{}
	full := &site.State{}
	full.Jobs = full.Jobs.Put(id, site.Job{ID: id})
	still := forgeyard.Errorf("read", forgeyard.Unavailable, "no majority")
	for name, c := range map[string]struct {
		n    behind
		ok   bool
		kind forgeyard.Kind
	}{
		"stands still":               {behind{now: empty, then: empty, err: still}, false, forgeyard.Unavailable},
		"comes up":                   {behind{now: empty, then: full}, true, 0},
		"has all":                    {behind{now: empty, then: empty}, false, forgeyard.NotFound},
		"has it, and nobody vouches": {behind{now: full, then: full, err: still}, true, 0},
	} {
		j, err := lookUp(t.Context(), &c.n, id, findJob)
		if (err == nil) != c.ok || (err != nil && forgeyard.KindOf(err) != c.kind) || (c.ok && j.ID != id) {
			t.Errorf("%s: %q %v", name, j.ID, err)
		}
	}
}
