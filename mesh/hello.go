package mesh

import (
	"context"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/forgeyard/forgeyard-node"
)

// Protocols of the mesh itself. Others register their own names.
const (
	ProtoHello protocol.ID = "/forgeyard/hello/1"
	ProtoJoin  protocol.ID = "/forgeyard/join/1"
	ProtoRaft  protocol.ID = "/forgeyard/raft/1"
	ProtoRPC   protocol.ID = "/forgeyard/rpc/1"
)

// hello is what each side shows the other, on a hello stream and at the head of
// a direct connection. Keys are append-only; unknown keys are ignored.
type hello struct {
	Versions   versions            `cbor:"1,keyasint"`
	Site       forgeyard.SiteID    `cbor:"2,keyasint,omitempty"`
	SiteName   string              `cbor:"3,keyasint,omitempty"`
	Session    forgeyard.SessionID `cbor:"4,keyasint,omitempty"`
	Credential []byte              `cbor:"5,keyasint,omitempty"`
	Protocol   protocol.ID         `cbor:"6,keyasint,omitempty"` // direct connections only: what is opened
}

// helloReply answers it: either an error, or the answerer's own hello.
type helloReply struct {
	Err   *wireError `cbor:"1,keyasint,omitempty"`
	Hello *hello     `cbor:"2,keyasint,omitempty"`
	Wall  int64      `cbor:"3,keyasint,omitempty"` // the answerer's clock, in Unix milliseconds: for people, never for authority
}

func (m *Mesh) ownHello() *hello {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &hello{Versions: m.versions, Site: m.cfg.SiteID, SiteName: m.cfg.SiteName, Session: m.cfg.Session, Credential: m.credential}
}

// judge decides who the peer is from what it showed.
func (m *Mesh) judge(p peer.ID, h *hello) (Peer, error) {
	if _, err := negotiate(m.versions, h.Versions); err != nil {
		return Peer{}, err
	}
	if len(h.Session) > maxName {
		return Peer{}, forgeyard.Errorf("hello", forgeyard.Invalid, "a session id of %d letters", len(h.Session))
	}
	pr := Peer{ID: p, Session: forgeyard.SessionID(printable(string(h.Session)))}
	m.table.mu.Lock()
	class, pinned := m.table.pins[p]
	m.table.mu.Unlock()
	if pinned {
		pr.Class = class
		return pr, m.stillGood(pr)
	}
	var cred *Credential
	if len(h.Credential) > 0 {
		var err error
		if cred, err = ParseCredential(h.Credential); err != nil {
			return Peer{}, err
		}
		pr.Runner, pr.Site, pr.Expires = cred.Runner, cred.Site, cred.NotAfter
	}
	authorize := m.cfg.Authorize
	if authorize == nil {
		authorize = m.sameSite
	}
	class, err := authorize(p, cred)
	if err != nil {
		return Peer{}, err
	}
	if class == ClassStranger {
		return Peer{}, forgeyard.Errorf("hello", forgeyard.Denied, "peer %s is not known here", p)
	}
	pr.Class = class
	return pr, m.stillGood(pr)
}

// sameSite is the default Authorize: a valid credential of our own site.
func (m *Mesh) sameSite(p peer.ID, c *Credential) (Class, error) {
	if c == nil {
		return ClassStranger, forgeyard.Errorf("hello", forgeyard.Denied, "peer %s shows no credential of site %s (%s)", p, m.cfg.SiteName, m.cfg.SiteID).
			WithHint("join it with a token of this site")
	}
	if c.Site != m.cfg.SiteID {
		return ClassStranger, forgeyard.Errorf("hello", forgeyard.Denied, "runner %s belongs to site %s, this node to site %s (%s)", printable(string(c.Runner)), printable(string(c.Site)), m.cfg.SiteName, m.cfg.SiteID).
			WithHint("a node belongs to one site; check the address it was given")
	}
	if err := c.Verify(m.cfg.SitePublicKey, p, m.clk.Wall()); err != nil {
		return ClassStranger, err
	}
	return ClassMember, nil
}

// reply adds what every answer carries.
func (m *Mesh) reply(r helloReply) helloReply {
	r.Wall = m.clk.Wall().UnixMilli()
	return r
}

// welcome records the outcome of a judgement.
func (m *Mesh) welcome(pr Peer) {
	fresh, isNew := m.table.admit(pr, true)
	for _, c := range fresh {
		m.notify.connected(m.host.Network(), c)
	}
	if isNew {
		m.log.Info("peer admitted", "peer", pr.ID, "runner_id", pr.Runner, "class", pr.Class.String())
		m.peerEvent(pr, true)
	}
}

// serveHello answers a hello stream.
func (m *Mesh) serveHello(s network.Stream) {
	defer s.Close()
	p := s.Conn().RemotePeer()
	select {
	case m.helloSlots <- struct{}{}:
		defer func() { <-m.helloSlots }()
	default:
		_ = s.Reset()
		return
	}
	_ = s.SetDeadline(time.Now().Add(helloTimeout)) // a socket deadline counts on Go's own clock
	var h hello
	if err := readFrame(s, &h, maxHelloFrame); err != nil {
		_ = s.Reset()
		m.strike(p)
		return
	}
	pr, err := m.judge(p, &h)
	if err != nil {
		m.log.Warn("hello refused", "peer", p, "reason", err)
		m.table.refuse(p, err)
		_ = writeFrame(s, m.reply(helloReply{Err: toWire(err)}), maxHelloFrame)
		m.strike(p)
		return
	}
	m.welcome(pr) // before the answer: the peer may open streams the moment it reads it
	if err := writeFrame(s, m.reply(helloReply{Hello: m.ownHello()}), maxHelloFrame); err != nil {
		_ = s.Reset()
	}
}

// ensureHello connects to p if need be and returns once both sides have accepted each other.
// Unavailable: p cannot be reached. Denied: one side refused the other, and the text says which.
func (m *Mesh) ensureHello(ctx context.Context, p peer.ID) error {
	f, leader, done := m.table.joinFlight(p)
	if done {
		_, err := m.admitted(p)
		return err
	}
	if leader && !m.spawn(func() { m.table.endFlight(p, f, m.sayHello(p)) }) {
		m.table.endFlight(p, f, errClosed)
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return forgeyard.E("mesh", forgeyard.Interrupted, ctx.Err())
	}
}

func (m *Mesh) sayHello(p peer.ID) error {
	ctx, cancel := context.WithTimeout(m.ctx, dialTimeout)
	defer cancel()
	if m.isRevoked(p, "") {
		return errRevoked(p, "")
	}
	if err := m.connect(ctx, p); err != nil {
		return err
	}
	s, err := m.host.NewStream(ctx, p, ProtoHello)
	if err != nil {
		return forgeyard.E("hello", forgeyard.Unavailable, err)
	}
	defer s.Close()
	_ = s.SetDeadline(time.Now().Add(helloTimeout))
	pr, err := m.exchange(s, p, m.ownHello())
	if err == nil {
		m.welcome(pr)
		return nil
	}
	if forgeyard.KindOf(err) != forgeyard.Unavailable {
		m.log.Warn("peer not admitted", "peer", p, "reason", err)
		m.table.refuse(p, err)
		if _, ok := m.table.get(p); !ok {
			_ = m.host.Network().ClosePeer(p)
		}
	}
	return err
}

// exchange shows our hello on rw and judges the answer.
func (m *Mesh) exchange(rw io.ReadWriter, p peer.ID, own *hello) (Peer, error) {
	d := Door{Peer: p, At: m.clk.Now()}
	pr, err := m.exchangeAt(rw, p, own, &d)
	if forgeyard.KindOf(err) != forgeyard.Unavailable { // nobody was met
		d.Err, d.Why = err, WhyRefused(err)
		m.met(d)
	}
	return pr, err
}

func (m *Mesh) exchangeAt(rw io.ReadWriter, p peer.ID, own *hello, d *Door) (Peer, error) {
	if err := writeFrame(rw, own, maxHelloFrame); err != nil {
		return Peer{}, forgeyard.E("hello", forgeyard.Unavailable, err)
	}
	var r helloReply
	if err := readFrame(rw, &r, maxHelloFrame); err != nil {
		if forgeyard.KindOf(err) == forgeyard.Invalid {
			return Peer{}, err
		}
		return Peer{}, forgeyard.E("hello", forgeyard.Unavailable, err)
	}
	if r.Wall != 0 {
		half := m.clk.Now().Sub(d.At) / 2
		d.reads = time.UnixMilli(r.Wall).Add(-time.Duration(d.At) - half)
	}
	if r.Err != nil {
		return Peer{}, r.Err.err("refused by peer " + p.String())
	}
	if r.Hello == nil {
		return Peer{}, forgeyard.Errorf("hello", forgeyard.Invalid, "peer %s answered with nothing", p)
	}
	d.Ours = true // from here on it is this node that refuses
	return m.judge(p, r.Hello)
}

// connect makes sure of a libp2p connection. The swarm's own backoff is cleared
// first: it grows to minutes, and redialling is ours to pace.
func (m *Mesh) connect(ctx context.Context, p peer.ID) error {
	if b, ok := m.host.Network().(backoffHolder); ok {
		b.Backoff().Clear(p)
	}
	err := m.host.Connect(ctx, peer.AddrInfo{ID: p})
	if err == nil {
		return nil
	}
	return forgeyard.E("dial", forgeyard.Unavailable, err)
}
