package site

import (
	"fmt"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// saved is a checkpoint of the epoch, the same one each time.
func saved(a forgeyard.Authority, seq int) checkpoint.Commit {
	id := cas.Sum([]byte(fmt.Sprint("checkpoint ", seq)))
	return checkpoint.Commit{Seq: seq, Manifest: id, Payload: id, Marker: id, Attempt: a.Attempt, Epoch: a.Fence.Epoch, Replicas: []forgeyard.RunnerID{"R1"}, Consistency: checkpoint.Application}
}

func (l *lab) goOn(a forgeyard.Authority, seq int) Checkpointed {
	l.t.Helper()
	v, err := Value[Checkpointed](l.must(Checkpoint{Authority: a, Commit: saved(a, seq), Continue: true}))
	if err != nil {
		l.t.Fatal(err)
	}
	return v
}

func (l *lab) job(a forgeyard.Authority) Job { j, _ := l.s.Jobs.Get(a.Job); return j }

// Nobody goes on in place who was asked to end meanwhile: the checkpoint counts, and the
// next epoch is not the holder's.
func TestGoesOnInPlaceOnlyUnasked(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		meanwhile func(*lab, forgeyard.Authority)
		next      bool
		status    job.Status
	}{
		"nothing":              {func(*lab, forgeyard.Authority) {}, true, job.Leased},
		"cancelled":            {func(l *lab, a forgeyard.Authority) { l.must(Cancel{Job: a.Job}) }, false, job.Cancelled},
		"asked to stop":        {func(l *lab, a forgeyard.Authority) { l.must(Stop{Job: a.Job, Kind: "drain", Reason: "asked"}) }, false, job.Queued},
		"the runner drains":    {func(l *lab, _ forgeyard.Authority) { l.must(MemberSet{Runner: "R1", Draining: &yes}) }, false, job.Queued},
		"the runner is no use": {func(l *lab, _ forgeyard.Authority) { l.must(MemberSet{Runner: "R1", Disabled: &yes}) }, false, job.Queued},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a := l.held("one")
			c.meanwhile(l, a)
			v := l.goOn(a, 1)
			if j := l.job(a); (v.Next != nil) != c.next || j.Status != c.status || len(j.Checkpoints) != 1 || (j.Lease.Live() != c.next) {
				t.Errorf("next %v; the job is %s with %d checkpoints, its lease %s", v.Next, j.Status, len(j.Checkpoints), j.Lease.State)
			}
		})
	}
}

// A stop is asked of one lease: one that comes late does not reach the holder that follows.
// Who names none, as before there were names, means whoever holds the job.
func TestStopMeansOneLease(t *testing.T) {
	l := newLab(t)
	l.raise()
	old := l.held("one")
	l.must(Release{Authority: old, Kind: "interrupted", Detail: "gone"})
	now, err := Value[forgeyard.Authority](l.must(Offer{Job: old.Job, Runner: "R1", Session: "one", Epoch: 1}))
	if err != nil {
		t.Fatal(err)
	}
	l.must(Accept{Authority: now})
	if err := l.do(Stop{Job: old.Job, Kind: "authority", Reason: "used up", Lease: old.Lease}).Err(); forgeyard.KindOf(err) != forgeyard.Stale || l.job(old).StopKind != "" {
		t.Errorf("%v: the next holder is asked to stop: %q", err, l.job(old).StopKind)
	}
	l.must(Stop{Job: old.Job, Kind: "authority", Reason: "used up", Lease: now.Lease})
	if l.job(old).StopKind != "authority" {
		t.Error("the holder is not asked")
	}
}

// RA-267: what a runner keeps of failed work is what its spec asks for and nothing else, each
// path once, captured or left out for a reason; and it is of failed work alone.
func TestDiagnosticsAreThoseAskedFor(t *testing.T) {
	id := cas.Sum([]byte("report"))
	asked := []job.DiagnosticDecl{{Path: "report"}, {Path: "core", Sensitive: true}}
	for name, c := range map[string]struct {
		outcome job.Outcome
		all     []job.Diagnostic
		want    Verdict
	}{
		"all":               {job.OutcomeFailed, []job.Diagnostic{{Path: "report", Digest: id}, {Path: "core", Digest: id, Sensitive: true}}, Accepted},
		"left out":          {job.OutcomeFailed, []job.Diagnostic{{Path: "report", LeftOut: "it is not there"}}, Accepted},
		"none":              {job.OutcomeFailed, nil, Accepted},
		"another":           {job.OutcomeFailed, []job.Diagnostic{{Path: "other", Digest: id}}, InvalidRejected},
		"twice":             {job.OutcomeFailed, []job.Diagnostic{{Path: "report", Digest: id}, {Path: "report", Digest: id}}, InvalidRejected},
		"no more sensitive": {job.OutcomeFailed, []job.Diagnostic{{Path: "core", Digest: id}}, InvalidRejected},
		"without a digest":  {job.OutcomeFailed, []job.Diagnostic{{Path: "report"}}, InvalidRejected},
		"both":              {job.OutcomeFailed, []job.Diagnostic{{Path: "report", Digest: id, LeftOut: "why"}}, InvalidRejected},
		"a long why":        {job.OutcomeFailed, []job.Diagnostic{{Path: "report", LeftOut: string(make([]byte, job.MaxLeftOut+1))}}, InvalidRejected},
		"of what is done":   {job.OutcomeDone, []job.Diagnostic{{Path: "report", Digest: id}}, InvalidRejected},
		"of what was ended": {job.OutcomeCancelled, []job.Diagnostic{{Path: "report", Digest: id}}, InvalidRejected},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			a := l.held("one")
			j := l.job(a)
			j.Spec.OnFailure = asked
			l.s.Jobs = l.s.Jobs.Put(j.ID, j)
			v, err := Value[Completed](l.must(Complete{Authority: a, Message: "m", Result: job.Result{Outcome: c.outcome, Category: job.WorkloadFailed, Diagnostics: c.all}}))
			if err != nil || v.Verdict != c.want {
				t.Fatalf("%+v %v", v, err)
			}
			if j := l.job(a); c.want == Accepted && (j.Status != job.Failed || len(j.Result.Diagnostics) != len(c.all) || len(j.Result.Outputs) != 0) {
				t.Errorf("%s: %+v", j.Status, j.Result)
			}
		})
	}
}

// A checkpoint that is committed again, since its answer was lost, is answered with the
// epoch that it opened as long as that is current, and never with an epoch of others.
func TestRepeatedCheckpointOpensNothingNew(t *testing.T) {
	l := newLab(t)
	a := l.held("one")
	first := l.goOn(a, 1)
	again := l.goOn(a, 1)
	if first.Next == nil || first.Duplicate || !again.Duplicate || again.Next == nil || *again.Next != *first.Next {
		t.Fatalf("%+v, then %+v", first, again)
	}
	l.must(Expire{Job: a.Job, Lease: first.Next.Lease})
	if over := l.goOn(a, 1); !over.Duplicate || over.Next != nil {
		t.Errorf("its lease ended, and the answer is %+v", over)
	}

	l = newLab(t)
	a = l.held("one")
	l.must(Checkpoint{Authority: a, Commit: saved(a, 1)})
	l.must(Register{Formats: Formats, Runner: "R1", Session: "two"})
	next := l.offer(a.Job, "two")
	if other := l.goOn(a, 1); !other.Duplicate || other.Next != nil {
		t.Errorf("epoch %d is another process's, and the answer is %+v", next.Fence.Epoch, other)
	}
}

// An expiry says in which state the lease was silent: one that was accepted since the
// offer was counted has its whole length before it.
func TestExpiryOfAnOfferLeavesWhatWasAccepted(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	a := l.offer(id, "one")
	l.must(Accept{Authority: a})
	if err := l.do(Expire{Job: id, Lease: a.Lease, State: lease.Offered}).Err(); forgeyard.KindOf(err) != forgeyard.Stale {
		t.Errorf("%v", err)
	}
	if j := l.job(a); !j.Lease.Live() {
		t.Errorf("its lease is %s", j.Lease.State)
	}
	l.must(Expire{Job: id, Lease: a.Lease, State: lease.Accepted})
}

// A job is failed for want of a runner only while nobody holds it, or may.
func TestFailsOnlyWhatNobodyHolds(t *testing.T) {
	l := newLab(t)
	a := l.held("one")
	fail := Fail{Job: a.Job, Epoch: 1, Category: job.SpecInvalid, Reason: "nowhere"}
	for _, end := range []Body{nil, Expire{Job: a.Job, Lease: a.Lease}} {
		if end != nil {
			l.must(end)
		}
		if err := l.do(fail).Err(); forgeyard.KindOf(err) != forgeyard.Stale || l.job(a).Status.Terminal() {
			t.Errorf("%s: %v", l.job(a).Status, err)
		}
	}
	l.must(Expire{Job: a.Job, Lease: a.Lease, Certain: true})
	l.must(fail)
}

// A completion that cannot be told from another is refused, and no runner's failing lasts
// for ever: after so many retries the job fails with the last reason.
func TestRetriesEnd(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	for n := 0; ; n++ {
		a := l.offer(id, "one")
		l.must(Accept{Authority: a})
		bad := Complete{Authority: a, Result: job.Result{Outcome: job.OutcomeFailed, Category: job.SandboxSetup}}
		if v, err := Value[Completed](l.must(bad)); err != nil || v.Verdict != InvalidRejected {
			t.Fatalf("without a message: %+v %v", v, err)
		}
		bad.Message = forgeyard.MessageID(fmt.Sprint("m", n))
		l.must(bad)
		if j := l.job(a); j.Status.Terminal() {
			if n != maxRetries || j.Status != job.Failed || j.Category != job.SandboxSetup {
				t.Errorf("after %d retries %s, %s", n, j.Status, j.Category)
			}
			return
		}
		if n > maxRetries {
			t.Fatalf("it is tried for the %dth time", n+1)
		}
	}
}

// That the daemon gives a job anew is no interruption: one that asks never to be retried
// runs under the new term, once its old holder has certainly stopped.
func TestGivenAnewIsNoInterruption(t *testing.T) {
	l := newLab(t)
	l.must(UplinkConnect{Central: Central{Peer: "hq"}, Terms: lease.DefaultUplinkTerms()})
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}, Effects: job.EffectsProtected, Interruption: job.Interruption{Retry: "never"}}.Defaulted()
	give := func(seq, term uint64) {
		g := lease.Grant{ID: "G", Term: term, Policy: lease.Policy{Policy: job.OfflineAuthorized, For: time.Hour}}
		l.must(Delegate{From: seq - 1, To: seq, Grants: []Delegation{{Seq: seq, Title: "j", Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical()), Grant: g}}})
	}
	give(1, 1)
	j, _ := l.s.byGrant("G")
	a := l.offer(j.ID, "one")
	l.must(Accept{Authority: a})
	give(2, 2)
	if j := l.job(a); j.Status != job.Unknown {
		t.Fatalf("%s: %s", j.Status, j.Reason)
	}
	l.must(Expire{Job: a.Job, Lease: a.Lease, Certain: true})
	if j := l.job(a); j.Status != job.Queued || j.Interruptions != 0 {
		t.Errorf("%s: %s, charged %d", j.Status, j.Reason, j.Interruptions)
	}
}

// A delegated job begins nothing while its outcome could not be told: the outbox is full.
func TestFullOutboxHoldsBack(t *testing.T) {
	l := newLab(t)
	s := *l.s
	for n := range maxOutbox {
		s.Outbox = s.Outbox.Put(SeqKey(uint64(n+1)), Record{Seq: uint64(n + 1)})
	}
	j := Job{Status: job.Queued, Grant: &lease.Grant{ID: "G", Term: 1}}
	if err := s.Offerable(j, 0); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("%v", err)
	}
}

// A removed runner is granted nothing, whatever session it has.
func TestRemovedRunnerGetsNothing(t *testing.T) {
	l := newLab(t)
	id, _ := l.submitted("a")
	yes := true
	l.must(MemberSet{Runner: "R1", Removed: &yes})
	if err := l.do(Offer{Job: id, Runner: "R1", Session: "one"}).Err(); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("%v", err)
	}
}

// A recovery begins above all indexes that its lost part can have given to tokens.
func TestRecoveryBeginsAboveWhatWasLost(t *testing.T) {
	l := newLab(t)
	b := Recover{Incarnation: 2, Lineage: "2-x", Runner: "R1", Node: "n1", Peer: "p1", From: l.s.Index, Formats: Formats}
	raw := Command{ID: "recover", At: 1, Body: b}.Encode()
	if _, r := l.s.Apply(FirstIndex(2)-1, raw); forgeyard.KindOf(r.Err()) != forgeyard.Invalid {
		t.Errorf("%v", r.Err())
	}
	if _, r := l.s.Apply(FirstIndex(2), raw); r.Err() != nil {
		t.Errorf("%v", r.Err())
	}
}

// What a person held of a device is over with a recovery, and the device is reset before
// anybody gets it: the lost part of the log may have lent it to somebody else.
func TestRecoveryFencesDevices(t *testing.T) {
	l := newLab(t)
	l.must(Register{Formats: Formats, Runner: "R1", Session: "one", Caps: job.Capabilities{Devices: []job.DeviceFact{{ID: "board1", Kind: "board"}, {ID: "board2", Kind: "board"}}}})
	for _, id := range []forgeyard.DeviceID{"board1", "board2"} {
		l.must(DeviceHealth{Device: id, Action: "checked", OK: true})
	}
	l.must(DeviceLease{Device: "board1", Holder: "ana", TTL: int64(time.Minute), Key: "k"})
	b := Recover{Incarnation: 2, Lineage: "2-x", Runner: "R1", Node: "n1", Peer: "p1", From: l.s.Index, Formats: Formats}
	st, r := l.s.Apply(FirstIndex(2), Command{ID: "recover", At: 1, Body: b}.Encode())
	v, err := Value[Recovered](r)
	if err != nil || v.Devices != 1 {
		t.Fatalf("%+v %v", v, err)
	}
	for id, d := range st.Devices.All() {
		if d.Lease != nil || d.Use != devices.Cleaning || d.Last.Token != FirstIndex(2) {
			t.Errorf("%s: %s, %s, lease %v", id, d.Use, d.Health, d.Lease)
		}
	}
}

// A delegation that finds the site full is neither lost nor failed: it waits in its order,
// with all that follow it.
func TestDelegationsWaitForRoom(t *testing.T) {
	l := newLab(t)
	l.raise()
	l.must(UplinkConnect{Central: Central{Peer: "hq"}, Terms: lease.DefaultUplinkTerms()})
	full := *l.s
	for n := range maxOpenJobs - 2 {
		full.Open = full.Open.Put(forgeyard.JobID(fmt.Sprint("other ", n)), 1)
	}
	l.s = &full
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted()
	grant := func(seq uint64) Delegation {
		g := lease.Grant{ID: forgeyard.GrantID(fmt.Sprint("G", seq)), Term: 1, Policy: lease.Policy{Policy: job.Continuous}}
		return Delegation{Seq: seq, Title: "j", Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical()), Grant: g}
	}
	all := Delegate{From: 0, To: 3, Grants: []Delegation{grant(1), grant(2), grant(3)}}
	l.must(all)
	if l.s.Cursor != 2 || l.s.Outbox.Len() != 2 {
		t.Errorf("up to %d, %d records for the daemon", l.s.Cursor, l.s.Outbox.Len())
	}
	if err := l.do(all).Err(); forgeyard.KindOf(err) != forgeyard.Limit || l.s.Cursor != 2 || l.s.Outbox.Len() != 2 {
		t.Errorf("up to %d, %d records for the daemon: %v", l.s.Cursor, l.s.Outbox.Len(), err)
	}
	if err := l.do(Delegate{From: 3, To: 4, Grants: []Delegation{grant(4)}}).Err(); forgeyard.KindOf(err) != forgeyard.Conflict || l.s.Cursor != 2 {
		t.Errorf("what follows is taken in before those that wait: up to %d, %v", l.s.Cursor, err)
	}
	// What is taken back makes room, though its record comes after one that waits.
	back := Delegation{Seq: 4, Cancel: true, Grant: lease.Grant{ID: "G1", Term: 1}}
	all = Delegate{From: 2, To: 4, Grants: []Delegation{grant(3), back}}
	l.must(all)
	if j, _ := l.s.byGrant("G1"); j.Status != job.Cancelled || l.s.Cursor != 2 {
		t.Errorf("G1 is %s, taken in up to %d", j.Status, l.s.Cursor)
	}
	l.must(all)
	if _, ok := l.s.byGrant("G3"); !ok || l.s.Cursor != 4 || l.s.Outbox.Len() != 4 {
		t.Errorf("taken in up to %d, %d records for the daemon", l.s.Cursor, l.s.Outbox.Len())
	}
}

// An ended job is kept beyond the bound of such jobs until the daemon has acknowledged its
// end: given anew under a higher term it would run a second time.
func TestUnheardEndsAreNotForgotten(t *testing.T) {
	l := newLab(t)
	l.raise()
	l.must(UplinkConnect{Central: Central{Peer: "hq"}, Terms: lease.DefaultUplinkTerms()})
	sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}.Defaulted()
	g := lease.Grant{ID: "G1", Term: 1, Policy: lease.Policy{Policy: job.Continuous}}
	given := Delegation{Seq: 1, Title: "j", Spec: sp.Canonical(), SpecID: cas.Sum(sp.Canonical()), Grant: g}
	l.must(Delegate{From: 0, To: 1, Grants: []Delegation{given}})
	var delegated forgeyard.JobID
	for id := range l.s.Jobs.All() {
		delegated = id
	}
	end := func(id forgeyard.JobID) {
		t.Helper()
		l.must(Cancel{Job: id})
		if j, ok := l.s.Jobs.Get(id); ok && !j.Status.Terminal() {
			t.Fatalf("%s is %s", id, j.Status)
		}
	}
	end(delegated)
	full := *l.s
	for n := range maxEnded - 1 {
		full.EndedSeq++
		full.Ended = full.Ended.Put(SeqKey(full.EndedSeq), forgeyard.JobID(fmt.Sprint("other ", n)))
	}
	l.s = &full
	there := func() bool { _, ok := l.s.Jobs.Get(delegated); return ok }
	for n := range l.s.Outbox.Len() { // what waits for the daemon takes no place
		local, _ := l.submitted(fmt.Sprint("local ", n))
		if end(local); l.s.Ended.Len() != maxEnded+n+1 {
			t.Fatalf("%d ended jobs", l.s.Ended.Len())
		}
	}

	local, _ := l.submitted("a")
	end(local)
	if !there() || l.s.Ended.Len() != maxEnded+l.s.Outbox.Len() {
		t.Fatalf("there %v, %d ended jobs", there(), l.s.Ended.Len())
	}
	g.Term = 2
	l.must(Delegate{From: 1, To: 2, Grants: []Delegation{{Seq: 2, Title: "j", Spec: given.Spec, SpecID: given.SpecID, Grant: g}}})
	if l.s.Open.Len() != 0 {
		t.Error("it runs again")
	}
	l.must(OutboxAck{Upto: l.s.Sent - 1}) // all but its end under the new term
	local, _ = l.submitted("b")
	end(local)
	if !there() {
		t.Fatal("forgotten before its last record was acknowledged")
	}
	l.must(OutboxAck{Upto: l.s.Sent})
	local, _ = l.submitted("c")
	end(local)
	if there() || l.s.Ended.Len() != maxEnded {
		t.Errorf("there %v, %d ended jobs: it stays for ever", there(), l.s.Ended.Len())
	}
}

// Where the daemon has heard of none of the ends that fill the bound, what ends next is kept
// with its run all the same, and no job stays that is in no list.
func TestWhatEndsBesideUnheardEndsIsKept(t *testing.T) {
	l := newLab(t)
	l.raise()
	full := *l.s
	for n := range maxEnded {
		j := Job{ID: forgeyard.JobID(fmt.Sprint("unheard ", n)), Status: job.Done, Said: uint64(n + 1)}
		full.EndedSeq++
		full.Ended, full.Jobs = full.Ended.Put(SeqKey(full.EndedSeq), j.ID), full.Jobs.Put(j.ID, j)
	}
	l.s = &full
	for n := range 3 {
		id, _ := l.submitted(fmt.Sprint("local ", n))
		l.must(Cancel{Job: id})
		j, ok := l.s.Jobs.Get(id)
		if _, run := l.s.Runs.Get(j.Run); !ok || !run || j.Status != job.Cancelled {
			t.Errorf("%s: there %v, its run %v", id, ok, run)
		}
		if l.s.Ended.Len() != maxEnded+1 || l.s.Jobs.Len() != l.s.Ended.Len() {
			t.Errorf("%d jobs, %d of them in the list of those that ended", l.s.Jobs.Len(), l.s.Ended.Len())
		}
	}
}

// The deadline of a drain is in the state. Only the word that this one has passed asks for
// the work; one that was replaced or ended by a resume asks for nothing.
func TestDrainDeadlines(t *testing.T) {
	l := newLab(t)
	l.raise()
	a := l.held("one")
	yes, no := true, false
	deadline := func() forgeyard.Wall { m, _ := l.s.Members.Get("R1"); return m.Deadline }
	passed := func(at forgeyard.Wall) string {
		l.must(MemberSet{Runner: "R1", Draining: &yes, Cancel: true, Deadline: at})
		return l.job(a).StopReason
	}
	l.must(MemberSet{Runner: "R1", Draining: &yes, Deadline: 10})
	l.must(MemberSet{Runner: "R1", Draining: &yes, Deadline: 20})
	if got := passed(10); got != "" || deadline() != 20 {
		t.Errorf("a deadline that was replaced: asked for %q, deadline %d", got, deadline())
	}
	l.must(MemberSet{Runner: "R1", Draining: &no})
	if got := passed(20); got != "" || deadline() != 0 {
		t.Errorf("after a resume: asked for %q, deadline %d", got, deadline())
	}
	if m, _ := l.s.Members.Get("R1"); m.Draining {
		t.Error("it drains again")
	}
	l.must(MemberSet{Runner: "R1", Draining: &yes, Deadline: 30})
	if got := passed(30); got != "the deadline of the drain has passed" || deadline() != 0 {
		t.Errorf("asked for %q, deadline %d", got, deadline())
	}
}

// raise moves the lab's log to the newest format.
func (l *lab) raise() {
	l.t.Helper()
	var voters []forgeyard.RunnerID
	for id := range l.s.Members.All() {
		voters = append(voters, id)
	}
	l.must(FormatRaise{To: FormatNow, Voters: voters})
}
