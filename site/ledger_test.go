package site

import (
	"fmt"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// ledgerKinds are all kinds of events that a run may hold (RS-048).
var ledgerKinds = []job.EventKind{job.EventStatus, job.EventMessage, job.EventTool, job.EventOutput, job.EventError}

// checkLedger is what holds of every run after every entry, whatever was proposed.
func (c *chaos) checkLedger(t *testing.T, before *State) {
	for id, r := range c.s.Runs.All() {
		b, old := before.Runs.Get(id)
		events := c.s.RunEvents(id, 0)
		if why := checkRun(r, events); why != "" {
			t.Errorf("index %d: run %s: %s", c.index, id, why)
		}
		was := before.RunEvents(id, 0)
		if why := checkStep(b, r, was, events); old && why != "" {
			t.Errorf("index %d: run %s: %s", c.index, id, why)
		}
		j, _ := c.s.Jobs.Get(r.Job)
		if why := checkWork(c.s, r, j); why != "" {
			t.Errorf("index %d: run %s: %s", c.index, id, why)
		}
	}
	for seq, r := range c.s.Outbox.All() {
		if before.Outbox.Has(seq) || r.Kind != RecordOutcome {
			continue
		}
		if j, ok := before.Jobs.Get(r.Job); ok && j.Status.Terminal() {
			t.Errorf("index %d: job %s was %s before, and its outcome is sent again (RS-046)", c.index, r.Job, j.Status)
		}
	}
}

// checkRun is what a run and its events say of each other at any index. A status is one of
// five, of which three are terminal (RS-032, RS-038), and it is that of the last status
// event (RS-005). A terminal run is never seen without its terminal event, which is its
// last, so that who follows it need not wait for another look (RS-080, RS-081, CK-423).
func checkRun(r Run, events []job.Event) string {
	if len(events) == 0 || events[0].Kind != job.EventStatus || events[0].Message != "queued "+string(r.Kind) {
		return fmt.Sprintf("it does not begin with its status event: %+v (RS-039)", events)
	}
	last, ends := job.Status(""), 0
	for n, e := range events {
		switch {
		case e.Seq != uint64(n)+1:
			return fmt.Sprintf("event %d stands at %d (RS-055, RS-058, RS-059)", e.Seq, n+1)
		case !slices.Contains(ledgerKinds, e.Kind):
			return fmt.Sprintf("event %d is of kind %q (RS-048)", e.Seq, e.Kind)
		case (e.Kind == job.EventStatus) != (e.Status != ""):
			return fmt.Sprintf("event %d is of kind %s with status %q (RS-049)", e.Seq, e.Kind, e.Status)
		case e.At == 0:
			return fmt.Sprintf("event %d has no time (RS-054)", e.Seq)
		}
		if e.Kind == job.EventStatus {
			last = e.Status
		}
		if e.Status.Terminal() {
			ends++
		}
	}
	over := slices.Contains([]job.Status{job.Done, job.Failed, job.Cancelled}, r.Status)
	switch {
	case r.LastSeq != uint64(len(events)):
		return fmt.Sprintf("%d events, the last number is %d", len(events), r.LastSeq)
	case !over && r.Status != job.Queued && r.Status != job.Running:
		return fmt.Sprintf("its status is %q (RS-032)", r.Status)
	case over != r.Status.Terminal():
		return fmt.Sprintf("%s, terminal=%v (RS-038)", r.Status, r.Status.Terminal())
	case last != r.Status:
		return fmt.Sprintf("it is %s, its last status event says %s (RS-005)", r.Status, last)
	case over && (ends != 1 || !events[len(events)-1].Status.Terminal()):
		return fmt.Sprintf("it is %s with %d terminal events (RS-080, RS-047)", r.Status, ends)
	}
	return checkEnd(r, over)
}

// checkEnd is what stands in a record before and after its end: times, words and the
// category come with the terminal status, and the category with a failure alone (RS-043,
// RS-044).
func checkEnd(r Run, over bool) string {
	failed := r.Status == job.Failed
	switch {
	case over != (r.Ended != 0) || r.Created == 0:
		return fmt.Sprintf("it is %s, created %d, ended %d (RS-043)", r.Status, r.Created, r.Ended)
	case !over && (r.Summary != "" || r.Error != "" || r.Category != ""):
		return fmt.Sprintf("it is %s and tells of an end: %+v", r.Status, r)
	case failed != (r.Category != ""):
		return fmt.Sprintf("it is %s with category %q (RS-044)", r.Status, r.Category)
	case failed && !r.Category.Known():
		return fmt.Sprintf("category %q is none of the set (RS-044)", r.Category)
	case !failed && r.Error != "":
		return fmt.Sprintf("it is %s with error %q", r.Status, r.Error)
	case r.Status == job.Running && r.Started == 0:
		return "it runs and never started (RS-034)"
	}
	return ""
}

// checkStep is what one entry may do to a run. Events are appended and nothing else
// (RS-056); a status changes together with a status event (RS-040, RS-043); nothing of a
// run that has ended changes, its first outcome stays (RS-037, RS-045, RS-047); a run that
// runs never waits again; and the first request to cancel keeps its time (RS-064).
func checkStep(b, r Run, was, events []job.Event) string {
	switch {
	case len(events) < len(was) || !slices.Equal(events[:len(was)], was):
		return "its events were rewritten (RS-056)"
	case b.Status.Terminal() && (b != r || len(events) != len(was)):
		return fmt.Sprintf("it was %+v and is %+v (RS-045)", b, r)
	case b.Status != r.Status && !slices.ContainsFunc(events[len(was):], func(e job.Event) bool { return e.Status == r.Status }):
		return fmt.Sprintf("from %s to %s without an event (RS-040)", b.Status, r.Status)
	case b.Status == job.Running && r.Status == job.Queued:
		return "it ran and waits"
	case b.CancelAt != 0 && b.CancelAt != r.CancelAt:
		return fmt.Sprintf("cancellation was requested at %d, now it says %d (RS-064)", b.CancelAt, r.CancelAt)
	}
	return ""
}

// checkWork is what holds between a run and its work. A run records one operation, which
// no other run records (RS-001); what waits has a whole spec under its own name, so there
// is no other queue and nothing to guess (RS-004, RS-020, RS-028, RS-029); a job that is suspended
// or unknown leaves its run open (RS-098).
func checkWork(s *State, r Run, j Job) string {
	switch {
	case j.Run != r.ID:
		return fmt.Sprintf("its job %s is of run %s (RS-001)", j.ID, j.Run)
	case (j.Status == job.Suspended || j.Status == job.Unknown) && r.Status.Terminal():
		return fmt.Sprintf("it is %s while its job is %s (RS-098)", r.Status, j.Status)
	case r.Status != job.Queued:
		return ""
	case !s.Open.Has(j.ID):
		return "it waits, and nobody looks at it (RS-029)"
	}
	if raw := j.Spec.Canonical(); cas.Sum(raw) != j.SpecID || j.Spec.Validate() != nil {
		return fmt.Sprintf("it waits without the spec that it names: %v (RS-028)", j.Spec.Validate())
	}
	return ""
}

// The checkers above are seen to fail: each lie about a good run is named.
func TestLedgerCheckersCatchLies(t *testing.T) {
	good := func() (Run, []job.Event) {
		r := Run{Kind: job.Build, Status: job.Failed, Category: job.TimedOut, Error: "late", Created: 1, Started: 2, Ended: 3, LastSeq: 3}
		return r, []job.Event{{Seq: 1, At: 1, Kind: job.EventStatus, Status: job.Queued, Message: "queued build"}, {Seq: 2, At: 2, Kind: job.EventStatus, Status: job.Running}, {Seq: 3, At: 3, Kind: job.EventStatus, Status: job.Failed}}
	}
	if r, ev := good(); checkRun(r, ev) != "" {
		t.Fatal(checkRun(r, ev))
	}
	for name, lie := range map[string]func(*Run, *[]job.Event){
		"a gap":                    func(_ *Run, ev *[]job.Event) { (*ev)[1].Seq = 7 },
		"no first event":           func(r *Run, ev *[]job.Event) { *ev, r.LastSeq = (*ev)[1:], 2 },
		"another kind":             func(_ *Run, ev *[]job.Event) { (*ev)[1].Kind = "odd" },
		"no time":                  func(_ *Run, ev *[]job.Event) { (*ev)[1].At = 0 },
		"an end without its event": func(r *Run, ev *[]job.Event) { *ev, r.LastSeq = (*ev)[:2], 2 },
		"two ends":                 func(_ *Run, ev *[]job.Event) { (*ev)[1].Status = job.Done },
		"a status of a job":        func(r *Run, ev *[]job.Event) { r.Status, (*ev)[2].Status = job.Unknown, job.Unknown },
		"a category of its own":    func(r *Run, _ *[]job.Event) { r.Category = "bad luck" },
		"no category":              func(r *Run, _ *[]job.Event) { r.Category = "" },
		"done with a category":     func(r *Run, ev *[]job.Event) { r.Status, (*ev)[2].Status = job.Done, job.Done },
		"no end":                   func(r *Run, _ *[]job.Event) { r.Ended = 0 },
	} {
		r, ev := good()
		if lie(&r, &ev); checkRun(r, ev) == "" {
			t.Errorf("%s: nobody sees it", name)
		}
	}
	r, ev := good()
	again := r
	again.Summary = "better"
	for name, why := range map[string]string{
		"another outcome": checkStep(r, again, ev, ev),
		"one more event":  checkStep(r, r, ev[:2], ev),
		"silently":        checkStep(Run{Status: job.Queued}, Run{Status: job.Running}, ev[:1], ev[:1]),
		"backwards":       checkStep(Run{Status: job.Running}, Run{Status: job.Queued}, ev[:1], append(ev[:1:1], ev[0])),
		"rewritten":       checkStep(Run{Status: job.Running}, Run{Status: job.Running}, ev[:2], ev[:1]),
		"a later request": checkStep(Run{CancelAt: 3}, Run{CancelAt: 4}, ev, ev),
	} {
		if why == "" {
			t.Errorf("%s: nobody sees it", name)
		}
	}
}

// submitted is a job that waits, with its run.
func (l *lab) submitted(title string) (forgeyard.JobID, forgeyard.RunID) {
	l.t.Helper()
	sub := submitOf(title)
	sub.Title = title
	v, err := Value[Submitted](l.must(sub))
	if err != nil {
		l.t.Fatal(err)
	}
	return v.Job, v.Run
}

func (l *lab) run(id forgeyard.JobID) (Job, Run, []job.Event) {
	j, _ := l.s.Jobs.Get(id)
	r, _ := l.s.Runs.Get(j.Run)
	return j, r, l.s.RunEvents(j.Run, 0)
}

// texts are events in the words of the ledger.
func texts(events []job.Event) (out []string) {
	for _, e := range events {
		out = append(out, fmt.Sprintf("%d %s %s: %s", e.Seq, e.Kind, e.Status, e.Message))
	}
	return out
}

// A run begins as queued with its first event, in one entry (RS-033, RS-039, RS-055). Its
// record tells of it what there is to tell (RS-010, RS-027), and no two share a number's
// row: each counts from 1 (RS-057).
func TestRunBegins(t *testing.T) {
	l := newLab(t)
	one, run := l.submitted("first")
	two, _ := l.submitted("second")
	for _, id := range []forgeyard.JobID{one, two} {
		_, r, ev := l.run(id)
		if r.Status != job.Queued || r.Status.Terminal() || r.Created == 0 || r.Started != 0 || r.Ended != 0 || len(ev) != 1 || ev[0].Message != "queued build" || ev[0].Seq != 1 {
			t.Errorf("%+v %v", r, texts(ev))
		}
	}
	_, r, _ := l.run(one)
	if r.ID != run || r.Kind != job.Build || r.Title != "first" || r.Job != one || l.s.Runs.Len() != 2 {
		t.Errorf("%+v of %d", r, l.s.Runs.Len())
	}
	l.must(Cancel{Job: one})
	if _, r, _ := l.run(two); r.LastSeq != 1 || r.Status != job.Queued {
		t.Errorf("another run was cancelled: %+v", r)
	}
}

// RS-060, RS-061, RS-088, CK-418: a queued run is cancelled in one entry, with its terminal event
// last; nobody gets a lease of it afterwards, also with an offer that was made before.
// RS-062: to cancel again changes nothing. RS-092: the next one goes on.
func TestCancelQueued(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	next, _ := l.submitted("b")
	l.must(Cancel{Job: id})
	_, r, ev := l.run(id)
	want := []string{"1 status queued: queued build", "2 status queued: cancellation requested", "3 status cancelled: cancelled by "}
	if r.Status != job.Cancelled || !slices.Equal(texts(ev), want) {
		t.Fatalf("%+v %q", r, texts(ev))
	}
	if err := l.do(Offer{Job: id, Runner: "R1", Session: "one"}).Err(); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("it was offered: %v", err)
	}
	before := l.s
	v, err := Value[Cancelling](l.must(Cancel{Job: id}))
	if err != nil || v.Changed || v.Status != job.Cancelled || !sameButMemory(before, l.s) {
		t.Errorf("%+v %v", v, err)
	}
	l.must(Accept{Authority: l.offer(next, "one")})
}

// ended brings a job to an end.
func (l *lab) ended(status job.Status) (forgeyard.Authority, Run) {
	l.t.Helper()
	a := l.held("one")
	out := map[job.Status]job.Result{
		job.Done: {Outcome: job.OutcomeDone}, job.Failed: {Outcome: job.OutcomeFailed, Category: job.WorkloadFailed, Message: "exit 3"}, job.Cancelled: {Outcome: job.OutcomeCancelled, Message: "asked"},
	}[status]
	if ok, err := l.complete(a, out); !ok {
		l.t.Fatal(err)
	}
	_, r, _ := l.run(a.Job)
	return a, r
}

// RS-035, RS-036, RS-043: each end writes status, words, times, category and event at once.
// RS-041, RS-045, RS-047, RS-093: whatever is asked of a run that has ended, it stays as it
// is, and who wants to start it gets a conflict (exit code 4; CK-414, CK-415). RS-097: neither a repeated
// completion nor a stale one is a second end.
func TestEndStays(t *testing.T) {
	for _, status := range []job.Status{job.Done, job.Failed, job.Cancelled} {
		t.Run(string(status), func(t *testing.T) {
			l := newLab(t)
			a, r := l.ended(status)
			failed := status == job.Failed
			if r.Status != status || r.Ended == 0 || r.Summary == "" || (r.Error == "exit 3") != failed || (r.Category == job.WorkloadFailed) != failed {
				t.Fatalf("%+v", r)
			}
			acts := l.acts(a)
			acts["start again"] = func() (bool, error) {
				err := l.do(Phase{Authority: a, Phase: job.PhaseRunning}).Err()
				return forgeyard.KindOf(err).ExitCode() != 4, err
			}
			acts["offer"] = func() (bool, error) {
				err := l.do(Offer{Job: a.Job, Runner: "R1", Session: "one", Epoch: 1}).Err()
				return forgeyard.KindOf(err).ExitCode() != 4, err
			}
			acts["cancel"] = func() (bool, error) { _ = l.do(Cancel{Job: a.Job, Force: true}); return false, nil }
			acts["fail"] = func() (bool, error) {
				_ = l.do(Fail{Job: a.Job, Epoch: 1, Category: job.Internal, Reason: "so"})
				return false, nil
			}
			acts["expire"] = func() (bool, error) {
				return false, l.do(Expire{Job: a.Job, Lease: a.Lease, Certain: true}).Err()
			}
			acts["resume"] = func() (bool, error) { return false, l.do(Resume{Job: a.Job}).Err() }
			for name, act := range acts {
				taken, err := act()
				if _, now, _ := l.run(a.Job); now != r || (taken && name != "complete as "+string(status)) {
					t.Errorf("%s: taken=%v %v: %+v", name, taken, err, now)
				}
			}
		})
	}
}

// RS-034, RS-040, RS-042: the first to say that it runs moves the run on, with an event and
// where it executes (RS-063, CK-420); to say it again starts nothing.
func TestRunRuns(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	a := l.offer(id, "one")
	l.must(Accept{Authority: a})
	if _, r, _ := l.run(id); r.Status != job.Queued || r.Started != 0 {
		t.Fatalf("before anything executes: %+v", r)
	}
	ref := ExecutionRef{Node: "R1", PID: 77, Birth: 12345}
	l.must(Phase{Authority: a, Phase: job.PhaseRunning, Exec: ref})
	j, r, ev := l.run(id)
	if r.Status != job.Running || r.Started == 0 || r.Exec != ref || ev[len(ev)-1].Status != job.Running {
		t.Fatalf("%+v %v", r, texts(ev))
	}
	if h := j.Lease.Authority; h.Runner != "R1" || h.Session != "one" || h.Attempt == "" || h.Fence.Epoch != 1 {
		t.Errorf("whose process that is: %+v", h)
	}
	before := l.s
	l.must(Phase{Authority: a, Phase: job.PhaseRunning, Exec: ExecutionRef{Node: "R1", PID: 78}})
	if !sameButMemory(before, l.s) {
		t.Errorf("said twice: %+v", r)
	}
}

// RS-064, RS-065, RS-089, CK-114, CK-419: a request to cancel what runs is kept with its time, told by an
// event that ends nothing, and ends nothing. One that presses harder is told again and does
// not move the time. RS-006: it is in a snapshot like all else, so no restart and no new
// leader forgets it. RS-073: the confirmation of the holder is what ends the run; RS-075:
// work that was faster keeps its own end.
func TestCancelOfWhatRuns(t *testing.T) {
	for outcome, want := range map[job.Outcome]job.Status{job.OutcomeCancelled: job.Cancelled, job.OutcomeDone: job.Done} {
		l := newLab(t)
		l.s.Format = FormatNow
		a := l.held("one")
		l.must(Cancel{Job: a.Job})
		j, r, ev := l.run(a.Job)
		first := r.CancelAt
		if e := ev[len(ev)-1]; first == 0 || e.Message != "cancellation requested" || e.Status.Terminal() || r.Status != job.Running || !j.Lease.Live() {
			t.Fatalf("%+v %v", r, texts(ev))
		}
		back, err := DecodeState(l.s.Encode())
		if err != nil {
			t.Fatal(err)
		}
		l.s = back
		l.must(Cancel{Job: a.Job, Force: true})
		if j, r, _ := l.run(a.Job); r.CancelAt != first || j.CancelAt != first || !j.Force || r.Status != job.Running {
			t.Errorf("pressed harder: %+v, requested at %d", r, first)
		}
		if ok, err := l.complete(a, job.Result{Outcome: outcome}); !ok {
			t.Fatal(err)
		}
		if _, r, _ := l.run(a.Job); r.Status != want || r.CancelAt != first {
			t.Errorf("%s gave %+v", outcome, r)
		}
	}
}

// RS-074, RS-100, CK-422: while the holder cannot confirm, the run is not over, however long it
// takes; it is once the fence or the certain deadline has made the old epoch powerless.
func TestCancelUnconfirmed(t *testing.T) {
	l := newLab(t)
	a := l.held("one")
	l.must(Cancel{Job: a.Job})
	l.must(Expire{Job: a.Job, Lease: a.Lease})
	if j, r, _ := l.run(a.Job); r.Status != job.Running || j.Status != job.Unknown || r.CancelAt == 0 {
		t.Fatalf("%s: %+v", j.Status, r)
	}
	l.must(Expire{Job: a.Job, Lease: a.Lease, Certain: true})
	if j, r, _ := l.run(a.Job); r.Status != job.Cancelled || j.Lease.Reason != lease.EndExpired {
		t.Fatalf("%+v", r)
	}
}

// RS-044: a runner may say what it likes; the ledger holds a word of its set. A log of the
// first format keeps what its voters always wrote.
func TestCategoryIsOfTheSet(t *testing.T) {
	for format, want := range map[Format]job.FailureCategory{1: "bad_luck", FormatNow: job.Internal} {
		l := newLab(t)
		l.s.Format = format
		a := l.held("one")
		if ok, err := l.complete(a, job.Result{Outcome: job.OutcomeFailed, Category: "bad_luck", Message: "so"}); !ok {
			t.Fatal(err)
		}
		if _, r, _ := l.run(a.Job); r.Category != want || r.Error != "so" {
			t.Errorf("format %d: %+v", format, r)
		}
	}
}

// RS-030, RS-031, CK-417: work whose spec cannot be read is never queued, so that nobody is tempted
// to guess what it means; nor is a kind that this program does not run (RS-011).
func TestMalformedWorkIsNotQueued(t *testing.T) {
	l := newLab(t)
	for name, b := range map[string]Submit{
		"no spec":      {Kind: job.Build, SpecID: cas.Sum(nil)},
		"no map":       {Kind: job.Build, Spec: []byte("x"), SpecID: cas.Sum([]byte("x"))},
		"another kind": {Kind: "deploy", Spec: submitOf("a").Spec, SpecID: submitOf("a").SpecID},
		"another id":   {Kind: job.Build, Spec: submitOf("a").Spec, SpecID: cas.Sum([]byte("b"))},
	} {
		before := l.s
		if err := l.do(b).Err(); err == nil || !sameButMemory(before, l.s) || l.s.Runs.Len() != 0 {
			t.Errorf("%s: %v, %d runs", name, err, l.s.Runs.Len())
		}
	}
}

// RS-050, RS-053: how far the work is comes as messages, trouble that ends nothing as an
// error; neither moves the status.
func TestMessagesAndErrors(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	a := l.offer(id, "one")
	l.must(Accept{Authority: a})
	l.must(Phase{Authority: a, Phase: job.PhasePreparing})
	_, r, ev := l.run(id)
	if e := ev[len(ev)-1]; e.Kind != job.EventMessage || e.Status != "" || e.Message != "preparing on n1" || r.Status != job.Queued {
		t.Errorf("%+v %v", r, texts(ev))
	}
	var log []job.LogChunk
	for n := range uint64(MaxLogChunks + 3) {
		log = append(log, job.LogChunk{Digest: cas.Sum([]byte("log")), FirstSeq: n + 1, LastSeq: n + 1, Size: 1})
	}
	l.must(Release{Authority: a, Kind: "interrupted", Detail: "so", Log: log})
	_, r, ev = l.run(id)
	errors := slices.DeleteFunc(slices.Clone(ev), func(e job.Event) bool { return e.Kind != job.EventError })
	if len(errors) != 1 || errors[0].Status != "" || r.Status != job.Queued {
		t.Errorf("%+v %v", r, texts(ev))
	}
}

// RS-096: two leaders that offer the same waiting run at the same sight: one is granted.
func TestOneClaim(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	a := l.offer(id, "one")
	if err := l.do(Offer{Job: id, Runner: "R1", Session: "one"}).Err(); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("granted twice: %v", err)
	}
	l.must(Reject{Authority: a, Reason: job.RejectPressure})
	if err := l.do(Offer{Job: id, Runner: "R1", Session: "one"}).Err(); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Errorf("an offer from before the epoch moved: %v", err)
	}
}
