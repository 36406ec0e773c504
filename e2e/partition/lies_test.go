package partition

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// honest is a short history in which nothing is wrong, and in which every checker has
// something to look at.
func honest() evidence {
	s := int64(time.Second)
	e := evidence{
		Ops: []op{
			{Client: 0, What: "submit", Node: "n1", Key: "k1", Call: 1 * s, Return: 2 * s, Result: ok, Job: "A"},
			{Client: 1, What: "submit", Node: "n2", Key: "k1", Call: 3 * s, Return: 4 * s, Result: ok, Job: "A", Existed: true},
			{Client: 0, What: "submit", Node: "n1", Key: "k2", Call: 3 * s, Return: 8 * s, Result: unknown},
			{Client: 1, What: "submit", Node: "n3", Key: "k2", Call: 9 * s, Return: 10 * s, Result: ok, Job: "B", Existed: true},
			{Client: 1, What: "cancel", Node: "n3", Job: "B", Call: 11 * s, Return: 12 * s, Result: ok, Changed: true, Status: "running"},
			{Client: 1, What: "cancel", Node: "n3", Job: "B", Call: 13 * s, Return: 14 * s, Result: ok, Status: "cancelled"},
			{Client: 2, What: "lease", Node: "n1", Device: "desk", Key: "r1", TTL: 10 * time.Second, Call: 1 * s, Return: 2 * s, Result: ok, Lease: "L1", Token: 7},
			{Client: 3, What: "lease", Node: "n1", Device: "desk", Key: "r2", TTL: 10 * time.Second, Call: 3 * s, Return: 4 * s, Result: refuse},
			{Client: 2, What: "release", Node: "n1", Device: "desk", Call: 5 * s, Return: 6 * s, Result: ok, Lease: "L1"},
			{Client: 3, What: "lease", Node: "n1", Device: "desk", Key: "r2", TTL: 10 * time.Second, Call: 7 * s, Return: 8 * s, Result: unknown},
			{Client: 3, What: "lease", Node: "n2", Device: "desk", Key: "r2", TTL: 10 * time.Second, Call: 9 * s, Return: 10 * s, Result: ok, Lease: "L2", Token: 9},
			{Client: 2, What: "lease", Node: "n2", Device: "desk", Key: "r3", TTL: 10 * time.Second, Call: 30 * s, Return: 31 * s, Result: ok, Lease: "L3", Token: 12},
			{Client: 4, What: "final", Key: "k1", Call: 40 * s, Return: 41 * s, Result: ok, Job: "A", Status: "done", Epoch: 2},
			{Client: 4, What: "final", Key: "k2", Call: 41 * s, Return: 42 * s, Result: ok, Job: "B", Status: "cancelled", Epoch: 1},
			{Client: 0, What: "granted", Node: "n1", Job: "A", Lease: "A1", Epoch: 1, Call: 4 * s, Return: 5 * s, Result: ok},
			{Client: 0, What: "revoke", Node: "n1", Job: "A", Lease: "A1", Epoch: 1, Call: 8 * s, Return: 13 * s, Result: unknown},
			{Client: 0, What: "revoke", Node: "n3", Job: "A", Lease: "A1", Epoch: 1, Call: 14 * s, Return: 15 * s, Result: ok},
			{Client: 2, What: "granted", Node: "n3", Job: "A", Lease: "A2", Epoch: 2, Call: 20 * s, Return: 21 * s, Result: ok},
			{Client: 3, What: "granted", Node: "n1", Job: "A", Lease: "A1", Epoch: 1, Call: 24 * s, Return: 25 * s, Result: ok},
		},
		Seen: []seen{{At: 20 * s, Node: "n1", Job: "A", Status: "running", Epoch: 1}, {At: 25 * s, Node: "n2", Job: "A", Status: "done", Epoch: 2}},
		Beats: []beat{
			{Class: protectedWork, Key: "k1", Epoch: "1", N: "0", After: 5 * s, By: 6 * s},
			{Class: "free", Key: "k9", Epoch: "2", N: "0", After: 5 * s, By: 6 * s},
			{Class: protectedWork, Key: "k1", Epoch: "1", N: "1", After: 16 * s, By: 17 * s},
			{Class: "free", Key: "k9", Epoch: "1", N: "5", After: 16 * s, By: 17 * s},
			{Class: protectedWork, Key: "k1", Epoch: "2", N: "0", After: 21 * s, By: 22 * s},
		},
		Touches: [][]touch{{{"dut", ""}, {"dut", "k1/1"}, {"dut", "k1/1"}, {"dut", ""}, {"dut", "k1/2"}, {"dut", ""}}},
		Uplink: uplinkEnd{
			Expected: true, Granted: []string{"G"}, Audit: []uint64{1, 2, 3}, Taken: []uint64{1, 2}, Records: 2, Acked: 2,
			Jobs: []delegated{{Grant: "G", Status: "done", Outcomes: 1, Record: 2}},
		},
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		e.Ended = append(e.Ended,
			ended{Node: n, Job: "A", Key: "k1", Status: "done", Epoch: 2, Epochs: []uint64{1, 2}, Completed: []uint64{2}, Result: "k1 2", Outputs: "result b3:1 "},
			ended{Node: n, Job: "B", Key: "k2", Status: "cancelled", Epoch: 1, Epochs: []uint64{1}})
	}
	return e
}

// lies are histories with one thing in them that must not be, and who must say so.
var lies = []struct {
	what  string
	by    string
	forge func(*evidence)
}{
	{"two jobs under one key", "linearizable", func(e *evidence) { e.Ops[1].Job, e.Ops[1].Existed = "C", false }},
	{"a repeat that is called the first", "linearizable", func(e *evidence) { e.Ops[1].Existed = false }},
	{"a job that was there before anybody asked", "linearizable", func(e *evidence) { e.Ops[0].Existed = true }},
	{"the second cancellation changes something again", "linearizable", func(e *evidence) { e.Ops[5].Changed, e.Ops[5].Status = true, "running" }},
	{"cancelled, and done in the end", "linearizable", func(e *evidence) { e.Ops[13].Status = "done" }},
	{"acknowledged, and gone in the end", "linearizable", func(e *evidence) { e.Ops[12].Job, e.Ops[12].Status = "", "" }},
	{"a device with two holders", "linearizable", func(e *evidence) { e.Ops[7].Result, e.Ops[7].Lease, e.Ops[7].Token = ok, "LX", 8 }},
	{"a lease granted before the last one can have expired", "linearizable", func(e *evidence) { e.Ops[11].Call, e.Ops[11].Return = 12e9, 13e9 }},
	{"a token that is not above the last", "linearizable", func(e *evidence) { e.Ops[11].Token = 9 }},
	{"one request, two leases", "linearizable", func(e *evidence) {
		again := e.Ops[10]
		again.Call, again.Return, again.Lease = 11e9, 12e9, "LY"
		e.Ops = append(e.Ops, again)
	}},
	{"a live lease that cannot be given back", "linearizable", func(e *evidence) { e.Ops[8].Result = refuse }},
	{"released what nobody had", "linearizable", func(e *evidence) { e.Ops[8].Lease = "LZ" }},

	{"revoked twice", "leases-linearizable", func(e *evidence) { e.Ops[15].Result = ok }},
	{"an epoch revoked after the next was granted", "leases-linearizable", func(e *evidence) { e.Ops[16].Call, e.Ops[16].Return = 30e9, 31e9 }},
	{"protected work acts after the next epoch was granted", "leases-linearizable", func(e *evidence) { e.Beats[2].After, e.Beats[2].By = 23e9, 24e9 }},
	{"the result of a revoked epoch", "leases-linearizable", func(e *evidence) { e.Ops[12].Epoch, e.Ops, e.Beats = 1, e.Ops[:17], e.Beats[:4] }},
	{"ended before an epoch that was granted", "leases-linearizable", func(e *evidence) { e.Ops[12].Epoch = 1 }},

	{"one node does not have it", "nothing-lost", func(e *evidence) {
		e.Ended = slices.DeleteFunc(e.Ended, func(j ended) bool { return j.Node == "n2" && j.Job == "A" })
	}},
	{"nobody was asked", "nothing-lost", func(e *evidence) { e.Ended = nil }},
	{"done, then failed", "terminal-once", func(e *evidence) {
		e.Seen = append(e.Seen, seen{At: 26e9, Node: "n3", Job: "A", Status: "failed", Epoch: 2})
	}},
	{"done in two epochs", "terminal-once", func(e *evidence) { e.Seen[1].Epoch = 1 }},
	{"two results were taken", "commits-once", func(e *evidence) { e.Ended[0].Completed = []uint64{1, 2} }},
	{"the result of an epoch that was over", "commits-once", func(e *evidence) { e.Ended[0].Completed = []uint64{1} }},
	{"done, and another epoch after it", "commits-once", func(e *evidence) { e.Ended[0].Epochs = []uint64{1, 2, 3} }},
	{"the output of another epoch", "commits-once", func(e *evidence) { e.Ended[0].Result = "k1 1" }},
	{"an epoch that was current twice", "commits-once", func(e *evidence) { e.Ended[0].Epochs = []uint64{1, 2, 2} }},
	{"two epochs act at once", "holder-stops-first", func(e *evidence) {
		e.Beats = append(e.Beats, beat{Class: protectedWork, Key: "k1", Epoch: "1", N: "2", After: 5e9, By: 25e9})
	}},
	{"the holder before acts again", "device-single-holder", func(e *evidence) { e.Touches[0] = append(e.Touches[0], touch{"dut", "k1/1"}) }},
	{"no reset between two holders", "device-single-holder", func(e *evidence) { e.Touches[0] = slices.Delete(e.Touches[0], 3, 4) }},
	{"a holder acts after its reset", "device-single-holder", func(e *evidence) { e.Touches[0] = append(e.Touches[0], touch{"dut", "k1/2"}) }},
	{"a gap in the records", "exactly-once-upstream", func(e *evidence) { e.Uplink.Taken[1] = 3 }},
	{"a record twice", "exactly-once-upstream", func(e *evidence) { e.Uplink.Taken = []uint64{1, 1, 2} }},
	{"two outcomes", "exactly-once-upstream", func(e *evidence) { e.Uplink.Jobs[0].Outcomes = 2 }},
	{"no outcome", "exactly-once-upstream", func(e *evidence) { e.Uplink.Jobs[0].Outcomes = 0 }},
	{"one record, two outcomes", "exactly-once-upstream", func(e *evidence) { e.Uplink.Jobs = append(e.Uplink.Jobs, delegated{"H", "done", 1, 2}) }},
	{"a grant is forgotten", "exactly-once-upstream", func(e *evidence) { e.Uplink.Granted = append(e.Uplink.Granted, "H") }},
	{"acknowledged, and not at the daemon", "exactly-once-upstream", func(e *evidence) { e.Uplink.Acked = 3 }},
	{"a gap in the audit", "exactly-once-upstream", func(e *evidence) { e.Uplink.Audit[2] = 4 }},
	{"two nodes tell two stories", "same-state", func(e *evidence) { e.Ended[2].Outputs = "result b3:2 " }},
	{"a node that is behind", "same-state", func(e *evidence) { e.Ended = e.Ended[:5] }},
	{"a job that runs for ever", "progress", func(e *evidence) { e.Ended[1].Status = "running" }},
	{"a job that failed", "progress", func(e *evidence) { e.Ended[1].Status = "failed" }},
	{"records that wait", "progress", func(e *evidence) { e.Uplink.Pending = 1 }},
	{"a run in which nothing was done", "progress", func(e *evidence) { e.Ended = e.Ended[1:2] }},
	{"what did not end", "progress", func(e *evidence) { e.Stuck = []string{"n3 is not online"} }},
}

// TestCheckersCatchLies: each checker is silent about the truth and names each lie that
// is its own to catch.
func TestCheckersCatchLies(t *testing.T) {
	if wrong := verdict(honest()); len(wrong) > 0 {
		t.Fatalf("nothing is wrong with this history:\n%s", strings.Join(wrong, "\n"))
	}
	caught := map[string]int{}
	for _, l := range lies {
		e := honest()
		l.forge(&e)
		for _, w := range verdict(e) {
			if strings.HasPrefix(w, l.by+": ") {
				caught[l.what]++
			}
		}
		if caught[l.what] == 0 {
			t.Errorf("%s does not see: %s", l.by, l.what)
		}
		caught[l.by]++
	}
	for _, c := range checkers {
		if caught[c.name] == 0 {
			t.Errorf("no lie was told to %s", c.name)
		}
	}
}

// A call without an answer may take effect late or never, and both are honest.
func TestModelsAllowWhatIsNotKnown(t *testing.T) {
	late, never := honest(), honest()
	never.Ops = slices.Delete(never.Ops, 3, 6) // k2 was never heard of again
	last := slices.IndexFunc(never.Ops, func(o op) bool { return o.What == "final" && o.Key == "k2" })
	never.Ops[last].Job, never.Ops[last].Status = "", ""
	never.Ended = slices.DeleteFunc(never.Ended, func(j ended) bool { return j.Job == "B" })
	late.Ops[3].Existed = false // it overtook the first try
	for what, e := range map[string]evidence{"late": late, "never": never} {
		if wrong := linear(e); len(wrong) > 0 {
			t.Errorf("%s: %s", what, strings.Join(wrong, "\n"))
		}
	}
}

func TestResultOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want result
	}{
		{nil, ok},
		{forgeyard.Errorf("x", forgeyard.Conflict, "leased"), refuse},
		{forgeyard.Errorf("x", forgeyard.Unavailable, "no quorum"), unknown},
		{forgeyard.Errorf("x", forgeyard.Unknown, "leadership lost"), unknown},
		{errors.New("unexpected EOF"), unknown},
		{fmt.Errorf("call: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), refuse},
	} {
		if got := resultOf(c.err); got != c.want {
			t.Errorf("%v is %s, not %s", c.err, got, c.want)
		}
	}
}

// TestPlanReplays: a seed is a plan, within the bounds of what the product claims to
// survive and the suite can undo.
func TestPlanReplays(t *testing.T) {
	kinds := map[what]int{}
	voters := map[int]int{}
	for seed := range uint64(300) {
		s := draw(seed, 2*time.Minute, true)
		a, err1 := json.Marshal(s)
		b, err2 := json.Marshal(draw(seed, 2*time.Minute, true))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Fatalf("seed %d is not one plan: %v %v", seed, err1, err2)
		}
		voters[s.Voters]++
		busy := map[int]time.Duration{}
		for _, a := range s.Acts {
			kinds[a.What]++
			if a.For <= 0 || a.For > longest || a.At > s.Length {
				t.Fatalf("seed %d: %s is out of bounds", seed, a)
			}
			if a.alone() {
				if busy[a.On[0]] > a.At {
					t.Fatalf("seed %d: %s begins while the machine bears another", seed, a)
				}
				busy[a.On[0]] = a.end()
			}
		}
	}
	for _, k := range []what{cutOneWay, cutBothWays, cableDown, storm, thinLink, pauseProcess, pauseMachine, kill9, powerCut, fillDisk, fillInodes, wrongClock, centralGone} {
		if kinds[k] == 0 {
			t.Errorf("no seed draws %s", k)
		}
	}
	if voters[3] == 0 || voters[5] == 0 {
		t.Errorf("the shapes are all alike: %v", voters)
	}
	for seed := range uint64(50) {
		for _, a := range draw(seed, 2*time.Minute, false).Acts {
			if a.What == wrongClock {
				t.Fatal("a wrong clock where clocks cannot be set wrong")
			}
		}
	}
}
