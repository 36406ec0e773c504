package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// TestDeadlines prints, for each policy, when the holder stops and what its granter
// waits for: the table of architecture §5 (RA-307, CK-399). Hours without the site are for work
// that was given them, and for no other (RA-309).
func TestDeadlines(t *testing.T) {
	datadriven.RunTest(t, "testdata/deadlines.txt", func(t *testing.T, td *datadriven.TestData) string {
		terms := DefaultTerms()
		var p Policy
		policy, length, left := "continuous", "0s", "-1s"
		td.MaybeScanArgs(t, "policy", &policy)
		td.MaybeScanArgs(t, "for", &length)
		td.MaybeScanArgs(t, "left", &left)
		p.Policy = job.ConnectivityPolicy(policy)
		p.For = mustSpan(t, length)
		p.NoReplace = td.HasArg("no-replace") // E04
		l := Lease{Policy: p, Terms: terms, Protected: td.HasArg("protected")}
		from := forgeyard.Instant(time.Hour)
		at := func(i forgeyard.Instant) string { return i.Sub(from).String() }
		return fmt.Sprintf("the holder stops at   send  + %s\nunknown after         apply + %s\nreassigned after      apply + %s\ncertain after         apply + %s\n",
			at(HolderStop(p, terms, from, mustSpan(t, left))), at(UnknownAt(l, from)), at(ReassignAt(l, from)), at(CertainAt(l, from)))
	})
}

func mustSpan(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestUplink plays the states of the uplink: each line is one committed figure.
func TestUplink(t *testing.T) {
	var u Uplink
	var index uint64
	datadriven.RunTest(t, "testdata/uplink.txt", func(t *testing.T, td *datadriven.TestData) string {
		index++
		at := forgeyard.Wall(index * 1000)
		used, pending, why := "0s", 0, ""
		td.MaybeScanArgs(t, "used", &used)
		td.MaybeScanArgs(t, "pending", &pending)
		td.MaybeScanArgs(t, "why", &why)
		switch td.Cmd {
		case "connect":
			u = u.Connect(at, index, UplinkTerms{SilentAfter: 10 * time.Second, Grace: 20 * time.Second, Allowance: time.Minute})
		case "silence":
			u = u.Observe(at, index, mustSpan(t, used), false, pending)
		case "contact":
			u = u.Observe(at, index, mustSpan(t, used), true, pending)
		case "doubt":
			u = u.Doubted(at, index, why)
		case "drained":
			u = u.Drained(at)
		}
		left := ""
		for _, p := range []Policy{{Policy: job.Continuous}, {Policy: job.Grace, For: 5 * time.Second}, {Policy: job.OfflineAuthorized, For: 40 * time.Second}, {Policy: job.OfflineAuthorized, For: time.Hour}} {
			left += fmt.Sprintf(" %s", Grant{Policy: p}.Left(u, u.Used))
		}
		return fmt.Sprintf("%s since %d, used %s, contacts %d %s\nleft:%s\n", u.State, u.Since, u.Used, u.Contacts, u.Doubt, left)
	})
}

// The slow twin of the deadlines: true time, two clocks whose rates differ by at most
// the bound, and a message that takes as long as it likes. The holder reads its clock
// at the send, the granter at the apply, which is later in true time. Then, in true
// time, the holder has stopped before the granter is certain; and where nothing is
// protected, the fence stands between the two (decision 1, holder-stops-first).
func holderStopsFirst(p Policy, terms Terms, holderPPM, granterPPM int64, delay, left time.Duration) error {
	type clockReading struct{ offset, ppm int64 }
	read := func(c clockReading, trueTime int64) forgeyard.Instant {
		return forgeyard.Instant(c.offset + trueTime + trueTime/1_000_000*c.ppm)
	}
	truth := func(c clockReading, i forgeyard.Instant) int64 {
		d := int64(i) - c.offset
		return int64(float64(d) / (1 + float64(c.ppm)/1e6))
	}
	holder, granter := clockReading{5_000_000_000, holderPPM}, clockReading{77_000_000_000, granterPPM}
	sent, applied := int64(1_000_000_000), 1_000_000_000+int64(delay)
	stop := truth(holder, HolderStop(p, terms, read(holder, sent), left))
	dead := stop + int64(terms.KillMax)
	l := Lease{Policy: p, Terms: terms, Protected: true}
	if certain := truth(granter, CertainAt(l, read(granter, applied))); certain < dead {
		return fmt.Errorf("%+v, rates %d and %d ppm, delay %s: the holder is dead at %d, the granter is certain at %d", p, holderPPM, granterPPM, delay, dead, certain)
	}
	if CertainAt(l, read(granter, applied)) < UnknownAt(l, read(granter, applied)) || ReassignAt(l, 1) != CertainAt(l, 1) {
		return fmt.Errorf("%+v: certain before unknown, or a protected lease is reassigned before it is certain", p)
	}
	if left >= 0 && truth(holder, HolderStop(p, terms, read(holder, sent), left)) > sent+int64(float64(left)*1.011) {
		return fmt.Errorf("%+v: the holder goes on beyond the %s that the central daemon left", p, left)
	}
	return nil
}

func TestHolderStopsFirst(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		if err := holderStopsFirst(randomPolicy(r), DefaultTerms(), r.Int64N(10_000)-5_000, r.Int64N(10_000)-5_000, time.Duration(r.Int64N(int64(time.Minute))), time.Duration(r.Int64N(int64(time.Minute)))-5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

func randomPolicy(r *rand.Rand) Policy {
	d := time.Duration(r.Int64N(int64(24 * time.Hour)))
	return []Policy{{Policy: job.Continuous}, {Policy: job.Grace, For: d}, {Policy: job.OfflineAuthorized, For: d}}[r.IntN(3)]
}

// TestTwinSeesFaults: the twin is worth something only if it sees a granter that does
// not stretch, and a holder that counts from the receipt.
func TestTwinSeesFaults(t *testing.T) {
	hasty := DefaultTerms()
	hasty.DriftPPM, hasty.Epsilon = 0, 0
	if holderStopsFirst(Policy{Policy: job.OfflineAuthorized, For: time.Hour}, hasty, -4_900, 4_900, 0, -1) == nil {
		t.Error("a granter that ignores the drift was not seen")
	}
	// A holder that counts from the receipt is one whose send comes after the apply.
	if holderStopsFirst(Policy{Policy: job.Continuous}, DefaultTerms(), 0, 0, -3*time.Second, -1) == nil {
		t.Error("a holder that counts from the receipt was not seen")
	}
}

func FuzzHolderStopsFirst(f *testing.F) {
	f.Add(uint8(0), int64(time.Minute), int64(15*time.Second), int64(-5000), int64(5000), int64(0), int64(-1))
	f.Fuzz(func(t *testing.T, kind uint8, length, ttl, a, b, delay, left int64) {
		bound := func(n, lo, hi int64) int64 { return lo + int64(uint64(n)%uint64(hi-lo)) }
		terms := DefaultTerms()
		terms.TTL = time.Duration(bound(ttl, int64(time.Second), int64(10*time.Minute)))
		p := []Policy{{Policy: job.Continuous}, {Policy: job.Grace}, {Policy: job.OfflineAuthorized}}[kind%3]
		p.For = time.Duration(bound(length, 0, int64(90*24*time.Hour)))
		if err := holderStopsFirst(p, terms, bound(a, -5000, 5000), bound(b, -5000, 5000), time.Duration(bound(delay, 0, int64(time.Hour))), time.Duration(bound(left, -5, int64(time.Hour)))); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzUplink: without a contact the figure never shrinks and the state never improves,
// whatever is committed; and the state says what the figure says.
func FuzzUplink(f *testing.F) {
	f.Add([]byte{1, 20, 2, 40, 3, 0})
	f.Fuzz(func(t *testing.T, steps []byte) {
		u := Uplink{}.Connect(1, 1, UplinkTerms{SilentAfter: 10 * time.Second, Grace: 20 * time.Second, Allowance: time.Minute})
		order := map[UplinkState]int{Online: 0, Reconciling: 0, InGrace: 1, Offline: 2, Exhausted: 3}
		for i := 0; i+1 < len(steps); i += 2 {
			before, contact := u, steps[i]%4 == 0
			used := time.Duration(steps[i+1]) * time.Second / 2
			switch {
			case steps[i]%4 == 3:
				u = u.Doubted(2, uint64(i), "so")
			default:
				u = u.Observe(2, uint64(i), used, contact, int(steps[i]%8)/4)
			}
			switch {
			case !contact && (u.Used < before.Used || order[u.State] < order[before.State]):
				t.Fatalf("%+v after %+v without a contact", u, before)
			case u.Used >= u.Terms.Allowance && u.State != Exhausted:
				t.Fatalf("used up, and %s", u.State)
			case order[u.State] == 0 && u.Used >= u.Terms.SilentAfter:
				t.Fatalf("%s after %s of silence", u.State, u.Used)
			case contact && u.Doubt != "":
				t.Fatal("a contact ends every doubt")
			}
		}
	})
}

// TestLife plays the life of leases: who may accept, how often, what ends them, and what is
// told to whoever acts under another authority. RA-002, RA-149, RA-443, RA-502, RA-503,
// RA-546, RA-551, RA-575; the unit tests and the gate of lease validation, RA-436, RA-534.
func TestLife(t *testing.T) {
	leases := map[string]Lease{}
	datadriven.RunTest(t, "testdata/life.txt", func(t *testing.T, td *datadriven.TestData) string {
		id, at := "l", uint64(0)
		td.MaybeScanArgs(t, "lease", &id)
		td.MaybeScanArgs(t, "at", &at)
		l := leases[id]
		switch td.Cmd {
		case "offer":
			fence := "1.0.1"
			td.MaybeScanArgs(t, "fence", &fence)
			f, err := forgeyard.ParseFence(fence)
			if err != nil {
				t.Fatal(err)
			}
			l = Lease{State: Offered, Authority: forgeyard.Authority{Job: "j", Attempt: "a", Lease: forgeyard.LeaseID(id), Spec: forgeyard.Digest{1}, Runner: "r", Session: "s", Fence: f}}
		case "accept":
			var err error
			if l, err = l.Accept(claimed(t, td, l.Authority)); err != nil {
				return fmt.Sprintf("%s: %v\n", forgeyard.KindOf(err), err)
			}
		case "check":
			if err := Check(l.Authority, claimed(t, td, l.Authority)); err != nil {
				return fmt.Sprintf("%s: %v\n", forgeyard.KindOf(err), err)
			}
			return "it is the current one\n"
		case "end":
			why, detail := "", ""
			td.ScanArgs(t, "why", &why)
			td.MaybeScanArgs(t, "detail", &detail)
			l = l.End(forgeyard.Wall(at), EndReason(why), detail)
		}
		leases[id] = l
		line := fmt.Sprintf("%s, fence %s, live %v", l.State, l.Authority.Fence, l.Live())
		if l.State == Ended {
			line += fmt.Sprintf(", ended at %d: %s %s", l.EndedAt, l.Reason, l.Detail)
		}
		return line + "\n"
	})
}

// claimed is the authority, with the parts that the line changes.
func claimed(t *testing.T, td *datadriven.TestData, a forgeyard.Authority) forgeyard.Authority {
	text := func(key string, to *string) { td.MaybeScanArgs(t, key, to) }
	jobID, attempt, runner, session, fence := string(a.Job), string(a.Attempt), string(a.Runner), string(a.Session), a.Fence.String()
	under := string(a.Lease)
	text("job", &jobID)
	text("attempt", &attempt)
	text("under", &under)
	text("runner", &runner)
	text("session", &session)
	text("claims", &fence)
	f, err := forgeyard.ParseFence(fence)
	if err != nil {
		t.Fatal(err)
	}
	a.Job, a.Attempt, a.Lease, a.Runner, a.Session, a.Fence = forgeyard.JobID(jobID), forgeyard.AttemptID(attempt), forgeyard.LeaseID(under), forgeyard.RunnerID(runner), forgeyard.SessionID(session), f
	if td.HasArg("otherspec") {
		a.Spec[0]++
	}
	return a
}

// TestLifeOfALease: each part of the authority counts; a lease ends once.
func TestLifeOfALease(t *testing.T) {
	a := forgeyard.Authority{Job: "j", Attempt: "a", Lease: "l", Spec: forgeyard.Digest{1}, Runner: "r", Session: "s", Fence: forgeyard.Fence{Incarnation: 1, Epoch: 3}}
	for _, change := range []func(*forgeyard.Authority){
		func(a *forgeyard.Authority) { a.Job = "x" }, func(a *forgeyard.Authority) { a.Attempt = "x" }, func(a *forgeyard.Authority) { a.Lease = "x" },
		func(a *forgeyard.Authority) { a.Spec[0]++ }, func(a *forgeyard.Authority) { a.Runner = "x" }, func(a *forgeyard.Authority) { a.Session = "x" },
		func(a *forgeyard.Authority) { a.Fence.Epoch++ }, func(a *forgeyard.Authority) { a.Fence.Term++ }, func(a *forgeyard.Authority) { a.Fence.Incarnation++ },
	} {
		b := a
		change(&b)
		if forgeyard.KindOf(Check(a, b)) != forgeyard.Stale {
			t.Errorf("%+v passes for %+v", b, a)
		}
	}
	l := Lease{Authority: a, State: Offered}
	l, err := l.Accept(a)
	if err != nil || l.State != Accepted || !l.Live() {
		t.Fatalf("%v %+v", err, l)
	}
	if again, err := l.Accept(a); err != nil || again != l {
		t.Fatal("a repeated acceptance is the same one")
	}
	l = l.End(1, EndExpired, "silent").End(2, EndCompleted, "late")
	if l.Reason != EndExpired || l.EndedAt != 1 || l.Live() {
		t.Fatalf("a lease ends once: %+v", l)
	}
	if _, err := l.Accept(a); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Fatal("an ended lease was accepted")
	}
}
