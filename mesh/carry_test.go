package mesh

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/ipfs/boxo/bitswap"
	"github.com/ipfs/boxo/bitswap/network/bsnet"
	"github.com/ipfs/boxo/blockstore"
	blocks "github.com/ipfs/go-block-format"
	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Calls are Connect over HTTP/2 on our own connections; the handler knows who calls (decision 29).
func TestConnectOverMesh(t *testing.T) {
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	meet(t, a, b)
	l, err := b.Listen(ProtoRPC, ClassMember)
	must(t, err)
	mux := http.NewServeMux()
	const path = "/forgeyard.test.Echo/Say"
	mux.Handle(path, connect.NewUnaryHandler(path, func(ctx context.Context, r *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		p, _ := PeerFrom(ctx)
		return connect.NewResponse(wrapperspb.String(r.Msg.Value + " from " + p.ID.String())), nil
	}))
	srv := HTTPServer(mux)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	tr := a.HTTPTransport(ProtoRPC)
	for _, opt := range [][]connect.ClientOption{nil, {connect.WithGRPC()}} {
		c := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](&http.Client{Transport: tr}, "http://"+b.PeerID().String()+path, opt...)
		for range 3 {
			r, err := c.CallUnary(within(t), connect.NewRequest(wrapperspb.String("hi")))
			must(t, err)
			if r.Msg.Value != "hi from "+a.PeerID().String() {
				t.Fatal(r.Msg.Value)
			}
		}
	}
	b.Revoke(a.PeerID()) // the call that lives is cut, the next one refused
	c := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](&http.Client{Transport: tr}, "http://"+b.PeerID().String()+path)
	if _, err := c.CallUnary(within(t), connect.NewRequest(wrapperspb.String("hi"))); err == nil {
		t.Fatal("a revoked peer was answered")
	}
	tr.CloseIdleConnections()
	must(t, srv.Close())
	<-served
}

type countFSM struct{ n atomic.Int64 }

func (f *countFSM) Apply(*raft.Log) any                 { return f.n.Add(1) }
func (f *countFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, raft.ErrNothingNewToSnapshot }
func (f *countFSM) Restore(r io.ReadCloser) error       { return r.Close() }

// RA-408, RA-411: each call has a stream of its own: one that stalls, as a log that nobody
// reads, holds up no other between the same two.
func TestAStalledCallHoldsNoOther(t *testing.T) {
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	meet(t, a, b)
	l, err := b.Listen(ProtoRPC, ClassMember)
	must(t, err)
	const logs, control = "/forgeyard.test.Log/Follow", "/forgeyard.test.Control/Say"
	mux, stalled, over := http.NewServeMux(), make(chan struct{}), make(chan struct{})
	mux.Handle(logs, connect.NewServerStreamHandler(logs, func(ctx context.Context, _ *connect.Request[wrapperspb.StringValue], out *connect.ServerStream[wrapperspb.BytesValue]) error {
		defer close(over)
		for n := 0; ; n++ {
			if n == 1 {
				close(stalled)
			}
			if err := out.Send(wrapperspb.Bytes(make([]byte, 1<<20))); err != nil { // its reader takes none of it
				return err
			}
		}
	}))
	mux.Handle(control, connect.NewUnaryHandler(control, func(_ context.Context, r *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		return connect.NewResponse(r.Msg), nil
	}))
	srv := HTTPServer(mux)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	tr := a.HTTPTransport(ProtoRPC)
	at := "http://" + b.PeerID().String()
	ctx, cancel := context.WithCancel(within(t))
	follow := connect.NewClient[wrapperspb.StringValue, wrapperspb.BytesValue](&http.Client{Transport: tr}, at+logs)
	_, err = follow.CallServerStream(ctx, connect.NewRequest(wrapperspb.String("log")))
	must(t, err)
	<-stalled
	say := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](&http.Client{Transport: tr}, at+control)
	for range 50 {
		_, err := say.CallUnary(within(t), connect.NewRequest(wrapperspb.String("cancel")))
		must(t, err)
	}
	select {
	case <-over:
		t.Error("the log did not stall, so this shows nothing")
	default:
	}
	cancel()
	<-over
	tr.CloseIdleConnections()
	must(t, srv.Close())
	<-served
}

func TestRaftOverMesh(t *testing.T) {
	s := newTestSite(t, "north")
	var ms []*Mesh
	var servers []raft.Server
	for range 3 {
		m := start(t, s.member(t))
		ms = append(ms, m)
		servers = append(servers, raft.Server{ID: raft.ServerID(m.PeerID()), Address: raft.ServerAddress(m.PeerID().String())})
	}
	var fsms []*countFSM
	var rs []*raft.Raft
	for i, m := range ms {
		for _, o := range ms {
			if o != m {
				meet(t, m, o)
			}
		}
		layer, err := m.RaftLayer()
		must(t, err)
		log := hclog.NewNullLogger()
		tr := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: layer, MaxPool: 3, Timeout: 5 * time.Second, Logger: log})
		c := raft.DefaultConfig()
		c.LocalID, c.Logger = servers[i].ID, log
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = 500*time.Millisecond, 500*time.Millisecond, 250*time.Millisecond
		st, sn, f := raft.NewInmemStore(), raft.NewInmemSnapshotStore(), &countFSM{}
		must(t, raft.BootstrapCluster(c, st, st, sn, tr, raft.Configuration{Servers: servers}))
		r, err := raft.NewRaft(c, f, st, st, sn, tr)
		must(t, err)
		fsms, rs = append(fsms, f), append(rs, r)
		t.Cleanup(func() { _ = r.Shutdown().Error(); _ = tr.Close() })
	}
	var leader *raft.Raft
	eventually(t, "a leader", func() bool {
		i := slices.IndexFunc(rs, func(r *raft.Raft) bool { return r.State() == raft.Leader })
		if i >= 0 {
			leader = rs[i]
		}
		return i >= 0
	})
	for range 20 {
		must(t, leader.Apply([]byte("x"), 10*time.Second).Error())
	}
	eventually(t, "all applied", func() bool {
		return !slices.ContainsFunc(fsms, func(f *countFSM) bool { return f.n.Load() != 20 })
	})
	for _, m := range ms { // control has connections of its own: none of raft's streams is on libp2p
		for _, c := range m.host.Network().Conns() {
			for _, st := range c.GetStreams() {
				if st.Protocol() == ProtoRaft {
					t.Fatal("raft shares a connection with content")
				}
			}
		}
	}
}

// boxo's bitswap on the gated host moves a block between members.
func TestBitswapOnGatedHost(t *testing.T) {
	if want := []protocol.ID{bsnet.ProtocolBitswap, bsnet.ProtocolBitswapOneOne, bsnet.ProtocolBitswapOneZero, bsnet.ProtocolBitswapNoVers}; !slices.Equal(want, bitswapProtocols) {
		t.Fatal(want)
	}
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	mk := func(m *Mesh) (*bitswap.Bitswap, blockstore.Blockstore) {
		st := blockstore.NewBlockstore(dssync.MutexWrap(ds.NewMapDatastore()))
		bs := bitswap.New(context.Background(), bsnet.NewFromIpfsHost(m.Host()), nil, st)
		t.Cleanup(func() { _ = bs.Close() })
		return bs, st
	}
	ba, _ := mk(a)
	_, sb := mk(b)
	blk := blocks.NewBlock([]byte("a block"))
	must(t, sb.Put(within(t), blk))
	meet(t, a, b)
	must(t, a.Host().Connect(within(t), peer.AddrInfo{ID: b.PeerID()}))
	got, err := ba.GetBlock(within(t), blk.Cid())
	must(t, err)
	if string(got.RawData()) != "a block" {
		t.Fatal(got)
	}
	h, _ := rawHost(t) // a stranger is not even shown to bitswap
	must(t, h.Connect(within(t), peer.AddrInfo{ID: b.PeerID(), Addrs: b.host.Addrs()}))
	if slices.Contains(b.Host().Network().Peers(), h.ID()) {
		t.Fatal("the stranger is visible")
	}
}

// A peer whose process has ended refuses, on every address and at once; one that lives, or
// of which no address is known, does not.
func TestRefuses(t *testing.T) {
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	meet(t, a, b)
	l, err := a.RaftLayer()
	must(t, err)
	layer := l.(*raftLayer)
	at := raft.ServerAddress(b.PeerID().String())
	if layer.Refuses(at, time.Second) {
		t.Error("a peer that lives refuses")
	}
	stranger, err := NewIdentity()
	must(t, err)
	for _, addr := range []raft.ServerAddress{raft.ServerAddress(stranger.PeerID().String()), "no peer id"} {
		if layer.Refuses(addr, time.Second) {
			t.Errorf("%s refuses, and nobody knows where it is", addr)
		}
	}
	must(t, b.Close())
	began := time.Now()
	if !layer.Refuses(at, 10*time.Second) {
		t.Error("a peer that has ended does not refuse")
	}
	t.Logf("known after %v", time.Since(began))
}
