package controllers

import (
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// proposed is the one command that the leader wishes; the test fails where it wishes another.
func proposed[B site.Body](r *rig) B {
	r.t.Helper()
	r.in.State = r.s
	effects, _ := Step(r.now, r.in)
	if len(effects) != 1 {
		r.t.Fatalf("the leader wishes %d things: %+v", len(effects), effects)
	}
	p, _ := effects[0].(Propose)
	b, ok := p.Body.(B)
	if !ok {
		r.t.Fatalf("the leader wishes %+v, not a %T", effects[0], b)
	}
	return b
}

// newest raises the log's format to the newest, which most commands of leases ask for.
func newest(t *testing.T) *rig {
	r := rigReading(t, site.Formats)
	for f := r.s.LogFormat() + 1; f <= site.FormatNow; f++ {
		r.apply(site.FormatRaise{To: f, Voters: r.r[:1]})
	}
	r.elect()
	return r
}

func (r *rig) disable(id forgeyard.RunnerID, on bool) {
	r.apply(site.MemberSet{Runner: id, Disabled: &on})
}

// RA-401: a disabled runner may go on only as long as it takes to give the job back; then
// the job is taken from it. The time is counted anew when it was enabled in between.
func TestDisabledGivesBack(t *testing.T) {
	r := newest(t)
	id := r.submit(func(s *job.Spec) { s.Stop.Grace = 20 * time.Second })
	a := r.held(id)
	r.want("")
	within := 20*time.Second + disabledPatience
	alive := func(d time.Duration) { // it renews all the time: a silence is no part of this
		r.after(d)
		r.hello()
		r.in.State = r.s
		r.in.Mem.Renew(r.now, r.in, []Renewal{{Authority: a}})
	}
	r.disable(a.Runner, true)
	r.want("")
	for range 4 {
		alive(5 * time.Second)
		r.want("")
	}
	r.disable(a.Runner, false)
	r.want("")
	alive(within - 20*time.Second)
	r.want("")
	r.disable(a.Runner, true)
	r.want("")
	for left := within; left > 5*time.Second; left -= 5 * time.Second {
		alive(5 * time.Second)
		r.want("")
	}
	alive(5*time.Second - time.Millisecond)
	r.want("")
	alive(time.Millisecond)
	if b := proposed[site.Revoke](r); b.Job != id || b.Lease != a.Lease || b.Class != site.RevokedDisabled || b.Reason != "not given back within 25s" {
		t.Fatalf("%+v", b)
	}
	r.obey()
	if j, _ := r.s.Jobs.Get(id); j.Lease.Live() || j.Lease.Reason != lease.EndRevoked {
		t.Fatalf("%+v", j.Lease)
	}
	r.want("offer to n2")
	if got := r.renew(a); got.Answer != lease.Stale {
		t.Fatalf("the holder is answered %+v", got)
	}
}

// What is remembered of disabled runners goes with the lease, however that ends.
func TestDisabledIsForgotten(t *testing.T) {
	r := newest(t)
	for _, how := range []string{"completed", "expired", "enabled"} {
		id := r.submit(nil)
		a := r.held(id)
		r.disable(a.Runner, true)
		r.want("")
		if len(r.in.Mem.disabled) != 1 {
			t.Fatalf("%s: %d leases of disabled runners are remembered", how, len(r.in.Mem.disabled))
		}
		switch how {
		case "completed":
			r.apply(site.Complete{Authority: a, Message: "m", Result: job.Result{Outcome: job.OutcomeDone}})
		case "expired":
			r.apply(site.Expire{Job: id, Lease: a.Lease, Certain: true, Term: 7, State: lease.Accepted})
			r.apply(site.Cancel{Job: id})
		}
		r.disable(a.Runner, false)
		r.step()
		if n := len(r.in.Mem.disabled); n != 0 {
			t.Fatalf("%s: %d are remembered", how, n)
		}
		r.apply(site.Cancel{Job: id})
	}
}

// Delegated work that nobody holds ends with the hard end of its grant, by the daemon's
// clock and no other: while that is not known, or a tree may still run, nothing ends.
func TestPastEnd(t *testing.T) {
	r := newest(t)
	end := forgeyard.WallOf(r.at.Add(time.Minute))
	raw := r.spec(func(s *job.Spec) {
		s.Connectivity = job.Connectivity{Policy: job.OfflineAuthorized, For: 100 * time.Second}
	})
	r.apply(site.Delegate{To: 1, Grants: []site.Delegation{{
		Seq: 1, Grant: lease.Grant{ID: "G", Term: 1, End: end, Policy: job.Connectivity{Policy: job.OfflineAuthorized, For: 100 * time.Second}}, Spec: raw, SpecID: cas.Sum(raw),
	}}})
	id := oldest(r.s)
	r.in.Known = true
	r.want("") // the daemon has never said what its clock reads
	r.in.Daemon = forgeyard.WallOf(r.at.Add(30 * time.Second))
	r.want("")
	r.in.Used = 29 * time.Second // counted since then
	r.want("")
	r.in.Used, r.in.Known = 31*time.Second, false // a new leader does not know how long it was silent
	r.want("")
	r.in.Known = true
	b := proposed[site.Fail](r)
	if b.Job != id || b.Category != job.AuthorityEnded || !strings.Contains(b.Reason, "hard end") {
		t.Fatalf("%+v", b)
	}
	r.obey()
	if j, _ := r.s.Jobs.Get(id); j.Status != job.Failed || j.Category != job.AuthorityEnded {
		t.Fatalf("%s, %s", j.Status, j.Category)
	}
	r.want("")
}

// While a runner holds the work, or may, its end is its holder's: the stop that it is asked for.
func TestPastEndLeavesWhatRuns(t *testing.T) {
	r := newest(t)
	end := forgeyard.WallOf(r.at.Add(time.Minute))
	raw := r.spec(func(s *job.Spec) {
		s.Connectivity = job.Connectivity{Policy: job.OfflineAuthorized, For: 100 * time.Second}
		s.Effects = job.EffectsProtected
	})
	r.apply(site.Delegate{To: 1, Grants: []site.Delegation{{
		Seq: 1, Grant: lease.Grant{ID: "G", Term: 1, End: end, Policy: job.Connectivity{Policy: job.OfflineAuthorized, For: 100 * time.Second}}, Spec: raw, SpecID: cas.Sum(raw),
	}}})
	id := oldest(r.s)
	r.in.Known = true
	r.apply(site.UplinkObserve{Contact: true, Daemon: forgeyard.WallOf(r.at)})
	a := r.held(id)
	r.in.Daemon = end + 1
	r.want("stop authority")
	r.obey()
	r.want("")
	r.apply(site.Revoke{Job: id, Lease: a.Lease, Class: site.RevokedByOperator})
	if j, _ := r.s.Jobs.Get(id); j.Status != job.Unknown || j.Certain {
		t.Fatalf("%s certain=%v", j.Status, j.Certain)
	}
	r.want("")
	r.apply(site.Stopped{Authority: a})
	r.want("site.Fail")
}

// One silence is one entry, from when two heartbeats were lost until the next is heard: it
// does not come and go between that and the end of what counts as fresh.
func TestSilenceComesOnce(t *testing.T) {
	r := newest(t)
	a := r.held(r.submit(func(s *job.Spec) { s.Connectivity = job.Connectivity{Policy: job.Grace, For: time.Hour} }))
	renew := r.s.Config.Lease.Renew
	r.after(2*renew + renew/2 - time.Millisecond)
	r.want("")
	r.after(time.Millisecond)
	if b := proposed[site.Silence](r); b.Runner != a.Runner || !b.Silent {
		t.Fatalf("%+v", b)
	}
	r.obey()
	r.want("")
	for range 10 {
		r.after(renew / 8)
		r.want("")
	}
	r.hello()
	if b := proposed[site.Silence](r); b.Runner != a.Runner || b.Silent {
		t.Fatalf("%+v", b)
	}
	r.obey()
	r.want("")
}

// What the lost holder last said of its log goes with the end of its lease, so that the next
// epoch tells how much of it is missing; nothing is told in a log that does not know of it.
func TestExpiryTellsOfTheLog(t *testing.T) {
	for _, c := range []struct {
		r    *rig
		want uint64
	}{{newest(t), 17}, {newRig(t), 0}} {
		r := c.r
		id := r.submit(nil)
		a := r.held(id)
		other := a
		other.Fence.Epoch = 9
		r.in.Mem.Hello(a.Runner, Sign{Session: a.Session, At: r.now, Attempts: []Attempt{{Authority: other, LastLog: 99}, {Authority: a, LastLog: 17}}})
		r.now = r.now.Add(time.Hour)
		found := false
		r.in.State = r.s
		effects, _ := Step(r.now, r.in)
		for _, e := range effects {
			if p, ok := e.(Propose); ok {
				if b, ok := p.Body.(site.Expire); ok {
					found = true
					if b.LogSeq != c.want {
						t.Errorf("format %d: the log ended at %d, not %d", r.s.LogFormat(), b.LogSeq, c.want)
					}
				}
			}
		}
		if !found {
			t.Error("the lease did not expire")
		}
	}
}
