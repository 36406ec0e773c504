package mesh

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

var errClosed = forgeyard.Errorf("mesh", forgeyard.Unavailable, "the mesh is closed")

// Config of a Mesh. It is copied by New and does not change after.
type Config struct {
	// Identity is the node's key. Required.
	Identity Identity
	// SiteID and SiteName are the own site's; SitePublicKey checks its credentials. Required unless Authorize is set.
	SiteID        forgeyard.SiteID
	SiteName      string
	SitePublicKey ed25519.PublicKey
	// Session names this process in hellos. Empty is allowed for tests.
	Session forgeyard.SessionID
	// Credential is shown in hellos; empty for a central daemon, which is known by its pinned peer id.
	Credential []byte
	// Listen is HOST:PORT for TCP and QUIC. Default ":7444"; port 0 takes one that is free for both.
	Listen string
	// Authorize decides who a peer is. Nil: a valid credential of the own site is a member, all else is refused.
	// The credential is parsed but not verified (call Verify), nil if none was shown. Called often, from many goroutines.
	Authorize func(peer.ID, *Credential) (Class, error)
	// Revoked is asked at each hello, stream and sweep; it must be quick. Nil: nobody. RunnerID may be empty.
	Revoked func(peer.ID, forgeyard.RunnerID) bool
	// OnPeer is told when a peer is admitted (up) and when its last connection is gone. It must not block. Nil: nobody.
	OnPeer func(p Peer, up bool)
	// StreamsOnly carries everything over libp2p; false is right except where one TCP connection per peer is all that may pass.
	StreamsOnly bool
	// Clock and Logger: nil means the system's clock, and no log.
	Clock  clock.Clock
	Logger *slog.Logger
}

// Mesh is this node's place among its peers. Safe for concurrent use.
//
// Goroutines: one per accepted or dialled connection until its hello is over, one per kept peer, one
// sweeper, and libp2p's own; all end before Close returns.
type Mesh struct {
	cfg    Config
	clk    clock.Clock
	log    *slog.Logger
	host   host.Host
	table  *table
	direct *directServer
	notify *notifiees

	versions   versions
	helloSlots chan struct{}
	joinSlots  chan struct{}
	ready      chan struct{} // closed once host is set

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex // guards what is below; taken after table.mu by nobody
	closed     bool
	credential []byte
	listeners  map[protocol.ID]*Listener
	noDirect   map[peer.ID]forgeyard.Instant
	keepers    map[peer.ID]context.CancelFunc
	gossip     *Gossip
	doors      map[peer.ID]Door
	asked      map[peer.ID]forgeyard.Instant // when its clock was asked for, see AskClocks
}

// New starts the host, its gate and its sweeper. Conflict: the port is taken.
func New(cfg Config) (*Mesh, error) {
	m, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if m.direct, err = newDirectServer(m); err == nil {
		m.host, err = m.newHost()
	}
	if err != nil {
		m.shutdown()
		return nil, err
	}
	m.host.Network().Notify(&network.NotifyBundle{ConnectedF: m.onConnected, DisconnectedF: m.onDisconnected})
	m.host.SetStreamHandler(ProtoHello, m.serveHello)
	close(m.ready)
	m.spawn(m.sweepLoop)
	return m, nil
}

func prepare(cfg Config) (*Mesh, error) {
	if cfg.Identity.IsZero() {
		return nil, forgeyard.Errorf("mesh", forgeyard.Invalid, "no identity was given")
	}
	if cfg.Authorize == nil && (cfg.SiteID == "" || len(cfg.SitePublicKey) != ed25519.PublicKeySize) {
		return nil, forgeyard.Errorf("mesh", forgeyard.Invalid, "neither a site with its public key nor Authorize was given")
	}
	if cfg.Listen == "" {
		cfg.Listen = ":7444"
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Mesh{
		cfg: cfg, clk: cfg.Clock, log: cfg.Logger, table: newTable(), versions: versions{versionMin, versionMax},
		helloSlots: make(chan struct{}, maxHellos), joinSlots: make(chan struct{}, maxJoins), ready: make(chan struct{}),
		credential: slices.Clone(cfg.Credential), listeners: map[protocol.ID]*Listener{},
		noDirect: map[peer.ID]forgeyard.Instant{}, keepers: map[peer.ID]context.CancelFunc{}, doors: map[peer.ID]Door{}, asked: map[peer.ID]forgeyard.Instant{},
	}
	m.notify = &notifiees{}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m, nil
}

// spawn runs f in a goroutine that Close waits for; false after Close.
func (m *Mesh) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.wg.Go(f)
	return true
}

// PeerID is this node's name on the wire.
func (m *Mesh) PeerID() peer.ID { return m.host.ID() }

// Addrs are the multiaddrs under which this node can be dialled, without the peer id.
func (m *Mesh) Addrs() []string {
	var out []string
	for _, a := range m.host.Addrs() {
		out = append(out, a.String())
	}
	return out
}

// ListenAddrs are the bound multiaddrs, with the chosen port.
func (m *Mesh) ListenAddrs() []ma.Multiaddr { return m.host.Network().ListenAddresses() }

// Host returns the libp2p host for members only: its handlers see admitted members of this site.
func (m *Mesh) Host() host.Host { return m.HostFor(ClassMember) }

// HostFor is Host for other classes too. A protocol belongs to one of these hosts at a time.
func (m *Mesh) HostFor(classes ...Class) host.Host {
	return &gatedHost{m.host, m, newClassSet(classes)}
}

// Peers lists who is admitted now.
func (m *Mesh) Peers() []Peer {
	ps := m.table.snapshot()
	slices.SortFunc(ps, func(a, b Peer) int { return cmpString(string(a.ID), string(b.ID)) })
	return ps
}

func cmpString(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Connect reaches p and returns once both sides have accepted each other.
func (m *Mesh) Connect(ctx context.Context, p peer.ID) error { return m.ensureHello(ctx, p) }

// AddAddrs notes where p may be found, from a trusted source (the log, an enrolment, gossip under our key).
func (m *Mesh) AddAddrs(p peer.ID, addrs []string) error {
	if len(addrs) > maxAddrs {
		addrs = addrs[:maxAddrs]
	}
	as, err := parseAddrs(addrs)
	if err != nil {
		return forgeyard.E("mesh", forgeyard.Invalid, err)
	}
	if p == m.host.ID() {
		return nil
	}
	m.table.mu.Lock()
	m.table.known[p] = struct{}{}
	m.table.mu.Unlock()
	m.host.Peerstore().AddAddrs(p, as, addrTTL)
	return nil
}

// learnAddrs is AddAddrs for what gossip says. It never replaces what others said, since a member may lie about
// another, until so many have piled up that dialling them all would take longer than asking again.
func (m *Mesh) learnAddrs(p peer.ID, addrs []string) error {
	if p != m.host.ID() && len(m.host.Peerstore().Addrs(p)) > 4*maxAddrs {
		m.host.Peerstore().ClearAddrs(p)
	}
	return m.AddAddrs(p, addrs)
}

// Pin lets a peer pass by its peer id alone, with no credential: how a site knows its central daemon.
func (m *Mesh) Pin(p peer.ID, c Class) {
	m.table.mu.Lock()
	defer m.table.mu.Unlock()
	m.table.pins[p] = c
}

// Unpin takes it back and drops the peer.
func (m *Mesh) Unpin(p peer.ID) {
	m.table.mu.Lock()
	delete(m.table.pins, p)
	m.table.mu.Unlock()
	m.drop(p, forgeyard.Errorf("mesh", forgeyard.Denied, "peer %s is no longer pinned", p))
}

// Revoke drops the peer at once and refuses it from now on. Repeating it is harmless.
func (m *Mesh) Revoke(p peer.ID) {
	m.table.mu.Lock()
	m.table.revoked[p] = struct{}{}
	m.table.mu.Unlock()
	m.drop(p, errRevoked(p, ""))
}

// Recheck asks Revoked about every admitted peer now, instead of within a second: call it when the log changed.
func (m *Mesh) Recheck() {
	for _, p := range m.table.snapshot() {
		if err := m.stillGood(p); err != nil {
			m.drop(p.ID, err)
		}
	}
}

// drop closes everything the peer has.
func (m *Mesh) drop(p peer.ID, why error) {
	directs, lost, was := m.table.expel(p, why)
	for _, c := range directs {
		_ = c.Close()
	}
	_ = m.host.Network().ClosePeer(p)
	if was {
		m.log.Warn("peer dropped", "peer", p, "runner_id", lost.Runner, "reason", why)
		m.peerEvent(lost, false)
	}
}

// SetCredential replaces the credential after a renewal and shows it to every peer that is connected.
func (m *Mesh) SetCredential(raw []byte) {
	m.mu.Lock()
	m.credential = slices.Clone(raw)
	m.mu.Unlock()
	for _, p := range m.table.snapshot() {
		m.spawn(func() {
			if err := m.sayHello(p.ID); err != nil {
				m.log.Warn("renewed credential not shown", "peer", p.ID, "error", err)
			}
		})
	}
}

func (m *Mesh) peerEvent(p Peer, up bool) {
	if m.cfg.OnPeer != nil {
		m.cfg.OnPeer(p, up)
	}
}

func (m *Mesh) onConnected(n network.Network, c network.Conn) {
	if m.table.connected(c, m.clk.Now()) {
		m.notify.connected(n, c)
	}
	if c.Stat().Direction == network.DirOutbound {
		m.spawn(func() {
			if err := m.ensureHello(m.ctx, c.RemotePeer()); err != nil {
				m.log.Debug("no hello", "peer", c.RemotePeer(), "error", err)
			}
		})
	}
}

func (m *Mesh) onDisconnected(n network.Network, c network.Conn) {
	tell, lost, gone := m.table.disconnected(c)
	if tell {
		m.notify.disconnected(n, c)
	}
	if gone {
		m.peerEvent(lost, false)
	}
}

// sweepLoop drops what has expired or was revoked, and strangers that had their time.
func (m *Mesh) sweepLoop() {
	for {
		select {
		case <-m.clk.After(sweepEvery):
		case <-m.ctx.Done():
			return
		}
		m.Recheck()
		for _, c := range m.table.overdue(m.clk.Now()) {
			m.log.Info("stranger disconnected", "peer", c.RemotePeer(), "after", strangerGrace)
			_ = c.Close()
		}
	}
}

// Close says goodbye in gossip, closes listeners, then connections, then the
// host, and waits for every goroutine of this package.
func (m *Mesh) Close() error {
	m.mu.Lock()
	g, done := m.gossip, m.closed
	m.gossip = nil
	m.mu.Unlock()
	if done {
		return nil
	}
	if g != nil {
		_ = g.Close()
	}
	return m.shutdown()
}

func (m *Mesh) shutdown() error {
	m.mu.Lock()
	m.closed = true
	ls := make([]*Listener, 0, len(m.listeners))
	for _, l := range m.listeners {
		ls = append(ls, l)
	}
	m.mu.Unlock()
	for _, l := range ls {
		_ = l.Close()
	}
	m.cancel()
	if m.direct != nil {
		m.direct.close()
	}
	for _, p := range m.table.snapshot() {
		directs, _, _ := m.table.expel(p.ID, errClosed)
		for _, c := range directs {
			_ = c.Close()
		}
	}
	var err error
	if m.host != nil {
		err = m.host.Close()
	}
	m.wg.Wait()
	return err
}

// notifiees are told of admitted peers' connections only.
type notifiees struct {
	order sync.Mutex // held while telling, so that nobody hears of the end of a connection before its beginning; taken before mu
	mu    sync.Mutex // guards list
	list  []network.Notifiee
}

func (n *notifiees) add(f network.Notifiee) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, f)
}

func (n *notifiees) remove(f network.Notifiee) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = slices.DeleteFunc(slices.Clone(n.list), func(g network.Notifiee) bool { return g == f })
}

func (n *notifiees) all() []network.Notifiee {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.list
}

func (n *notifiees) connected(nw network.Network, c network.Conn) {
	n.order.Lock()
	defer n.order.Unlock()
	if c.IsClosed() {
		return
	}
	for _, f := range n.all() {
		f.Connected(nw, c)
	}
}

func (n *notifiees) disconnected(nw network.Network, c network.Conn) {
	n.order.Lock()
	defer n.order.Unlock()
	for _, f := range n.all() {
		f.Disconnected(nw, c)
	}
}
