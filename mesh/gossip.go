package mesh

import (
	"bytes"
	"context"
	"errors"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// GossipKeySize: AES-256.
const GossipKeySize = 32

// Meta is what a node says about itself in gossip: at most memberlist.MetaMaxSize
// (512) bytes of CBOR. Hints for people and for dialling, never authority.
type Meta struct {
	PeerID       peer.ID             `cbor:"1,keyasint"`
	Name         string              `cbor:"2,keyasint,omitempty"`
	Addrs        []string            `cbor:"3,keyasint,omitempty"` // multiaddrs; as many as fit
	Session      forgeyard.SessionID `cbor:"4,keyasint,omitempty"`
	Capabilities forgeyard.Digest    `cbor:"5,keyasint,omitempty"`
	HTTPAddr     string              `cbor:"6,keyasint,omitempty"`
	// Leaving is set by Close before the goodbye: memberlist 0.7 knows left from dead but does not tell (its
	// Node.State is shadowed and always alive).
	Leaving bool `cbor:"7,keyasint,omitempty"`
}

// encode leaves out the last addresses until the record fits.
func (m Meta) encode(limit int) ([]byte, error) {
	m.Name, m.HTTPAddr = forgeyard.Clip(m.Name, maxName), forgeyard.Clip(m.HTTPAddr, maxName)
	m.Addrs = m.Addrs[:min(len(m.Addrs), maxAddrs)]
	for {
		b, err := encMode.Marshal(m)
		if err != nil {
			return nil, forgeyard.E("gossip", forgeyard.Invalid, err)
		}
		if len(b) <= limit {
			return b, nil
		}
		if len(m.Addrs) == 0 {
			return nil, forgeyard.Errorf("gossip", forgeyard.Limit, "the node's record has %d bytes without any address, the limit is %d", len(b), limit)
		}
		m.Addrs = m.Addrs[:len(m.Addrs)-1]
	}
}

// check says why others could not read the record.
func (m Meta) check() error {
	b, err := m.encode(memberlist.MetaMaxSize)
	if err == nil {
		_, err = decodeMeta(b)
	}
	return err
}

func decodeMeta(b []byte) (Meta, error) {
	var m Meta
	if err := decode(b, &m); err != nil {
		return Meta{}, err
	}
	if len(m.Addrs) > maxAddrs || len(m.Session) > maxName {
		return Meta{}, forgeyard.Errorf("gossip", forgeyard.Limit, "%d addresses, the limit is %d", len(m.Addrs), maxAddrs)
	}
	m.Name, m.HTTPAddr, m.Session = printable(m.Name), printable(m.HTTPAddr), forgeyard.SessionID(printable(string(m.Session)))
	_, err := parseAddrs(m.Addrs)
	return m, err
}

// MemberState is gossip's opinion of a node.
type MemberState string

// States of a member.
const (
	StateAlive   MemberState = "alive"
	StateSuspect MemberState = "suspect" // others call it alive, this node has not heard it for two rounds of probes
	StateDead    MemberState = "dead"
	StateLeft    MemberState = "left" // said goodbye
)

// Member is one node as gossip sees it.
type Member struct {
	RunnerID   forgeyard.RunnerID
	Meta       Meta
	GossipAddr string
	State      MemberState
	AsOf       time.Time // wall time of the last word from or about it; for people

	heard forgeyard.Instant // the same moment, to measure with
}

// GossipConfig starts a Gossip.
type GossipConfig struct {
	// Addr is HOST:PORT for TCP and UDP. Default ":7445"; port 0 takes a free one.
	Addr string
	// Advertise is the HOST or HOST:PORT that others should use. Empty: found by memberlist.
	Advertise string
	// Key is the site's gossip key, 32 bytes. What comes under another key is dropped unread. Required.
	Key Secret
	// SiteID labels every packet; RunnerID is the node's name. Required.
	SiteID   forgeyard.SiteID
	RunnerID forgeyard.RunnerID
	// Meta is the first record; see UpdateMeta.
	Meta Meta
	// Seeds are gossip addresses (host:port) to find the others by; see SetSeeds.
	Seeds []string
	// Rejoin is how often members that are not alive, and seeds, are dialled again (decision 27). Zero: DefaultRejoin.
	Rejoin time.Duration
	// Revoked keeps a removed node out, although it still holds the key. Nil: nobody.
	Revoked func(peer.ID, forgeyard.RunnerID) bool
	// OnMember is told of each change of one member; it must not block nor call back. Nil: nobody.
	OnMember func(Member)
	// Transport replaces the network in tests. Nil: the network.
	Transport memberlist.Transport
	// Clock and Logger: nil means the system's clock, and no log.
	Clock  clock.Clock
	Logger *slog.Logger
}

// Gossip is who is up, as nodes tell each other. Safe for concurrent use.
type Gossip struct {
	cfg    GossipConfig
	ml     *memberlist.Memberlist
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	poke   chan struct{}

	mu      sync.Mutex // guards what is below; memberlist calls in under its own locks, so nothing here calls out
	meta    Meta
	seeds   []string
	known   map[forgeyard.RunnerID]Member
	changed chan struct{}
}

// StartGossip starts gossip beside the mesh: addresses it learns go to the peerstore, Close ends it.
func (m *Mesh) StartGossip(cfg GossipConfig) (*Gossip, error) {
	next := cfg.OnMember
	cfg.OnMember = func(mb Member) {
		if mb.State == StateAlive && mb.RunnerID != cfg.RunnerID {
			if err := m.learnAddrs(mb.Meta.PeerID, mb.Meta.Addrs); err != nil {
				m.log.Warn("gossip has an address that cannot be used", "runner_id", mb.RunnerID, "error", err)
			}
		}
		if next != nil {
			next(mb)
		}
	}
	if cfg.Revoked == nil {
		cfg.Revoked = m.isRevoked
	}
	if cfg.Clock == nil {
		cfg.Clock = m.clk
	}
	if cfg.Logger == nil {
		cfg.Logger = m.log
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.gossip != nil {
		return nil, forgeyard.Errorf("gossip", forgeyard.Conflict, "the mesh is closed or gossips already")
	}
	g, err := NewGossip(cfg)
	if err == nil {
		m.gossip = g
	}
	return g, err
}

// NewGossip binds and starts; it does not wait for others. Conflict: the port is taken.
func NewGossip(cfg GossipConfig) (*Gossip, error) {
	if cfg.Addr == "" {
		cfg.Addr = ":7445"
	}
	if cfg.Rejoin <= 0 {
		cfg.Rejoin = DefaultRejoin
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Key.Reveal()) != GossipKeySize || cfg.RunnerID == "" || cfg.SiteID == "" {
		return nil, forgeyard.Errorf("gossip", forgeyard.Invalid, "a key of %d bytes, a site id and a runner id are needed", GossipKeySize)
	}
	if err := cfg.Meta.check(); err != nil {
		return nil, err
	}
	g := &Gossip{cfg: cfg, meta: cfg.Meta, seeds: slices.Clone(cfg.Seeds), known: map[forgeyard.RunnerID]Member{}, changed: make(chan struct{}), poke: make(chan struct{}, 1)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	mc, err := g.memberlistConfig()
	if err != nil {
		return nil, err
	}
	if mc.Transport == nil {
		mc.Transport, err = g.listen(mc)
	}
	if err == nil {
		g.ml, err = memberlist.Create(mc)
	}
	if err != nil {
		g.cancel()
		if mc.Transport != nil {
			_ = mc.Transport.Shutdown()
		}
		return nil, forgeyard.E("gossip "+cfg.Addr, forgeyard.Conflict, err).WithHint("another process may have the port; choose another with --gossip HOST:PORT, or port 0 for a free one")
	}
	g.wg.Go(g.rejoinLoop)
	return g, nil
}

// memberlistConfig tunes for 3 to 50 nodes on a LAN: a dead node is noticed in about 5 s.
func (g *Gossip) memberlistConfig() (*memberlist.Config, error) {
	c := memberlist.DefaultLANConfig()
	c.Name, c.Label, c.SecretKey = string(g.cfg.RunnerID), string(g.cfg.SiteID), slices.Clone(g.cfg.Key.Reveal())
	c.TCPTimeout = 5 * time.Second
	c.PushPullInterval = 15 * time.Second
	c.EnableCompression = false // a table of many kilobytes is made for each packet, and packets are small; who sends them packed is understood
	c.ProbeInterval = probeInterval
	c.DeadNodeReclaimTime = time.Second // a restarted node may come back on another port
	c.LogOutput, c.Logger = nil, log.New(logWriter{g.cfg.Logger}, "", 0)
	d := (*gossipDelegate)(g)
	c.Delegate, c.Events, c.Alive, c.Ping = d, d, d, d
	c.Transport = g.cfg.Transport
	ips, port, err := parseListen(g.cfg.Addr)
	if err != nil {
		return nil, err
	}
	c.BindAddr, c.BindPort, c.AdvertisePort = ips[0].String(), int(port), int(port)
	if g.cfg.Advertise != "" {
		h, p, err := net.SplitHostPort(g.cfg.Advertise)
		if err != nil {
			h = g.cfg.Advertise
		} else if c.AdvertisePort, err = strconv.Atoi(p); err != nil {
			return nil, forgeyard.Errorf("gossip", forgeyard.Invalid, "%q is not HOST or HOST:PORT", forgeyard.Clip(g.cfg.Advertise, 80))
		}
		c.AdvertiseAddr = h
	}
	return c, nil
}

// netTransport is memberlist's own, except that Close does not wait for a dial into a cut link, and that a
// machine without a private address (all its links are down, or it has a public one) starts all the same.
type netTransport struct {
	*memberlist.NetTransport
	ctx      context.Context
	wildcard bool // bound to every address: the one to advertise is looked up each time it is announced
}

func (t *netTransport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if ip == "" && t.wildcard {
		ip, port = ownIP().String(), t.GetAutoBindPort()
	}
	return t.NetTransport.FinalAdvertiseAddr(ip, port)
}

// ownIP prefers a private IPv4 address, then any that others may reach, then loopback.
func ownIP() net.IP {
	best, rank := net.IPv4(127, 0, 0, 1), 0
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return best
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() {
			continue
		}
		r := 1
		if n.IP.To4() != nil {
			r = 2
			if n.IP.IsPrivate() {
				r = 3
			}
		}
		if r > rank {
			best, rank = n.IP, r
		}
	}
	return best
}

func (t *netTransport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	return d.DialContext(t.ctx, "tcp", a.Addr)
}

// listen binds TCP and UDP on one number.
func (g *Gossip) listen(c *memberlist.Config) (memberlist.Transport, error) {
	tries := 1
	if c.BindPort == 0 {
		tries = 20 // a TCP port that is free may be taken for UDP
	}
	var err error
	for range tries {
		var t *memberlist.NetTransport
		t, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{c.BindAddr}, BindPort: c.BindPort, Logger: c.Logger})
		if err != nil {
			continue
		}
		c.BindPort = t.GetAutoBindPort()
		if c.AdvertisePort == 0 {
			c.AdvertisePort = c.BindPort
		}
		return &netTransport{t, g.ctx, net.ParseIP(c.BindAddr).IsUnspecified()}, nil
	}
	return nil, err
}

// Addr is the host:port that others are told.
func (g *Gossip) Addr() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known[g.cfg.RunnerID].GossipAddr // noted before NewGossip returned
}

// Members lists all that were ever heard of in this process, this node too, by runner id.
func (g *Gossip) Members() []Member {
	// Each node is probed once in (number of nodes) intervals.
	round := time.Duration(max(g.ml.NumMembers(), 2)) * probeInterval
	now := g.cfg.Clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Member, 0, len(g.known))
	for _, m := range g.known {
		if m.RunnerID == g.cfg.RunnerID {
			m.AsOf = g.cfg.Clock.Wall()
		} else if m.State == StateAlive && now.Sub(m.heard) > 2*round+2*probeInterval {
			m.State = StateSuspect
		}
		m.Meta.Addrs = slices.Clone(m.Meta.Addrs)
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return cmpString(string(a.RunnerID), string(b.RunnerID)) })
	return out
}

// Changed returns a channel that is closed at the next change of a member. Take it before Members.
func (g *Gossip) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// SetSeeds replaces the addresses to try, and tries them now.
func (g *Gossip) SetSeeds(addrs []string) {
	g.mu.Lock()
	g.seeds = slices.Clone(addrs)
	g.mu.Unlock()
	select {
	case g.poke <- struct{}{}:
	default:
	}
}

// UpdateMeta spreads a new record of this node.
func (g *Gossip) UpdateMeta(m Meta) error {
	if err := m.check(); err != nil {
		return err
	}
	g.mu.Lock()
	g.meta = m
	g.mu.Unlock()
	if err := g.ml.UpdateNode(gossipLeave); err != nil {
		// The record is set; only the wait for its first broadcast ended. Push-pull carries it.
		g.cfg.Logger.Debug("gossip record not broadcast yet", "error", err)
	}
	return nil
}

// rejoinLoop heals splits: memberlist forgets dead nodes and nobody redials them.
func (g *Gossip) rejoinLoop() {
	for {
		g.rejoin()
		wait := time.Duration(float64(g.cfg.Rejoin) * (0.75 + rand.Float64()/2))
		select {
		case <-g.cfg.Clock.After(wait):
		case <-g.poke:
		case <-g.ctx.Done():
			return
		}
	}
}

func (g *Gossip) rejoin() {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4) // each may hang for TCPTimeout
	for _, a := range g.absent() {
		slots <- struct{}{}
		if g.ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if _, err := g.ml.Join([]string{a}); err != nil {
				g.cfg.Logger.Debug("gossip rejoin", "addr", a, "error", err)
			}
		})
	}
	wg.Wait()
}

// absent lists addresses of seeds and known members that no live member has.
func (g *Gossip) absent() []string {
	live := map[string]bool{}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.known { // not memberlist's Members: it hands out nodes that it goes on writing to
		live[m.GossipAddr] = live[m.GossipAddr] || m.State == StateAlive
	}
	var out []string
	add := func(a string) {
		if a != "" && !live[a] && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for _, s := range g.seeds {
		add(s)
	}
	for _, m := range g.known {
		if m.State == StateDead {
			add(m.GossipAddr)
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// Close says goodbye, waiting at most gossipLeave, and stops.
func (g *Gossip) Close() error {
	g.mu.Lock()
	m := g.meta
	m.Leaving = true
	g.meta = m
	g.mu.Unlock()
	if err := errors.Join(g.ml.UpdateNode(gossipLeave/2), g.ml.Leave(gossipLeave/2)); err != nil {
		g.cfg.Logger.Debug("gossip goodbye not heard", "error", err)
	}
	g.cancel()
	err := g.ml.Shutdown()
	g.wg.Wait()
	return err
}

// gossipDelegate is what memberlist calls. Its methods run under memberlist's locks.
type gossipDelegate Gossip

func (d *gossipDelegate) NodeMeta(limit int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.meta.encode(limit)
	if err != nil {
		return nil // encode was checked when the record was set
	}
	return b
}

func (d *gossipDelegate) NotifyMsg([]byte)                {}
func (d *gossipDelegate) GetBroadcasts(int, int) [][]byte { return nil }
func (d *gossipDelegate) LocalState(bool) []byte          { return nil }
func (d *gossipDelegate) MergeRemoteState([]byte, bool)   {}
func (d *gossipDelegate) AckPayload() []byte              { return nil }
func (d *gossipDelegate) NotifyJoin(n *memberlist.Node)   { d.note(n, StateAlive) }
func (d *gossipDelegate) NotifyUpdate(n *memberlist.Node) { d.note(n, StateAlive) }

func (d *gossipDelegate) NotifyLeave(n *memberlist.Node) {
	d.note(n, StateDead)
}

// NotifyAlive refuses nodes whose record cannot be read, and removed ones.
func (d *gossipDelegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == string(d.cfg.RunnerID) {
		return nil
	}
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return err
	}
	if d.cfg.Revoked != nil && d.cfg.Revoked(m.PeerID, forgeyard.RunnerID(n.Name)) {
		return errors.New("the node was removed from the site")
	}
	return nil
}

func (d *gossipDelegate) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m, ok := d.known[forgeyard.RunnerID(n.Name)]; ok {
		m.AsOf, m.heard = d.cfg.Clock.Wall(), d.cfg.Clock.Now()
		d.known[m.RunnerID] = m
	}
}

func (d *gossipDelegate) note(n *memberlist.Node, s MemberState) {
	meta, err := decodeMeta(n.Meta)
	if err != nil {
		d.cfg.Logger.Debug("gossip record", "runner_id", n.Name, "error", err)
		return
	}
	m := Member{RunnerID: forgeyard.RunnerID(n.Name), Meta: meta, GossipAddr: n.Address(), State: s, AsOf: d.cfg.Clock.Wall(), heard: d.cfg.Clock.Now()}
	if s == StateDead && meta.Leaving {
		m.State = StateLeft
	}
	d.mu.Lock()
	d.known[m.RunnerID] = m
	close(d.changed)
	d.changed = make(chan struct{})
	d.mu.Unlock()
	if d.cfg.OnMember != nil {
		d.cfg.OnMember(m)
	}
}

// logWriter turns memberlist's lines into slog, all at debug except errors: a
// node that is away is a fact of status, not a line every second.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(b []byte) (int, error) {
	line := string(bytes.TrimSpace(b))
	level := slog.LevelDebug
	if strings.HasPrefix(line, "[ERR]") {
		level = slog.LevelWarn
	}
	_, text, ok := strings.Cut(line, "memberlist: ")
	if !ok {
		text = line
	}
	w.log.Log(context.Background(), level, "gossip: "+text)
	return len(b), nil
}
