package node

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/site"
)

// A voter of an incarnation that was given up comes back and says that it leads, hands on
// proposals and heartbeats: members of the other incarnation take none of it, whoever is
// asked first (E31). They go on taking what an older program says, which names no lineage.
func TestStrangersWordIsNotTaken(t *testing.T) {
	all := makeSite(t, 2)
	all[0].wait("a leader", func() bool { return slices.ContainsFunc(all, (*proc).leads) && all[1].node.replica.State().Index > 0 })
	led, other := all[0], all[1] // the one is asked, the other asks
	was := led.node.hint.Load()
	for _, c := range []struct {
		lineage string
		ok      bool
	}{
		{"2-01JD0000000000000000000001", false},
		{firstLineage, true},
		{"", true},
	} {
		client := forgeyardv1connect.NewPeerServiceClient(other.node.peers.client, "http://"+led.node.mesh.PeerID().String(), connect.WithInterceptors(wire.Interceptor{}), connect.WithGRPC())
		calls := map[string]func() error{
			"leading": func() error {
				_, err := client.Leading(t.Context(), withLineage(c.lineage, &forgeyardv1.LeadingRequest{Term: 1 << 40}))
				return err
			},
			"propose": func() error {
				cmd := site.Command{ID: forgeyard.MessageID(led.node.NewID()), By: "test", Body: site.Cancel{Job: "no job"}}
				_, err := client.Propose(t.Context(), withLineage(c.lineage, &forgeyardv1.ProposeRequest{Command: cmd.Encode()}))
				return err
			},
			"renew": func() error {
				e := other.node.enrolment
				_, err := client.Renew(t.Context(), withLineage(c.lineage, &forgeyardv1.RenewRequest{RunnerId: string(e.RunnerID), SessionId: string(other.node.session)}))
				return err
			},
			"barrier": func() error {
				_, err := client.Barrier(t.Context(), withLineage(c.lineage, &forgeyardv1.BarrierRequest{}))
				return err
			},
		}
		for _, name := range []string{"propose", "renew", "barrier", "leading"} { // the last one's lie leads astray
			err := calls[name]()
			if (err == nil) != c.ok || err != nil && (forgeyard.KindOf(err) != forgeyard.Unavailable || !wire.Answered(err)) {
				t.Errorf("%s from lineage %q: %v", name, c.lineage, err)
			}
		}
		if !c.ok && led.node.hint.Load() != was {
			t.Error("the stranger's word that it leads was taken")
		}
		if !c.ok {
			continue
		}
		if h, ok := led.node.whoSaysItLeads(); !ok || h.term != 1<<40 {
			t.Errorf("the word of one's own was not taken: %+v", h)
		}
		if led.node.hinted(leaderHint{addr: "late", term: 1, lineage: led.node.lineage()}); led.node.hint.Load().addr == "late" {
			t.Error("a word of an earlier term was taken")
		}
		led.node.hint.Store(&leaderHint{addr: "nobody", term: 1 << 41, lineage: "2-another"})
		if led.node.peers.leads() == "nobody" || led.node.way.view().Leader == "nobody" {
			t.Error("what was said in another lineage is still believed")
		}
		led.node.hint.Store(was)
	}
}

func withLineage[M any](l string, m *M) *connect.Request[M] {
	r := connect.NewRequest(m)
	if l != "" {
		r.Header().Set(lineageHeader, l)
	}
	return r
}
