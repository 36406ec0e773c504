package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// rig is a site of one runner, its agent, and a clock that the test moves.
type rig struct {
	t     *testing.T
	s     *site.State
	index uint64
	now   forgeyard.Instant
	book  *Book
	in    Input
	at    time.Time
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, s: &site.State{}, now: forgeyard.Instant(time.Hour), book: NewBook(), at: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}
	caps := job.Capabilities{
		OS: "linux", Arch: "amd64", MilliCPU: 2000, Memory: 8 << 30, Disk: 100 << 30, MaxJobs: 2,
		Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}},
		Devices:   []job.DeviceFact{{ID: "board", Kind: "board"}},
	}
	r.in = Input{Me: "R1", Session: "S1", Caps: caps}
	id := forgeyard.SiteID(forgeyard.NewULID(r.at, [10]byte{1}))
	r.apply(site.Init{Site: id, Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: "p1"})
	r.apply(site.UplinkConnect{Central: site.Central{Peer: "central"}, Terms: lease.DefaultUplinkTerms()})
	r.apply(site.Register{Runner: "R1", Session: "S1", Caps: caps})
	return r
}

func (r *rig) apply(b site.Body) site.Reply {
	r.t.Helper()
	r.index++
	next, reply := r.s.Apply(r.index, site.Command{ID: forgeyard.MessageID(fmt.Sprint("r", r.index)), At: forgeyard.WallOf(r.at), By: "ana", Body: b}.Encode())
	if err := reply.Err(); err != nil {
		r.t.Fatalf("%T: %v", b, err)
	}
	r.s = next
	return reply
}

// step looks, and says in words what the agent wishes; upkeep of devices is left out.
func (r *rig) step() string {
	r.in.State = r.s
	effects, wake := Step(r.now, r.in, r.book)
	if wake <= r.now {
		r.t.Fatalf("the agent asks to be woken at %d, now is %d", wake, r.now)
	}
	var out []string
	for _, e := range effects {
		switch e := e.(type) {
		case ResetDevice, CheckDevice:
		case Kill:
			out = append(out, "kill: "+e.Why)
		case Reject:
			out = append(out, fmt.Sprintf("reject %s: %s", e.Reason, e.Detail))
		case Stop:
			left := ""
			if e.Until != 0 {
				left = " within " + e.Until.Sub(r.now).String()
			}
			out = append(out, "stop "+e.Kind+left)
		case Hasten:
			out = append(out, "hasten: "+e.Until.Sub(r.now).String())
		case Cancel:
			out = append(out, strings.TrimSpace("cancel "+map[bool]string{true: "by force"}[e.Force]+map[bool]string{true: "after a checkpoint"}[e.Save]))
		default:
			out = append(out, strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "agent.")))
		}
	}
	return strings.Join(out, ", ")
}

func (r *rig) want(what string) {
	r.t.Helper()
	if got := r.step(); got != what {
		r.t.Fatalf("the agent wishes %q, %q is due", got, what)
	}
}

func (r *rig) after(d time.Duration) { r.now = r.now.Add(d) }

func (r *rig) submit(change func(*job.Spec)) forgeyard.JobID {
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Connectivity: job.Connectivity{Policy: job.Continuous}}
	if change != nil {
		change(&sp)
	}
	raw := sp.Defaulted().Canonical()
	v, err := site.Value[site.Submitted](r.apply(site.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}))
	if err != nil {
		r.t.Fatal(err)
	}
	return v.Job
}

func (r *rig) offer(id forgeyard.JobID) forgeyard.Authority {
	r.t.Helper()
	j, _ := r.s.Jobs.Get(id)
	m, _ := r.s.Members.Get("R1")
	a, err := site.Value[forgeyard.Authority](r.apply(site.Offer{Job: id, Runner: "R1", Session: m.Session.ID, Epoch: j.Epoch}))
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) delegate() forgeyard.JobID {
	sp := job.Spec{Title: "d", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted()
	raw := sp.Canonical()
	g := lease.Grant{ID: "G", Term: 1, Policy: job.Connectivity{Policy: job.OfflineAuthorized, For: time.Minute}}
	r.apply(site.Delegate{To: 1, Grants: []site.Delegation{{Seq: 1, Grant: g, Spec: raw, SpecID: cas.Sum(raw)}}})
	for id := range r.s.Open.All() {
		return id
	}
	r.t.Fatal("no job")
	return ""
}

// running brings a job to where it runs, accepted by a request sent now.
func (r *rig) running(id forgeyard.JobID) forgeyard.Authority {
	r.t.Helper()
	a := r.offer(id)
	r.want("accept")
	sent := r.now
	r.apply(site.Accept{Authority: a})
	r.book.Accepted(a.Lease, sent)
	r.want("start")
	return a
}

// RA-150, RA-152, RA-502, RA-503: an offer to another runner, or to an earlier process of this
// one, is not answered; nor is one that came to nothing before it was seen. An answer that was
// given all the same, even that it is refused because of this, the log does not take.
func TestOnlyItsOwnOffers(t *testing.T) {
	r := newRig(t)
	a := r.offer(r.submit(nil))
	r.in.Session = "S0"
	r.want("")
	r.in.Session, r.in.Me = "S1", "R2"
	r.want("")
	r.in.Me = "R1"
	before := r.s
	refused := func(a forgeyard.Authority, why job.RejectReason) {
		t.Helper()
		next, reply := r.s.Apply(r.index+1, site.Command{ID: forgeyard.MessageID("refused-" + string(why)), By: "R1", At: 1, Body: site.Reject{Authority: a, Reason: why}}.Encode())
		if j, _ := next.Jobs.Get(a.Job); forgeyard.KindOf(reply.Err()) != forgeyard.Stale || j.Lease.Reason == lease.EndRejected {
			t.Errorf("%s: %v, and the lease is %s", why, reply.Err(), j.Lease.Reason)
		}
	}
	other := a
	other.Session = "S0"
	refused(other, job.RejectWrongSession)
	r.apply(site.Expire{Job: a.Job, Lease: a.Lease})
	refused(a, job.RejectExpired)
	r.want("")
	r.s = before
	r.want("accept")
}

// RA-403, RA-404, RA-406: what comes back with a renewal is one word of four, and a word that
// is none of them is nothing: it neither counts as a renewal nor makes the agent do a thing.
func TestAnswersAreAClosedSet(t *testing.T) {
	for answer, want := range map[lease.Answer]string{lease.Continue: "", lease.Wait: "", lease.Cancel: "cancel", lease.Stale: "kill: its lease is over: nothing was heard in time", "run reboot": ""} {
		r := newRig(t)
		a := r.running(r.submit(nil))
		had := r.book.Deadline(a.Lease)
		r.after(time.Second)
		r.book.Renewed(a.Lease, r.now, answer, -1)
		if got := r.step(); strings.Split(got, ":")[0] != strings.Split(want, ":")[0] {
			t.Errorf("%s gave %q", answer, got)
		}
		renewed := answer == lease.Continue || answer == lease.Cancel
		if now := r.book.Deadline(a.Lease); (now > had) != renewed {
			t.Errorf("%s moved the deadline from %d to %d", answer, had, now)
		}
	}
}

// E08: one lease starts one execution, however often it is seen (RA-164, RA-442, RA-504).
// RA-435.
func TestOneStart(t *testing.T) {
	r := newRig(t)
	r.want("")
	a := r.running(r.submit(nil))
	for range 3 {
		r.want("")
	}
	r.book.Over(a.Lease)
	r.want("")
	if r.book.Active() != 0 {
		t.Fatal("what is over holds nothing")
	}
}

// E06: a restarted agent revives nothing. A new process begins with an empty book and
// another session; and in the same session, a lease that the log calls accepted and that
// the book does not know starts only once a renewal has given it a deadline (RA-005, RA-071).
func TestNothingStartsWithoutADeadline(t *testing.T) {
	r := newRig(t)
	a := r.offer(r.submit(nil))
	r.apply(site.Accept{Authority: a})
	r.want("")
	if got := r.book.ToRenew(); len(got) != 1 || got[0] != a || !r.book.Deadline(a.Lease).IsZero() {
		t.Fatalf("it must be renewed, and has no deadline: %v", got)
	}
	r.book.Renewed(a.Lease, r.now, lease.Wait, -1)
	r.want("")
	r.book.Renewed(a.Lease, r.now, lease.Continue, -1)
	r.want("start")

	r.book, r.in.Session = NewBook(), "S2"
	r.want("")
	r.apply(site.Register{Runner: "R1", Session: "S2", Caps: r.in.Caps})
	r.want("")
}

// The holder counts from its own send, and stops at its deadline whatever it hears or
// does not hear, and not before (RA-306); one that slept knows it when it wakes (RA-310,
// RA-311, RA-312, RA-566, CK-400).
func TestDeadline(t *testing.T) {
	r := newRig(t)
	a := r.running(r.submit(nil))
	r.after(10 * time.Second)
	sent := r.now
	r.after(4 * time.Second)
	r.book.Renewed(a.Lease, sent, lease.Continue, -1)
	if d := r.book.Deadline(a.Lease); d != sent.Add(15*time.Second) {
		t.Fatalf("the deadline is %s after the send", d.Sub(sent))
	}
	r.after(10*time.Second + 999*time.Millisecond)
	r.want("")
	r.after(time.Hour)
	r.want("kill: its lease is over: nothing was heard in time")
	r.book.Renewed(a.Lease, r.now, lease.Continue, -1)
	r.want("")
	if len(r.book.ToRenew()) != 0 {
		t.Fatal("what was killed is not renewed")
	}
}

// Answers come in any order: the one that was sent last holds, bound and all; stale is
// for good.
func TestAnswersOutOfOrder(t *testing.T) {
	r := newRig(t)
	a := r.running(r.submit(nil))
	first, second := r.now.Add(time.Second), r.now.Add(3*time.Second)
	r.after(4 * time.Second)
	r.book.Renewed(a.Lease, second, lease.Continue, 5*time.Second)
	r.book.Renewed(a.Lease, first, lease.Continue, time.Hour)
	if d := r.book.Deadline(a.Lease); d != second.Add(5*time.Second) {
		t.Fatalf("the deadline is %s after the later send", d.Sub(second))
	}
	r.book.Renewed(a.Lease, second, lease.Stale, -1)
	r.book.Renewed(a.Lease, r.now, lease.Continue, -1)
	r.want("kill: its lease is over: nothing was heard in time")
}

// within-allowance: delegated work never runs before somebody has said how much of the
// central daemon's authority is left; neither after an acceptance nor in place.
func TestDelegatedWaitsForItsBound(t *testing.T) {
	r := newRig(t)
	a := r.offer(r.delegate())
	r.want("accept")
	r.apply(site.Accept{Authority: a})
	r.book.Accepted(a.Lease, r.now)
	r.want("")
	r.book.Renewed(a.Lease, r.now, lease.Continue, 7*time.Second)
	r.want("start")
	if d := r.book.Deadline(a.Lease); d != r.now.Add(7*time.Second) {
		t.Fatalf("it may run for %s", d.Sub(r.now))
	}
	j, _ := r.s.Jobs.Get(a.Job)
	next := j.Lease.Authority
	next.Lease, next.Fence.Epoch = "next", 2
	r.book.Granted(next, job.Resources{}, r.now)
	if !r.book.Deadline("next").IsZero() {
		t.Fatal("the next epoch has a deadline that no renewal gave")
	}
}

// E09, K14: a lease that the log ended is killed here; one that our own copy of the log
// has not seen yet is not.
func TestTheLogEndsIt(t *testing.T) {
	r := newRig(t)
	a := r.running(r.submit(nil))
	r.apply(site.Expire{Job: a.Job, Lease: a.Lease})
	r.want("kill: the log says that its lease ended")
	r.want("")

	other := r.submit(nil)
	b := r.offer(other)
	r.apply(site.Reject{Authority: b, Reason: job.RejectPressure})
	ahead := b
	ahead.Lease, ahead.Fence.Epoch = "ahead", 9
	r.book.Granted(ahead, job.Resources{}, r.now)
	r.want("")
	if r.book.Deadline("ahead").IsZero() {
		t.Fatal("an epoch that our copy of the log has not reached was dropped")
	}
}

// K10: a cancellation that comes while unstarted is applied before the start; while
// running, once, and once more by force when somebody no longer waits for the grace.
func TestCancel(t *testing.T) {
	r := newRig(t)
	a := r.offer(r.submit(nil))
	r.want("accept")
	r.apply(site.Accept{Authority: a})
	r.apply(site.Cancel{Job: a.Job})
	r.book.Accepted(a.Lease, r.now)
	r.want("cancel")
	r.want("")

	b := r.running(r.submit(nil))
	r.apply(site.Cancel{Job: b.Job})
	r.want("cancel")
	r.want("")
	r.apply(site.Cancel{Job: b.Job, Force: true})
	r.want("cancel by force")
	r.want("")
}

// RA-304, RA-314, RA-315, RA-316, RA-317, RA-446, CK-401: after a lost link the same session is answered lease by lease, though
// its own copy of the log has seen nothing of what happened meanwhile: what is to go on goes
// on under a new deadline, what was cancelled is cancelled and reported, what is stale is
// killed (RA-030), and nothing of it is started again (RA-026, RA-445, RA-494, RA-540, RA-565).
func TestResync(t *testing.T) {
	r := newRig(t)
	small := func(s *job.Spec) { s.Resources.MilliCPU = 100 }
	r.in.Caps.MaxJobs = 3
	goOn, cancelled, stale := r.running(r.submit(small)), r.running(r.submit(small)), r.running(r.submit(small))
	r.after(10 * time.Second)
	if got := r.book.ToRenew(); len(got) != 3 {
		t.Fatalf("it speaks of %d leases", len(got))
	}
	sent := r.now
	r.after(time.Second)
	r.book.Renewed(goOn.Lease, sent, lease.Continue, -1)
	r.book.Renewed(cancelled.Lease, sent, lease.Cancel, -1)
	r.book.Renewed(stale.Lease, sent, lease.Stale, -1)
	r.want("kill: its lease is over: nothing was heard in time, cancel")
	r.want("")
	if d := r.book.Deadline(goOn.Lease); d != sent.Add(15*time.Second) {
		t.Fatalf("what goes on ends %s after the send", d.Sub(sent))
	}
	if got := r.book.ToRenew(); len(got) != 2 {
		t.Fatalf("it speaks of %d leases", len(got))
	}
	r.book.Over(cancelled.Lease)
	r.after(13 * time.Second)
	r.want("")
	r.after(time.Second)
	r.want("kill: its lease is over: nothing was heard in time")
}

// E29: a drain asks for what runs to be given back; it is asked once.
func TestStop(t *testing.T) {
	r := newRig(t)
	r.running(r.submit(nil))
	yes := true
	r.apply(site.MemberSet{Runner: "R1", Draining: &yes, Cancel: true})
	r.want("stop drain")
	r.want("")
}

// Whatever placement thought, the runner looks again (07§226), before any work (07§34,
// RA-160): whether it can do what the spec asks (RA-153), has what it takes (RA-155) and is
// to take anything at all (RA-156). It says why it refuses (RA-014, RA-142, RA-501). With
// TestOnlyItsOwnOffers and TestOneStart this is the lease loop (RA-015, RA-488).
func TestReject(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*job.Spec)
		prep   func(*rig)
		want   string
	}{
		"os":       {func(s *job.Spec) { s.Requires.OS = "darwin" }, nil, "reject unsupported_spec: os is linux, the job requires darwin"},
		"cpu":      {func(s *job.Spec) { s.Resources.MilliCPU = 3000 }, nil, "reject resource_pressure: 0 of 2000 thousandths of a core are taken, the job asks for 3000"},
		"disk":     {func(s *job.Spec) { s.Resources.Disk = 200 << 30 }, nil, "reject disk_insufficient: 0 MiB of 102400 MiB of disk are taken, the job asks for 204800 MiB"},
		"draining": {nil, func(r *rig) { r.in.Refusing = []Refusal{{job.RejectDraining, "this node drains"}} }, "reject draining: this node drains"},
		"preparation": {nil, func(r *rig) {
			r.in.Refusing = []Refusal{{job.RejectPreparation, "its store cannot be written to"}}
		}, "reject internal_preparation_failure: its store cannot be written to"},
		"full": {nil, func(r *rig) {
			r.running(r.submit(func(s *job.Spec) { s.Resources.MilliCPU = 100 }))
			r.running(r.submit(func(s *job.Spec) { s.Resources.MilliCPU = 100 }))
		}, "reject resource_pressure: 2 jobs run here, the bound is 2"},
		// RA-139: what others have reserved is not there for it.
		"reserved": {func(s *job.Spec) { s.Resources.MilliCPU = 500 }, func(r *rig) {
			r.running(r.submit(func(s *job.Spec) { s.Resources.MilliCPU = 1600 }))
		}, "reject resource_pressure: 1600 of 2000 thousandths of a core are taken, the job asks for 500"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if c.prep != nil {
				c.prep(r)
			}
			r.offer(r.submit(c.change))
			r.want(c.want)
		})
	}
}

// Upkeep of devices is asked for once for each time that the log wants it; and a doubt
// that came between two looks is a new time.
func TestDeviceUpkeep(t *testing.T) {
	r := newRig(t)
	count := func() (checks, resets int) {
		r.in.State = r.s
		effects, _ := Step(r.now, r.in, r.book)
		for _, e := range effects {
			switch e.(type) {
			case CheckDevice:
				checks++
			case ResetDevice:
				resets++
			}
		}
		return checks, resets
	}
	wants := func(checks, resets int) {
		t.Helper()
		if c, n := count(); c != checks || n != resets {
			t.Fatalf("%d checks and %d resets, %d and %d are due", c, n, checks, resets)
		}
	}
	wants(1, 0)
	wants(0, 0)
	r.book.NotReported("board")
	wants(1, 0)
	r.apply(site.DeviceHealth{Device: "board", Action: "checked", OK: true})
	r.apply(site.Register{Runner: "R1", Session: "S2", Caps: r.in.Caps}) // it is doubted before we look
	wants(1, 0)
	r.apply(site.DeviceHealth{Device: "board", Action: "checked", OK: true})
	wants(0, 0)
	d, err := site.Value[site.DeviceLeased](r.apply(site.DeviceLease{Device: "board", Holder: "ana", TTL: int64(time.Minute), Key: "k"}))
	if err != nil {
		t.Fatal(err)
	}
	r.apply(site.DeviceRelease{Lease: d.Lease})
	wants(0, 1)
	wants(0, 0)
	r.apply(site.DeviceReset{Device: "board", Host: "R1", Evidence: devices.Evidence{Token: d.Token, Try: 1, Error: "no answer"}})
	wants(0, 1)
}

// An acceptance whose answer is lost may be in the log all the same, and the leader
// counts from it. The next one is answered too, and grants nothing: whoever counted from
// its send would go on when the leader is certain that it has stopped. So the holder asks
// for its deadline (the explorer found this, in eleven steps).
func TestARepeatedAcceptanceGrantsNothing(t *testing.T) {
	r := newRig(t)
	a := r.offer(r.submit(nil))
	offered := r.s
	r.want("accept")
	r.apply(site.Accept{Authority: a})
	r.book.NotAccepted(a.Lease) // its answer never came

	r.after(14 * time.Second)
	accepted := r.s
	r.s = offered // our copy of the log is behind: the lease is still an offer there
	r.want("accept")
	sent := r.now
	r.s = accepted
	r.apply(site.Accept{Authority: a})
	r.book.Accepted(a.Lease, sent)
	r.want("")
	if got := r.book.ToRenew(); len(got) != 1 || !r.book.Deadline(a.Lease).IsZero() {
		t.Fatalf("it has the deadline %d and asks for %v", r.book.Deadline(a.Lease), got)
	}
	r.book.Renewed(a.Lease, r.now, lease.Continue, -1)
	r.want("start")

	// What was in doubt is forgotten with its lease.
	r.apply(site.Complete{Authority: a, Message: "m", Result: job.Result{Outcome: job.OutcomeDone}})
	r.want("kill: the log says that its lease ended")
	if len(r.book.doubted) != 0 {
		t.Fatalf("still in doubt: %v", r.book.doubted)
	}
}

// RA-444, RA-154, RA-159, RA-169: a rejection says whether the machine has changed since it
// registered, only its own rules forbid the work, or it never could do it.
func TestRejectReasons(t *testing.T) {
	could := job.Capabilities{OS: "linux", Toolchains: []job.Toolchain{{Name: "gcc"}}, Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict}}}
	lost := could
	lost.Toolchains = nil
	needs := job.Spec{Sandbox: job.SandboxStrict, Network: job.NetworkNone, Requires: job.Requires{Toolchains: []string{"gcc"}}}
	wide, other := needs, needs
	wide.Network, other.Requires.OS = job.NetworkHost, "plan9"
	for _, c := range []struct {
		now  job.Capabilities
		spec job.Spec
		want job.RejectReason
	}{{lost, needs, job.RejectCapabilityChanged}, {could, wide, job.RejectLocalPolicy}, {could, other, job.RejectUnsupportedSpec}} {
		s := stepper{in: Input{Caps: c.now}}
		if got := s.reasonFor(c.spec, site.Member{Caps: could, Digest: forgeyard.Digest{1}}); got != c.want {
			t.Errorf("%+v: %s, want %s", c.spec.Requires, got, c.want)
		}
	}
	// What the site says of it has changed between the offer and the answer.
	asks := needs
	asks.Requires.Pool, asks.Requires.Trust = "release", []job.Trust{job.TrustConfidential}
	if got := (&stepper{in: Input{Caps: could}}).reasonFor(asks, site.Member{Caps: could, Digest: forgeyard.Digest{1}}); got != job.RejectCapabilityChanged {
		t.Errorf("the assignment changed: %s", got)
	}
}

// The site says something else of a runner while its work runs, which goes on: only what comes
// after is refused. What the machine itself says changes nothing of it.
func TestAssignmentLeavesWhatRuns(t *testing.T) {
	r := newRig(t)
	a := r.running(r.submit(nil))
	r.apply(site.MemberSet{Runner: a.Runner, Assign: &job.Assign{Pool: "release"}})
	r.want("")
	if r.book.Deadline(a.Lease) <= r.now {
		t.Fatal("the assignment took its time away")
	}
	next, _ := r.s.Jobs.Get(a.Job)
	me, _ := r.s.Members.Get(a.Runner)
	s := &stepper{in: Input{Caps: me.Caps, State: r.s, Me: a.Runner}, book: r.book}
	if why := s.refusal(next); why.Reason == "" || !strings.Contains(why.Detail, `set apart for jobs that ask for pool "release"`) {
		t.Errorf("a new offer: %+v", why)
	}
}

// E06: an epoch that goes on in place is counted by the terms which the log gave it, and
// not by those of the epoch before: the site's settings may have changed between the two,
// and the granter counts by the new ones. Until the log has told them nothing starts.
func TestGoesOnByItsOwnTerms(t *testing.T) {
	for _, c := range []struct{ was, is string }{{"5m", "15s"}, {"15s", "5m"}} {
		t.Run(c.was+" to "+c.is, func(t *testing.T) {
			r := newRig(t)
			r.apply(site.ConfigSet{Key: "lease.ttl", Value: c.was})
			a := r.running(r.submit(func(s *job.Spec) {
				s.Resume = job.Resume{Mode: job.ResumeApplication, FormatName: "x", FormatVersion: 1, Checkpoint: job.CheckpointDecl{Files: []string{"x"}}}
			}))
			r.apply(site.ConfigSet{Key: "lease.ttl", Value: c.is})
			r.book.HandingOver(a.Lease)
			behind, sent := r.s, r.now
			next := r.goesOn(a)
			r.after(time.Second)
			r.book.Granted(next, job.Resources{}, sent)
			r.book.Over(a.Lease)
			ahead := r.s
			r.s = behind // our own copy of the log comes after the answer
			r.want("")
			if d := r.book.Deadline(next.Lease); d > r.now {
				t.Fatalf("nobody told its terms, and it may run for %s", d.Sub(r.now))
			}
			r.s = ahead
			r.want("start")
			want, err := time.ParseDuration(c.is)
			if err != nil {
				t.Fatal(err)
			}
			if d := r.book.Deadline(next.Lease); d != sent.Add(want) {
				t.Fatalf("it stops %s after the send, %s is due", d.Sub(sent), want)
			}
			r.book.Renewed(next.Lease, r.now, lease.Continue, -1)
			if d := r.book.Deadline(next.Lease); d != r.now.Add(want) {
				t.Fatalf("a renewal gives it %s, %s is due", d.Sub(r.now), want)
			}
		})
	}
}

// A grant in place that comes after the log, or after a word about the lease, takes
// nothing back: stale is for good.
func TestGrantedAfterTheLog(t *testing.T) {
	r := newRig(t)
	a := r.running(r.submit(func(s *job.Spec) {
		s.Resume = job.Resume{Mode: job.ResumeApplication, FormatName: "x", FormatVersion: 1, Checkpoint: job.CheckpointDecl{Files: []string{"x"}}}
	}))
	r.book.HandingOver(a.Lease)
	sent := r.now
	next := r.goesOn(a)
	r.book.Over(a.Lease)
	r.want("") // the log first: it has no deadline yet
	if !r.book.Deadline(next.Lease).IsZero() {
		t.Fatal("it has a deadline that nobody gave")
	}
	told := r.book.Clone()
	r.book.Granted(next, job.Resources{}, sent)
	r.want("start")
	if d := r.book.Deadline(next.Lease); d != sent.Add(15*time.Second) {
		t.Fatalf("it stops %s after the send", d.Sub(sent))
	}

	r.book = told
	r.book.Renewed(next.Lease, r.now, lease.Stale, -1)
	r.book.Granted(next, job.Resources{}, sent)
	r.want("")
}

// goesOn commits a checkpoint of the epoch and is granted the next one in place.
func (r *rig) goesOn(a forgeyard.Authority) forgeyard.Authority {
	r.t.Helper()
	v, err := site.Value[site.Checkpointed](r.apply(site.Checkpoint{Authority: a, Continue: true, Commit: checkpoint.Commit{
		Seq: 1, Manifest: cas.Sum([]byte("m")), Payload: cas.Sum([]byte("p")), Marker: cas.Sum([]byte("k")), Bytes: 1, Attempt: a.Attempt, Epoch: a.Fence.Epoch,
		Replicas: []forgeyard.RunnerID{"R1"}, Consistency: checkpoint.Application,
	}}))
	if err != nil || v.Next == nil {
		r.t.Fatalf("no next epoch: %+v, %v", v, err)
	}
	return *v.Next
}

// RA-442: a state that is wrong, or is being built again, starts and ends nothing here.
// Only the deadline does.
func TestASuspectStateSaysNothing(t *testing.T) {
	r := newRig(t)
	id := r.submit(nil)
	r.offer(id)
	r.in.Suspect = true
	r.want("")
	r.in.Suspect = false
	r = newRig(t)
	a := r.running(r.submit(nil))
	r.apply(site.Expire{Job: a.Job, Lease: a.Lease})
	r.in.Suspect = true
	r.want("")
	r.after(16 * time.Second)
	r.want("kill: its lease is over: nothing was heard in time")
}

// RA-442: one lease starts at most one execution, also where our copy of the log is lost,
// older than the job, or wrong, and comes back as it was.
func TestOneStartWhateverTheLogForgets(t *testing.T) {
	r := newRig(t)
	blank, before := &site.State{}, r.s
	a := r.running(r.submit(nil))
	whole := r.s
	for _, older := range []*site.State{blank, before} {
		r.s = older
		r.want("")
		r.s = whole
		r.want("")
		r.book.Renewed(a.Lease, r.now, lease.Continue, -1)
		r.want("")
	}
	if r.book.Active() != 1 {
		t.Fatal("what runs was forgotten")
	}
	// A wrong state ends it. The right one calls it live again.
	r.apply(site.Expire{Job: a.Job, Lease: a.Lease})
	r.want("kill: the log says that its lease ended")
	r.s = whole
	r.want("")
	r.book.Renewed(a.Lease, r.now, lease.Continue, -1)
	r.want("")
	if len(r.book.ToRenew()) != 0 {
		t.Fatal("what was killed is renewed: nobody will learn that it does not run")
	}
}

// What the book keeps of leases that are over is bounded.
func TestPastIsBounded(t *testing.T) {
	b := NewBook()
	for i := range maxPast + 5 {
		id := forgeyard.LeaseID(fmt.Sprint(i))
		b.leases[id] = &entry{stage: ended}
		b.forget(id)
	}
	if len(b.past) != maxPast || b.past[0] != "5" || len(b.leases) != 0 {
		t.Fatalf("%d leases, from %s", len(b.past), b.past[0])
	}
}
