package node

import (
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// A recovery takes in the end of this node's log, committed or not, and so does what it
// says beforehand (E31): a log that ends with this node's own removal begins no plan, since
// every start would refuse it, and a lease that is only there is counted.
func TestRecoverLooksAtTheTail(t *testing.T) {
	index, st := uint64(0), &site.State{}
	entry := func(b site.Body) consensus.Entry {
		index++
		cmd := site.Command{ID: forgeyard.MessageID("c" + strings.Repeat("x", int(index))), At: forgeyard.Wall(index), Body: b}
		return consensus.Entry{Index: index, Term: 1, Data: cmd.Encode()}
	}
	spec := job.Spec{Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted().Canonical()
	st = withTail(st, []consensus.Entry{
		entry(site.Init{Site: "01JD0000000000000000000000", Name: "cell", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: "p1"}),
		entry(site.Register{Runner: "R1", Session: "S1", Formats: site.Formats, Caps: job.Capabilities{MilliCPU: 1 << 20, Memory: 1 << 40, Disk: 1 << 40, MaxJobs: 8}}),
		entry(site.Submit{Kind: job.Build, Spec: spec, SpecID: cas.Sum(spec)}),
	})
	id, _, ok := st.Open.Min()
	if !ok || st.Index != index {
		t.Fatalf("at %d, open jobs: %v", st.Index, ok)
	}
	lease, yes := entry(site.Offer{Job: id, Runner: "R1", Session: "S1"}), true
	removal := entry(site.MemberSet{Runner: "R1", Removed: &yes})
	b := site.Recover{Incarnation: 2, Lineage: "2-x", Runner: "R1", Node: "n1", Peer: "p1", From: index, Formats: site.Formats}
	raw := site.Command{ID: "recover", At: 9, Body: b}.Encode()

	for want, tail := range [][]consensus.Entry{{}, {lease}} {
		if r, err := foretell(withTail(st, tail), b, raw, 1); err != nil || r.Leases != want {
			t.Errorf("with %d entries more: %+v %v", len(tail), r, err)
		}
	}
	_, err := foretell(withTail(st, []consensus.Entry{removal}), b, raw, 1)
	if forgeyard.KindOf(err) != forgeyard.Denied || !strings.Contains(err.Error(), "ends with its own removal") {
		t.Errorf("the log ends with this node's removal: %v", err)
	}
}

// What another member says of its log keeps a recovery from leaving something out: a log that
// is newer, and one of which nobody knows, since it is being opened or its disk fails (E31).
func TestWhoObjectsToARecovery(t *testing.T) {
	for name, c := range map[string]struct {
		word lastWord
		kind forgeyard.Kind // 0: none does
	}{
		"older":                  {lastWord{voter: true, term: 3, index: 9}, 0},
		"of an older term":       {lastWord{voter: true, term: 2, index: 99}, 0},
		"the same":               {lastWord{voter: true, term: 3, index: 10}, 0},
		"longer":                 {lastWord{voter: true, term: 3, index: 11}, forgeyard.Conflict},
		"of a newer term":        {lastWord{voter: true, term: 4, index: 1}, forgeyard.Conflict},
		"not known":              {lastWord{voter: true}, forgeyard.Unavailable},
		"none, and no vote":      {lastWord{}, 0},
		"longer, and no vote":    {lastWord{term: 3, index: 11}, 0},
		"of another incarnation": {lastWord{elsewhere: true}, forgeyard.Conflict},
	} {
		err := c.word.objection("n2", 3, 10)
		if (err == nil) != (c.kind == 0) || err != nil && (forgeyard.KindOf(err) != c.kind || !strings.Contains(err.Error(), "n2")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
