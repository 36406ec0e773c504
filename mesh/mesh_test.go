package mesh

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

const protoEcho protocol.ID = "/forgeyard/test-echo/1"

// echo serves protoEcho until the mesh closes.
func echo(t *testing.T, m *Mesh, classes ...Class) *Listener {
	t.Helper()
	l, err := m.Listen(protoEcho, classes...)
	must(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l
}

func roundTrip(t *testing.T, c net.Conn, text string) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err := io.WriteString(c, text)
	must(t, err)
	b := make([]byte, len(text))
	_, err = io.ReadFull(c, b)
	must(t, err)
	if string(b) != text {
		t.Fatalf("got %q", b)
	}
}

func TestTwoMembersTalkBothWays(t *testing.T) {
	for _, streams := range []bool{false, true} {
		s := newTestSite(t, "north")
		ca, cb := s.member(t), s.member(t)
		ca.StreamsOnly, cb.StreamsOnly = streams, streams
		a, b := start(t, ca), start(t, cb)
		echo(t, a, ClassMember)
		echo(t, b, ClassMember)
		meet(t, a, b)
		c, err := a.Dial(within(t), b.PeerID(), protoEcho)
		must(t, err)
		roundTrip(t, c, "hello")
		if p, ok := PeerOf(c); !ok || p.ID != b.PeerID() || p.Class != ClassMember || p.Site != s.id {
			t.Fatalf("peer is %+v", p)
		}
		if _, direct := c.(*directConn); direct == streams {
			t.Fatalf("streams only %v, but the connection is a %T", streams, c)
		}
		must(t, a.Connect(within(t), b.PeerID()))
		back, err := b.Dial(within(t), a.PeerID(), protoEcho) // b knows a only from a's connection
		must(t, err)
		roundTrip(t, back, "back")
		_, err = a.Dial(within(t), b.PeerID(), "/nobody/1")
		if !streams {
			wantKind(t, err, forgeyard.NotFound)
		} else if err == nil {
			t.Fatal("an unknown protocol was opened")
		}
	}
}

func TestDirectFallsBackToStream(t *testing.T) {
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	echo(t, b, ClassMember)
	meet(t, a, b)
	must(t, a.Connect(within(t), b.PeerID()))
	// As behind NAT: no TCP address passes, the connection that exists does.
	a.host.Peerstore().ClearAddrs(b.PeerID())
	must(t, a.AddAddrs(b.PeerID(), []string{"/ip4/127.0.0.1/tcp/1"}))
	c, err := a.Dial(within(t), b.PeerID(), protoEcho)
	must(t, err)
	if _, ok := c.(*streamConn); !ok {
		t.Fatalf("got %T", c)
	}
	roundTrip(t, c, "through")
	if a.tryDirect(b.PeerID()) {
		t.Fatal("the failed way is tried again at once")
	}
}

// A stranger on the mesh port can open neither raft, nor calls, nor bitswap, over either kind of connection.
func TestStrangerOpensNothing(t *testing.T) {
	s := newTestSite(t, "north")
	m := start(t, s.member(t))
	var ran atomic.Int32
	protos := []protocol.ID{ProtoRaft, ProtoRPC, bitswapProtocols[0]}
	for _, p := range protos[:2] {
		l, err := m.Listen(p, ClassMember)
		must(t, err)
		go func() {
			for {
				if _, err := l.Accept(); err != nil {
					return
				}
				ran.Add(1)
			}
		}()
	}
	m.Host().SetStreamHandler(protos[2], func(st network.Stream) { ran.Add(1); _ = st.Close() })

	h, id := rawHost(t)
	must(t, h.Connect(within(t), peer.AddrInfo{ID: m.PeerID(), Addrs: m.host.Addrs()}))
	// It says hello and is refused, so nothing waits for it any more.
	st, err := h.NewStream(within(t), m.PeerID(), ProtoHello)
	must(t, err)
	must(t, writeFrame(st, hello{Versions: versions{1, 1}}, maxHelloFrame))
	var r helloReply
	must(t, readFrame(st, &r, maxHelloFrame))
	if r.Err == nil || r.Err.Kind != forgeyard.Denied || !strings.Contains(r.Err.Text, "no credential") {
		t.Fatalf("answer %+v", r)
	}
	for _, p := range protos {
		st, err := h.NewStream(within(t), m.PeerID(), p)
		if err != nil {
			continue
		}
		_, _ = st.Write([]byte("x"))
		if _, err := io.ReadFull(st, make([]byte, 1)); err == nil {
			t.Fatalf("%s answered a stranger", p)
		}
	}
	for _, p := range protos[:2] {
		rep := directHello(t, m, id, hello{Versions: versions{1, 1}, Protocol: p})
		if rep.Err == nil || rep.Err.Kind != forgeyard.Denied {
			t.Fatalf("direct %s: %+v", p, rep)
		}
	}
	if ran.Load() != 0 {
		t.Fatal("a handler ran for a stranger")
	}
}

// directHello opens a direct connection by hand.
func directHello(t *testing.T, m *Mesh, id Identity, h hello) helloReply {
	t.Helper()
	key, err := id.key()
	must(t, err)
	ti, err := libp2ptls.NewIdentity(key)
	must(t, err)
	cfg, _ := ti.ConfigForPeer(m.PeerID())
	cfg.NextProtos = []string{directALPN}
	_, addr, err := manet.DialArgs(m.ListenAddrs()[0])
	must(t, err)
	c, err := tls.Dial("tcp", addr, cfg)
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	must(t, writeFrame(c, h, maxHelloFrame))
	var r helloReply
	must(t, readFrame(c, &r, maxHelloFrame))
	return r
}

func TestStrangerIsSentAway(t *testing.T) {
	s := newTestSite(t, "north")
	c := s.member(t)
	mc := clock.NewManual(time.Now())
	c.Clock = mc
	m := start(t, c)
	h, _ := rawHost(t)
	must(t, h.Connect(within(t), peer.AddrInfo{ID: m.PeerID(), Addrs: m.host.Addrs()}))
	eventually(t, "the stranger is seen", func() bool { return m.table.strangers() == 1 })
	mc.Advance(strangerGrace / 2)
	if h.Network().Connectedness(m.PeerID()) != network.Connected {
		t.Fatal("sent away early")
	}
	eventually(t, "the stranger is disconnected", func() bool {
		mc.Advance(sweepEvery)
		return h.Network().Connectedness(m.PeerID()) != network.Connected
	})
}

func TestStrangersAreCounted(t *testing.T) {
	s := newTestSite(t, "north")
	m := start(t, s.member(t))
	a := start(t, s.member(t))
	must(t, m.AddAddrs(a.PeerID(), nil))
	meet(t, a, m)
	for i := range maxStrangers {
		id := peer.ID(string(rune('a' + i)))
		m.table.with(id, func(e *entry) { e.conns[fakeConn{id: id}] = m.clk.Now() })
	}
	if (gater{m}).InterceptSecured(network.DirInbound, "stranger", nil) {
		t.Fatalf("stranger number %d was let in", maxStrangers+1)
	}
	must(t, a.Connect(within(t), m.PeerID())) // a member that is expected always passes
	for i := range maxStrangers {
		id := peer.ID(string(rune('a' + i)))
		m.table.with(id, func(e *entry) { clear(e.conns) })
	}
}

type fakeConn struct {
	network.Conn
	id peer.ID
}

func (c fakeConn) RemotePeer() peer.ID        { return c.id }
func (fakeConn) GetStreams() []network.Stream { return nil }
func (fakeConn) Close() error                 { return nil }

// RA-091: whoever cannot show a credential of this site, of its own key and still good, does
// not come far enough to register: that comes before anything else (RA-009, RA-532).
func TestCredentialsThatAreRefused(t *testing.T) {
	north, south := newTestSite(t, "north"), newTestSite(t, "south")
	now := time.Now()
	forged := newTestSite(t, "north") // same id and name, another key
	other, err := NewIdentity()
	must(t, err)
	for name, tc := range map[string]struct {
		cred func(c Config) []byte
		want string
	}{
		"other site": {func(c Config) []byte { return south.credential(t, c.Identity.PeerID(), "R", now, now.Add(time.Hour)) }, "belongs to site " + string(south.id) + ", this node to site north (" + string(north.id) + ")"},
		"expired": {func(c Config) []byte {
			return north.credential(t, c.Identity.PeerID(), "R", now.Add(-2*time.Hour), now.Add(-time.Hour))
		}, "expired at"},
		"forged":   {func(c Config) []byte { return forged.credential(t, c.Identity.PeerID(), "R", now, now.Add(time.Hour)) }, "not signed by the key"},
		"borrowed": {func(c Config) []byte { return north.credential(t, other.PeerID(), "R", now, now.Add(time.Hour)) }, "the credential is of peer"},
		"none":     {func(Config) []byte { return nil }, "shows no credential"},
		"garbage":  {func(Config) []byte { return []byte("garbage") }, "credential"},
	} {
		t.Run(name, func(t *testing.T) {
			m, c := start(t, north.member(t)), north.member(t)
			echo(t, m, ClassMember)
			c.Credential = tc.cred(c)
			a := start(t, c)
			meet(t, a, m)
			for _, err := range []error{a.Connect(within(t), m.PeerID()), dialErr(t, a, m)} {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("got %v, want %q", err, tc.want)
				}
				if k := forgeyard.KindOf(err); k != forgeyard.Denied && k != forgeyard.Invalid {
					t.Fatalf("kind %v", k)
				}
			}
			if _, ok := m.table.get(a.PeerID()); ok {
				t.Fatal("admitted all the same")
			}
		})
	}
}

func dialErr(t *testing.T, a, b *Mesh) error {
	c, err := a.Dial(within(t), b.PeerID(), protoEcho)
	if err == nil {
		_ = c.Close()
	}
	return err
}

// RA-010, RA-093, RA-151: no version in common is a refusal that says so; of those in common the highest is
// spoken. Who is refused here never comes online (RA-498).
func TestVersionsMustOverlap(t *testing.T) {
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	b.versions = versions{3, 4}
	meet(t, a, b)
	err := a.Connect(within(t), b.PeerID())
	wantKind(t, err, forgeyard.Denied)
	if !strings.Contains(err.Error(), "versions") {
		t.Fatal(err)
	}
	if v, err := negotiate(versions{1, 2}, versions{2, 3}); v != 2 || err != nil {
		t.Fatal(v, err)
	}
	if _, err := negotiate(versions{1, 2}, versions{3, 2}); err == nil {
		t.Fatal("an empty range was accepted")
	}
}

func TestRevocationDropsLiveConnections(t *testing.T) {
	s := newTestSite(t, "north")
	ca, cb := s.member(t), s.member(t)
	var gone atomic.Bool
	bID := cb.Identity.PeerID()
	ca.Revoked = func(p peer.ID, _ forgeyard.RunnerID) bool { return gone.Load() && p == bID }
	down := make(chan Peer, 4)
	ca.OnPeer = func(p Peer, up bool) {
		if !up {
			down <- p
		}
	}
	a, b := start(t, ca), start(t, cb)
	echo(t, a, ClassMember)
	meet(t, b, a)
	must(t, b.Connect(within(t), a.PeerID()))
	direct, err := b.Dial(within(t), a.PeerID(), protoEcho)
	must(t, err)
	stream, err := b.Host().NewStream(within(t), a.PeerID(), protoEcho)
	must(t, err)
	roundTrip(t, direct, "live")
	_, err = stream.Write([]byte("x"))
	must(t, err)
	_, err = io.ReadFull(stream, make([]byte, 1))
	must(t, err)

	gone.Store(true)
	a.Recheck()
	for _, c := range []io.Reader{direct, stream} {
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			t.Fatal("still alive")
		}
	}
	if p := <-down; p.ID != bID {
		t.Fatal(p)
	}
	eventually(t, "b sees the end", func() bool { return b.host.Network().Connectedness(a.PeerID()) != network.Connected })
	err = dialErr(t, b, a)
	wantKind(t, err, forgeyard.Denied)
	if !strings.Contains(err.Error(), "removed from the site") {
		t.Fatal(err)
	}
	a.Revoke(bID) // by name, too
	wantKind(t, dialErr(t, a, b), forgeyard.Denied)
}

// RA-074: a new credential is installed while connections live, and what goes on over them
// goes on past the end of the old one; without one, the end cuts it (RA-480).
func TestCredentialExpiresOnLiveConnection(t *testing.T) {
	s := newTestSite(t, "north")
	ca, cb := s.member(t), s.member(t)
	mc := clock.NewManual(time.Now())
	ca.Clock = mc
	a, b := start(t, ca), start(t, cb)
	echo(t, a, ClassMember)
	meet(t, b, a)
	c, err := b.Dial(within(t), a.PeerID(), protoEcho)
	must(t, err)
	roundTrip(t, c, "valid")
	// A renewal is shown on live connections, and the old end passes unnoticed.
	old, ok := a.table.get(b.PeerID())
	if !ok {
		t.Fatal("not admitted")
	}
	b.SetCredential(s.credential(t, b.PeerID(), old.Runner, time.Now(), time.Now().Add(3*time.Hour)))
	eventually(t, "the renewal arrives", func() bool { p, _ := a.table.get(b.PeerID()); return p.Expires.After(old.Expires) })
	mc.Advance(2 * time.Hour)
	roundTrip(t, c, "renewed")
	eventually(t, "the expired peer is dropped", func() bool {
		mc.Advance(time.Hour)
		_, ok := a.table.get(b.PeerID())
		return !ok
	})
	if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
		t.Fatal("still alive")
	}
}

// The central daemon accepts members of sites it knows; a site accepts the peer id it pinned.
func TestUplinkClasses(t *testing.T) {
	s := newTestSite(t, "north")
	cid, err := NewIdentity()
	must(t, err)
	central := start(t, Config{Identity: cid, Listen: "127.0.0.1:0", Logger: testLogger(t), Authorize: func(p peer.ID, c *Credential) (Class, error) {
		if c == nil || c.Site != s.id {
			return ClassStranger, forgeyard.Errorf("hello", forgeyard.Denied, "not a site of ours")
		}
		return ClassSite, c.Verify(s.pub, p, time.Now())
	}})
	node := start(t, s.member(t))
	echo(t, central, ClassSite)
	echo(t, node, ClassMember)
	up, err := node.Listen(ProtoRPC, ClassUplink)
	must(t, err)
	meet(t, node, central)
	wantKind(t, node.Connect(within(t), central.PeerID()), forgeyard.Denied) // not pinned: no credential
	node.Pin(central.PeerID(), ClassUplink)
	must(t, node.Connect(within(t), central.PeerID()))
	c, err := node.Dial(within(t), central.PeerID(), protoEcho)
	must(t, err)
	roundTrip(t, c, "delegated")
	// Central's own calls reach what is open to the uplink and nothing else.
	meet(t, central, node)
	cc, err := central.Dial(within(t), node.PeerID(), ProtoRPC)
	must(t, err)
	ac, err := up.Accept()
	must(t, err)
	if p, _ := PeerOf(ac); p.Class != ClassUplink {
		t.Fatal(p)
	}
	_ = cc.Close()
	wantKind(t, dialErr(t, central, node), forgeyard.Denied)
	node.Unpin(central.PeerID())
	if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
		t.Fatal("an unpinned uplink is still connected")
	}
}

func TestKeepRedials(t *testing.T) {
	s := newTestSite(t, "north")
	ca, cb := s.member(t), s.member(t)
	a, b := start(t, ca), start(t, cb)
	must(t, a.Keep([]PeerAddr{{PeerID: b.PeerID(), Addrs: b.Addrs()}, {PeerID: a.PeerID()}}))
	met := func() bool { p, ok := a.table.get(b.PeerID()); return ok && p.ID == b.PeerID() }
	eventually(t, "kept", met)
	_, cb.Listen, _ = manet.DialArgs(b.ListenAddrs()[0])
	must(t, b.Close())
	eventually(t, "lost", func() bool { return !met() })
	start(t, cb)
	eventually(t, "kept again", met)
	must(t, a.Keep(nil))
}

func TestBackoff(t *testing.T) {
	for n := range 100 {
		if d := backoff(n, 0.5); d < redialMin || d > redialMax {
			t.Fatalf("%d: %v", n, d)
		}
	}
}

func TestPortTaken(t *testing.T) {
	s := newTestSite(t, "north")
	a := start(t, s.member(t))
	c := s.member(t)
	_, c.Listen, _ = manet.DialArgs(a.ListenAddrs()[0])
	_, err := New(c)
	wantKind(t, err, forgeyard.Conflict)
	ports := map[string]bool{}
	for _, ad := range a.ListenAddrs() {
		_, hp, err := manet.DialArgs(ad)
		if err == nil {
			ports[hp] = true
		}
	}
	if len(ports) != 1 {
		t.Fatalf("TCP and QUIC differ: %v", a.ListenAddrs())
	}
	for _, bad := range []string{"x", "127.0.0.1", "127.0.0.1:99999"} {
		c.Listen = bad
		_, err := New(c)
		wantKind(t, err, forgeyard.Invalid)
	}
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	s := newTestSite(t, "north")
	run := func() {
		a, err := New(s.member(t))
		must(t, err)
		b, err := New(s.member(t))
		must(t, err)
		echo(t, b, ClassMember)
		meet(t, a, b)
		must(t, a.Keep([]PeerAddr{{PeerID: b.PeerID()}}))
		c, err := a.Dial(within(t), b.PeerID(), protoEcho)
		must(t, err)
		roundTrip(t, c, "x")
		_, err = a.StartGossip(GossipConfig{Addr: "127.0.0.1:0", Key: s.gkey, SiteID: s.id, RunnerID: "A", Meta: Meta{PeerID: a.PeerID()}})
		must(t, err)
		must(t, a.Close())
		must(t, b.Close())
		if _, err := a.Listen(protoEcho, ClassMember); !errors.Is(err, errClosed) {
			t.Fatal(err)
		}
	}
	run() // libraries start a few goroutines for good
	runtime.GC()
	before := runtime.NumGoroutine()
	run()
	var after int
	defer func() {
		if t.Failed() {
			b := make([]byte, 1<<20)
			t.Logf("%d before, %d after\n%s", before, after, bytes.TrimSpace(b[:runtime.Stack(b, true)]))
		}
	}()
	eventually(t, "no goroutine is left", func() bool { after = runtime.NumGoroutine(); return after <= before })
}

// A half-open connection, and one that speaks nonsense, cost a slot for seconds and nothing else.
func TestNonsenseOnThePort(t *testing.T) {
	s := newTestSite(t, "north")
	m := start(t, s.member(t))
	_, addr, err := manet.DialArgs(m.ListenAddrs()[0])
	must(t, err)
	for _, b := range [][]byte{nil, {tlsRecord}, []byte("GET / HTTP/1.1\r\n\r\n"), bytes.Repeat([]byte{0xff}, 1000)} {
		c, err := net.Dial("tcp", addr)
		must(t, err)
		defer c.Close()
		_, _ = c.Write(b)
	}
	a := start(t, s.member(t))
	meet(t, a, m)
	must(t, a.Connect(context.Background(), m.PeerID()))
}
