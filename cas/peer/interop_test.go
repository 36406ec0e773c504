package peer

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/ipfs/boxo/bitswap"
	"github.com/ipfs/boxo/bitswap/message"
	pb "github.com/ipfs/boxo/bitswap/message/pb"
	"github.com/ipfs/boxo/bitswap/network/bsnet"
	"github.com/ipfs/boxo/blockstore"
	blocks "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// A stock boxo node fetches from us, and we from it, although it does not speak
// /forgeyard/cas/1.
func TestStockBitswapBothWays(t *testing.T) {
	n, h := newNode(t), newHost(t)
	bs := blockstore.NewBlockstore(dssync.MutexWrap(ds.NewMapDatastore()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stock := bitswap.New(ctx, bsnet.NewFromIpfsHost(h), nil, bs, bitswap.SetSimulateDontHavesOnTimeout(false))
	defer func() { _ = stock.Close() }()
	n.dial(t, h)

	var want []cid.Cid
	for i := range 300 {
		want = append(want, toCID(n.store.put(t, noise(uint64(i), 3000)).Digest))
	}
	ch, err := stock.GetBlocks(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for b := range ch {
		if _, ok := fromCID(b.Cid()); !ok || len(b.RawData()) != 3000 {
			t.Fatalf("%v with %d bytes", b.Cid(), len(b.RawData()))
		}
		got++
	}
	if got != len(want) { // bitswap closes early without a word
		t.Fatalf("%d of %d blocks", got, len(want))
	}

	data := noise(999, 5000)
	ref := cas.Ref{Digest: cas.Sum(data), Size: 5000}
	blk, err := blocks.NewBlockWithCid(data, toCID(ref.Digest))
	if err != nil {
		t.Fatal(err)
	}
	if err := bs.Put(ctx, blk); err != nil {
		t.Fatal(err)
	}
	if err := n.Fetch(ctx, ref, []string{h.ID().String()}); err != nil {
		t.Fatal(err)
	}
	n.holds(t, ref, data)
	within(t, time.Second, "its refusal", func() {
		isKind(t, n.Fetch(ctx, cas.Ref{Digest: cas.Sum([]byte("x")), Size: 1}, []string{h.ID().String()}), forgeyard.NotFound)
	})
}

// What we fetch goes at once to a peer who asked us for it before.
func TestFetchedBlocksAreAnnounced(t *testing.T) {
	a, b, h := newNode(t), newNode(t), newHost(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stock := bitswap.New(ctx, bsnet.NewFromIpfsHost(h), nil, blockstore.NewBlockstore(dssync.MutexWrap(ds.NewMapDatastore())),
		bitswap.SetSimulateDontHavesOnTimeout(false))
	defer func() { _ = stock.Close() }()
	b.dial(t, h) // the stock node knows b alone, which does not have it yet
	ref := a.store.put(t, noise(4, 5000))
	got := make(chan error, 1)
	go func() {
		_, err := stock.GetBlock(ctx, toCID(ref.Digest))
		got <- err
	}()
	for len(b.server.WantlistForPeer(h.ID())) == 0 {
		select {
		case err := <-got:
			t.Fatal("before anyone had it", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	b.meet(a.host)
	if err := b.Fetch(ctx, ref, []string{a.name()}); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// odd is a plain bitswap peer that answers each message of wants as told.
func odd(t *testing.T, answer func(send func(message.BitSwapMessage, int, time.Duration), wants []message.Entry)) host.Host {
	h := newHost(t)
	h.SetStreamHandler(bsnet.ProtocolBitswap, func(s network.Stream) {
		p := s.Conn().RemotePeer()
		send := func(m message.BitSwapMessage, chunk int, pause time.Duration) {
			var b bytes.Buffer
			_ = m.ToNetV1(&b)
			out, err := h.NewStream(context.Background(), p, bsnet.ProtocolBitswap)
			if err != nil {
				return
			}
			for b.Len() > 0 {
				if _, err := out.Write(b.Next(min(chunk, b.Len()))); err != nil {
					return
				}
				time.Sleep(pause) // the line's speed
			}
			_ = out.Close()
		}
		for {
			m, _, err := message.FromNet(s)
			if err != nil {
				return
			}
			if w := m.Wantlist(); len(w) > 0 && !w[0].Cancel {
				answer(send, w)
			}
		}
	})
	return h
}

func blockMessage(data []byte) message.BitSwapMessage {
	m := message.New(false)
	b, err := blocks.NewBlockWithCid(data, toCID(cas.Sum(data)))
	if err == nil {
		m.AddBlock(b)
	}
	return m
}

func (n *testNode) knows(h host.Host) *testNode { n.meet(h); return n }

// A block that takes several times WantTimeout on a thin line is no silence.
func TestThinLineIsNotSilence(t *testing.T) {
	data := noise(1, 100_000)
	ref := cas.Ref{Digest: cas.Sum(data), Size: int64(len(data))}
	wants := make(chan int, 100)
	thin := odd(t, func(send func(message.BitSwapMessage, int, time.Duration), w []message.Entry) {
		wants <- len(w)
		send(blockMessage(data), 2000, 20*time.Millisecond)
	})
	n := newNode(t, func(c *Config) { c.WantTimeout = 300 * time.Millisecond }).knows(thin)
	if err := n.Fetch(t.Context(), ref, []string{thin.ID().String()}); err != nil {
		t.Fatal(err)
	}
	n.holds(t, ref, data)
	if len(wants) != 1 {
		t.Fatalf("asked %d times: a thin line carried the block twice", len(wants))
	}
}

// A peer that talks all the time and never sends the block is given up too.
func TestWithheldBlock(t *testing.T) {
	chatter := odd(t, func(send func(message.BitSwapMessage, int, time.Duration), w []message.Entry) {
		m := message.New(false)
		for i := range 200 {
			m.AddEntry(toCID(cas.Sum([]byte{byte(i)})), 1, pb.Message_Wantlist_Have, false)
		}
		send(m, 50, 20*time.Millisecond)
	})
	n := newNode(t, func(c *Config) { c.WantTimeout = 300 * time.Millisecond }).knows(chatter)
	within(t, 2*time.Second, "giving up", func() {
		isKind(t, n.Fetch(t.Context(), cas.Ref{Digest: cas.Sum([]byte("x")), Size: 1}, []string{chatter.ID().String()}),
			forgeyard.Unavailable, "withholds", chatter.ID().String())
	})
}

// A message that is lost (a refused stream) is asked for again well before the
// peer is given up.
func TestLostWantIsRepeated(t *testing.T) {
	data := noise(1, 1000)
	ref := cas.Ref{Digest: cas.Sum(data), Size: 1000}
	seen := 0
	lossy := odd(t, func(send func(message.BitSwapMessage, int, time.Duration), w []message.Entry) {
		if seen++; seen > 1 {
			send(blockMessage(data), 1<<20, 0)
		}
	})
	n := newNode(t).knows(lossy)
	within(t, 1500*time.Millisecond, "asking again", func() {
		if err := n.Fetch(t.Context(), ref, []string{lossy.ID().String()}); err != nil {
			t.Fatal(err)
		}
	})
	if n.Stats().Repeated == 0 || n.Stats().SilentPeers != 0 {
		t.Fatalf("%+v", n.Stats())
	}
}

// A block that comes twice is no lie.
func TestDuplicatesAreNotBlamed(t *testing.T) {
	data, second := noise(1, 1000), noise(2, 1000)
	twice := odd(t, func(send func(message.BitSwapMessage, int, time.Duration), w []message.Entry) {
		send(blockMessage(data), 1<<20, 0)
		for _, e := range w {
			if d, _ := fromCID(e.Cid); d == cas.Sum(second) {
				send(blockMessage(second), 1<<20, 0)
			}
		}
	})
	n := newNode(t).knows(twice)
	for _, b := range [][]byte{data, second} {
		if err := n.Fetch(t.Context(), cas.Ref{Digest: cas.Sum(b), Size: 1000}, []string{twice.ID().String()}); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.bad()) != 0 || n.Stats().DuplicateBlocks == 0 {
		t.Fatalf("%+v %+v", n.bad(), n.Stats())
	}
}

// Whatever a member sends over bitswap, the exchange takes it, and a want that is
// answered rightly among it is answered.
func FuzzReceive(f *testing.F) {
	n := newNode(f)
	data := []byte("wanted")
	for _, m := range []message.BitSwapMessage{blockMessage(data), blockMessage([]byte("other")), blockMessage(nil)} {
		var b bytes.Buffer
		if err := m.ToNetV1(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, _, err := message.FromNet(bytes.NewReader(raw))
		if err != nil {
			return
		}
		l := &link{x: n.Exchange, peer: libpeer.ID("p"), waiting: map[forgeyard.Digest][]*lane{}, recent: map[forgeyard.Digest]struct{}{}, changed: make(chan struct{})}
		a := &lane{arrivals: make(chan arrival, 2), lied: make(chan lie, 1)}
		d := cas.Sum(data)
		l.waiting[d] = []*lane{a}
		l.receive(m)
		l.receive(m)
		for len(a.arrivals) > 0 {
			if r := <-a.arrivals; r.digest != d || r.data != nil && string(r.data) != string(data) {
				t.Fatalf("%s came as %q", r.digest.Short(), r.data)
			}
		}
	})
}
