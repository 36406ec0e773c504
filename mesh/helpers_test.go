package mesh

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"

	"github.com/forgeyard/forgeyard-node"
)

// testSite is a site without a log: a key and a name.
type testSite struct {
	id   forgeyard.SiteID
	name string
	key  Secret
	pub  ed25519.PublicKey
	gkey Secret
	n    byte
}

func newTestSite(t *testing.T, name string) *testSite {
	t.Helper()
	k, pub, err := NewSiteKey()
	must(t, err)
	return &testSite{id: forgeyard.SiteID(ulidFor(name)), name: name, key: k, pub: pub, gkey: NewSecret(make([]byte, GossipKeySize))}
}

func ulidFor(s string) string {
	var e [10]byte
	copy(e[:], s)
	return forgeyard.NewULID(time.UnixMilli(1_700_000_000_000), e)
}

func (s *testSite) credential(t *testing.T, p peer.ID, r forgeyard.RunnerID, from, to time.Time) []byte {
	t.Helper()
	b, err := IssueCredential(s.key, Claims{Site: s.id, Runner: r, Peer: p, Roles: []string{RoleRunner}, NotBefore: from, NotAfter: to})
	must(t, err)
	return b
}

// member makes a config of a new node of the site.
func (s *testSite) member(t *testing.T) Config {
	t.Helper()
	id, err := NewIdentity()
	must(t, err)
	s.n++
	r := forgeyard.RunnerID(ulidFor(fmt.Sprintf("%s-%d", s.name, s.n)))
	now := time.Now()
	return Config{
		Identity: id, SiteID: s.id, SiteName: s.name, SitePublicKey: s.pub, Session: forgeyard.SessionID(ulidFor("session")), Listen: "127.0.0.1:0",
		Credential: s.credential(t, id.PeerID(), r, now.Add(-time.Hour), now.Add(time.Hour)), Logger: testLogger(t),
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) { w.t.Log(string(b)); return len(b), nil }

func testLogger(t *testing.T) *slog.Logger {
	if !testing.Verbose() {
		return nil
	}
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func start(t *testing.T, c Config) *Mesh {
	t.Helper()
	m, err := New(c)
	must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// meet tells a where b is.
func meet(t *testing.T, a, b *Mesh) {
	t.Helper()
	must(t, a.AddAddrs(b.PeerID(), b.Addrs()))
}

// rawHost is a stranger with its own ideas.
func rawHost(t *testing.T) (host.Host, Identity) {
	t.Helper()
	id, err := NewIdentity()
	must(t, err)
	opts, err := hostOptions(id)
	must(t, err)
	h, err := libp2p.New(append(opts, libp2p.NoListenAddrs, libp2p.Transport(tcp.NewTCPTransport, tcp.DisableReuseport()))...)
	must(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h, id
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for an event that has no channel.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not seen in 20 s: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func wantKind(t *testing.T, err error, k forgeyard.Kind) {
	t.Helper()
	if err == nil || forgeyard.KindOf(err) != k {
		t.Fatalf("got %v (%v), want kind %v", err, forgeyard.KindOf(err), k)
	}
}
