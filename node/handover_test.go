package node

import (
	"bytes"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"sync"
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

// heardLog is what a node logs, to be read while it runs.
type heardLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (h *heardLog) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(b)
}

func (h *heardLog) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// A leader that stops hands over before it is gone, and to the voter that stays: nobody waits
// for its silence.
func TestStoppingLeaderHandsOver(t *testing.T) {
	logs := map[string]*heardLog{"n1": {}, "n2": {}, "n3": {}}
	all := makeSite(t, 3, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(io.MultiWriter(logs[c.Settings.Name], t.Output()), nil))
	})
	all[0].wait("three voters and their leader", func() bool { return votersOf(all[0]) == 3 && slices.ContainsFunc(all, (*proc).leads) })
	leader := all[slices.IndexFunc(all, (*proc).leads)]
	rest := slices.DeleteFunc(slices.Clone(all), func(p *proc) bool { return p == leader })
	drains, stays := rest[0], rest[1]
	leader.drain(drains.node.enrolment.Name)
	leader.wait("the leader sees that the other drains", func() bool {
		m, _ := leader.node.replica.State().Members.Get(drains.node.enrolment.RunnerID)
		return m.Draining
	})
	leader.end()
	name := leader.node.enrolment.Name
	handed := regexp.MustCompile(`msg="leadership handed over".* to=` + stays.node.enrolment.Name + `\n`)
	if said := logs[name].String(); !handed.MatchString(said) {
		t.Errorf("%s stopped and handed over to nobody, or to another than %s:\n%s", name, stays.node.enrolment.Name, said)
	}
	stays.wait("the one that stays leads", stays.leads)
}
