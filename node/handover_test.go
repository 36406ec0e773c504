package node

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

func (p *proc) leads() bool { return p.node.group.IsLeader() }

func (p *proc) drain(name string) {
	p.t.Helper()
	if _, err := p.sites().SetMember(p.t.Context(), connect.NewRequest(&forgeyardv1.SetMemberRequest{Member: name, Action: "drain"})); err != nil {
		p.t.Fatal(err)
	}
}

// A leader that is drained hands over, and not to a voter that drains too; when all drain
// the last one goes on leading, since it would only be handed around.
func TestDrainedLeaderHandsOverToOneThatStays(t *testing.T) {
	all := makeSite(t, 3)
	all[0].wait("three voters and their leader", func() bool { return votersOf(all[0]) == 3 && slices.ContainsFunc(all, (*proc).leads) })
	leader := all[slices.IndexFunc(all, (*proc).leads)]
	rest := slices.DeleteFunc(slices.Clone(all), func(p *proc) bool { return p == leader })
	drained, stays := rest[0], rest[1]
	leader.drain(drained.node.enrolment.Name)
	leader.drain(leader.node.enrolment.Name)
	stays.wait("the one that stays leads", stays.leads)
	term := stays.node.group.Term()
	stays.drain(stays.node.enrolment.Name)
	for _, p := range all {
		p.wait("all drain", func() bool {
			for _, m := range p.node.replica.State().Members.All() {
				if !m.Draining {
					return false
				}
			}
			return true
		})
	}
	if _, err := stays.node.Current(t.Context()); err != nil || !stays.leads() || stays.node.group.Term() != term {
		t.Fatalf("it leads: %v, in term %d, then %d; %v", stays.leads(), term, stays.node.group.Term(), err)
	}
}
