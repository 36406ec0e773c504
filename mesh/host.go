package mesh

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/pnet"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/transport"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	quic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/x/rate"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/forgeyard/forgeyard-node"
)

// addrTTL: addresses come from the log and from gossip, which say when they change.
const addrTTL = math.MaxInt64 * time.Nanosecond

// bitswapProtocols are boxo's, spelled here so that the mesh does not link boxo; a test compares them.
var bitswapProtocols = []protocol.ID{"/ipfs/bitswap/1.2.0", "/ipfs/bitswap/1.1.0", "/ipfs/bitswap/1.0.0", "/ipfs/bitswap"}

type backoffHolder interface{ Backoff() *swarm.DialBackoff }

// hostOptions are what every host of ours has, the one of a joining node too:
// TCP+TLS first, QUIC second, no relay, no NAT probing, no ping, no metrics in
// the global registry (two hosts in one process would clash).
func hostOptions(id Identity) ([]libp2p.Option, error) {
	key, err := id.key()
	if err != nil {
		return nil, err
	}
	rm, err := resourceManager()
	if err != nil {
		return nil, err
	}
	anytime, err := timeless()
	if err != nil {
		return nil, err
	}
	y := *yamux.DefaultTransport.Config()
	y.InitialStreamWindowSize = 4 << 20 // default 256 KiB, where each new stream would start: 14 % slower (measured)
	y.MaxMessageSize = 1 << 20          // default 64 KiB
	y.KeepAliveInterval = 10 * time.Second
	return []libp2p.Option{
		libp2p.Identity(key), libp2p.UserAgent("forgeyard"),
		libp2p.Security(libp2ptls.ID, newTLS), libp2p.Muxer(yamux.ID, (*yamux.Transport)(&y)), libp2p.Transport(newQUICTransport(anytime)),
		libp2p.ResourceManager(rm), libp2p.ConnectionManager(connmgr.NullConnMgr{}), libp2p.WithDialTimeout(dialTimeout),
		libp2p.DisableRelay(), libp2p.DisableMetrics(), libp2p.DisableIdentifyAddressDiscovery(), libp2p.ForceReachabilityPrivate(), libp2p.Ping(false),
		// A link that was down for a night must not leave UDP or IPv6 written off as a black hole.
		libp2p.UDPBlackHoleSuccessCounter(nil), libp2p.IPv6BlackHoleSuccessCounter(nil),
		libp2p.SwarmOpts(swarm.WithDialRanker(tcpFirst)),
	}, nil
}

// tcpFirst gives TCP a head start: QUIC costs three times the CPU (measured).
func tcpFirst(addrs []ma.Multiaddr) []network.AddrDelay {
	out := make([]network.AddrDelay, 0, len(addrs))
	for _, a := range addrs {
		d := time.Duration(0)
		if _, err := a.ValueForProtocol(ma.P_UDP); err == nil {
			d = 250 * time.Millisecond
		}
		out = append(out, network.AddrDelay{Addr: a, Delay: d})
	}
	return out
}

// resourceManager raises what bitswap needs: it opens one stream per message, and
// the default limits reset the excess silently, so that blocks are lost until a
// rebroadcast 30 s later. Strangers are bounded by the gate instead.
func resourceManager() (network.ResourceManager, error) {
	lim := rcmgr.DefaultLimits
	libp2p.SetDefaultServiceLimits(&lim)
	big := rcmgr.BaseLimit{Streams: 1 << 14, StreamsInbound: 1 << 14, StreamsOutbound: 1 << 14, Memory: 1 << 30}
	for _, p := range bitswapProtocols {
		lim.AddProtocolLimit(p, big, rcmgr.BaseLimitIncrease{})
		lim.AddProtocolPeerLimit(p, big, rcmgr.BaseLimitIncrease{})
	}
	lim.PeerBaseLimit.StreamsInbound, lim.PeerBaseLimit.StreamsOutbound, lim.PeerBaseLimit.Streams, lim.PeerBaseLimit.Memory = 1<<14, 1<<14, 1<<15, 1<<30
	lim.TransientBaseLimit.StreamsInbound, lim.TransientBaseLimit.StreamsOutbound, lim.TransientBaseLimit.Streams = 1<<14, 1<<14, 1<<15
	lim.SystemBaseLimit.StreamsInbound, lim.SystemBaseLimit.StreamsOutbound, lim.SystemBaseLimit.Streams = 1<<15, 1<<15, 1<<16
	// Several nodes on one machine, or a site behind one address, come from one IP.
	v4 := []rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: 256}}
	v6 := []rcmgr.ConnLimitPerSubnet{{PrefixLength: 56, ConnCount: 256}, {PrefixLength: 48, ConnCount: 512}}
	free := []rate.PrefixLimit{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}, {Prefix: netip.MustParsePrefix("::1/128")}}
	perIP := &rate.Limiter{NetworkPrefixLimits: free, SubnetRateLimiter: rate.SubnetLimiter{
		IPv4SubnetLimits: []rate.SubnetLimit{{PrefixLength: 32, Limit: rate.Limit{RPS: 20, Burst: 256}}},
		IPv6SubnetLimits: []rate.SubnetLimit{{PrefixLength: 56, Limit: rate.Limit{RPS: 20, Burst: 256}}},
		GracePeriod:      time.Minute,
	}}
	return rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(lim.AutoScale()), rcmgr.WithMetricsDisabled(), rcmgr.WithLimitPerSubnet(v4, v6), rcmgr.WithConnRateLimiters(perIP))
}

// tcpTransport is libp2p's, except that its listener hands connections that
// begin with a TLS record to the direct server.
type tcpTransport struct {
	*tcp.TcpTransport
	upgrader transport.Upgrader
	m        *Mesh
}

func (m *Mesh) newTCPTransport(u transport.Upgrader, rm network.ResourceManager) (*tcpTransport, error) {
	// Without SO_REUSEPORT: with it a second process could bind the same port and take half the connections.
	t, err := tcp.NewTCPTransport(u, rm, nil, tcp.DisableReuseport())
	return &tcpTransport{TcpTransport: t, upgrader: u, m: m}, err
}

func (t *tcpTransport) Listen(a ma.Multiaddr) (transport.Listener, error) {
	l, err := manet.Listen(a)
	if err != nil {
		return nil, err
	}
	return t.upgrader.UpgradeGatedMaListener(t, t.upgrader.GateMaListener(t.m.direct.demux(l))), nil
}

// quicTransport is libp2p's, except that a dial of a port that nobody has ends at once,
// as it does over TCP. Without that, the handshake is repeated until somebody is there:
// after a restart of the peer all its links would be QUIC, which costs three times the
// CPU, and by which no end of a process is noticed.
type quicTransport struct{ transport.Transport }

func (t quicTransport) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	addr := udpAddr(a)
	go func() {
		if udpRefuses(ctx, addr) {
			cancel(forgeyard.Errorf("dial", forgeyard.Unavailable, "%s: connection refused", addr))
		}
	}()
	c, err := t.Transport.Dial(ctx, a, p)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	return c, err
}

// ListenOrder and Close are looked for by libp2p beside the interface.
func (t quicTransport) ListenOrder() int { return quic.ListenOrder }

func (t quicTransport) Close() error {
	if c, ok := t.Transport.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

func newQUICTransport(id libp2ptls.IdentityOption) any {
	return func(key crypto.PrivKey, cm *quicreuse.ConnManager, psk pnet.PSK, g connmgr.ConnectionGater, rm network.ResourceManager) (transport.Transport, error) {
		t, err := quic.NewTransport(key, cm, psk, g, rm, quic.WithTLSIdentityOption(id))
		return quicTransport{t}, err
	}
}

// newHost starts the host on one port number for TCP and QUIC.
func (m *Mesh) newHost() (host.Host, error) {
	ips, port, err := parseListen(m.cfg.Listen)
	if err != nil {
		return nil, err
	}
	tries := 1
	if port == 0 {
		tries = 20 // a TCP port that is free may be taken for UDP
	}
	for range tries {
		var h host.Host
		if h, err = m.listenOn(ips, port); err == nil {
			return h, nil
		}
	}
	return nil, err
}

func (m *Mesh) listenOn(ips []netip.Addr, port uint16) (host.Host, error) {
	port, err := probe(ips[0], port)
	if err != nil {
		return nil, forgeyard.E("listen "+m.cfg.Listen, forgeyard.Conflict, err).WithHint("another process has the port; choose another with --listen HOST:PORT, or port 0 for a free one")
	}
	var addrs []string
	for _, ip := range ips {
		v := "ip4"
		if ip.Is6() {
			v = "ip6"
		}
		addrs = append(addrs, fmt.Sprintf("/%s/%s/tcp/%d", v, ip, port), fmt.Sprintf("/%s/%s/udp/%d/quic-v1", v, ip, port))
	}
	opts, err := hostOptions(m.cfg.Identity)
	if err != nil {
		return nil, err
	}
	opts = append(opts, libp2p.ListenAddrStrings(addrs...), libp2p.Transport(m.newTCPTransport), libp2p.ConnectionGater(gater{m}))
	h, err := libp2p.New(opts...)
	if err != nil {
		return nil, forgeyard.E("listen "+m.cfg.Listen, forgeyard.Unavailable, err)
	}
	// libp2p is content if one address of many could be bound; both of the first must.
	if n := len(h.Network().ListenAddresses()); n < 2 || (len(ips) == 1 && n != 2) {
		_ = h.Close()
		return nil, forgeyard.Errorf("listen "+m.cfg.Listen, forgeyard.Conflict, "port %d could be bound for only one of TCP and UDP", port)
	}
	return h, nil
}

// probe binds TCP and UDP once, to learn of a conflict before libp2p hides it and to choose a port.
func probe(ip netip.Addr, port uint16) (uint16, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(ip, port).String())
	if err != nil {
		return 0, err
	}
	defer l.Close()
	got, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("not a TCP listener")
	}
	u, err := net.ListenPacket("udp", netip.AddrPortFrom(ip, uint16(got.Port)).String())
	if err != nil {
		return 0, err
	}
	return uint16(got.Port), u.Close()
}

// parseListen reads HOST:PORT; an empty host is every IPv4 and IPv6 address.
func parseListen(s string) ([]netip.Addr, uint16, error) {
	bad := func(err error) error {
		return forgeyard.Errorf("listen", forgeyard.Invalid, "%q is not HOST:PORT: %w", forgeyard.Clip(s, 80), err)
	}
	h, p, err := net.SplitHostPort(s)
	if err != nil {
		return nil, 0, bad(err)
	}
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return nil, 0, bad(err)
	}
	if h == "" {
		return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}, uint16(port), nil
	}
	a, err := net.ResolveIPAddr("ip", h)
	if err != nil {
		return nil, 0, bad(err)
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		return nil, 0, bad(errors.New("no address"))
	}
	return []netip.Addr{ip.Unmap()}, uint16(port), nil
}
