package mesh

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/forgeyard/forgeyard-node"
)

// Addr is the net.Addr of both ends of a mesh connection. Its text is the peer id.
type Addr struct{ Peer }

// Network implements net.Addr.
func (Addr) Network() string  { return "forgeyard" }
func (a Addr) String() string { return a.ID.String() }

// PeerOf says who is at the other end of a connection of this package.
func PeerOf(c net.Conn) (Peer, bool) {
	a, ok := c.RemoteAddr().(Addr)
	return a.Peer, ok
}

type peerKey struct{}

// ConnContext is for http.Server.ConnContext: handlers then find the caller with PeerFrom.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if p, ok := PeerOf(c); ok {
		return context.WithValue(ctx, peerKey{}, p)
	}
	return ctx
}

// PeerFrom returns the caller that ConnContext noted.
func PeerFrom(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// streamConn is a libp2p stream as a net.Conn.
type streamConn struct {
	network.Stream
	local, remote Addr
}

func (c *streamConn) LocalAddr() net.Addr  { return c.local }
func (c *streamConn) RemoteAddr() net.Addr { return c.remote }

// Close ends both directions; what was written is still delivered.
func (c *streamConn) Close() error {
	err := c.Stream.Close()
	if err != nil {
		_ = c.Stream.Reset()
	}
	return err
}

// Listener accepts the connections of one protocol, whichever way they came.
type Listener struct {
	m       *Mesh
	proto   protocol.ID
	classes classSet
	ch      chan net.Conn
	done    chan struct{}
}

var _ net.Listener = (*Listener)(nil)

// Listen opens a protocol to admitted peers of the classes. Conflict if it is open already.
func (m *Mesh) Listen(proto protocol.ID, classes ...Class) (*Listener, error) {
	l := &Listener{m: m, proto: proto, classes: newClassSet(classes), ch: make(chan net.Conn, acceptBacklog), done: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errClosed
	}
	if _, dup := m.listeners[proto]; dup || proto == ProtoHello || proto == ProtoJoin {
		return nil, forgeyard.Errorf("listen", forgeyard.Conflict, "protocol %s is open already", proto)
	}
	m.listeners[proto] = l
	m.host.SetStreamHandler(proto, m.gate(l.classes, func(s network.Stream) {
		pr, err := m.admitted(s.Conn().RemotePeer())
		if err != nil || !l.offer(&streamConn{s, Addr{Peer{ID: m.host.ID()}}, Addr{pr}}) {
			_ = s.ResetWithError(network.StreamResourceLimitExceeded)
		}
	}))
	return l, nil
}

// ListenFor is Listen with the classes given beforehand.
func (m *Mesh) ListenFor(classes ...Class) func(protocol.ID) (net.Listener, error) {
	return func(proto protocol.ID) (net.Listener, error) { return m.Listen(proto, classes...) }
}

// listener finds the open protocol that the peer may use.
func (m *Mesh) listener(proto protocol.ID, p Peer) (*Listener, error) {
	m.mu.Lock()
	l := m.listeners[proto]
	m.mu.Unlock()
	if l == nil {
		return nil, forgeyard.Errorf("mesh", forgeyard.NotFound, "protocol %q is not spoken here", forgeyard.Clip(string(proto), maxName))
	}
	if !l.classes.has(p.Class) {
		return nil, forgeyard.Errorf("mesh", forgeyard.Denied, "a peer of class %s may not open %s", p.Class, proto)
	}
	return l, nil
}

// offer hands over a connection, or says that the backlog is full or the listener closed.
func (l *Listener) offer(c net.Conn) bool {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.listeners[l.proto] != l {
		return false
	}
	select {
	case l.ch <- c:
		return true
	default:
		return false
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.ch:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections that nobody accepted are closed.
func (l *Listener) Close() error {
	l.m.mu.Lock()
	if l.m.listeners[l.proto] != l {
		l.m.mu.Unlock()
		return nil
	}
	delete(l.m.listeners, l.proto)
	l.m.host.RemoveStreamHandler(l.proto)
	close(l.done)
	l.m.mu.Unlock()
	for {
		select {
		case c := <-l.ch:
			_ = c.Close()
		default:
			return nil
		}
	}
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return Addr{Peer{ID: l.m.host.ID()}} }

// Dial opens proto at p: on a TLS connection of its own if TCP passes, else as
// a libp2p stream (over whatever connection exists, which is how a central daemon
// reaches a node behind NAT). Unavailable: not reachable now. Denied: refused, by either side.
func (m *Mesh) Dial(ctx context.Context, p peer.ID, proto protocol.ID) (net.Conn, error) {
	if p == m.host.ID() {
		return nil, forgeyard.Errorf("dial", forgeyard.Invalid, "peer %s is this node itself", p)
	}
	if m.isRevoked(p, "") {
		return nil, errRevoked(p, "")
	}
	if m.tryDirect(p) {
		c, err := m.dialDirect(ctx, p, proto)
		switch forgeyard.KindOf(err) {
		case forgeyard.Denied, forgeyard.Invalid, forgeyard.NotFound, forgeyard.Limit:
			return nil, err
		}
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, forgeyard.E("dial", forgeyard.Unavailable, err)
		}
		m.directFailed(p)
	}
	s, err := (&gatedHost{m.host, m, ^classSet(0)}).NewStream(ctx, p, proto)
	if err != nil {
		return nil, forgeyard.E("dial", kindOr(err, forgeyard.Unavailable), err)
	}
	pr, err := m.admitted(p)
	if err != nil {
		_ = s.Reset()
		return nil, err
	}
	return &streamConn{s, Addr{Peer{ID: m.host.ID()}}, Addr{pr}}, nil
}

func kindOr(err error, k forgeyard.Kind) forgeyard.Kind {
	if got := forgeyard.KindOf(err); got != forgeyard.Other {
		return got
	}
	return k
}

// tryDirect is false for a while after a direct dial found no way, if a libp2p connection is there instead.
func (m *Mesh) tryDirect(p peer.ID) bool {
	if m.cfg.StreamsOnly {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	until, bad := m.noDirect[p]
	if bad && m.clk.Now() < until && m.host.Network().Connectedness(p) == network.Connected {
		return false
	}
	delete(m.noDirect, p)
	return true
}

func (m *Mesh) directFailed(p peer.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noDirect[p] = m.clk.Now().Add(directRetry)
}

// raftLayer is the mesh as raft sees it; a server's address is its peer id.
type raftLayer struct {
	*Listener
}

var _ raft.StreamLayer = (*raftLayer)(nil)

// RaftLayer opens the raft protocol to members. Each pooled raft connection is a
// TCP connection of its own, so it shares no send queue with content.
func (m *Mesh) RaftLayer() (raft.StreamLayer, error) {
	l, err := m.Listen(ProtoRaft, ClassMember)
	if err != nil {
		return nil, err
	}
	return &raftLayer{l}, nil
}

// Refuses implements consensus.Refuser. Every TCP address of the peer refuses, and the
// connection that there was, of whatever kind, is gone too: where TCP is forbidden and QUIC
// passes, a refusal says nothing.
func (r *raftLayer) Refuses(a raft.ServerAddress, timeout time.Duration) bool {
	p, err := peer.Decode(string(a))
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(r.m.ctx, timeout)
	defer cancel()
	addrs := r.m.tcpAddrs(p)
	for k := knockAll(ctx, addrs); k != refused; k = knockAll(ctx, addrs) {
		if k == somebody || !r.pause(ctx) {
			return false
		}
	}
	return r.hungUp(ctx, p)
}

// hungUp waits until no connection to the peer is left. libp2p hears of a reset a moment
// later than who reads the connection; over QUIC nobody hears of it, so its port is asked.
func (r *raftLayer) hungUp(ctx context.Context, p peer.ID) bool {
	for {
		ports, all := udpPorts(r.m.host.Network().ConnsToPeer(p))
		if all {
			return !slices.ContainsFunc(ports, func(port string) bool { return !udpRefuses(ctx, port) })
		}
		if !r.pause(ctx) {
			return false
		}
	}
}

// udpPorts are the other ends of connections over UDP, and whether that is all of them.
func udpPorts(conns []network.Conn) (ports []string, all bool) {
	for _, c := range conns {
		if port := udpAddr(c.RemoteMultiaddr()); port != "" {
			ports = append(ports, port)
		}
	}
	return ports, len(ports) == len(conns)
}

func (r *raftLayer) pause(ctx context.Context) bool {
	select {
	case <-r.m.clk.After(refusedLook):
		return true
	case <-ctx.Done():
		return false
	}
}

// refusedLook is between looks at whether a connection is gone.
const refusedLook = 5 * time.Millisecond

// Dial implements raft.StreamLayer.
func (r *raftLayer) Dial(a raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	p, err := peer.Decode(string(a))
	if err != nil {
		return nil, forgeyard.Errorf("raft dial", forgeyard.Invalid, "%q is not a peer id: %w", forgeyard.Clip(string(a), 80), err)
	}
	ctx, cancel := context.WithTimeout(r.m.ctx, timeout)
	defer cancel()
	return r.m.Dial(ctx, p, ProtoRaft)
}
