package partition

import (
	"fmt"
	"slices"
	"strings"
)

// A checker says what of the evidence contradicts one promise.
type checker struct {
	name  string
	check func(evidence) []string
}

// checkers are the invariants that can be seen from outside. Those of them that the
// simulator has too have the same names.
var checkers = []checker{
	{"linearizable", linear},
	{"leases-linearizable", leasesOfJobs},
	{"nothing-lost", nothingLost},
	{"terminal-once", terminalOnce},
	{"commits-once", commitsOnce},
	{"holder-stops-first", holderStopsFirst},
	{"device-single-holder", deviceSingleHolder},
	{"exactly-once-upstream", exactlyOnceUpstream},
	{"same-state", sameState},
	{"progress", progress},
}

// verdict is what all checkers say.
func verdict(e evidence) []string {
	var out []string
	for _, c := range checkers {
		for _, w := range c.check(e) {
			out = append(out, c.name+": "+w)
		}
	}
	return out
}

// nothingLost: a submission that was acknowledged is in every node's state.
func nothingLost(e evidence) (wrong []string) {
	have := map[string]map[string]bool{}
	for _, j := range e.Ended {
		if have[j.Node] == nil {
			have[j.Node] = map[string]bool{}
		}
		have[j.Node][j.Job] = true
	}
	for _, o := range e.Ops {
		if o.What != "submit" || o.Result != ok {
			continue
		}
		for node, jobs := range have {
			if !jobs[o.Job] {
				wrong = append(wrong, fmt.Sprintf("%s was acknowledged as job %s by %s, and %s does not have it", o.Key, o.Job, o.Node, node))
			}
		}
	}
	if len(have) == 0 {
		wrong = append(wrong, "no node was asked what it has")
	}
	slices.Sort(wrong)
	return wrong
}

// terminalOnce: who has once seen a job end has seen how it ended.
func terminalOnce(e evidence) (wrong []string) {
	first := map[string]seen{}
	looks := slices.Clone(e.Seen)
	for _, j := range e.Ended {
		looks = append(looks, seen{At: never, Node: j.Node, Job: j.Job, Status: j.Status, Epoch: j.Epoch})
	}
	for _, s := range looks {
		if !isTerminal(s.Status) {
			continue
		}
		f, ok := first[s.Job]
		if !ok {
			first[s.Job] = s
		} else if f.Status != s.Status || f.Epoch != s.Epoch {
			wrong = append(wrong, fmt.Sprintf("job %s was %s in epoch %d at %s, and %s in epoch %d at %s", s.Job, f.Status, f.Epoch, f.Node, s.Status, s.Epoch, s.Node))
		}
	}
	return wrong
}

// commitsOnce: of all the executions of a job one result counts, it is that of the last
// epoch, and its output is the one that this epoch wrote.
func commitsOnce(e evidence) (wrong []string) {
	for _, j := range e.Ended {
		at := fmt.Sprintf("job %s (%s) at %s", j.Job, j.Key, j.Node)
		if !slices.IsSorted(j.Epochs) || len(slices.Compact(slices.Clone(j.Epochs))) != len(j.Epochs) {
			wrong = append(wrong, fmt.Sprintf("%s has the epochs %v: one is current twice", at, j.Epochs))
		}
		if len(j.Completed) > 1 {
			wrong = append(wrong, fmt.Sprintf("%s was completed by the epochs %v", at, j.Completed))
		}
		if j.Status != "done" {
			continue
		}
		// None: the lease was over, no other epoch had begun, and the result came late.
		if len(j.Epochs) == 0 || j.Epochs[len(j.Epochs)-1] != j.Epoch || len(j.Completed) == 1 && j.Completed[0] != j.Epoch {
			wrong = append(wrong, fmt.Sprintf("%s is done in epoch %d of %v and was completed by %v", at, j.Epoch, j.Epochs, j.Completed))
		}
		if want := fmt.Sprintf("%s %d", j.Key, j.Epoch); j.Result != "" && j.Result != want {
			wrong = append(wrong, fmt.Sprintf("%s has the output %q, not %q", at, j.Result, want))
		}
	}
	return wrong
}

// protectedWork is the class of beats whose epochs must not overlap.
const protectedWork = "protected"

// holderStopsFirst: where effects are protected, an epoch acts only when the one before
// has acted for the last time.
func holderStopsFirst(e evidence) (wrong []string) {
	last := map[string]beat{}
	for _, b := range e.Beats {
		if b.Class != protectedWork {
			continue
		}
		l := last[b.Key]
		if epochOf(b.Epoch) < epochOf(l.Epoch) {
			wrong = append(wrong, fmt.Sprintf("%s: epoch %s acts (%s) after epoch %s has acted (%s)", b.Key, b.Epoch, b.N, l.Epoch, l.N))
			continue
		}
		last[b.Key] = b
	}
	return wrong
}

func epochOf(s string) (n int) {
	_, _ = fmt.Sscan(s, &n) // none is 0
	return n
}

// deviceSingleHolder: once another holder has touched a device, the one before never
// does again, and between the two the device was reset.
func deviceSingleHolder(e evidence) (wrong []string) {
	for _, touches := range e.Touches {
		gone, now, clean := map[string]bool{}, "", true
		for i, t := range touches {
			switch {
			case t.Holder == "":
				clean = true
			case t.Holder == now:
				// A reset after this holder's lease is over says nothing about acts of it that
				// are still let through; they would be touches of a device that is clean.
				if clean && i > 0 && now != "" && touches[i-1].Holder == "" {
					wrong = append(wrong, fmt.Sprintf("%s: %s acts after the reset that followed it", t.Device, t.Holder))
				}
				clean = false
			case gone[t.Holder]:
				wrong = append(wrong, fmt.Sprintf("%s: %s acts after %s had taken over", t.Device, t.Holder, now))
			default:
				if !clean {
					wrong = append(wrong, fmt.Sprintf("%s: %s follows %s with no reset between", t.Device, t.Holder, now))
				}
				gone[now], now, clean = true, t.Holder, false
			}
		}
	}
	return wrong
}

// exactlyOnceUpstream: the daemon has each outcome once, and the records of the site in
// order, without a gap (E01).
func exactlyOnceUpstream(e evidence) (wrong []string) {
	u := e.Uplink
	if !u.Expected {
		return nil
	}
	for i, n := range u.Taken {
		if n != uint64(i)+1 {
			wrong = append(wrong, fmt.Sprintf("the daemon took record %d as its %d. one", n, i+1))
			break
		}
	}
	for i, n := range u.Audit {
		if i > 0 && n != u.Audit[i-1]+1 {
			wrong = append(wrong, fmt.Sprintf("the daemon's audit goes from %d to %d", u.Audit[i-1], n))
		}
	}
	if u.Records != uint64(len(u.Taken)) || u.Records != u.Acked {
		wrong = append(wrong, fmt.Sprintf("the daemon counts %d records and noted %d, and the site has %d acknowledged", u.Records, len(u.Taken), u.Acked))
	}
	byGrant, byRecord := map[string]delegated{}, map[uint64]string{}
	for _, j := range u.Jobs {
		byGrant[j.Grant] = j
		if j.Outcomes != 1 {
			wrong = append(wrong, fmt.Sprintf("grant %s (%s) has %d outcomes", j.Grant, j.Status, j.Outcomes))
		}
		if other := byRecord[j.Record]; other != "" {
			wrong = append(wrong, fmt.Sprintf("record %d is the outcome of %s and of %s", j.Record, other, j.Grant))
		}
		byRecord[j.Record] = j.Grant
	}
	for _, g := range u.Granted {
		if _, there := byGrant[g]; !there {
			wrong = append(wrong, fmt.Sprintf("grant %s was acknowledged and the daemon has forgotten it", g))
		}
	}
	return wrong
}

// sameState: all nodes have the same story of each job.
func sameState(e evidence) (wrong []string) {
	first := map[string]ended{}
	count := map[string]int{}
	nodes := map[string]bool{}
	for _, j := range e.Ended {
		nodes[j.Node] = true
		count[j.Job]++
		f, there := first[j.Job]
		if !there {
			first[j.Job] = j
			continue
		}
		if f.Status != j.Status || f.Epoch != j.Epoch || !slices.Equal(f.Epochs, j.Epochs) || f.Outputs != j.Outputs {
			wrong = append(wrong, fmt.Sprintf("job %s is %s in epoch %d %v at %s, and %s in epoch %d %v at %s", j.Job, f.Status, f.Epoch, f.Epochs, f.Node, j.Status, j.Epoch, j.Epochs, j.Node))
		}
	}
	for id, n := range count {
		if n != len(nodes) {
			wrong = append(wrong, fmt.Sprintf("job %s is known to %d of %d nodes", id, n, len(nodes)))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// progress: after healing everything comes to its end.
func progress(e evidence) (wrong []string) {
	wrong = append(wrong, e.Stuck...)
	done := 0
	filled := slices.ContainsFunc(e.Shape.Acts, func(a act) bool { return a.What == fillDisk || a.What == fillInodes })
	for _, j := range e.Ended {
		if !isTerminal(j.Status) {
			wrong = append(wrong, fmt.Sprintf("job %s (%s) is %s at %s", j.Job, j.Key, j.Status, j.Node))
		}
		if j.Status == "failed" && !(j.Category == "disk_full" && filled) {
			wrong = append(wrong, fmt.Sprintf("job %s (%s) failed at %s with %s, and nothing in it can fail", j.Job, j.Key, j.Node, j.Category))
		}
		if j.Status == "done" {
			done++
		}
	}
	if done == 0 {
		wrong = append(wrong, "no job was done: the run shows nothing")
	}
	if e.Uplink.Expected && e.Uplink.Pending != 0 {
		wrong = append(wrong, fmt.Sprintf("%d records wait at the site", e.Uplink.Pending))
	}
	return wrong
}

// count says what a run had, for whoever reads that it passed.
func count(e evidence) string {
	what, how := map[string]int{}, map[result]int{}
	for _, o := range e.Ops {
		what[o.What]++
		how[o.Result]++
	}
	epochs, resumed, jobs := 0, 0, map[string]bool{}
	for _, j := range e.Ended {
		if !jobs[j.Job] {
			epochs, resumed = epochs+len(j.Epochs), resumed+j.Resumed
		}
		jobs[j.Job] = true
	}
	touches := 0
	for _, t := range e.Touches {
		touches += len(t)
	}
	return strings.TrimSpace(fmt.Sprintf("%d acts; %d calls (submit %d, cancel %d, lease %d, release %d, revoke %d; %d without an answer), %d looks; %d jobs in %d epochs, of which %d from a checkpoint, %d beats, %d touches; %d records upstream",
		len(e.Shape.Acts), len(e.Ops), what["submit"], what["cancel"], what["lease"], what["release"], what["revoke"], how[unknown], len(e.Seen), len(jobs), epochs, resumed, len(e.Beats), touches, e.Uplink.Records))
}
