package reckon

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// A batch is bounded in bytes and in records, one record always goes, and a gap in the
// outbox is told and not sent (E01, E13).
func TestCollect(t *testing.T) {
	s := &site.State{Sent: 5, Acked: 1}
	for n := uint64(2); n <= 5; n++ {
		s.Outbox = s.Outbox.Put(site.SeqKey(n), site.Record{Seq: n, Kind: site.RecordOutcome, Grant: "g"})
	}
	for limit, want := range map[int]string{1: "1 true", 1 << 20: "4 false"} {
		out, err := Collect(s, limit)
		if got := fmt.Sprint(len(out.Records), out.More); err != nil || got != want || len(out.Bytes) != len(out.Records) {
			t.Errorf("limit %d: %s %v, want %s", limit, got, err, want)
		}
	}
	s.Outbox = s.Outbox.Delete(site.SeqKey(3))
	if _, err := Collect(s, 1<<20); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("a gap: %v", err)
	}
}

// What was taken back is cancelled before the contact counts, and the contact enters
// before the acknowledgement (E15).
func TestAnswerOrder(t *testing.T) {
	g := &lease.Grant{ID: "G1", Term: 1}
	s := &site.State{Sent: 3, Uplink: lease.Uplink{State: lease.InGrace}}
	for id, j := range map[forgeyard.JobID]site.Job{"a": {ID: "a", Grant: g}, "b": {ID: "b", Grant: g, CancelAt: 1}, "c": {ID: "c"}} {
		s.Jobs, s.Open = s.Jobs.Put(id, j), s.Open.Put(id, 1)
	}
	a := Answer{Acked: 2, Terms: testTerms, Cancelled: []forgeyard.GrantID{"G1", "G9"}}
	if err := a.Check(s); err != nil {
		t.Fatal(err)
	}
	if got := a.Cancels(s); len(got) != 1 || got[0] != "a" {
		t.Errorf("cancels %v", got)
	}
	follows := a.Follows(s, time.Second)
	if len(follows) != 2 {
		t.Fatalf("%+v", follows)
	}
	if o, ok := follows[0].(site.UplinkObserve); !ok || !o.Contact || o.Used != int64(time.Second) {
		t.Errorf("%+v", follows[0])
	}
	if o, ok := follows[1].(site.OutboxAck); !ok || o.Upto != 2 {
		t.Errorf("%+v", follows[1])
	}
	a.Acked = 4
	if err := a.Check(s); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("more acknowledged than sent: %v", err)
	}
}

// Inputs are brought before their delegation is proposed, in the daemon's order, and
// not for what was taken back.
func TestIntake(t *testing.T) {
	spec := func(inputs bool) []byte {
		sp := job.Spec{Title: "j", Steps: []job.Step{{Name: "s", Run: []string{"true"}}}}
		if inputs {
			sp.Inputs = []job.Input{{Path: "source/in", Digest: forgeyard.Digest{1}, Size: 1}}
		}
		return sp.Defaulted().Canonical()
	}
	ds := []site.Delegation{
		{Seq: 1, Grant: lease.Grant{ID: "old"}}, {Seq: 2, Grant: lease.Grant{ID: "A"}, Spec: spec(false)},
		{Seq: 3, Grant: lease.Grant{ID: "B"}, Spec: spec(true)}, {Seq: 4, Grant: lease.Grant{ID: "C"}, Spec: spec(true)}, {Seq: 5, Grant: lease.Grant{ID: "C"}, Cancel: true},
	}
	got := ""
	for _, st := range Intake(1, ds, Gone(nil, ds)) {
		if st.Bring != nil {
			got += "bring " + string(st.Bring.Grant.ID) + "; "
			continue
		}
		got += fmt.Sprint("after ", st.From, ": ")
		for _, d := range st.Propose {
			got += fmt.Sprint(d.Seq, " ")
		}
		got += "; "
	}
	if want := "after 1: 2 ; bring B; after 2: 3 4 5 ; "; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := CheckDelegations(2, ds[1:]); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("out of order: %v", err)
	}
}

// What stands still is said of delegated work only, in a bounded list.
func TestStandStill(t *testing.T) {
	s := &site.State{}
	put := func(id forgeyard.JobID, g forgeyard.GrantID, st job.Status) {
		j := site.Job{ID: id, Status: st, Reason: strings.Repeat("r", 2*MaxStillText)}
		if g != "" {
			j.Grant = &lease.Grant{ID: g, Term: 1}
		}
		s.Jobs, s.Open = s.Jobs.Put(id, j), s.Open.Put(id, 1)
	}
	put("a", "Ga", job.Unknown)
	put("b", "Gb", job.Running)
	put("c", "", job.Unknown)
	put("d", "Gd", job.Suspended)
	put("e", "Ge", job.Queued)
	got := StandStill(s)
	if len(got) != 2 || got[0].Grant != "Ga" || got[0].Status != job.Unknown || got[1].Grant != "Gd" || len(got[0].Reason) > MaxStillText+len("…") {
		t.Errorf("%+v", got)
	}
	for i := range 2 * MaxStill {
		put(forgeyard.JobID(fmt.Sprint("z", i)), forgeyard.GrantID(fmt.Sprint(i)), job.Suspended)
	}
	if n := len(StandStill(s)); n != MaxStill {
		t.Errorf("%d are named, the bound is %d", n, MaxStill)
	}
}
