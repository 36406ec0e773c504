package mesh

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/forgeyard/forgeyard-node"
)

// admitted answers who p is if p may speak now: hello accepted, not revoked, credential not run out.
func (m *Mesh) admitted(p peer.ID) (Peer, error) {
	pr, ok := m.table.get(p)
	if !ok {
		return Peer{}, forgeyard.Errorf("mesh", forgeyard.Denied, "peer %s has shown no valid credential", p)
	}
	return pr, m.stillGood(pr)
}

func (m *Mesh) stillGood(p Peer) error {
	if m.isRevoked(p.ID, p.Runner) {
		return errRevoked(p.ID, p.Runner)
	}
	if !p.Expires.IsZero() && !m.clk.Wall().Before(p.Expires) {
		return refusedFor(RefusedExpired, forgeyard.Errorf("mesh", forgeyard.Denied, "the credential of runner %s expired at %s", p.Runner, p.Expires.Format(time.RFC3339)))
	}
	return nil
}

func (m *Mesh) isRevoked(p peer.ID, r forgeyard.RunnerID) bool {
	m.table.mu.Lock()
	_, bad := m.table.revoked[p]
	m.table.mu.Unlock()
	return bad || (m.cfg.Revoked != nil && m.cfg.Revoked(p, r))
}

func errRevoked(p peer.ID, r forgeyard.RunnerID) error {
	return refusedFor(RefusedRevoked, forgeyard.Errorf("mesh", forgeyard.Denied, "runner %s (peer %s) was removed from the site", r, p).
		WithHint("its credential is revoked; join again with a new token and an empty data directory"))
}

// awaitAdmitted is admitted, but a stream that overtook the end of its hello waits for it.
func (m *Mesh) awaitAdmitted(ctx context.Context, p peer.ID) (Peer, error) {
	pr, err := m.admitted(p)
	if err == nil {
		return pr, nil
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	full := false
	m.table.with(p, func(e *entry) {
		if full = e.waiters >= maxGateWaiters; !full {
			e.waiters++
		}
	})
	if full {
		return Peer{}, err
	}
	defer m.table.with(p, func(e *entry) { e.waiters-- })
	for {
		var changed chan struct{}
		var done bool
		m.table.with(p, func(e *entry) { changed, done = e.changed, e.admitted || e.refusal != nil || len(e.conns) == 0 })
		if done {
			return m.admitted(p)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Peer{}, err
		}
	}
}

// gate lets h see only streams of admitted peers of the classes.
func (m *Mesh) gate(classes classSet, h network.StreamHandler) network.StreamHandler {
	return func(s network.Stream) {
		p := s.Conn().RemotePeer()
		pr, err := m.awaitAdmitted(m.ctx, p)
		if err == nil && !classes.has(pr.Class) {
			err = forgeyard.Errorf("mesh", forgeyard.Denied, "a peer of class %s may not open %s", pr.Class, s.Protocol())
		}
		if err != nil {
			m.log.Debug("stream refused", "peer", p, "protocol", s.Protocol(), "reason", err)
			_ = s.ResetWithError(network.StreamGated)
			m.strike(p)
			return
		}
		h(s)
	}
}

func (m *Mesh) strike(p peer.ID) {
	out := false
	m.table.with(p, func(e *entry) {
		e.strikes++
		out = !e.admitted && e.strikes > maxStrikes
	})
	if out {
		_ = m.host.Network().ClosePeer(p)
	}
}

// gatedHost is the host that other packages get: their handlers see only
// admitted peers of the given classes, their notifiees hear of a peer when it is
// admitted, and their streams start after our own hello was accepted. Decorates
// the real host (bitswap is given this one).
type gatedHost struct {
	host.Host
	m       *Mesh
	classes classSet
}

var _ host.Host = (*gatedHost)(nil)

func (g *gatedHost) SetStreamHandler(id protocol.ID, h network.StreamHandler) {
	g.Host.SetStreamHandler(id, g.m.gate(g.classes, h))
}

func (g *gatedHost) SetStreamHandlerMatch(id protocol.ID, match func(protocol.ID) bool, h network.StreamHandler) {
	g.Host.SetStreamHandlerMatch(id, match, g.m.gate(g.classes, h))
}

func (g *gatedHost) NewStream(ctx context.Context, p peer.ID, ids ...protocol.ID) (network.Stream, error) {
	if err := g.m.ensureHello(ctx, p); err != nil {
		return nil, err
	}
	pr, err := g.m.admitted(p)
	if err != nil {
		return nil, err
	}
	if !g.classes.has(pr.Class) {
		return nil, forgeyard.Errorf("mesh", forgeyard.Denied, "peer %s is of class %s, which is not spoken to here", p, pr.Class)
	}
	return g.Host.NewStream(ctx, p, ids...)
}

func (g *gatedHost) Connect(ctx context.Context, pi peer.AddrInfo) error {
	if len(pi.Addrs) > 0 {
		g.Host.Peerstore().AddAddrs(pi.ID, pi.Addrs, addrTTL)
	}
	return g.m.ensureHello(ctx, pi.ID)
}

func (g *gatedHost) Network() network.Network { return &gatedNetwork{g.Host.Network(), g.m} }

// Close does nothing: the mesh owns the host.
func (g *gatedHost) Close() error { return nil }

// gatedNetwork shows only connections of admitted peers.
type gatedNetwork struct {
	network.Network
	m *Mesh
}

func (n *gatedNetwork) Notify(f network.Notifiee) {
	n.m.notify.add(f)
}

func (n *gatedNetwork) StopNotify(f network.Notifiee) { n.m.notify.remove(f) }

func (n *gatedNetwork) Conns() []network.Conn {
	var out []network.Conn
	for _, c := range n.Network.Conns() {
		if _, err := n.m.admitted(c.RemotePeer()); err == nil {
			out = append(out, c)
		}
	}
	return out
}

func (n *gatedNetwork) Peers() []peer.ID {
	var out []peer.ID
	for _, p := range n.Network.Peers() {
		if _, err := n.m.admitted(p); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// gater keeps revoked peers from being dialled and bounds strangers.
type gater struct{ m *Mesh }

var _ connmgr.ConnectionGater = gater{}

func (g gater) InterceptPeerDial(p peer.ID) bool                                { return !g.m.isRevoked(p, "") }
func (g gater) InterceptAddrDial(peer.ID, ma.Multiaddr) bool                    { return true }
func (g gater) InterceptAccept(network.ConnMultiaddrs) bool                     { return true }
func (g gater) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }

func (g gater) InterceptSecured(dir network.Direction, p peer.ID, _ network.ConnMultiaddrs) bool {
	if dir == network.DirOutbound || g.m.table.expected(p) {
		return true
	}
	if n := g.m.table.strangers(); n >= maxStrangers {
		g.m.log.Warn("stranger turned away", "peer", p, "strangers", n, "limit", maxStrangers)
		return false
	}
	return true
}
