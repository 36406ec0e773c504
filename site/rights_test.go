package site

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// A member that may not vote speaks for itself: it cannot make tokens, lead, or act in
// another's name (§3, decision 29). So a runner decides nothing about the state of jobs
// (RA-001, RA-040, RA-547, CK-397) and gives work to nobody (RA-548): it says what it did, in its own
// name. Nor does it give itself, or a node that it lets in, a right that it has not (RA-567),
// and what its labels say gives it none (RA-356).
func TestRights(t *testing.T) {
	boasts := map[string]string{"role": "voter", "trust": "signing", "admin": "true"}
	s := &State{}
	s.Members = s.Members.Put("voter", Member{Runner: "voter", MayVote: true}).Put("runner", Member{Runner: "runner", Labels: boasts, Caps: job.Capabilities{Labels: boasts}}).Put("gone", Member{Runner: "gone", MayVote: true, Removed: true})
	s.Jobs = s.Jobs.Put("plain", Job{ID: "plain"}).Put("deploys", Job{ID: "deploys", Spec: job.Spec{Effects: job.EffectsProtected}})
	mine, others := forgeyard.Authority{Runner: "runner"}, forgeyard.Authority{Runner: "voter"}
	yes := true
	for _, c := range []struct {
		who  forgeyard.RunnerID
		body Body
		ok   bool
	}{
		{"runner", Submit{}, true},
		// CK-234, CK-235: job.cancel is a member's; job.force_cancel too, but of a job with protected
		// effects, and a security stop, which withdraws what was saved, a voter's.
		{"runner", Cancel{}, true},
		{"runner", Cancel{Job: "deploys"}, true},
		{"runner", Cancel{Job: "plain", Force: true}, true},
		{"runner", Cancel{Job: "gone", Force: true}, true}, // answered by Apply, which knows no such job
		{"runner", Cancel{Job: "deploys", Force: true}, false},
		{"runner", Cancel{Job: "plain", Reason: job.CancelSecurity}, false},
		{"voter", Cancel{Job: "deploys", Force: true}, true},
		{"voter", Cancel{Job: "plain", Reason: job.CancelSecurity}, true},
		{"runner", Complete{Authority: mine}, true},
		{"runner", Complete{Authority: others}, false},
		{"runner", Checkpoint{Authority: others}, false},
		// CK-188 189 190 191 239: checkpoint.read is a member's, whose state has them all;
		// checkpoint.create is the holder's, under its fence; checkpoint.resume is whose the work
		// is; checkpoint.forensic, and to withdraw what others trust, is a voter's.
		{"runner", Checkpoint{Authority: mine}, true},
		{"runner", Resume{}, true},
		{"runner", CheckpointLetGo{}, true},
		{"runner", CheckpointOpen{}, false},
		{"runner", CheckpointRevoke{}, false},
		{"runner", CheckpointsAged{}, false},
		{"runner", Restored{Authority: mine}, true},
		{"runner", Restored{Authority: others}, false},
		{"voter", CheckpointOpen{}, true},
		{"voter", CheckpointRevoke{}, true},
		{"runner", Register{Runner: "runner"}, true},
		{"runner", Register{Runner: "voter"}, false},
		{"runner", MemberSet{Runner: "runner", Draining: &yes}, true},
		{"runner", MemberSet{Runner: "runner", Removed: &yes}, false},
		{"runner", MemberSet{Runner: "voter", Draining: &yes}, false},
		// RA-357: nobody but a member that may vote says what a runner is, least of all itself.
		{"runner", MemberSet{Runner: "runner", Assign: &job.Assign{Pool: "release"}}, false},
		{"runner", MemberSet{Runner: "runner", Draining: &yes, Assign: &job.Assign{NoPool: true}}, false},
		{"voter", MemberSet{Runner: "runner", Assign: &job.Assign{Pool: "release"}}, true},
		{"runner", TokenCreate{MayVote: true}, false},
		{"runner", Join{}, false},
		{"runner", Offer{}, false},
		{"runner", Expire{}, false},
		{"runner", ConfigSet{}, false},
		{"runner", UplinkConnect{}, false},
		{"runner", OutboxAck{}, false},
		{"runner", DeviceReset{Host: "voter"}, false},
		{"voter", TokenCreate{}, true},
		{"voter", Complete{Authority: mine}, true}, // passed on for a node that is not in the group yet
		{"gone", Submit{}, false},
		{"nobody", Offer{}, false},
		{"nobody", Register{Runner: "nobody"}, true}, // answered by Apply, which knows no such member
	} {
		if err := s.Admits(c.who, c.body); (err == nil) != c.ok || (err != nil && forgeyard.KindOf(err) != forgeyard.Denied) {
			t.Errorf("%s proposes %T: %v, want allowed=%v", c.who, c.body, err, c.ok)
		}
	}
}

// A member that waits for approval speaks for itself alone, whatever its token said: it gives
// the site no work, and lets nobody in, itself included. Neither does a runner approve anybody.
func TestWaitingMemberHasNoSay(t *testing.T) {
	s := &State{}
	s.Members = s.Members.Put("guest", Member{Runner: "guest", MayVote: true, Waiting: true}).Put("runner", Member{Runner: "runner"}).Put("voter", Member{Runner: "voter", MayVote: true})
	yes := true
	for _, c := range []struct {
		who  forgeyard.RunnerID
		body Body
		want forgeyard.Kind
	}{
		{"guest", Register{Runner: "guest"}, forgeyard.Other},
		{"guest", MemberSet{Runner: "guest", Draining: &yes}, forgeyard.Other},
		{"guest", MemberSet{Runner: "guest", Approved: true}, forgeyard.Conflict},
		{"guest", TokenCreate{MayVote: true}, forgeyard.Conflict},
		{"guest", Submit{}, forgeyard.Conflict},
		{"guest", Cancel{}, forgeyard.Conflict},
		{"guest", DeviceLease{}, forgeyard.Conflict},
		{"guest", Complete{Authority: forgeyard.Authority{Runner: "runner"}}, forgeyard.Conflict},
		{"runner", MemberSet{Runner: "guest", Approved: true}, forgeyard.Denied},
		{"runner", MemberSet{Runner: "runner", Approved: true}, forgeyard.Denied},
		{"voter", MemberSet{Runner: "guest", Approved: true}, forgeyard.Other},
	} {
		err := s.Admits(c.who, c.body)
		if (c.want == forgeyard.Other) != (err == nil) || err != nil && forgeyard.KindOf(err) != c.want {
			t.Errorf("%s proposes %T: %v, want %v", c.who, c.body, err, c.want)
		}
	}
}

// Every command with an authority is known as one, whichever kind comes next: the checkers
// of stale authority and the right to speak for oneself stand on it.
func TestAuthorityOf(t *testing.T) {
	want := forgeyard.Authority{Job: "J", Runner: "runner"}
	found := 0
	for _, k := range slices.Sorted(maps.Keys(decoders)) { // numbers are given out in ranges: there are gaps
		zero, err := decodeBody(k, []byte{0xa0})
		if err != nil {
			t.Fatalf("kind %d: %v", k, err)
		}
		p := reflect.New(reflect.TypeOf(zero)).Elem()
		f := p.FieldByName("Authority")
		if f.IsValid() {
			f.Set(reflect.ValueOf(want))
			found++
		}
		b := p.Interface().(Body)
		if a, ok := AuthorityOf(b); ok != f.IsValid() || ok && a != want {
			t.Errorf("%T: %v %v", b, a, ok)
		}
		if right, of := (&State{}).RightOf(b); f.IsValid() && (right != Itself || of != "runner") {
			t.Errorf("%T may be proposed by %v of %q", b, right, of)
		}
	}
	if found < 7 {
		t.Fatalf("%d kinds of command carry an authority", found)
	}
}
