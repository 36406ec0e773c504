package control

import (
	"testing"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

// A removal that would leave the site without a majority is refused: nothing would bring
// it back.
func TestMayRemove(t *testing.T) {
	m := func(id string, voter bool, state string) *forgeyardv1.Member {
		return &forgeyardv1.Member{RunnerId: id, Voter: voter, State: state}
	}
	for name, c := range map[string]struct {
		all []*forgeyardv1.Member
		ok  bool
	}{
		"the only voter":            {[]*forgeyardv1.Member{m("x", true, "alive"), m("b", false, "alive")}, false},
		"one of three, all there":   {[]*forgeyardv1.Member{m("x", true, "alive"), m("b", true, "alive"), m("c", true, "alive")}, true},
		"one of three, one is dead": {[]*forgeyardv1.Member{m("x", true, "alive"), m("b", true, "alive"), m("c", true, "dead")}, false},
		"the dead one of three":     {[]*forgeyardv1.Member{m("x", true, "dead"), m("b", true, "alive"), m("c", true, "alive")}, true},
		"a non-voter":               {[]*forgeyardv1.Member{m("x", false, "alive"), m("b", true, "alive")}, true},
	} {
		if err := mayRemove("remove", c.all, "x"); (err == nil) != c.ok || (err != nil && forgeyard.KindOf(err) != forgeyard.Conflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
