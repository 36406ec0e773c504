package node

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
	"github.com/forgeyard/forgeyard-node/uplink"
)

func (n *Node) openMesh(_ context.Context, c *closers) error {
	caspeer.RegisterHasher() // before the first host of the process
	n.replica = replica.New()
	n.ports = loadPorts(n.dir.join(filePorts))
	m, err := n.newMesh(n.ports.sticky("mesh", n.settings().Listen))
	if forgeyard.KindOf(err) == forgeyard.Conflict {
		m, err = n.newMesh(n.settings().Listen)
	}
	if err != nil {
		return err
	}
	n.mesh = m
	c.add(m.Close)
	n.ports.keep("mesh", portOf(m.ListenAddrs()))
	n.peers = newPeers(n)
	n.way = newLink(n)
	return n.addKnownAddrs(n.enrolment.Peers)
}

func (n *Node) newMesh(listen string) (*mesh.Mesh, error) {
	return mesh.New(mesh.Config{
		Identity: n.identity, SiteID: n.enrolment.SiteID, SiteName: n.enrolment.SiteName, SitePublicKey: n.enrolment.SitePublicKey,
		Session: n.session, Credential: n.enrolment.Credential, Listen: listen, Revoked: n.revoked,
		OnPeer: func(mesh.Peer, bool) { n.nudge() }, Clock: n.clock, Logger: n.log,
	})
}

func (n *Node) addKnownAddrs(known []mesh.PeerAddr) error {
	for _, p := range known {
		if p.PeerID == n.mesh.PeerID() || len(p.Addrs) == 0 {
			continue
		}
		if err := n.mesh.AddAddrs(p.PeerID, p.Addrs); err != nil {
			n.log.Warn("an address of a peer is not usable", "peer", p.PeerID, "err", err)
		}
	}
	return nil
}

// revoked asks the log whether a peer was removed. One that votes still is heard until the
// group goes on without it: the change that takes its vote may stand behind another one in
// the log, which needs it.
func (n *Node) revoked(p peer.ID, r forgeyard.RunnerID) bool {
	s := n.replica.State()
	if m, ok := s.Members.Get(r); ok {
		return m.Removed && !n.votes(m.Runner)
	}
	text := p.String()
	for _, m := range s.Members.All() {
		if m.Peer == text {
			return m.Removed && !n.votes(m.Runner)
		}
	}
	return false // the log may not have come yet; the credential is checked all the same
}

// votes asks this node's view of the group.
func (n *Node) votes(r forgeyard.RunnerID) bool {
	return n.opened.Load() && slices.ContainsFunc(n.group.Members(), func(m consensus.Member) bool { return m.Voter && m.ID == string(r) })
}

func (n *Node) openLog(ctx context.Context, c *closers) error {
	w, err := uplink.OpenWitness(uplink.WitnessConfig{Path: n.dir.join(fileWitness), Clock: n.clock, TimeSource: uplink.HasTimeSource, Log: n.log})
	if err != nil {
		return err
	}
	n.witness = w
	c.add(w.Flush)
	n.replica.Observe(n.applied)
	n.proposer = &replica.Proposer{
		Self: n.mesh.PeerID().String(), Forward: n.peers.forward, Clock: n.clock, By: n.enrolment.Name,
		MayWrite: n.mayWrite,
		NewID:    func() forgeyard.MessageID { return forgeyard.MessageID(NewID(n.clock)) },
		Route:    func(string, int) string { return n.way.route() }, Heard: n.way.proposed,
	}
	if n.link, err = uplink.New(uplink.Config{
		State: n.replica.State, Propose: n.proposer.Propose, Clock: n.clock, Vouch: n.vouch, Prefetch: n.prefetch, Holders: n.holders, Log: n.log,
		Client: func(central string) forgeyardv1connect.DelegationServiceClient {
			return uplink.NewClient(n.mesh, central)
		},
	}); err != nil {
		return err
	}
	return n.openGroup(ctx, c)
}

func (n *Node) openGroup(ctx context.Context, c *closers) error {
	layer, err := n.mesh.RaftLayer()
	if err != nil {
		return err
	}
	g, err := consensus.Open(consensus.Config{
		Dir: n.dir.join(dirRaft), LocalID: string(n.enrolment.RunnerID), LocalAddr: n.mesh.PeerID().String(), Layer: layer,
		FSM: n.replica, Clock: n.clock, Log: n.log, TermOf: n.peers.termOf, HashOf: n.peers.hashOf, OnEvent: n.onRaft, OnStranger: n.stranger,
		LogStore: consensus.LogStore(n.settings().Raft.LogStore),
		Batches:  func() bool { return n.replica.State().Allows(site.FormatBatches) }, StateVersion: n.cfg.Version + " " + site.Encoding(),
	})
	if err != nil {
		return err
	}
	n.group = g
	n.opened.Store(true)
	n.proposer.Group = g
	c.add(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			// A call to a peer that is gone may still hang. The process ends all the same, and
			// what was committed is on disk.
			n.log.Warn("the log was not closed in order", "err", err)
		}
		return nil
	})
	return n.bootstrap(ctx)
}

// bootstrap starts the log of a new site. The founding record goes when the log
// has the site, so a crash in between starts it again.
func (n *Node) bootstrap(ctx context.Context) error {
	f, err := loadFounding(n.dir)
	if err != nil || f == nil {
		return err
	}
	if err := n.group.Bootstrap(ctx); err != nil && forgeyard.KindOf(err) != forgeyard.Conflict {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	reply, err := n.proposer.Propose(ctx, *f)
	if err != nil {
		return err
	}
	if err := reply.Err(); err != nil && forgeyard.KindOf(err) != forgeyard.Conflict {
		return err
	}
	return removeFile(n.dir.join(fileFounding))
}

// applied sees every entry of the log, in order, inside Apply.
func (n *Node) applied(a replica.Applied) {
	if n.cfg.Committed != nil && a.Live {
		n.cfg.Committed()
	}
	switch a.Command.Body.(type) {
	case site.UplinkObserve, site.UplinkConnect:
		if a.Live {
			n.witness.Saw(a.State.Uplink)
		}
		n.link.Changed()
	case site.Drill:
		n.link.Changed()
	case site.MemberSet:
		go n.mesh.Recheck()
		if m, _ := a.State.Members.Get(n.enrolment.RunnerID); a.Live && m.Draining {
			go n.handOver(context.Background(), false)
		}
	}
	n.hints.applied(a)
	n.metrics.applied(a)
	n.nudge()
}

// onRaft counts what happens to the group; package consensus has logged it.
func (n *Node) onRaft(e consensus.Event) {
	n.metrics.raftEvent(e)
	n.raftDisk.happened(e, n.clock.Now())
	if e.Kind == consensus.Halted {
		n.fail(e.Err)
	}
}

// fail ends the node: it cannot go on, and says why.
func (n *Node) fail(err error) {
	select {
	case n.fatal <- err:
	default: // the first reason counts
	}
}

func (n *Node) openExchange(_ context.Context, c *closers) error {
	x, err := caspeer.New(caspeer.Config{
		Host: n.mesh.HostFor(mesh.ClassMember, mesh.ClassUplink), Store: n.store, Log: n.log, Clock: n.clock,
		Dial: n.mesh.Dial, Listen: n.mesh.ListenFor(mesh.ClassMember, mesh.ClassUplink), Uplink: uplinkProvider, Resolve: n.resolve, OnBadPeer: n.badPeer,
		Rates: ratesOf(n.settings().CAS.Rates), Urgent: isCheckpointPin, Providers: n.hintsOf,
		WantTimeout: n.settings().CAS.Deadlines.Peers, UplinkTimeout: n.settings().CAS.Deadlines.Uplink,
	})
	if err != nil {
		return err
	}
	n.exchange = x
	c.add(x.Close)
	return nil
}

func ratesOf(r sitecfg.RatesConfig) caspeer.Rates {
	return caspeer.Rates{
		PeerOut: int64(r.ToPeer), PeersOut: int64(r.ToPeers), PeersIn: int64(r.FromPeers), UplinkOut: int64(r.ToUplink), UplinkIn: int64(r.FromUplink),
	}
}

// uplinkProvider names the central daemon among the providers of content.
const uplinkProvider = "uplink"

// resolve finds the peer of a provider: a runner id, or the uplink.
func (n *Node) resolve(provider string) (peer.AddrInfo, error) {
	s := n.replica.State()
	if provider == uplinkProvider {
		if s.Central.Peer == "" || s.Central.Drill {
			return peer.AddrInfo{}, forgeyard.Errorf("uplink", forgeyard.Unavailable, "there is no uplink now")
		}
		id, err := peer.Decode(s.Central.Peer)
		return peer.AddrInfo{ID: id}, err
	}
	m, ok := s.Members.Get(forgeyard.RunnerID(provider))
	if !ok || m.Removed {
		return peer.AddrInfo{}, forgeyard.Errorf("provider", forgeyard.NotFound, "%s is not a member", provider)
	}
	id, err := peer.Decode(m.Peer)
	return peer.AddrInfo{ID: id}, err
}

func (n *Node) badPeer(e caspeer.Event) {
	n.log.Warn("a peer offered content that does not match its name", runner.BadPeer.Attr(), "peer", e.Peer, "digest", e.Digest, "reason", e.Reason)
	n.metrics.badPeers.Inc()
}

func (n *Node) openGossip(context.Context, *closers) error {
	g, err := n.startGossip(n.ports.sticky("gossip", n.settings().Gossip))
	if forgeyard.KindOf(err) == forgeyard.Conflict {
		g, err = n.startGossip(n.settings().Gossip)
	}
	if err != nil {
		return err
	}
	n.gossip = g // the mesh closes it
	n.ports.keep("gossip", portOfAddr(g.Addr()))
	n.savePorts()
	return nil
}

func (n *Node) startGossip(addr string) (*mesh.Gossip, error) {
	return n.mesh.StartGossip(mesh.GossipConfig{
		Addr: addr, Key: n.enrolment.GossipKey, SiteID: n.enrolment.SiteID, RunnerID: n.enrolment.RunnerID,
		Meta: n.gossipMeta(), Seeds: n.gossipSeeds(), Revoked: n.revoked, OnMember: func(mesh.Member) { n.nudge() },
		Clock: n.clock, Logger: n.log,
	})
}

func (n *Node) gossipMeta() mesh.Meta {
	m := mesh.Meta{PeerID: n.mesh.PeerID(), Name: n.enrolment.Name, Addrs: n.advertised(), Session: n.session}
	if n.caps.Load() != nil {
		m.Capabilities = capsDigest(n.capsNow())
	}
	n.mu.Lock()
	m.HTTPAddr = n.servers.http
	n.mu.Unlock()
	return m
}

func (n *Node) gossipSeeds() []string {
	var out []string
	for _, p := range n.memberAddrs() {
		if p.GossipAddr != "" && p.PeerID != n.mesh.PeerID() {
			out = append(out, p.GossipAddr)
		}
	}
	return out
}

// advertised are the addresses that others are told: those of the configuration, where it
// has some, else those that are bound.
func (n *Node) advertised() []string {
	var out []string
	for _, hp := range n.settings().Advertise {
		host, port, err := net.SplitHostPort(hp)
		if err != nil {
			n.log.Warn("an advertised address is not HOST:PORT", "address", hp)
			continue
		}
		proto := "dns"
		if ip := net.ParseIP(host); ip != nil {
			if proto = "ip6"; ip.To4() != nil {
				proto = "ip4"
			}
		}
		base := "/" + proto + "/" + host
		out = append(out, base+"/tcp/"+port, base+"/udp/"+port+"/quic-v1")
	}
	if len(out) == 0 {
		return n.mesh.Addrs()
	}
	return out
}

func (n *Node) ownAddr() mesh.PeerAddr {
	p := mesh.PeerAddr{RunnerID: n.enrolment.RunnerID, PeerID: n.mesh.PeerID(), Addrs: n.advertised()}
	if n.gossip != nil {
		p.GossipAddr = n.gossip.Addr()
	}
	return p
}
