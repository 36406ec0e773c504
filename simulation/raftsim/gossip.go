package raftsim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// gossipPort is where every machine gossips: machine i at 10.0.0.i+1.
const gossipPort = 7946

func (m *machine) gossipIP() net.IP { return net.IPv4(10, 0, 0, byte(m.id+1)).To4() }

// peerID has the form of one: the identity hash of a public key's encoding.
func (m *machine) peerID() peer.ID {
	key := [32]byte{31: byte(m.id + 1)}
	return peer.ID("\x00\x24\x08\x01\x12\x20" + string(key[:]))
}

func (m *machine) gossipAddr() string { return fmt.Sprintf("%s:%d", m.gossipIP(), gossipPort) }

// gossiper is memberlist's way into the network: packets that get lost where a link is
// cut, and streams as Raft has them, at a port of their own.
type gossiper struct {
	*port   // its streams
	m       *machine
	packets chan *memberlist.Packet
	streams chan net.Conn
	wg      sync.WaitGroup
	quit    chan struct{}
	once    sync.Once
}

var _ memberlist.Transport = (*gossiper)(nil)

// startGossip runs the node's gossip on this process.
func (p *process) startGossip() error {
	t := &gossiper{m: p.m, quit: make(chan struct{}), packets: make(chan *memberlist.Packet, 256), streams: make(chan net.Conn)}
	p.gossiper = t
	t.port = p.w.net.listen(p, p.m.gossipAddr())
	t.wg.Go(t.accept)
	var seeds []string
	for _, o := range p.w.nodes {
		if o != p.m {
			seeds = append(seeds, o.gossipAddr())
		}
	}
	var err error
	p.gossip, err = mesh.NewGossip(mesh.GossipConfig{
		Addr: t.m.gossipAddr(), Advertise: t.m.gossipAddr(), Key: mesh.NewSecret(make([]byte, mesh.GossipKeySize)), SiteID: "sim", RunnerID: forgeyard.RunnerID(p.m.name),
		Meta: mesh.Meta{PeerID: p.m.peerID(), Name: p.m.name, Session: p.session}, Seeds: seeds, Rejoin: p.w.faults.Rejoin,
		Transport: t, Clock: p.m.clk, Logger: verbose(p.m.name),
	})
	return err
}

func (t *gossiper) accept() {
	for {
		c, err := t.port.Accept()
		if err != nil {
			return
		}
		select {
		case t.streams <- c:
		case <-t.quit:
			_ = c.Close()
			return
		}
	}
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *gossiper) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.m.gossipIP(), gossipPort, nil
}

// PacketCh implements memberlist.Transport.
func (t *gossiper) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *gossiper) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport.
func (t *gossiper) Shutdown() error {
	t.once.Do(func() {
		close(t.quit)
		t.port.shutdown(!t.p.dead.Load())
	})
	t.wg.Wait()
	return nil
}

// WriteTo implements memberlist.Transport. A packet comes or does not: nobody is told.
func (t *gossiper) WriteTo(b []byte, addr string) (time.Time, error) {
	n, now := t.n, time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	to := n.ports[addr]
	if t.shut || to == nil {
		return now, nil
	}
	way := n.link(t.m.name, to.name)
	if !way.passes() {
		return now, nil
	}
	packet := &memberlist.Packet{Buf: slices.Clone(b), From: simAddr(t.m.gossipAddr())}
	time.AfterFunc(n.delay(way), func() { to.p.gossiper.arrive(packet, way) })
	return now, nil
}

func (t *gossiper) arrive(packet *memberlist.Packet, way *link) {
	t.n.mu.Lock()
	lost := t.shut || !way.passes()
	t.n.mu.Unlock()
	if lost {
		return
	}
	packet.Timestamp = time.Now()
	select {
	case t.packets <- packet:
	default: // a full buffer loses packets
	}
}

// DialTimeout implements memberlist.Transport.
func (t *gossiper) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	for _, o := range t.p.w.nodes {
		if o.gossipAddr() == addr {
			return t.port.dial(o.name, addr, timeout)
		}
	}
	return nil, errRefused
}

// endGossip ends it, with a goodbye if the process ends in order.
func (p *process) endGossip() {
	if p.gossip == nil {
		return
	}
	if err := p.gossip.Close(); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, os.ErrClosed) {
		p.w.fail("progress", "%s cannot end its gossip: %v", p.m.name, err)
	}
}

// unseen says which live machine another one does not see, if that is so.
func (w *world) unseen() string {
	for _, m := range w.nodes {
		p := m.process()
		if p == nil || p.gossip == nil {
			continue
		}
		alive := map[forgeyard.RunnerID]bool{}
		for _, o := range p.gossip.Members() {
			alive[o.RunnerID] = o.State == mesh.StateAlive && o.Meta.Session == w.sessionOf(o.RunnerID)
		}
		for _, o := range w.nodes {
			if o.process() != nil && !alive[forgeyard.RunnerID(o.name)] {
				return fmt.Sprintf("%s does not see %s", m.name, o.name)
			}
		}
	}
	return ""
}

// sessionOf is the process that runs on a machine now.
func (w *world) sessionOf(name forgeyard.RunnerID) forgeyard.SessionID {
	if p := w.reach(string(name)); p != nil {
		return p.session
	}
	return ""
}

// cutLong isolates a machine for longer than memberlist remembers whom it took for dead.
func (w *world) cutLong() {
	m, d := w.victim(), w.within(40*time.Second, 60*time.Second)
	w.trace("%s is cut off for %s", m.name, d)
	w.cutOff(m, true, true, d)
}
