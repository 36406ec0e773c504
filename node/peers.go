package node

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// peers are the calls that this node makes to other members.
type peers struct {
	n      *Node
	client *http.Client
}

// Deadlines of calls to peers: a dead one must not hold up what others could answer.
const (
	termTimeout    = 400 * time.Millisecond
	forwardTimeout = 4 * time.Second
	vouchTimeout   = time.Second
	leaderLook     = 50 * time.Millisecond // how often a call that lasts looks whether its leader still leads
)

// hopsHeader counts how often a request was passed on: once is enough, since whoever
// does not lead knows who does, or nobody does.
const hopsHeader = "Forgeyard-Hops"

func newPeers(n *Node) *peers {
	return &peers{n: n, client: &http.Client{Transport: n.mesh.HTTPTransport(mesh.ProtoRPC)}}
}

// to returns the service of the peer at an address of the group: its peer id.
func (p *peers) to(addr string, more ...connect.ClientOption) forgeyardv1connect.PeerServiceClient {
	options := append(more, connect.WithInterceptors(wire.Interceptor{}, connect.UnaryInterceptorFunc(p.n.ownLineage)), connect.WithGRPC())
	return forgeyardv1connect.NewPeerServiceClient(p.client, "http://"+addr, options...)
}

// runner returns the service of a member.
func (p *peers) runner(id forgeyard.RunnerID, more ...connect.ClientOption) (forgeyardv1connect.PeerServiceClient, error) {
	m, ok := p.n.replica.State().Members.Get(id)
	if !ok || m.Removed {
		return nil, forgeyard.Errorf("peer", forgeyard.NotFound, "%s is not a member", id)
	}
	return p.to(m.Peer, more...), nil
}

func (p *peers) termOf(ctx context.Context, addr string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, termTimeout)
	defer cancel()
	r, err := p.to(addr).Term(ctx, connect.NewRequest(&forgeyardv1.TermRequest{Lineage: p.n.group.Lineage()}))
	if err != nil {
		return 0, err
	}
	return r.Msg.Term, nil
}

func (p *peers) hashOf(ctx context.Context, addr string, index uint64) ([32]byte, error) {
	var h [32]byte
	r, err := p.to(addr).Hash(ctx, connect.NewRequest(&forgeyardv1.HashRequest{Index: index}))
	if err != nil {
		return h, err
	}
	if copy(h[:], r.Msg.Hash) != len(h) {
		return h, forgeyard.Errorf("hash", forgeyard.Invalid, "%d bytes from %s, 32 are expected", len(r.Msg.Hash), addr)
	}
	return h, nil
}

// forward carries a command to the node at addr.
func (p *peers) forward(ctx context.Context, addr string, command []byte) (uint64, []byte, error) {
	ctx, cancel := p.whileLeads(ctx, forwardTimeout)
	defer cancel()
	req := connect.NewRequest(&forgeyardv1.ProposeRequest{Command: command})
	setHops(req.Header(), hopsOf(ctx)+1)
	r, err := p.to(addr).Propose(ctx, req)
	if err != nil {
		return 0, nil, err
	}
	return r.Msg.Index, r.Msg.Reply, nil
}

// whileLeads bounds a call to the leader, or by way of a member: by time, and by who leads
// as far as this node knows. A dead leader's dial can hang long after another was elected.
func (p *peers) whileLeads(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, within)
	was := p.leads()
	var look func()
	look = func() {
		if ctx.Err() != nil {
			return
		}
		if now := p.leads(); now != was && now != "" {
			cancel()
			return
		}
		time.AfterFunc(leaderLook, look)
	}
	time.AfterFunc(leaderLook, look)
	return ctx, cancel
}

// leads is who leads as far as this node knows.
func (p *peers) leads() string {
	_, addr, term := p.n.group.Leader()
	if h, ok := p.n.whoSaysItLeads(); ok && h.term > term {
		addr = h.addr
	}
	return addr
}

type hopsKey struct{}

func withHops(ctx context.Context, h http.Header) context.Context {
	n, err := strconv.Atoi(h.Get(hopsHeader))
	if err != nil || n < 0 {
		n = 0 // not passed on yet
	}
	return context.WithValue(ctx, hopsKey{}, n)
}

func hopsOf(ctx context.Context) int {
	n, _ := ctx.Value(hopsKey{}).(int)
	return n
}

func setHops(h http.Header, n int) { h.Set(hopsHeader, strconv.Itoa(n)) }

// leaderHint is who last told this node that it leads. Whoever is asked proves it anew.
type leaderHint struct {
	addr    string
	term    uint64
	lineage string // of this node when it was told
}

// leader returns the service of the leader, or of a member that passes on what it is asked.
func (p *peers) leader() (addr string, c forgeyardv1connect.PeerServiceClient, err error) {
	addr = p.n.way.route()
	if addr == "" {
		return "", nil, forgeyard.Errorf("leader", forgeyard.Unavailable, "no leader is known")
	}
	return addr, p.to(addr), nil
}
