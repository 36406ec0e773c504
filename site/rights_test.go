package site

import (
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// A member that may not vote speaks for itself: it cannot make tokens, lead, or act in
// another's name (§3, decision 29).
func TestRights(t *testing.T) {
	s := &State{}
	s.Members = s.Members.Put("voter", Member{Runner: "voter", MayVote: true}).Put("runner", Member{Runner: "runner"}).Put("gone", Member{Runner: "gone", MayVote: true, Removed: true})
	mine, others := forgeyard.Authority{Runner: "runner"}, forgeyard.Authority{Runner: "voter"}
	yes := true
	for _, c := range []struct {
		who  forgeyard.RunnerID
		body Body
		ok   bool
	}{
		{"runner", Submit{}, true},
		{"runner", Cancel{}, true},
		{"runner", Complete{Authority: mine}, true},
		{"runner", Complete{Authority: others}, false},
		{"runner", Checkpoint{Authority: others}, false},
		{"runner", Register{Runner: "runner"}, true},
		{"runner", Register{Runner: "voter"}, false},
		{"runner", MemberSet{Runner: "runner", Draining: &yes}, true},
		{"runner", MemberSet{Runner: "runner", Removed: &yes}, false},
		{"runner", MemberSet{Runner: "voter", Draining: &yes}, false},
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
