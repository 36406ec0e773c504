package peer

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ipfs/boxo/bitswap/network/bsnet"
	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	libpeer "github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	ltls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

func TestMain(m *testing.M) {
	RegisterHasher()
	code := m.Run()
	if left := leaks(); code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, "goroutines of the exchange are left after every test closed its own:\n"+left)
		code = 1
	}
	os.Exit(code)
}

// leaks gives the stacks of the exchange and of bitswap that do not end by themselves.
func leaks() string {
	deadline := time.After(15 * time.Second)
	for {
		buf := make([]byte, 4<<20)
		var left []string
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if (strings.Contains(g, "/cas/peer.") || strings.Contains(g, "/boxo/bitswap")) && !strings.Contains(g, "peer.leaks(") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
		select {
		case <-deadline:
			return strings.Join(left, "\n\n")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// newHost makes a host on loopback with the limits that bitswap needs.
func newHost(t testing.TB) host.Host {
	t.Helper()
	lim := rcmgr.DefaultLimits
	libp2p.SetDefaultServiceLimits(&lim)
	big := rcmgr.BaseLimit{Streams: 1 << 14, StreamsInbound: 1 << 14, StreamsOutbound: 1 << 14, Memory: 1 << 30}
	lim.AddProtocolLimit(bsnet.ProtocolBitswap, big, rcmgr.BaseLimitIncrease{})
	lim.AddProtocolPeerLimit(bsnet.ProtocolBitswap, big, rcmgr.BaseLimitIncrease{})
	lim.PeerBaseLimit.StreamsInbound, lim.PeerBaseLimit.Streams, lim.PeerBaseLimit.Memory = 1<<14, 1<<15, 1<<30
	lim.TransientBaseLimit.StreamsInbound, lim.TransientBaseLimit.Streams = 1<<14, 1<<14
	lim.SystemBaseLimit.StreamsInbound, lim.SystemBaseLimit.Streams = 1<<15, 1<<16
	rm, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(lim.AutoScale()))
	if err != nil {
		t.Fatal(err)
	}
	h, err := libp2p.New(
		libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"), libp2p.Transport(tcp.NewTCPTransport),
		libp2p.Security(ltls.ID, ltls.New), libp2p.Muxer(yamux.ID, yamux.DefaultTransport),
		libp2p.ResourceManager(rm), libp2p.DisableRelay(),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// testNode is one member of a test's site.
type testNode struct {
	*Exchange
	host   host.Host
	store  *memStore
	mu     sync.Mutex
	events []Event
}

func (n *testNode) name() string { return n.host.ID().String() }

func (n *testNode) bad() []Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]Event(nil), n.events...)
}

func newNode(t testing.TB, tune ...func(*Config)) *testNode {
	t.Helper()
	n := &testNode{host: newHost(t), store: newStore()}
	cfg := Config{Host: n.host, Store: n.store, OnBadPeer: func(e Event) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, e)
	}}
	for _, f := range tune {
		f(&cfg)
	}
	x, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	n.Exchange = x
	return n
}

// meet makes a know the addresses of the others, without a connection.
func (n *testNode) meet(others ...host.Host) {
	for _, o := range others {
		n.host.Peerstore().AddAddrs(o.ID(), o.Addrs(), time.Hour)
	}
}

func (n *testNode) dial(t testing.TB, others ...host.Host) {
	t.Helper()
	for _, o := range others {
		if err := n.host.Connect(context.Background(), libpeer.AddrInfo{ID: o.ID(), Addrs: o.Addrs()}); err != nil {
			t.Fatal(err)
		}
	}
}

// holds fails unless the node has exactly these bytes under their name.
func (n *testNode) holds(t testing.TB, ref cas.Ref, want []byte) {
	t.Helper()
	defer n.store.lock()()
	if got := n.store.blobs[ref.Digest]; string(got) != string(want) {
		t.Fatalf("%s: %d bytes, want %d", ref.Digest.Short(), len(got), len(want))
	}
}

// isKind fails unless err has the kind and names each text.
func isKind(t testing.TB, err error, kind forgeyard.Kind, texts ...string) {
	t.Helper()
	if err == nil || forgeyard.KindOf(err) != kind {
		t.Fatalf("error %v (%v), want kind %v", err, forgeyard.KindOf(err), kind)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Fatalf("error %q does not name %q", err, s)
		}
	}
}

// within fails when f takes longer.
func within(t testing.TB, d time.Duration, what string, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if took := time.Since(start); took > d {
		t.Fatalf("%s took %v, the bound is %v", what, took, d)
	}
}
