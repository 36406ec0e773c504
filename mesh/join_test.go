package mesh

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

// fakeLog stands for the log: it keeps hashes and answers repeats alike.
type fakeLog struct {
	t        *testing.T
	site     *testSite
	mu       sync.Mutex
	hash     forgeyard.Digest
	uses     int
	expired  bool
	noQuorum bool
	given    map[peer.ID]Enrolment
}

func (l *fakeLog) admit(_ context.Context, p peer.ID, _ forgeyard.TokenID, h forgeyard.Digest, r JoinRequest) (Enrolment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e, again := l.given[p]; {
	case l.noQuorum:
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Unavailable, "the site has no quorum")
	case h != l.hash:
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Denied, "the token's secret is not the one that was issued")
	case again:
		return e, nil
	case l.expired:
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Denied, "the token expired an hour ago").WithHint("make another with token create")
	case l.uses == 0:
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Denied, "the token has no use left")
	}
	l.uses--
	now := time.Now()
	rid := forgeyard.RunnerID(ulidFor(r.Name))
	e := Enrolment{SiteID: l.site.id, SiteName: l.site.name, SitePublicKey: l.site.pub, RunnerID: rid, Name: r.Name, Roles: []string{RoleRunner}, GossipKey: l.site.gkey,
		Credential: l.site.credential(l.t, p, rid, now.Add(-time.Minute), now.Add(time.Hour))}
	l.given[p] = e
	return e, nil
}

func joinSite(t *testing.T) (*Mesh, *fakeLog, Token) {
	t.Helper()
	s := newTestSite(t, "north")
	m := start(t, s.member(t))
	tok := testToken(t, s)
	l := &fakeLog{t: t, site: s, hash: SecretHash(tok.Secret), uses: 1, given: map[peer.ID]Enrolment{}}
	m.ServeJoin(l.admit)
	// The first peer of the token is gone; the second answers (RA-324).
	tok.Peers = []PeerAddr{{PeerID: tok.Peers[0].PeerID, Addrs: []string{"/ip4/127.0.0.1/tcp/1"}}, {PeerID: m.PeerID(), Addrs: m.Addrs()}}
	return m, l, tok
}

// RA-072, RA-073: an operator's token is all that a new node begins with; shown to a member
// once, it binds a RunnerID to the node's own key, and what comes back is the credential that
// every member lets it in by. None of it is the agent's: it is done before there is one.
func TestJoin(t *testing.T) {
	m, l, tok := joinSite(t)
	id, err := NewIdentity()
	must(t, err)
	req := JoinRequest{Name: "cell-2", Labels: map[string]string{"bench": "a"}, Version: "test"}
	e, err := Join(within(t), id, tok, req)
	must(t, err)
	if e.SiteID != l.site.id || e.Name != "cell-2" || !e.GossipKey.Equal(l.site.gkey) {
		t.Fatal(e)
	}
	again, err := Join(within(t), id, tok, req) // the answer was lost: ask again
	must(t, err)
	if again.RunnerID != e.RunnerID {
		t.Fatal("a repeat enrolled a second runner")
	}
	// Enrolled, it is a member.
	n := start(t, Config{Identity: id, SiteID: e.SiteID, SiteName: e.SiteName, SitePublicKey: e.SitePublicKey, Credential: e.Credential, Listen: "127.0.0.1:0"})
	meet(t, n, m)
	must(t, n.Connect(within(t), m.PeerID()))

	other, err := NewIdentity()
	must(t, err)
	_, err = Join(within(t), other, tok, req)
	wantText(t, err, forgeyard.Denied, "no use left") // spent
	l.uses, l.expired = 1, true
	_, err = Join(within(t), other, tok, req)
	wantText(t, err, forgeyard.Denied, "expired", "token create")
	l.expired, l.noQuorum = false, true
	_, err = Join(within(t), other, tok, req)
	wantText(t, err, forgeyard.Unavailable, "no quorum")
	l.noQuorum = false

	forged := tok
	forged.Secret, err = NewTokenSecret()
	must(t, err)
	_, err = Join(within(t), other, forged, req)
	wantText(t, err, forgeyard.Denied, "not the one that was issued")
	wrong := tok
	wrong.SiteID = newTestSite(t, "south").id
	_, err = Join(within(t), other, wrong, req)
	wantText(t, err, forgeyard.Denied, string(wrong.SiteID), string(l.site.id), "north")
	_, err = Join(within(t), other, tok, JoinRequest{Name: "a\x1b[2J"})
	wantKind(t, err, forgeyard.Invalid)
	_, err = Join(within(t), other, tok, req)
	must(t, err) // and after all that, the good token still works
}

func wantText(t *testing.T, err error, k forgeyard.Kind, texts ...string) {
	t.Helper()
	wantKind(t, err, k)
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Fatalf("%q does not say %q", err, s)
		}
	}
}

// The secret goes to the pinned peer only: another node at its address gets nothing.
func TestJoinIsPinned(t *testing.T) {
	m, _, tok := joinSite(t)
	impostor := tok.Peers[0].PeerID // its key is not the one that answers there
	tok.Peers = []PeerAddr{{PeerID: impostor, Addrs: m.Addrs()}}
	id, err := NewIdentity()
	must(t, err)
	_, err = Join(within(t), id, tok, JoinRequest{Name: "x"})
	wantKind(t, err, forgeyard.Unavailable)
}

func TestJoinFloodIsBounded(t *testing.T) {
	s := newTestSite(t, "north")
	m := start(t, s.member(t))
	tok := testToken(t, s)
	tok.Peers = []PeerAddr{{PeerID: m.PeerID(), Addrs: m.Addrs()}}
	entered, release := make(chan struct{}, maxJoins), make(chan struct{})
	m.ServeJoin(func(ctx context.Context, p peer.ID, _ forgeyard.TokenID, _ forgeyard.Digest, _ JoinRequest) (Enrolment, error) {
		entered <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return Enrolment{}, forgeyard.Errorf("join", forgeyard.Denied, "no")
	})
	var wg sync.WaitGroup
	for range maxJoins {
		id, err := NewIdentity()
		must(t, err)
		wg.Go(func() { _, _ = Join(context.Background(), id, tok, JoinRequest{Name: "x"}) })
	}
	for range maxJoins {
		<-entered
	}
	id, err := NewIdentity()
	must(t, err)
	_, err = Join(within(t), id, tok, JoinRequest{Name: "x"})
	if err == nil || !strings.Contains(err.Error(), "the limit is 8") {
		t.Fatal(err)
	}
	// A join that takes long keeps its connection; a stranger without one does not.
	if late := m.table.overdue(m.clk.Now().Add(2 * strangerGrace)); slices.ContainsFunc(late, func(c network.Conn) bool { return m.table.peers[c.RemotePeer()].joins > 0 }) {
		t.Fatal("a running join is sent away")
	}
	close(release)
	wg.Wait()
}
