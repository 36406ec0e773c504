package site

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// lab is a site of one runner, R1 with session one, and what is proposed to it.
type lab struct {
	t *testing.T
	s *State
}

func newLab(t *testing.T) *lab {
	l := &lab{t, &State{}}
	at := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	l.must(Init{Site: forgeyard.SiteID(forgeyard.NewULID(at, [10]byte{1})), Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: "p1"})
	l.must(Register{Formats: Formats, Runner: "R1", Session: "one"})
	return l
}

func (l *lab) do(b Body) Reply {
	at := l.s.Index + 1
	next, r := l.s.Apply(at, Command{ID: forgeyard.MessageID(fmt.Sprint("r", at)), At: forgeyard.Wall(1_800_000_000_000 + int64(at)), Body: b}.Encode())
	l.s = next
	return r
}

func (l *lab) must(b Body) Reply {
	l.t.Helper()
	r := l.do(b)
	if r.Err() != nil {
		l.t.Fatalf("%T: %v", b, r.Err())
	}
	return r
}

// held is a job that the session holds and runs.
func (l *lab) held(session forgeyard.SessionID) forgeyard.Authority {
	l.t.Helper()
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Resume: job.Resume{Mode: job.ResumeApplication}}.Defaulted()
	sub, err := Value[Submitted](l.must(Submit{Kind: job.Build, Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical())}))
	if err != nil {
		l.t.Fatal(err)
	}
	a := l.offer(sub.Job, session)
	l.must(Accept{Authority: a})
	l.must(Phase{Authority: a, Phase: job.PhaseRunning})
	return a
}

func (l *lab) offer(id forgeyard.JobID, session forgeyard.SessionID) forgeyard.Authority {
	l.t.Helper()
	j, _ := l.s.Jobs.Get(id)
	a, err := Value[forgeyard.Authority](l.must(Offer{Job: id, Runner: "R1", Session: session, Epoch: j.Epoch}))
	if err != nil {
		l.t.Fatal(err)
	}
	return a
}

// acts are everything that a runner can do under an authority, each with whether it was
// taken. All of it carries the whole authority: job, attempt, lease, spec, runner, session
// and epoch (RA-157, RA-158, RA-162, RA-163, RA-517), and the log answers to nothing less: who
// has none of it can neither invent work nor declare success (RA-578).
func (l *lab) acts(a forgeyard.Authority) map[string]func() (taken bool, err error) {
	plain := func(b Body) func() (bool, error) {
		return func() (bool, error) { err := l.do(b).Err(); return err == nil, err }
	}
	id := cas.Sum([]byte("late"))
	commit := checkpoint.Commit{Seq: 1, Manifest: id, Payload: id, Marker: id, Attempt: a.Attempt, Epoch: a.Fence.Epoch, Replicas: []forgeyard.RunnerID{"R1"}, Consistency: checkpoint.Application}
	return map[string]func() (bool, error){
		"accept":            plain(Accept{Authority: a}),
		"reject":            plain(Reject{Authority: a, Reason: job.RejectPressure}),
		"phase":             plain(Phase{Authority: a, Phase: job.PhaseUploading}),
		"checkpoint":        plain(Checkpoint{Authority: a, Commit: commit}),
		"checkpoint, go on": plain(Checkpoint{Authority: a, Commit: commit, Continue: true}),
		"release":           plain(Release{Authority: a, Kind: "interrupted"}),
		"complete as done":  func() (bool, error) { return l.complete(a, job.Result{Outcome: job.OutcomeDone}) },
		"complete as failed": func() (bool, error) {
			return l.complete(a, job.Result{Outcome: job.OutcomeFailed, Category: job.WorkloadFailed})
		},
		"complete as a retry": func() (bool, error) {
			return l.complete(a, job.Result{Outcome: job.OutcomeFailed, Category: job.SandboxSetup})
		},
	}
}

func (l *lab) complete(a forgeyard.Authority, r job.Result) (bool, error) {
	v, err := Value[Completed](l.do(Complete{Authority: a, Message: forgeyard.MessageID("m-" + string(a.Session) + string(r.Outcome) + string(r.Category)), Result: r}))
	switch {
	case err != nil:
		return false, err
	case v.Verdict == StaleRejected:
		return false, forgeyard.Errorf("complete", forgeyard.Stale, "%s", v.Reason)
	}
	return true, nil
}

// what is compared of a job before and after something that must not count. Refused
// completions are kept as evidence (E27), which is no effect.
func essence(j Job) string {
	j.Late = nil
	return fmt.Sprintf("%+v", j)
}

// RA-084: before a process has registered, no lease is granted to it; nor is one to the
// session before, once it has. RA-087: a registration brings who it is, its version, the
// formats it reads (RA-090, RA-096) and what its machine can do (RA-011), with the digest of
// that (RA-532).
func TestNoLeaseBeforeRegistration(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	if err := l.do(Offer{Job: id, Runner: "R1", Session: "two"}).Err(); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Errorf("granted to a process that has not registered: %v", err)
	}
	caps := job.Capabilities{OS: "linux", MilliCPU: 4000}
	l.must(Register{Formats: Formats, Runner: "R1", Session: "two", Version: "7", Caps: caps, Digest: cas.Sum([]byte("caps"))})
	m, _ := l.s.Members.Get("R1")
	if m.Session.ID != "two" || m.Session.Version != "7" || m.Session.Formats != Formats || m.Caps.MilliCPU != 4000 || m.Digest != cas.Sum([]byte("caps")) || m.Session.Since == 0 {
		t.Errorf("%+v", m)
	}
	if err := l.do(Offer{Job: id, Runner: "R1", Session: "one"}).Err(); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Errorf("granted to the process before: %v", err)
	}
	a := l.offer(id, "two")
	if a.Session != "two" || a.Runner != "R1" {
		t.Errorf("%+v", a)
	}
	// RA-148: what is offered is the lease with the whole spec, under the spec's own name.
	if j, _ := l.s.Jobs.Get(id); j.Lease.Authority != a || a.Spec != cas.Sum(j.Spec.Canonical()) || len(j.Spec.Steps) == 0 {
		t.Errorf("%+v", j)
	}
}

// RA-483: what a machine can do no more, or can do now, stands in the site's events, whether
// the same process found it out or the next one.
func TestChangesOfCapabilitiesAreEvents(t *testing.T) {
	l := newLab(t)
	events := func() (all []string) {
		for _, e := range l.s.History {
			if e.Kind == "capability" {
				all = append(all, e.Text)
			}
		}
		return all
	}
	register := func(session forgeyard.SessionID, c job.Capabilities) {
		l.must(Register{Formats: Formats, Runner: "R1", Session: session, Caps: c})
	}
	able := job.Capabilities{OS: "linux", MilliCPU: 4000, Toolchains: []job.Toolchain{{Name: "gcc", Source: "host"}}}
	less := job.Capabilities{OS: "linux", MilliCPU: 2000}
	register("two", able)
	if n := len(events()); n != 0 {
		t.Fatalf("in a log of format 1, whose programs do not write it: %q", events())
	}
	l.raise()
	register("two", able)
	register("three", able)
	if n := len(events()); n != 0 {
		t.Fatalf("nothing changed: %q", events())
	}
	register("three", less)
	register("four", able)
	// A fact of each kind, and more than one event has room for.
	full := job.Capabilities{
		OS: "linux", Arch: "arm64", MilliCPU: 1500, Memory: 1<<30 + 1, Disk: 1 << 40, MaxJobs: 2,
		Sandboxes:  []job.SandboxCapability{{Kind: job.SandboxStrict, Version: "1", Limits: []string{"cpu", "pids"}}},
		Toolchains: []job.Toolchain{{Name: "gcc", Version: "12", Source: "store", Verified: true}}, Labels: map[string]string{"a": "b"},
		Devices:  []job.DeviceFact{{ID: "dut", Kind: "serial", Labels: map[string]string{"x": "y"}, Serial: "7"}},
		Networks: []job.Network{job.NetworkNone}, GPUs: []job.GPU{{Bus: "0000:01:00.0", Vendor: "nvidia", Model: "L4", Driver: "nvidia", Memory: 1 << 30}},
	}
	register("four", full)
	many := full
	many.Labels = map[string]string{}
	for i := range 30 {
		many.Labels[fmt.Sprintf("label-%02d", i)] = "0123456789"
	}
	register("four", many)
	texts := events()
	golden.Text(t, "testdata/capability-events.txt", []byte(strings.Join(texts, "\n")+"\n"))
	if last := texts[len(texts)-1]; len(last) > maxNote || !strings.HasSuffix(last, " more") {
		t.Errorf("what is left out is not told in %d bytes: %q", len(last), last)
	}
	m, _ := l.s.Members.Get("R1")
	want := []string{m.Name + ": cpu 2000m, was 4000m; toolchain gcc (host) is gone", m.Name + ": cpu 4000m, was 2000m; toolchain gcc (host) is new"}
	if got := events(); !slices.Equal(got[:2], want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// RA-092: a runner that an operator disabled may register, since that is how it learns what
// to abandon, and is granted nothing until it is enabled; one that was removed may not.
func TestDisabledRunnerGetsNothing(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	yes, no := true, false
	l.must(MemberSet{Runner: "R1", Disabled: &yes})
	l.must(Register{Formats: Formats, Runner: "R1", Session: "two"})
	if err := l.do(Offer{Job: id, Runner: "R1", Session: "two"}).Err(); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("disabled: %v", err)
	}
	l.must(MemberSet{Runner: "R1", Disabled: &no})
	l.offer(id, "two")
}

// RA-095: a registration whose capabilities hold what this program does not know is refused
// as a whole, and never half read.
func TestCapabilitiesOfAnotherSchema(t *testing.T) {
	l := newLab(t)
	b := Register{Formats: Formats, Runner: "R1", Session: "two", Caps: job.Capabilities{OS: "linux"}}
	var fields map[uint64]any
	if err := cborx.Unmarshal(cborx.Marshal(b), &fields); err != nil {
		t.Fatal(err)
	}
	put := false
	for _, v := range fields {
		if caps, ok := v.(map[any]any); ok && caps[uint64(1)] == "linux" {
			caps[uint64(99)], put = "new", true
		}
	}
	if !put {
		t.Fatalf("no capabilities in %v", fields)
	}
	before := l.s
	raw := cborx.Marshal(envelope{commandFormat, b.kind(), "newer", 1, "x", cborx.Marshal(fields)})
	next, r := before.Apply(before.Index+1, raw)
	if m, _ := next.Members.Get("R1"); forgeyard.KindOf(r.Err()) != forgeyard.Invalid || m.Session.ID != "one" || !sameButMemory(before, next) {
		t.Errorf("%v: %+v", r.Err(), m)
	}
}

// E09: an own dead session does not block the restart. The new session of the same node
// supersedes it in one entry: the job is free at once, with no wait for a deadline, and is
// granted to the new session; whatever the old one still does is refused. What the process
// before held is named in the answer, to be abandoned and cleaned up, and nothing of it is
// ever continued (RA-294, RA-296, RA-298, RA-299, RA-522), as after a reboot of the host (RA-303).
func TestE09NewSessionSupersedesAtOnce(t *testing.T) {
	for _, state := range []string{"waits", "is granted anew", "runs again"} {
		t.Run("the job "+state, func(t *testing.T) {
			probe := newLab(t)
			for name := range probe.acts(forgeyard.Authority{}) {
				t.Run(name, func(t *testing.T) {
					l := newLab(t)
					old := l.held("one")
					v, err := Value[Registered](l.must(Register{Formats: Formats, Runner: "R1", Session: "two"}))
					if err != nil || len(v.Abandon) != 1 || v.Abandon[0] != old.Lease {
						t.Fatalf("what to abandon: %+v %v", v, err)
					}
					// RA-076: the place of the registration in the log tells sessions apart that
					// only one of two processes knows of: it grows, and the node compares it.
					if m, _ := l.s.Members.Get("R1"); m.Session.Index != l.s.Step || m.Session.Previous != "one" {
						t.Fatalf("%+v at step %d", m.Session, l.s.Step)
					}
					j, _ := l.s.Jobs.Get(old.Job)
					if j.Status != job.Queued || j.Lease.Live() || l.s.Offerable(j, 0) != nil {
						t.Fatalf("%s, lease %s: %v", j.Status, j.Lease.State, l.s.Offerable(j, 0))
					}
					if state != "waits" {
						a := l.offer(old.Job, "two")
						if a.Fence.Compare(old.Fence) <= 0 || a.Lease == old.Lease || a.Session != "two" {
							t.Fatalf("granted %+v after %+v", a, old)
						}
						if state == "runs again" {
							l.must(Accept{Authority: a})
							l.must(Phase{Authority: a, Phase: job.PhaseRunning})
						}
					}
					j, _ = l.s.Jobs.Get(old.Job)
					if taken, err := l.acts(old)[name](); taken || forgeyard.KindOf(err) != forgeyard.Stale {
						t.Fatalf("taken=%v: %v", taken, err)
					}
					if after, _ := l.s.Jobs.Get(old.Job); essence(after) != essence(j) {
						t.Fatalf("it changed the job:\n%s\n%s", essence(j), essence(after))
					}
				})
			}
		})
	}
}

// RA-560: that outputs were stored, and where, ends nothing: until the completion is in the
// log the job runs on, and may go elsewhere. RA-563: after it, nothing that its runner still
// does, or cannot clean up, says anything else of how it went.
func TestOnlyTheCompletionEndsAJob(t *testing.T) {
	probe := newLab(t)
	for name := range probe.acts(forgeyard.Authority{}) {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a := l.held("one")
			l.must(Phase{Authority: a, Phase: job.PhaseUploading})
			l.must(Report{Authority: a, Told: job.Told{First: 1, Events: []job.Happening{{Kind: job.EventMessage, Message: "out is b3:1 on two nodes"}}}})
			j, _ := l.s.Jobs.Get(a.Job)
			if j.Status != job.Running || j.Result != nil || !j.Lease.Live() {
				t.Fatalf("ended by an upload: %+v", j)
			}
			if ok, err := l.complete(a, job.Result{Outcome: job.OutcomeFailed, Category: job.WorkloadFailed, Message: "exit code 1"}); !ok || err != nil {
				t.Fatal(err)
			}
			j, _ = l.s.Jobs.Get(a.Job)
			r, _ := l.s.Runs.Get(j.Run)
			if j.Status != job.Failed || r.Status != job.Failed {
				t.Fatalf("%s, %s", j.Status, r.Status)
			}
			taken, _ := l.acts(a)[name]()
			repeat := name == "complete as failed" // the same message again is the same completion
			if after, _ := l.s.Jobs.Get(a.Job); taken != repeat || essence(after) != essence(j) {
				t.Fatalf("taken=%v, it rewrote\n%s\n%s", taken, essence(j), essence(after))
			}
			if after, _ := l.s.Runs.Get(j.Run); !reflect.DeepEqual(after, r) {
				t.Fatalf("it rewrote\n%+v\n%+v", r, after)
			}
		})
	}
}

// E06: a restarted agent cannot revive what its predecessor ran. The lease is of the old
// session, so the new one has no authority over it, neither by what it finds on its disk
// nor with its own session in the old one's place; it gets the work only by a grant of its
// own, with a higher epoch (RA-171, RA-457, RA-521, RA-564): it finalises what is current and
// nothing else (RA-006).
func TestE06RestartRevivesNothing(t *testing.T) {
	probe := newLab(t)
	for name := range probe.acts(forgeyard.Authority{}) {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			old := l.held("one")
			forged := old
			forged.Session = "two"
			before, _ := l.s.Jobs.Get(old.Job)
			if taken, err := l.acts(forged)[name](); taken || forgeyard.KindOf(err) != forgeyard.Stale {
				t.Fatalf("before it registered: taken=%v, %v", taken, err)
			}
			if after, _ := l.s.Jobs.Get(old.Job); essence(after) != essence(before) {
				t.Fatalf("it took something from the session that still holds it:\n%s\n%s", essence(before), essence(after))
			}
			l.must(Register{Formats: Formats, Runner: "R1", Session: "two"})
			before, _ = l.s.Jobs.Get(old.Job)
			if taken, err := l.acts(forged)[name](); taken || forgeyard.KindOf(err) != forgeyard.Stale {
				t.Fatalf("after it registered: taken=%v, %v", taken, err)
			}
			if after, _ := l.s.Jobs.Get(old.Job); essence(after) != essence(before) {
				t.Fatalf("it changed the job:\n%s\n%s", essence(before), essence(after))
			}
			a := l.offer(old.Job, "two")
			l.must(Accept{Authority: a})
			if ok, err := l.complete(a, job.Result{Outcome: job.OutcomeDone}); !ok || err != nil {
				t.Fatalf("under a grant of its own: %v", err)
			}
		})
	}
}

// A submission that is repeated with its own id makes no second job, also when so many
// commands came in between that the first answer is remembered no more.
func TestARepeatedSubmissionMakesNoSecondJob(t *testing.T) {
	l := newLab(t)
	l.must(FormatRaise{To: FormatNow, Voters: []forgeyard.RunnerID{"R1"}})
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted()
	submit := func() Submitted {
		next, r := l.s.Apply(l.s.Index+1, Command{ID: "one submission", At: 1_800_000_000_000, Body: Submit{Kind: job.Build, Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical())}}.Encode())
		l.s = next
		v, err := Value[Submitted](r)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	first := submit()
	for range maxRequests {
		l.must(ConfigSet{Key: "lease.ttl", Value: "20s"})
	}
	if l.s.Requests.Has("one submission") {
		t.Fatal("it is remembered still: the test shows nothing")
	}
	if again := submit(); again != first || l.s.Jobs.Len() != 1 {
		t.Errorf("%+v, then %+v: %d jobs", first, again, l.s.Jobs.Len())
	}
}

// E09: a registration that was on its way while its process ended and others took its place
// is refused, however many they were: it would say that what runs now is dead, and give
// protected work away.
func TestE09OldRegistrationsComeToNothing(t *testing.T) {
	l := newLab(t)
	l.raise()
	place := cas.Sum([]byte("here"))
	register := func(n int) Register {
		return Register{Formats: Formats, Runner: "R1", Session: forgeyard.SessionID(fmt.Sprint("s", n)), Place: place}
	}
	const last = maxPastSessions + 4
	for n := range last + 1 {
		l.must(register(n))
	}
	a := l.held(forgeyard.SessionID(fmt.Sprint("s", last)))
	before := essence(l.job(a))
	for n := last - 1; n >= last-1-maxPastSessions; n-- {
		if err := l.do(register(n)).Err(); forgeyard.KindOf(err) != forgeyard.Stale {
			t.Fatalf("session %d of %d: %v", n, last, err)
		}
	}
	if m, _ := l.s.Members.Get("R1"); m.Session.ID != a.Session || len(m.Session.Past) != maxPastSessions || essence(l.job(a)) != before {
		t.Errorf("%+v", m.Session)
	}
}
