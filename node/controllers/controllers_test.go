package controllers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// rig is a site of two runners and its leader, and a clock that the test moves. It builds
// what they can (RA-433) and their leases, and says in one line what is due (RA-434).
type rig struct {
	t     *testing.T
	s     *site.State
	index uint64
	at    time.Time
	now   forgeyard.Instant
	in    Input
	r     [2]forgeyard.RunnerID
}

var terms = lease.UplinkTerms{SilentAfter: 10 * time.Second, Grace: 10 * time.Second, Allowance: 2 * time.Minute}

func newRig(t *testing.T) *rig { return rigReading(t, site.FormatRange{}) }

// rigReading is a rig whose programs read those formats of the log.
func rigReading(t *testing.T, formats site.FormatRange) *rig {
	r := &rig{t: t, s: &site.State{}, at: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), now: forgeyard.Instant(time.Hour)}
	r.r[0] = forgeyard.RunnerID(forgeyard.NewULID(r.at, [10]byte{})) // before the other
	r.apply(site.Init{Site: forgeyard.SiteID(forgeyard.NewULID(r.at, [10]byte{1})), Name: "lab", Config: sitecfg.DefaultSite(), Runner: r.r[0], Node: "n1", Peer: "p1"})
	r.apply(site.TokenCreate{Token: "T", Expires: forgeyard.WallOf(r.at.Add(time.Hour)), Uses: 1, MayVote: true})
	v, err := site.Value[site.Joined](r.apply(site.Join{Token: "T", Peer: "p2", Name: "n2"}))
	if err != nil {
		t.Fatal(err)
	}
	r.r[1] = v.Runner
	r.apply(site.UplinkConnect{Central: site.Central{Peer: "central"}, Terms: terms})
	for i, id := range r.r {
		r.apply(site.Register{Runner: id, Session: forgeyard.SessionID(fmt.Sprint("S", i+1)), Formats: formats, Caps: job.Capabilities{
			OS: "linux", Arch: "amd64", MilliCPU: 2000, Memory: 8 << 30, Disk: 100 << 30, MaxJobs: 2,
			Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}},
		}})
	}
	r.elect()
	return r
}

// elect makes a new leader, who remembers nothing.
func (r *rig) elect() { r.in = Input{Mem: NewMemory(r.now), Term: 7} }

func (r *rig) apply(b site.Body) site.Reply {
	r.t.Helper()
	r.index++
	next, reply := r.s.ApplyEntry(r.index, 7, site.Command{ID: forgeyard.MessageID(fmt.Sprint("r", r.index)), At: forgeyard.WallOf(r.at), By: "ana", Body: b}.Encode())
	if err := reply.Err(); err != nil {
		r.t.Fatalf("%T: %v", b, err)
	}
	r.s = next
	return reply
}

func (r *rig) after(d time.Duration) { r.now = r.now.Add(d) }

// hello is a sign of life of both runners.
func (r *rig) hello() {
	for i, id := range r.r {
		r.in.Mem.Hello(id, Sign{Session: forgeyard.SessionID(fmt.Sprint("S", i+1)), At: r.now})
	}
}

// step looks, and says in words what the leader wishes.
func (r *rig) step() string {
	r.in.State = r.s
	effects, wake := Step(r.now, r.in)
	if wake <= r.now {
		r.t.Fatalf("the leader asks to be woken at %d, now is %d", wake, r.now)
	}
	var out []string
	for _, e := range effects {
		switch e := e.(type) {
		case Propose:
			switch b := e.Body.(type) {
			case site.Offer:
				m, _ := r.s.Members.Get(b.Runner)
				out = append(out, "offer to "+m.Name)
			case site.Expire:
				out = append(out, fmt.Sprintf("expire certain=%v term=%d", b.Certain, b.Term))
			case site.Stop:
				out = append(out, "stop "+b.Kind)
			default:
				out = append(out, fmt.Sprintf("%T", b))
			}
		case SetVoter:
			m, _ := r.s.Members.Get(e.Runner)
			out = append(out, fmt.Sprintf("%s becomes %s", m.Name, e.Role))
		}
	}
	return strings.Join(out, ", ")
}

func (r *rig) want(what string) {
	r.t.Helper()
	if got := r.step(); got != what {
		r.t.Fatalf("the leader wishes %q, %q is due", got, what)
	}
}

// obey proposes what the leader wishes.
func (r *rig) obey() {
	r.in.State = r.s
	effects, _ := Step(r.now, r.in)
	for _, e := range effects {
		if p, ok := e.(Propose); ok {
			r.apply(p.Body)
			if x, ok := p.Body.(site.Expire); ok {
				r.in.Mem.Settled(x.Lease)
			}
		}
	}
}

func (r *rig) spec(change func(*job.Spec)) (raw []byte) {
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Connectivity: job.Connectivity{Policy: job.Continuous}, Timeouts: job.Timeouts{Run: 10 * time.Second}}
	if change != nil {
		change(&sp)
	}
	return sp.Defaulted().Canonical()
}

func (r *rig) submit(change func(*job.Spec)) forgeyard.JobID {
	raw := r.spec(change)
	v, err := site.Value[site.Submitted](r.apply(site.Submit{Kind: job.Build, Spec: raw, SpecID: cas.Sum(raw)}))
	if err != nil {
		r.t.Fatal(err)
	}
	return v.Job
}

func (r *rig) delegate(p job.Connectivity) forgeyard.JobID {
	raw := r.spec(nil)
	r.apply(site.Delegate{To: 1, Grants: []site.Delegation{{Seq: 1, Grant: lease.Grant{ID: "G", Term: 1, Policy: p}, Spec: raw, SpecID: cas.Sum(raw)}}})
	for id := range r.s.Open.All() {
		return id
	}
	return ""
}

// held brings a job to where a runner holds it.
func (r *rig) held(id forgeyard.JobID) forgeyard.Authority {
	r.t.Helper()
	r.hello()
	r.obey()
	j, _ := r.s.Jobs.Get(id)
	if !j.Lease.Live() {
		r.t.Fatalf("it was offered to nobody: %s", j.Status)
	}
	r.apply(site.Accept{Authority: j.Lease.Authority})
	r.want("")
	return j.Lease.Authority
}

func (r *rig) renew(a forgeyard.Authority) RenewalAnswer {
	r.in.State = r.s
	return r.in.Mem.Renew(r.now, r.in, []Renewal{{Authority: a}})[0]
}

func TestPlacement(t *testing.T) {
	r := newRig(t)
	r.submit(nil)
	r.want("") // nobody was heard
	r.hello()
	r.want("offer to n1")
	r.after(16 * time.Second)
	r.want("") // three renewals were missed
	r.hello()
	r.submit(nil)
	r.submit(nil)
	r.submit(nil)
	r.submit(nil)
	r.want("offer to n1, offer to n2, offer to n1, offer to n2") // within a step, what is offered counts as taken
	yes := true
	r.apply(site.MemberSet{Runner: r.r[0], Disabled: &yes})
	r.want("offer to n2, offer to n2")
	r.in.Mem.Hello(r.r[1], Sign{Session: "S2", At: r.now, Refusing: []string{"pressure: disk"}})
	r.want("")
	j, _ := r.s.Jobs.Get(oldest(r.s))
	held, all := Explain(r.now, r.in, j)
	if held != "" || len(all) != 2 || fmt.Sprint(all[0].Reasons) != "[disabled]" || fmt.Sprint(all[1].Reasons) != "[pressure: disk]" {
		t.Fatalf("%q %+v", held, all)
	}
}

// Cores that a machine needs for others go to no new work, and are no reason to move what
// runs; what asks for no core of them is placed.
func TestWithheldCores(t *testing.T) {
	r := newRig(t)
	yes := true
	r.apply(site.MemberSet{Runner: r.r[1], Disabled: &yes})
	m, _ := r.s.Members.Get(r.r[0])
	say := func(withheld int64) {
		r.in.Mem.Hello(r.r[0], Sign{Session: "S1", At: r.now, Taken: Taken{Withheld: withheld}})
	}
	asks := func(milli int64) func(*job.Spec) { return func(s *job.Spec) { s.Resources.MilliCPU = milli } }
	half := m.Caps.MilliCPU / 2
	r.submit(asks(half))
	say(half)
	r.want("offer to n1")
	r.obey()
	id := r.submit(asks(half))
	r.want("")
	j, _ := r.s.Jobs.Get(id)
	if held, all := Explain(r.now, r.in, j); held != "" || !strings.Contains(fmt.Sprint(all[0].Reasons), fmt.Sprintf("%d withheld while others use the machine", half)) {
		t.Fatalf("%q %+v", held, all)
	}
	say(2 * half)
	if alone := noRoom(m, j.Spec, usage{withheld: 2 * half}); len(alone) != 0 {
		t.Errorf("alone on the machine: %v", alone)
	}
	say(-half) // of one that says what cannot be
	r.want("offer to n1")
	say(0)
	r.want("offer to n1")
}

// RA-357, RA-358: who serves a pool, and who is trusted, is the site's word alone. A job that
// asks for what nobody has waits, and is told so for each runner; what runs goes on when the
// word changes.
func TestAssignedRunners(t *testing.T) {
	r := newRig(t)
	m, _ := r.s.Members.Get(r.r[0])
	m.Caps.Labels = map[string]string{"pool": "release", "trust": "confidential"} // so it says itself
	m.Labels = m.Caps.Labels
	r.s.Members = r.s.Members.Put(m.Runner, m)
	r.hello()
	id := r.submit(func(s *job.Spec) {
		s.Requires = job.Requires{Pool: "release", Trust: []job.Trust{job.TrustConfidential}}
	})
	r.want("")
	j, _ := r.s.Jobs.Get(id)
	held, all := Explain(r.now, r.in, j)
	if want := `[it is in no pool, the job requires pool "release" the site has not given it trust "confidential"]`; held != "" || fmt.Sprint(all[0].Reasons) != want || fmt.Sprint(all[1].Reasons) != want {
		t.Fatalf("it waits: %q %+v", held, all)
	}
	r.apply(site.MemberSet{Runner: r.r[1], Assign: &job.Assign{Pool: "release", Trust: []job.Trust{job.TrustConfidential}}})
	r.want("offer to n2")
	a := r.held(id)
	r.submit(nil)
	r.want("offer to n1") // though n2 has room
	r.apply(site.MemberSet{Runner: r.r[0], Assign: &job.Assign{Pool: "slow"}})
	r.apply(site.MemberSet{Runner: r.r[1], Assign: &job.Assign{NoPool: true, NoTrust: true}})
	r.want("offer to n2")
	if j, _ = r.s.Jobs.Get(id); !j.Lease.Live() || j.Lease.Authority != a {
		t.Fatalf("what ran is %s: %+v", j.Status, j.Lease)
	}
}

// RA-125: a toolchain that is ready draws its job, and keeps it from nobody else.
func TestWarmToolchainDrawsItsJob(t *testing.T) {
	r := newRig(t)
	tool := forgeyard.Digest{1}
	m, _ := r.s.Members.Get(r.r[1])
	m.Caps.WarmToolchains = []forgeyard.Digest{tool}
	r.s.Members = r.s.Members.Put(m.Runner, m)
	r.hello()
	brings := func(s *job.Spec) { s.Inputs = []job.Input{{Path: "toolchains/go", Tree: true, Digest: tool}} }
	r.submit(nil)
	r.want("offer to n1")
	r.obey()
	r.submit(nil)
	r.want("offer to n2") // the emptier one
	r.obey()
	r.submit(brings)
	r.want("offer to n2")
	yes := true
	r.apply(site.MemberSet{Runner: r.r[1], Disabled: &yes})
	r.want("offer to n1")
}

// RA-294, RA-303: a process that began anew says first that what the one before it held is
// dead, and registers then. In between the job is not offered to the session that is no more,
// however lately that was heard.
func TestProcessThatIsNoMore(t *testing.T) {
	for _, why := range []string{site.ProcessRestarted, site.MachineRestarted, "the program asks to be run later"} {
		r := newRig(t)
		id := r.submit(nil)
		a := r.held(id)
		yes := true
		r.apply(site.MemberSet{Runner: r.r[1], Disabled: &yes})
		r.apply(site.Release{Authority: a, Kind: "interrupted", Detail: why})
		r.hello()
		if why == "the program asks to be run later" {
			r.want("offer to n1")
			continue
		}
		r.want("")
		j, _ := r.s.Jobs.Get(id)
		if _, all := Explain(r.now, r.in, j); !slices.Contains(all[0].Reasons, "its new process has not registered yet") {
			t.Errorf("%s: %+v", why, all)
		}
		m, _ := r.s.Members.Get(a.Runner)
		r.apply(site.Register{Runner: m.Runner, Session: "again", Caps: m.Caps})
		r.in.Mem.Hello(m.Runner, Sign{Session: "again", At: r.now})
		r.want("offer to n1")
	}
}

// A runner that refused a job does not get it again at once; another does.
func TestAvoid(t *testing.T) {
	r := newRig(t)
	id := r.submit(nil)
	r.hello()
	r.obey()
	j, _ := r.s.Jobs.Get(id)
	r.apply(site.Reject{Authority: j.Lease.Authority, Reason: job.RejectPressure})
	r.want("offer to n2")
	yes := true
	r.apply(site.MemberSet{Runner: r.r[1], Disabled: &yes})
	r.want("")
	r.after(patience)
	r.want("offer to n1")
}

// Each time that a runner refuses a job it is left alone for twice as long, to a bound, and
// its next process is asked at once: what it lacks it may lack for ever.
func TestAvoidGrows(t *testing.T) {
	r := newRig(t)
	yes := true
	r.apply(site.MemberSet{Runner: r.r[1], Disabled: &yes})
	id := r.submit(nil)
	refuse := func() {
		t.Helper()
		r.hello()
		r.want("offer to n1")
		r.obey()
		j, _ := r.s.Jobs.Get(id)
		r.apply(site.Reject{Authority: j.Lease.Authority, Reason: job.RejectLocalPolicy})
	}
	for _, pause := range []time.Duration{patience, 2 * patience, 4 * patience, 8 * patience, 16 * patience, 16 * patience} {
		refuse()
		r.want("")
		r.after(pause - time.Millisecond)
		r.hello()
		r.want("")
		r.after(time.Millisecond)
	}
	refuse()
	r.want("")
	m, _ := r.s.Members.Get(r.r[0])
	r.apply(site.Register{Runner: m.Runner, Session: "again", Caps: m.Caps})
	r.in.Mem.Hello(m.Runner, Sign{Session: "again", At: r.now})
	r.want("offer to n1")
}

// The record of a job names sixteen runners that refused it. Where there are more, each is
// asked once in its time all the same; and what is remembered of them ends with the job.
func TestManyRefuse(t *testing.T) {
	r := newRig(t)
	m, _ := r.s.Members.Get(r.r[0])
	all := []forgeyard.RunnerID{r.r[0], r.r[1]}
	sessions := map[forgeyard.RunnerID]forgeyard.SessionID{r.r[0]: "S1", r.r[1]: "S2"}
	r.apply(site.TokenCreate{Token: "U", Expires: forgeyard.WallOf(r.at.Add(time.Hour)), Uses: 20})
	for i := len(all); i < 17; i++ {
		r.at = r.at.Add(time.Second)
		v, err := site.Value[site.Joined](r.apply(site.Join{Token: "U", Peer: fmt.Sprint("q", i), Name: fmt.Sprint("m", i)}))
		if err != nil {
			t.Fatal(err)
		}
		all, sessions[v.Runner] = append(all, v.Runner), forgeyard.SessionID(fmt.Sprint("S", i+1))
		r.apply(site.Register{Runner: v.Runner, Session: sessions[v.Runner], Caps: m.Caps})
	}
	id := r.submit(nil)
	offers := map[forgeyard.RunnerID]int{}
	for range 10 * len(all) {
		for _, who := range all {
			r.in.Mem.Hello(who, Sign{Session: sessions[who], At: r.now})
		}
		r.obey()
		j, _ := r.s.Jobs.Get(id)
		if !j.Lease.Live() {
			break
		}
		offers[j.Lease.Authority.Runner]++
		r.apply(site.Reject{Authority: j.Lease.Authority, Reason: job.RejectLocalPolicy})
	}
	if len(offers) != len(all) {
		t.Fatalf("%d of %d were asked", len(offers), len(all))
	}
	for who, n := range offers {
		if n != 1 {
			t.Errorf("%s was asked %d times at once", who, n)
		}
	}
	r.apply(site.Cancel{Job: id})
	r.step()
	if n := len(r.in.Mem.avoided); n != 0 {
		t.Errorf("%d refusals of a job that ended are remembered", n)
	}
}

// CK-161: the next epoch comes after the lease of the one before is over, and never sooner.
// The granter waits longer than the holder (decision 1); an offer is nobody's yet, so
// the job's policy does not stretch it; a new leader counts the whole length anew.
func TestExpiry(t *testing.T) {
	r := newRig(t)
	id := r.submit(func(s *job.Spec) { s.Connectivity = job.Connectivity{Policy: job.Grace, For: time.Minute} })
	r.hello()
	r.obey()
	r.want("")
	r.after(15*time.Second + 249*time.Millisecond)
	r.want("")
	r.after(time.Millisecond)
	r.want("expire certain=false term=7")
	r.obey()
	a := r.held(id)
	r.after(75*time.Second + 849*time.Millisecond) // (15 s + 60 s) × 1.01 + 100 ms, less a moment
	r.want("")
	r.elect()
	r.want("")
	r.after(time.Millisecond)
	r.want("")
	r.after(75*time.Second + 850*time.Millisecond)
	r.want("expire certain=false term=7")
	if got := r.renew(a); got.Answer != lease.Stale {
		t.Fatalf("an expiry is proposed, and a renewal is answered %s", got.Answer)
	}
	r.in.Mem.Settled(a.Lease)
	if got := r.renew(a); got.Answer != lease.Continue {
		t.Fatalf("it was not committed after all, and a renewal is answered %s: %s", got.Answer, got.Reason)
	}
	r.after(75*time.Second + 849*time.Millisecond)
	r.want("")
}

// CK-157, CK-159: with protected effects nothing follows the doubt until the stop is certain.
func TestCertain(t *testing.T) {
	r := newRig(t)
	id := r.submit(func(s *job.Spec) { s.Effects = job.EffectsProtected })
	a := r.held(id)
	r.after(15*time.Second + 250*time.Millisecond)
	r.hello()
	r.obey()
	r.want("")
	if got := r.renew(a); got.Answer != lease.Stale {
		t.Fatalf("a lease that ended is answered %s", got.Answer)
	}
	r.after(2*time.Second - time.Millisecond)
	r.want("")
	r.after(time.Millisecond)
	r.want("expire certain=true term=7")
	r.obey()
	r.hello()
	r.want("offer to n1")
}

// K14: the same session reconnects before the end: Continue, and no second epoch; after
// it: Stale. A cancellation comes with the answer (RA-403, RA-404).
func TestRenew(t *testing.T) {
	r := newRig(t)
	id := r.submit(nil)
	a := r.held(id)
	for range 5 {
		r.after(14 * time.Second)
		if got := r.renew(a); got.Answer != lease.Continue || got.Left != -1 {
			t.Fatalf("%+v", got)
		}
		r.want("")
	}
	wrong := a
	wrong.Fence.Epoch++
	if got := r.renew(wrong); got.Answer != lease.Stale {
		t.Fatalf("%+v", got)
	}
	wrong = a
	wrong.Job = "nothing"
	if got := r.renew(wrong); got.Answer != lease.Stale {
		t.Fatalf("%+v", got)
	}
	r.apply(site.Cancel{Job: id})
	if got := r.renew(a); got.Answer != lease.Cancel {
		t.Fatalf("%+v", got)
	}
	r.apply(site.Register{Runner: a.Runner, Session: "another"})
	if got := r.renew(a); got.Answer != lease.Stale {
		t.Fatalf("%+v", got)
	}
}

// within-allowance: nothing delegated starts before the silence is known, nor close to
// the end of the grant; what runs is asked to stop in time, and every renewal says how
// much is left. A leader that does not know yet takes nothing away.
func TestAuthority(t *testing.T) {
	r := newRig(t)
	id := r.delegate(job.Connectivity{Policy: job.OfflineAuthorized, For: 100 * time.Second})
	r.hello()
	r.want("")
	r.in.Known, r.in.Used = true, 71*time.Second // the stop may take 30 s, but at most a quarter of 100 s
	r.want("offer to n1")
	r.in.Used = 75 * time.Second
	r.want("")
	r.in.Used = 0
	a := r.held(id)
	r.in.Used = 60 * time.Second
	if got := r.renew(a); got.Answer != lease.Continue || got.Left != 40*time.Second {
		t.Fatalf("%+v", got)
	}
	r.want("")
	r.in.Used = 75 * time.Second
	r.want("stop authority")
	r.obey()
	r.want("")
	r.in.Used = 101 * time.Second
	if got := r.renew(a); got.Left != 0 {
		t.Fatalf("%+v", got)
	}
	r.elect()
	if got := r.renew(a); got.Answer != lease.Wait {
		t.Fatalf("%+v", got)
	}
}

// What asks a holder to stop names its lease: it does not reach the next holder, however late
// it comes into the log.
func TestAuthorityIsAskedBackOfOneLease(t *testing.T) {
	r := rigReading(t, site.Formats)
	r.apply(site.FormatRaise{To: site.FormatNow, Voters: r.r[:]})
	id := r.delegate(job.Connectivity{Policy: job.OfflineAuthorized, For: 100 * time.Second})
	r.hello()
	r.in.Known = true
	a := r.held(id)
	r.in.Used = 75 * time.Second
	r.in.State = r.s
	effects, _ := Step(r.now, r.in)
	r.in.Used = 0
	r.apply(site.Release{Authority: a, Kind: "interrupted", Detail: "gone"})
	r.held(id)
	for _, e := range effects {
		late, ok := e.(Propose)
		if !ok {
			continue
		}
		_, reply := r.s.ApplyEntry(r.index+1, 7, site.Command{ID: "late", At: forgeyard.WallOf(r.at), By: "leader", Body: late.Body}.Encode())
		if err := reply.Err(); forgeyard.KindOf(err) != forgeyard.Stale {
			t.Errorf("%+v: %v", late.Body, err)
		}
	}
	if len(effects) != 1 {
		t.Errorf("the leader wishes %+v", effects)
	}
}

// A suspension that is under way may be refused, so it takes no place of the daemon's end.
func TestAuthorityEndsBesideASuspension(t *testing.T) {
	r := rigReading(t, site.Formats)
	r.apply(site.FormatRaise{To: site.FormatNow, Voters: r.r[:]})
	id := r.delegate(job.Connectivity{Policy: job.OfflineAuthorized, For: 100 * time.Second})
	r.hello()
	r.in.Known = true
	r.held(id)
	r.apply(site.Ask{Job: id, What: site.AskSuspend, Or: site.OrRestart})
	if j, _ := r.s.Jobs.Get(id); j.StopKind != site.AskSuspend {
		t.Fatalf("asked for %q", j.StopKind)
	}
	r.in.Used, r.in.State = 75*time.Second, r.s
	effects, _ := Step(r.now, r.in)
	if len(effects) != 1 {
		t.Fatalf("the leader wishes %+v", effects)
	}
	r.apply(effects[0].(Propose).Body)
	if j, _ := r.s.Jobs.Get(id); j.StopKind != "authority" || !j.Held() {
		t.Errorf("asked for %q, held %v", j.StopKind, j.Held())
	}
}

// What is asked back is told why: how much is left, that nothing is, or that somebody
// disconnected the site.
func TestWhyAuthorityEnds(t *testing.T) {
	for want, c := range map[string]struct {
		used time.Duration
		off  bool
	}{
		"the central daemon's authority ends in 25s":                                  {75 * time.Second, false},
		"the central daemon's grant is used up: 1m41s of silence, 1m40s were allowed": {101 * time.Second, false},
		"the site was disconnected from the central daemon that gave it":              {0, true},
	} {
		r := newRig(t)
		id := r.delegate(job.Connectivity{Policy: job.OfflineAuthorized, For: 100 * time.Second})
		r.hello()
		r.in.Known = true
		r.held(id)
		if c.off {
			r.apply(site.UplinkConnect{Off: true})
		}
		r.in.Used = c.used
		r.want("stop authority")
		r.obey()
		if j, _ := r.s.Jobs.Get(id); j.StopReason != want {
			t.Errorf("%q and not %q", j.StopReason, want)
		}
	}
}

// Voters come in pairs beyond the first, in the order of enrolment, when they have
// caught up and are heard; who was removed goes.
func TestVoters(t *testing.T) {
	r := newRig(t)
	r.in.Group = []GroupMember{{Runner: r.r[0], Voter: true}}
	r.want("") // n2 is not heard
	r.hello()
	r.want("n2 becomes nonvoter")
	r.in.Group = append(r.in.Group, GroupMember{Runner: r.r[1], Behind: caughtUp + 1})
	r.want("")
	r.in.Group[1].Behind = 0
	r.want("") // a second voter alone would only be a second way to lose the quorum
	full := r.in.Group
	r.in.Group = append(slices.Clone(full), GroupMember{Runner: "b", Voter: true}, GroupMember{Runner: "c", Voter: true})
	r.want("") // three vote: who comes after is a non-voter, however ready
	r.in.Group = full
	r.in.Group[0].Voter = false
	r.in.Group = append(r.in.Group, GroupMember{Runner: "gone", Voter: true})
	r.want("n1 becomes voter")
	yes := true
	r.apply(site.MemberSet{Runner: r.r[1], Removed: &yes})
	r.want("n2 becomes gone")
}

// A person's device lease ends by its time, counted from when this leader first saw it.
func TestDeviceLease(t *testing.T) {
	r := newRig(t)
	m, _ := r.s.Members.Get(r.r[0])
	caps := m.Caps
	caps.Devices = []job.DeviceFact{{ID: "board", Kind: "board"}}
	r.apply(site.Register{Runner: r.r[0], Session: "S1", Caps: caps})
	r.apply(site.DeviceHealth{Device: "board", Action: "checked", OK: true})
	r.apply(site.DeviceLease{Device: "board", Holder: "ana", TTL: int64(time.Minute), Key: "k"})
	r.want("")
	r.after(time.Minute)
	r.want("")
	r.after(time.Second)
	r.want("site.DeviceRelease")
}

// What a person was lent ends by the drift of clocks that the site had when it was lent
// (E04), and not by what somebody set since.
func TestDeviceLeaseKeepsItsDrift(t *testing.T) {
	r := newest(t)
	m, _ := r.s.Members.Get(r.r[0])
	caps := m.Caps
	caps.Devices = []job.DeviceFact{{ID: "board", Kind: "board"}}
	r.apply(site.Register{Runner: r.r[0], Session: "S1", Caps: caps, Formats: site.Formats})
	r.apply(site.DeviceHealth{Device: "board", Action: "checked", OK: true})
	r.apply(site.ConfigSet{Key: "lease.drift", Value: "0.1"})
	r.apply(site.DeviceLease{Device: "board", Holder: "ana", TTL: int64(time.Minute), Key: "k"})
	r.apply(site.ConfigSet{Key: "lease.drift", Value: "0.01"})
	r.want("")
	r.after(65 * time.Second)
	r.want("")
	r.after(2 * time.Second)
	r.want("site.DeviceRelease")
}

// A device is not given to a job while its host is not heard from: it could not be opened.
// The job waits, and is told for whom.
func TestDeviceOfASilentHost(t *testing.T) {
	r := newRig(t)
	m, _ := r.s.Members.Get(r.r[1])
	caps := m.Caps
	caps.Devices = []job.DeviceFact{{ID: "board", Kind: "board"}}
	r.apply(site.Register{Runner: r.r[1], Session: "S2", Caps: caps})
	r.apply(site.DeviceHealth{Device: "board", Action: "checked", OK: true})
	id := r.submit(func(s *job.Spec) { s.Devices = []job.DeviceRequest{{Kind: "board", As: "dut"}} })
	r.in.Mem.Hello(r.r[0], Sign{Session: "S1", At: r.now}) // n1 could run it, n2 is silent
	r.want("")
	j, _ := r.s.Jobs.Get(id)
	if why, _ := Explain(r.now, r.in, j); !strings.Contains(why, "n2 is not heard from") {
		t.Errorf("it waits: %s", why)
	}
	r.hello()
	r.want("offer to n2")
}

// RA-147: what a runner's wall clock read when it sent a heartbeat is for people: a clock
// that is years ahead or behind, or none, decides nothing.
func TestSentDecidesNothing(t *testing.T) {
	var all []string
	for _, sent := range []forgeyard.Wall{0, 1, 1 << 50} {
		r := newRig(t)
		id := r.submit(nil)
		a := r.held(id)
		r.submit(nil)
		for i, m := range r.r {
			r.in.Mem.Hello(m, Sign{Session: forgeyard.SessionID(fmt.Sprint("S", i+1)), At: r.now, Sent: sent})
		}
		r.in.State = r.s
		said := fmt.Sprintf("%+v", r.in.Mem.Renew(r.now, r.in, []Renewal{{Authority: a}}))
		said += r.step()
		r.after(time.Hour)
		all = append(all, said+r.step())
	}
	if all[0] == "" || all[1] != all[0] || all[2] != all[0] {
		t.Errorf("the leader decides by it:\n%s", strings.Join(all, "\n"))
	}
}

// oldest is the open job that was submitted first.
func oldest(s *site.State) (first forgeyard.JobID) {
	least := ^uint64(0)
	for id, at := range s.Open.All() {
		if at < least {
			first, least = id, at
		}
	}
	return first
}

// CK-020, CK-146, CK-147: who has the checkpoint is asked first; who has not, when the other cannot
// serve or has no room for it (CK-140); and who lacks what the job requires never, whatever
// it has.
func TestCheckpointsDrawTheirJob(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		requires job.Requires
		drain    bool
		full     bool
		want     string
	}{
		"it has it":          {want: "offer to n2"},
		"but it drains":      {drain: true, want: "offer to n1"},
		"but it has no room": {full: true, want: "offer to n1"},
		"but it is another":  {requires: job.Requires{Labels: map[string]string{"bench": "a"}}, want: "offer to n1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.s.Config.Durability.AcceptFewer = true
			m, _ := r.s.Members.Get(r.r[0])
			m.Assigned.Labels = map[string]string{"bench": "a"}
			r.s.Members = r.s.Members.Put(m.Runner, m)
			id := r.submit(func(s *job.Spec) { s.Resume.Mode, s.Requires = job.ResumeApplication, c.requires })
			a := r.held(id)
			what := cas.Sum([]byte("what"))
			r.apply(site.Checkpoint{Authority: a, Commit: checkpoint.Commit{
				Seq: 1, Manifest: what, Payload: what, Marker: what, Bytes: 1, Attempt: a.Attempt, Epoch: 1, Replicas: []forgeyard.RunnerID{r.r[1]}, Consistency: checkpoint.Application,
			}})
			r.apply(site.Expire{Job: id, Lease: a.Lease, Certain: true})
			if c.drain {
				r.apply(site.MemberSet{Runner: r.r[1], Draining: &yes})
			}
			if c.full {
				m, _ := r.s.Members.Get(r.r[1])
				m.Caps.MilliCPU = 10
				r.s.Members = r.s.Members.Put(m.Runner, m)
			}
			r.hello()
			r.want(c.want)
			if j, _ := r.s.Jobs.Get(id); j.Status != job.Queued || len(j.Checkpoints) != 1 {
				t.Fatalf("%s with %d checkpoints", j.Status, len(j.Checkpoints))
			}
		})
	}
}

// CK-384, CK-385: a runner that has the checkpoint and cannot go on from it is not taken for its
// having it.
func TestNearIsNotFit(t *testing.T) {
	const named = "where a checkpoint was taken is forgotten"
	chosen := func(fault bool) string {
		r := newRig(t)
		r.s.Config.Durability.AcceptFewer = true
		for i, arch := range []string{"amd64", "arm64"} {
			m, _ := r.s.Members.Get(r.r[i])
			m.Caps.OS, m.Caps.Arch = "linux", arch
			r.s.Members = r.s.Members.Put(m.Runner, m)
		}
		id := r.submit(func(s *job.Spec) { s.Resume.Mode = job.ResumeApplication })
		a := r.held(id)
		what := cas.Sum([]byte("what"))
		commit := checkpoint.Commit{
			Seq: 1, Manifest: what, Payload: what, Marker: what, Bytes: 1, Attempt: a.Attempt, Epoch: 1, Replicas: []forgeyard.RunnerID{r.r[1]}, Consistency: checkpoint.Application,
			Where: &machine.Place{OS: "linux", Arch: "amd64"},
		}
		if fault {
			commit.Where = nil
		}
		r.apply(site.Checkpoint{Authority: a, Commit: commit})
		r.apply(site.Expire{Job: id, Lease: a.Lease, Certain: true})
		r.hello()
		return r.step()
	}
	if got := chosen(false); !strings.Contains(got, "offer to n1") {
		t.Errorf("it goes on from amd64: %s", got)
	}
	if got := chosen(true); !strings.Contains(got, "offer to n2") {
		t.Errorf("it is not seen that %s: %s", named, got)
	}
}
