package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

// memNet is a network in memory that cuts where it is told: packets vanish, dials time out.
type memNet struct {
	mu  sync.Mutex
	by  map[string]*memTransport
	cut map[[2]string]bool
}

type memTransport struct {
	n    *memNet
	ip   net.IP
	pk   chan *memberlist.Packet
	st   chan net.Conn
	once sync.Once
	done chan struct{}
}

func newMemNet() *memNet { return &memNet{by: map[string]*memTransport{}, cut: map[[2]string]bool{}} }

func (n *memNet) node(i int) *memTransport {
	t := &memTransport{n: n, ip: net.IPv4(10, 0, 0, byte(i+1)), pk: make(chan *memberlist.Packet, 256), st: make(chan net.Conn, 16), done: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.by[t.addr()] = t
	return t
}

// split cuts all links between the two halves, or heals all.
func (n *memNet) split(on bool, left ...*memTransport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	if !on {
		return
	}
	for _, l := range left {
		for a, o := range n.by {
			inside := false
			for _, x := range left {
				inside = inside || x == o
			}
			if !inside {
				n.cut[[2]string{l.addr(), a}], n.cut[[2]string{a, l.addr()}] = true, true
			}
		}
	}
}

func (t *memTransport) addr() string { return fmt.Sprintf("%s:7946", t.ip) }
func (t *memTransport) peer(a string) *memTransport {
	t.n.mu.Lock()
	defer t.n.mu.Unlock()
	if t.n.cut[[2]string{t.addr(), a}] {
		return nil
	}
	return t.n.by[a]
}
func (t *memTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) { return t.ip, 7946, nil }
func (t *memTransport) PacketCh() <-chan *memberlist.Packet                 { return t.pk }
func (t *memTransport) StreamCh() <-chan net.Conn                           { return t.st }
func (t *memTransport) Shutdown() error                                     { t.once.Do(func() { close(t.done) }); return nil }

type memAddr string

func (memAddr) Network() string  { return "mem" }
func (a memAddr) String() string { return string(a) }

func (t *memTransport) WriteTo(b []byte, a string) (time.Time, error) {
	if p := t.peer(a); p != nil {
		c := bytes.Clone(b)
		time.AfterFunc(time.Millisecond, func() {
			select {
			case p.pk <- &memberlist.Packet{Buf: c, From: memAddr(t.addr()), Timestamp: time.Now()}:
			default:
			}
		})
	}
	return time.Now(), nil
}

func (t *memTransport) DialTimeout(a string, to time.Duration) (net.Conn, error) {
	p := t.peer(a)
	if p == nil {
		time.Sleep(to)
		return nil, errors.New("timeout")
	}
	select {
	case <-p.done:
		return nil, errors.New("refused")
	default:
	}
	x, y := net.Pipe()
	p.st <- x
	return y, nil
}

func gossipNode(t *testing.T, n *memNet, i int, key Secret, rejoin time.Duration, mod func(*GossipConfig)) (*Gossip, *memTransport) {
	t.Helper()
	tr := n.node(i)
	id, err := NewIdentity()
	must(t, err)
	c := GossipConfig{Key: key, SiteID: "S", RunnerID: forgeyard.RunnerID(fmt.Sprint("n", i)), Meta: Meta{PeerID: id.PeerID(), Name: fmt.Sprint("cell-", i), Addrs: []string{"/ip4/10.0.0.1/tcp/7444"}},
		Rejoin: rejoin, Transport: tr}
	if i > 0 {
		c.Seeds = []string{"10.0.0.1:7946"}
	}
	if mod != nil {
		mod(&c)
	}
	c.Clock = bubbleClock{}
	g, err := NewGossip(c)
	must(t, err)
	return g, tr
}

func states(g *Gossip) string {
	var b strings.Builder
	for _, m := range g.Members() {
		fmt.Fprintf(&b, "%s=%s ", m.RunnerID, m.State)
	}
	return strings.TrimSpace(b.String())
}

// A site that was cut in two for a minute grows together again. Without the
// rejoin it stays split for good: the test is seen to fail (decision 27).
func TestGossipHealsAfterACut(t *testing.T) {
	for _, tc := range []struct {
		rejoin time.Duration
		heals  bool
	}{{10 * time.Second, true}, {1000 * time.Hour, false}} {
		synctest.Test(t, func(t *testing.T) {
			key := NewSecret(bytes.Repeat([]byte{1}, GossipKeySize))
			n := newMemNet()
			var gs []*Gossip
			var ts []*memTransport
			for i := range 4 {
				g, tr := gossipNode(t, n, i, key, tc.rejoin, nil)
				gs, ts = append(gs, g), append(ts, tr)
			}
			whole := "n0=alive n1=alive n2=alive n3=alive"
			time.Sleep(20 * time.Second) // virtual
			for _, g := range gs {
				if s := states(g); s != whole {
					t.Fatal(s)
				}
			}
			n.split(true, ts[0], ts[1])
			time.Sleep(10 * time.Minute)
			if s := states(gs[0]); s != "n0=alive n1=alive n2=dead n3=dead" {
				t.Fatal(s)
			}
			n.split(false)
			time.Sleep(30 * time.Second)
			for i, g := range gs {
				if s := states(g); (s == whole) != tc.heals {
					t.Fatalf("rejoin %v, node %d: %s", tc.rejoin, i, s)
				}
			}
			for _, g := range gs {
				_ = g.Close()
			}
			time.Sleep(time.Minute) // timers of memberlist run out inside the bubble
		})
	}
}

// A cut between two nodes that others can reach: nobody is dead, and the two say that they do not hear each other.
func TestGossipOneLinkCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := NewSecret(bytes.Repeat([]byte{1}, GossipKeySize))
		n := newMemNet()
		var gs []*Gossip
		for i := range 4 {
			g, _ := gossipNode(t, n, i, key, 10*time.Second, nil)
			gs = append(gs, g)
		}
		time.Sleep(20 * time.Second)
		a, b := "10.0.0.1:7946", "10.0.0.4:7946"
		n.mu.Lock()
		n.cut[[2]string{a, b}], n.cut[[2]string{b, a}] = true, true
		n.mu.Unlock()
		time.Sleep(time.Minute)
		if s := states(gs[0]); s != "n0=alive n1=alive n2=alive n3=suspect" {
			t.Fatal(s)
		}
		if s := states(gs[1]); s != "n0=alive n1=alive n2=alive n3=alive" {
			t.Fatal(s)
		}
		n.split(false)
		time.Sleep(20 * time.Second)
		if s := states(gs[0]); s != "n0=alive n1=alive n2=alive n3=alive" {
			t.Fatal(s)
		}
		for _, g := range gs {
			_ = g.Close()
		}
		time.Sleep(time.Minute)
	})
}

// bubbleClock reads the virtual time of a synctest bubble.
type bubbleClock struct{}

func (bubbleClock) Now() forgeyard.Instant                 { return forgeyard.Instant(time.Now().UnixNano()) }
func (bubbleClock) Wall() time.Time                        { return time.Now() }
func (bubbleClock) BootID() string                         { return "bubble" }
func (bubbleClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

func TestGossipForeignKeyLeaveAndRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := NewSecret(bytes.Repeat([]byte{1}, GossipKeySize))
		n := newMemNet()
		var mu sync.Mutex
		var gone forgeyard.RunnerID
		revoked := func(c *GossipConfig) {
			c.Revoked = func(_ peer.ID, r forgeyard.RunnerID) bool { mu.Lock(); defer mu.Unlock(); return r == gone }
		}
		a, _ := gossipNode(t, n, 0, key, time.Second, revoked)
		b, _ := gossipNode(t, n, 1, key, time.Second, nil)
		alien, _ := gossipNode(t, n, 2, NewSecret(bytes.Repeat([]byte{2}, GossipKeySize)), time.Second, nil)
		other, _ := gossipNode(t, n, 3, key, time.Second, func(c *GossipConfig) { c.SiteID = "T" })
		time.Sleep(20 * time.Second)
		if s := states(a); s != "n0=alive n1=alive" {
			t.Fatal(s)
		}
		if s := states(alien) + states(other); s != "n2=aliven3=alive" {
			t.Fatal(s)
		}
		changed := a.Changed()
		must(t, b.UpdateMeta(Meta{PeerID: b.meta.PeerID, Name: "renamed", Session: "S2"}))
		<-changed
		if m := a.Members()[1]; m.Meta.Name != "renamed" || m.Meta.Session != "S2" || m.AsOf.IsZero() {
			t.Fatalf("%+v", m)
		}
		must(t, b.Close())
		time.Sleep(5 * time.Second)
		if s := states(a); s != "n0=alive n1=left" {
			t.Fatal(s)
		}
		mu.Lock()
		gone = "n4"
		mu.Unlock()
		c, _ := gossipNode(t, n, 4, key, time.Second, nil) // holds the key, was removed
		time.Sleep(20 * time.Second)
		if s := states(a); s != "n0=alive n1=left" {
			t.Fatal(s)
		}
		for _, g := range []*Gossip{a, alien, other, c} {
			_ = g.Close()
		}
		time.Sleep(time.Minute)
	})
}

func TestGossipMetaFits(t *testing.T) {
	id, err := NewIdentity()
	must(t, err)
	m := Meta{PeerID: id.PeerID(), Name: strings.Repeat("n", 200), Session: forgeyard.SessionID(ulidFor("s")), Capabilities: forgeyard.Digest{1}, HTTPAddr: "127.0.0.1:7440"}
	for i := range 40 {
		m.Addrs = append(m.Addrs, fmt.Sprintf("/ip4/10.0.0.%d/udp/7444/quic-v1", i))
	}
	b, err := m.encode(memberlist.MetaMaxSize)
	must(t, err)
	got, err := decodeMeta(b)
	must(t, err)
	if len(got.Addrs) < 5 || got.PeerID != m.PeerID || got.Capabilities != m.Capabilities {
		t.Fatalf("%d bytes, %+v", len(b), got)
	}
}

// All links down: the node starts and advertises what it has.
func TestGossipOnEveryAddress(t *testing.T) {
	id, err := NewIdentity()
	must(t, err)
	_, err = NewGossip(GossipConfig{Addr: ":0", Key: NewSecret(make([]byte, GossipKeySize)), SiteID: "S", RunnerID: "A", Meta: Meta{PeerID: "p"}})
	wantKind(t, err, forgeyard.Invalid)
	g, err := NewGossip(GossipConfig{Addr: ":0", Key: NewSecret(make([]byte, GossipKeySize)), SiteID: "S", RunnerID: "A", Meta: Meta{PeerID: id.PeerID()}})
	must(t, err)
	defer g.Close()
	h, p, err := net.SplitHostPort(g.Addr())
	if err != nil || p == "0" || h != ownIP().String() {
		t.Fatal(g.Addr(), err)
	}
	_, err = NewGossip(GossipConfig{Addr: g.Addr(), Key: NewSecret(make([]byte, GossipKeySize)), SiteID: "S", RunnerID: "B", Meta: Meta{PeerID: id.PeerID()}})
	wantKind(t, err, forgeyard.Conflict)
}

// Over real sockets, and what is learnt is dialled.
func TestGossipFeedsThePeerstore(t *testing.T) {
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	cfg := func(m *Mesh, r forgeyard.RunnerID) GossipConfig {
		return GossipConfig{Addr: "127.0.0.1:0", Key: s.gkey, SiteID: s.id, RunnerID: r, Meta: Meta{PeerID: m.PeerID(), Addrs: m.Addrs()}, Rejoin: 200 * time.Millisecond}
	}
	ga, err := a.StartGossip(cfg(a, "A"))
	must(t, err)
	gb, err := b.StartGossip(cfg(b, "B"))
	must(t, err)
	gb.SetSeeds([]string{ga.Addr()})
	eventually(t, "both alive", func() bool { return states(ga) == "A=alive B=alive" && states(gb) == "A=alive B=alive" })
	must(t, a.Connect(within(t), b.PeerID()))
}
