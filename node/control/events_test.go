package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// told is a site of two runners and what is decided there about one job.
type told struct {
	t *testing.T
	s *site.State
	j forgeyard.JobID
}

func newTold(t *testing.T, shape func(*job.Spec)) *told {
	w := &told{t: t, s: &site.State{}}
	w.must(site.Init{Site: "01HF000000000000000000000S", Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: "p1"})
	hash := [32]byte{1}
	w.must(site.TokenCreate{Token: "01HF000000000000000000000T", Hash: hash, Expires: 1_900_000_000_000, Uses: 1})
	w.must(site.Join{Token: "01HF000000000000000000000T", Hash: hash, Peer: "p2", Name: "n2"})
	w.must(site.Register{Runner: "R1", Session: "one", Formats: site.Formats})
	w.must(site.Register{Runner: w.runner(), Session: "two", Formats: site.Formats})
	w.must(site.FormatRaise{To: site.Formats.Max, Voters: []forgeyard.RunnerID{"R1"}})
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}
	if shape != nil {
		shape(&sp)
	}
	sp = sp.Defaulted()
	sub, err := site.Value[site.Submitted](w.must(site.Submit{Kind: job.Build, Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical())}))
	if err != nil {
		t.Fatal(err)
	}
	w.j = sub.Job
	return w
}

// runner is n2, which the log named.
func (w *told) runner() forgeyard.RunnerID {
	for id, m := range w.s.Members.All() {
		if m.Name == "n2" {
			return id
		}
	}
	w.t.Fatal("n2 is no member")
	return ""
}

func (w *told) must(b site.Body) site.Reply {
	w.t.Helper()
	at := w.s.Index + 1
	next, r := w.s.Apply(at, site.Command{ID: forgeyard.MessageID(fmt.Sprint("r", at)), At: forgeyard.Wall(1_800_000_000_000 + int64(at)), By: "ana", Body: b}.Encode())
	if r.Err() != nil {
		w.t.Fatalf("%T: %v", b, r.Err())
	}
	w.s = next
	return r
}

func (w *told) job() site.Job { j, _ := w.s.Jobs.Get(w.j); return j }

func (w *told) offer() forgeyard.Authority {
	w.t.Helper()
	w.must(site.Offer{Job: w.j, Runner: w.runner(), Session: "two", Epoch: w.job().Epoch})
	return w.job().Lease.Authority
}

func (w *told) runs() forgeyard.Authority {
	w.t.Helper()
	a := w.offer()
	w.must(site.Accept{Authority: a})
	w.must(site.Phase{Authority: a, Phase: job.PhaseRunning})
	return a
}

func (w *told) shown() *forgeyardv1.Job { return Job(w.s, w.job(), 0, true) }

// says reports whether one line of the job's events is of the kind and has all the parts.
func says(v *forgeyardv1.Job, kind string, parts ...string) bool {
	for _, e := range v.Events {
		has := e.Kind == kind && e.At != nil
		for _, p := range parts {
			has = has && strings.Contains(e.Text, p)
		}
		if has {
			return true
		}
	}
	return false
}

func lines(v *forgeyardv1.Job) string {
	var b strings.Builder
	for _, e := range v.Events {
		fmt.Fprintf(&b, "%d %s %s\n", e.Seq, e.Kind, e.Text)
	}
	return b.String()
}

// RA-484: an offer that a runner refuses is told with the reason and what it is about, for
// each reason there is, and so is who is left out because of it.
func TestJobShowsWhyAnOfferWasRejected(t *testing.T) {
	for _, why := range []job.RejectReason{
		job.RejectDraining, job.RejectPressure, job.RejectCapabilityChanged, job.RejectDisk, job.RejectUnsupportedSpec, job.RejectLocalPolicy, job.RejectPreparation,
	} {
		w := newTold(t, nil)
		w.must(site.Reject{Authority: w.offer(), Reason: why, Detail: "about this"})
		v := w.shown()
		if !says(v, "lease", "epoch 1 rejected on n2", string(why), "about this") || !says(v, "status", "waiting: n2 rejected it: "+string(why)) {
			t.Errorf("%s:\n%s", why, lines(v))
		}
		if e := v.Epochs[0]; e.Reason != "rejected" || e.Detail != string(why)+": about this" || v.Status != string(job.Queued) {
			t.Errorf("%s: %v", why, e)
		}
	}
}

// Every other decision about a lease is shown with its reason too, by `job show` and by the
// lease events of the site.
func TestJobShowsEveryDecision(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		shape  func(*job.Spec)
		decide func(w *told)
		reason string   // of the epoch; empty: it goes on
		text   []string // of one lease event
		after  func(v *forgeyardv1.Job) bool
	}{
		"offered": {nil, func(w *told) { w.offer() }, "", []string{"offered to n2: policy"}, nil},
		"accepted": {nil, func(w *told) { w.runs() }, "", []string{"accepted by n2"}, func(v *forgeyardv1.Job) bool {
			return says(v, "status", "epoch 1 runs on n2")
		}},
		"not answered": {nil, func(w *told) {
			w.must(site.Expire{Job: w.j, Lease: w.offer().Lease})
		}, "expired", []string{"the offer was not answered"}, nil},
		"unknown": {func(s *job.Spec) { s.Effects = job.EffectsProtected }, func(w *told) {
			w.must(site.Expire{Job: w.j, Lease: w.runs().Lease})
		}, "expired", []string{"expired on n2: n2 fell silent"}, func(v *forgeyardv1.Job) bool {
			return v.Status == string(job.Unknown) && v.Reason == "n2 fell silent" && says(v, "status", "unknown: n2 fell silent")
		}},
		"released": {nil, func(w *told) {
			w.must(site.Release{Authority: w.runs(), Kind: "drain", Detail: "the node stops"})
		}, "released", []string{"released on n2: the node stops"}, nil},
		"revoked": {nil, func(w *told) {
			w.must(site.Revoke{Job: w.j, Lease: w.runs().Lease, Class: site.RevokedByOperator, Reason: "the bench is needed"})
		}, "revoked", []string{"revoked on n2", "by operator ana: the bench is needed"}, nil},
		"superseded": {nil, func(w *told) {
			w.runs()
			w.must(site.Register{Runner: w.runner(), Session: "three", Formats: site.Formats})
		}, "superseded", []string{"superseded on n2: its process restarted"}, nil},
		"disabled": {nil, func(w *told) {
			w.runs()
			w.must(site.MemberSet{Runner: w.runner(), Disabled: &yes})
		}, "", []string{"asked back from n2: the runner was disabled by ana"}, func(v *forgeyardv1.Job) bool {
			return v.AskedBack == "the runner was disabled by ana"
		}},
		"disabled, and it did not follow": {nil, func(w *told) {
			a := w.runs()
			w.must(site.MemberSet{Runner: w.runner(), Disabled: &yes})
			w.must(site.Revoke{Job: w.j, Lease: a.Lease, Class: site.RevokedDisabled, Reason: "not given back"})
		}, "revoked", []string{"by disabled: not given back"}, func(v *forgeyardv1.Job) bool { return v.AskedBack == "" }},
		"drained": {nil, func(w *told) {
			w.runs()
			w.must(site.MemberSet{Runner: w.runner(), Draining: &yes, Cancel: true})
		}, "", []string{"asked back from n2: the runner drains"}, func(v *forgeyardv1.Job) bool {
			return v.AskedBack == "the runner drains"
		}},
		"asked to stop": {nil, func(w *told) {
			w.runs()
			w.must(site.Stop{Job: w.j, Kind: "authority", Reason: "the central daemon's authority ends in 9s"})
		}, "", []string{"asked back from n2: the central daemon's authority ends in 9s"}, nil},
		"stopped by its own word": {func(s *job.Spec) { s.Effects = job.EffectsProtected }, func(w *told) {
			a := w.runs()
			w.must(site.Expire{Job: w.j, Lease: a.Lease})
			w.must(site.Stopped{Authority: a})
		}, "expired", []string{"stopped on n2, by its own word"}, nil},
		"cancelled": {nil, func(w *told) {
			w.runs()
			w.must(site.Cancel{Job: w.j})
		}, "", []string{"accepted by n2"}, func(v *forgeyardv1.Job) bool {
			return says(v, "status", "cancellation requested") && v.CancelPending == "n2 has not confirmed yet that it has stopped"
		}},
		"completed": {nil, func(w *told) {
			w.must(site.Complete{Authority: w.runs(), Message: "m", Result: job.Result{Outcome: job.OutcomeDone}})
		}, "completed", []string{"completed on n2: done"}, nil},
		"late": {nil, func(w *told) {
			a := w.runs()
			w.must(site.Release{Authority: a, Kind: "drain", Detail: "the node stops"})
			w.runs()
			w.must(site.Complete{Authority: a, Message: "m", Result: job.Result{Outcome: job.OutcomeDone}})
		}, "", []string{"epoch 2 accepted"}, func(v *forgeyardv1.Job) bool {
			return len(v.Late) == 1 && v.Late[0].Verdict == string(site.StaleRejected) && strings.Contains(v.Late[0].Why, "fence is 1.0.1, the current one is 1.0.2")
		}},
	} {
		w := newTold(t, c.shape)
		c.decide(w)
		v := w.shown()
		if !says(v, "lease", c.text...) {
			t.Errorf("%s: no lease event says %q:\n%s", name, c.text, lines(v))
		}
		if got := v.Epochs[len(v.Epochs)-1].Reason; got != c.reason {
			t.Errorf("%s: the epoch ended by %q, not %q", name, got, c.reason)
		}
		if c.after != nil && !c.after(v) {
			t.Errorf("%s: %v\n%s", name, v, lines(v))
		}
		ofSite := false
		for _, e := range w.s.SiteEvents(0) {
			ofSite = ofSite || e.Kind == site.KindLease && strings.HasPrefix(e.Text, string(w.j)) && strings.Contains(e.Text, c.text[0])
		}
		if !ofSite {
			t.Errorf("%s: the site's lease events do not have it", name)
		}
	}
}

// RA-484: the phase of a job that has ended is how its last attempt ended, not what that did
// when it was last heard, and a job that waits has none.
func TestPhaseOfWhatEnded(t *testing.T) {
	for name, c := range map[string]struct {
		decide func(w *told)
		status job.Status
		want   job.Phase
	}{
		"waits":       {func(*told) {}, job.Queued, ""},
		"offered":     {func(w *told) { w.offer() }, job.Leased, job.PhaseOffered},
		"runs":        {func(w *told) { w.runs() }, job.Running, job.PhaseRunning},
		"unknown":     {func(w *told) { w.must(site.Expire{Job: w.j, Lease: w.runs().Lease}) }, job.Unknown, job.PhaseUnknown},
		"waits again": {func(w *told) { w.must(site.Release{Authority: w.runs(), Kind: "drain"}) }, job.Queued, ""},
		"never held":  {func(w *told) { w.must(site.Cancel{Job: w.j}) }, job.Cancelled, ""},
		"completed": {func(w *told) {
			w.must(site.Complete{Authority: w.runs(), Message: "m", Result: job.Result{Outcome: job.OutcomeDone}})
		}, job.Done, job.PhaseCompleted},
		"refused last": {func(w *told) {
			w.must(site.Reject{Authority: w.offer(), Reason: job.RejectDisk})
			w.must(site.Cancel{Job: w.j})
		}, job.Cancelled, job.PhaseRejected},
		"cancelled, and its holder went away": {func(w *told) {
			a := w.runs()
			w.must(site.Cancel{Job: w.j})
			w.must(site.Expire{Job: w.j, Lease: a.Lease, Certain: true})
		}, job.Cancelled, job.PhaseLost},
		"out of its budget": {func(w *told) {
			for range 7 {
				if !w.job().Status.Terminal() {
					w.must(site.Stopped{Authority: w.runs()})
				}
			}
		}, job.Failed, job.PhaseLost},
	} {
		w := newTold(t, nil)
		c.decide(w)
		if v := Job(w.s, w.job(), 0, false); v.Phase != string(c.want) || v.Status != string(c.status) {
			t.Errorf("%s: %s, phase %q and not %q", name, v.Status, v.Phase, c.want)
		}
	}
}

// The list is bounded, keeps the newest, has both kinds in their order, and nothing of
// another job.
func TestJobEventsAreTheLast(t *testing.T) {
	w := newTold(t, nil)
	for range shownEvents {
		a := w.runs()
		w.must(site.Release{Authority: a, Kind: "drain", Detail: "again"})
	}
	v := w.shown()
	if len(v.Events) != shownEvents || v.Events[shownEvents-1].Text != "waiting: again" || v.Events[shownEvents-1].Seq != w.run().LastSeq {
		t.Fatalf("%d events:\n%s", len(v.Events), lines(v))
	}
	seq, both := uint64(0), map[string]bool{}
	for n, e := range v.Events {
		both[e.Kind] = true
		if n > 0 && e.At.AsTime().Before(v.Events[n-1].At.AsTime()) {
			t.Errorf("event %d is older than the one before:\n%s", n, lines(v))
		}
		if e.Seq != 0 && seq != 0 && e.Seq != seq+1 {
			t.Errorf("after %d comes %d", seq, e.Seq)
		}
		seq = max(seq, e.Seq)
	}
	if !both["lease"] || !both["status"] {
		t.Errorf("kinds %v", both)
	}
	if short := Job(w.s, w.job(), 0, false); len(short.Events) != 0 {
		t.Errorf("a list of jobs carries %d events each", len(short.Events))
	}
	sp := job.Spec{Title: "other", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted()
	sub, err := site.Value[site.Submitted](w.must(site.Submit{Kind: job.Build, Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical())}))
	if err != nil {
		t.Fatal(err)
	}
	other, _ := w.s.Jobs.Get(sub.Job)
	if v := Job(w.s, other, 0, true); len(v.Events) != 1 || v.Events[0].Text != "queued build" || v.Events[0].Seq != 1 {
		t.Errorf("a new job has:\n%s", lines(v))
	}
}

func (w *told) run() site.Run { r, _ := w.s.Runs.Get(w.job().Run); return r }

// Submitted, offered and ended may all be of one millisecond.
func TestEventsOfOneMoment(t *testing.T) {
	lease := site.SiteEvent{At: 5}
	for want, all := range map[bool][]job.Event{
		true:  {{At: 5, Seq: 2, Kind: job.EventStatus}, {At: 5, Seq: 3, Kind: job.EventMessage}, {At: 6, Seq: 1, Kind: job.EventStatus}, {At: 6, Seq: 9, Kind: job.EventTool}},
		false: {{At: 5, Seq: 1, Kind: job.EventStatus}, {At: 5, Seq: 9, Kind: job.EventTool}, {At: 5, Seq: 9, Kind: job.EventOutput}, {At: 4, Seq: 2, Kind: job.EventStatus}},
	} {
		for _, e := range all {
			if leaseFirst(lease, e) != want {
				t.Errorf("%+v: %v", e, !want)
			}
		}
	}
}

// E30: where a result is on its way is shown beside what it says, and changes nothing of that: a
// job that passed has passed while its outputs or the word of it are still pending.
func TestDeliveryOfAResult(t *testing.T) {
	ends := func(r job.Result) func(w *told) {
		return func(w *told) { w.must(site.Complete{Authority: w.runs(), Message: "m", Result: r}) }
	}
	passed := job.Result{Outcome: job.OutcomeDone}
	delegated := func(w *told, queued bool) {
		ends(passed)(w)
		j := w.job()
		j.Grant = &lease.Grant{ID: "G"}
		w.s.Jobs, w.s.Uplink.State = w.s.Jobs.Put(j.ID, j), lease.Offline
		if queued {
			w.s.Outbox = w.s.Outbox.Put(site.SeqKey(1), site.Record{Seq: 1, Kind: site.RecordOutcome, Grant: "G"})
		}
	}
	for name, c := range map[string]struct {
		decide func(w *told)
		status job.Status
		want   string
	}{
		"runs":                  {func(w *told) { w.runs() }, job.Running, ""},
		"steps done, uploading": {func(w *told) { w.must(site.Phase{Authority: w.runs(), Phase: job.PhaseUploading}) }, job.Running, "uploading"},
		"copied as asked":       {ends(passed), job.Done, "here"},
		"too few copies":        {ends(job.Result{Outcome: job.OutcomeDone, Short: true}), job.Done, "short"},
		"cut off":               {func(w *told) { delegated(w, true) }, job.Done, "pending"},
		"the central one knows": {func(w *told) { delegated(w, false) }, job.Done, "acknowledged"},
	} {
		w := newTold(t, nil)
		c.decide(w)
		if v := Job(w.s, w.job(), 0, false); v.Delivery != c.want || v.Status != string(c.status) {
			t.Errorf("%s: %s, delivery %q and not %q", name, v.Status, v.Delivery, c.want)
		}
	}
}

// What is left of a grant is counted from the silence that the leader counts, as in the status
// of the site, and not from the figure that the log had last: that one promises too much. It
// never promises more than the log did, and nothing is left of what has ended.
func TestLeftOfAGrant(t *testing.T) {
	w := newTold(t, nil)
	w.runs()
	j := w.job()
	j.Grant = &lease.Grant{ID: "G", Term: 1, Policy: lease.Policy{Policy: job.OfflineAuthorized, For: time.Minute}}
	w.s.Jobs = w.s.Jobs.Put(j.ID, j)
	w.s.Uplink = lease.Uplink{State: lease.Offline, Used: 20 * time.Second, Terms: lease.UplinkTerms{SilentAfter: time.Second, Grace: time.Second, Allowance: time.Hour}}
	for used, want := range map[time.Duration]time.Duration{
		24 * time.Second: 36 * time.Second, 20 * time.Second: 40 * time.Second, 0: 40 * time.Second, time.Hour: 0,
	} {
		if v := Job(w.s, w.job(), used, false); v.AuthorityLeft.AsDuration() != want {
			t.Errorf("after %s of silence %s is left, and not %s", used, v.AuthorityLeft.AsDuration(), want)
		}
	}
	j.Status = job.Done
	if v := Job(w.s, j, 0, false); v.AuthorityLeft.AsDuration() != 0 {
		t.Errorf("%s is left of what has ended", v.AuthorityLeft.AsDuration())
	}
}
