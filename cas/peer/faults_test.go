package peer

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ipfs/boxo/bitswap/message"
	pb "github.com/ipfs/boxo/bitswap/message/pb"
	"github.com/ipfs/boxo/bitswap/network/bsnet"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// C02: of two peers one sends zeros. The good one delivers, and the bad one is
// named, although bitswap drops its blocks without a word.
func TestC02ZeroedBytesFromOneOfTwo(t *testing.T) {
	bad, good := newNode(t), newNode(t)
	for _, n := range []int{4000, 9*cas.BlockSize + 1} {
		data := noise(uint64(n), n)
		ref := bad.store.put(t, data)
		good.store.put(t, data)
		for d := range bad.store.blocks {
			bad.store.corrupt[d] = true
		}
		c := newNode(t)
		c.meet(bad.host)
		c.dial(t, good.host)
		within(t, 2*time.Second, "the good peer's delivery", func() {
			if err := c.Fetch(t.Context(), ref, []string{bad.name()}); err != nil {
				t.Fatal(err)
			}
		})
		c.holds(t, ref, data)
		if events := c.bad(); len(events) != 1 || events[0].Peer != bad.host.ID() || events[0].Digest.IsZero() || c.Stats().BadPeers != 1 {
			t.Fatalf("events %+v", events)
		}
		if l := c.Liars(); len(l) != 1 || l[0].Peer != bad.host.ID() || l[0].Times != 1 || l[0].For <= 0 {
			t.Fatalf("%+v", l)
		}
		// It is asked last from now on, so it does no harm a second time.
		other := noise(uint64(n)+1, n)
		ref = bad.store.put(t, other)
		good.store.put(t, other)
		if err := c.Fetch(t.Context(), ref, []string{bad.name(), good.name()}); err != nil || len(c.bad()) != 1 {
			t.Fatal(err, c.bad())
		}
	}
}

// C02: a single bad peer gives a typed error that names it, and no hang.
func TestC02SingleBadPeer(t *testing.T) {
	bad, c := newNode(t), newNode(t)
	c.meet(bad.host)
	ref := bad.store.put(t, []byte("precious"))
	bad.store.corrupt[ref.Digest] = true
	for range 2 { // the second time it is penalised, and still asked
		within(t, time.Second, "the refusal", func() {
			isKind(t, c.Fetch(t.Context(), ref, []string{bad.name()}), forgeyard.Corrupt, bad.name())
		})
	}
	if c.store.size() != 0 {
		t.Fatal("something was kept")
	}
}

// careless is a store whose disk gives other bytes to who does not ask for care.
type careless struct {
	*memStore
	mends bool // with care it gives the right ones, else it finds that it has none
	cares atomic.Int64
}

func (s *careless) ReadBlock(ctx context.Context, d forgeyard.Digest, _ []byte, check bool) ([]byte, error) {
	b, err := s.memStore.Block(ctx, d)
	switch {
	case err != nil || len(b) < cas.BlockSize:
		return b, err
	case !check:
		return make([]byte, len(b)), nil
	}
	s.cares.Add(1)
	if !s.mends {
		return nil, forgeyard.Errorf("careless", forgeyard.Corrupt, "%s is rotten", d.Short())
	}
	return b, nil
}

// C02: a holder that does not hash again what it sends is no liar when its disk failed it.
// It is asked once more, with care: then it sends the right bytes, or says that it has none.
func TestC02RottenCopyIsNoLie(t *testing.T) {
	for _, mends := range []bool{true, false} {
		store := &careless{memStore: newStore(), mends: mends}
		rotten := newNode(t, func(c *Config) { c.Store = store })
		good, n := newNode(t), newNode(t)
		data := noise(5, 2*cas.BlockSize)
		ref := store.put(t, data)
		n.dial(t, rotten.host)
		err := n.Fetch(t.Context(), ref, []string{rotten.name()})
		if mends != (err == nil) {
			t.Fatal(err)
		}
		if err != nil {
			isKind(t, err, forgeyard.NotFound)
			good.store.put(t, data)
			n.dial(t, good.host)
			if err := n.Fetch(t.Context(), ref, []string{rotten.name(), good.name()}); err != nil {
				t.Fatal(err)
			}
		}
		n.holds(t, ref, data)
		if s := n.Stats(); s.BadPeers != 0 || s.Doubted == 0 || store.cares.Load() == 0 {
			t.Fatalf("mends %v: %+v, asked with care %d times", mends, s, store.cares.Load())
		}
	}
}

// What came wrong from a peer is asked of it with care in whatever way it comes to be asked
// again, also in the place of another that is slow: else a rotten copy would be a lie.
func TestDoubtIsRemembered(t *testing.T) {
	s := &session{x: newNode(t).Exchange}
	w := want{digest: cas.Sum([]byte("x")), size: 1}
	p := &pull{s: s, wants: []want{w}, index: map[forgeyard.Digest]int{w.digest: 0}, flights: []uint8{1}, done: []bool{false}, lanes: map[*holder]*lane{}}
	add := func() *lane {
		a := &lane{p: p, h: &holder{link: &link{}}, doubted: map[int]bool{}}
		p.lanes[a.h] = a
		return a
	}
	doubted, slow := add(), add()
	p.owner = append(p.owner, slow)
	if !doubted.doubt(0) || doubted.doubt(0) {
		t.Fatal("a want is doubted once")
	}
	if batch, _ := p.next(doubted, 8, 1<<20); len(batch) != 1 || !batch[0].check {
		t.Fatalf("%+v", batch)
	}
}

// C01: every piece matches, the whole does not. Nothing gets the name, the peer
// that gave the manifest is blamed, and the blob comes by another one's.
func TestC01PiecesMatchWholeDoesNot(t *testing.T) {
	bad, good, c := newNode(t), newNode(t), newNode(t)
	c.meet(bad.host, good.host)
	data := noise(1, 3*cas.BlockSize)
	ref := good.store.put(t, data)
	liar := func() {
		other := bad.store.put(t, noise(2, 3*cas.BlockSize))
		enc, err := bad.store.Block(t.Context(), other.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		m, err := cas.DecodeManifest(enc)
		if err != nil {
			t.Fatal(err)
		}
		m.Whole = ref.Digest // the claim
		if enc, err = m.Encode(); err != nil {
			t.Fatal(err)
		}
		man := bad.store.put(t, enc)
		bad.store.refs[ref.Digest] = cas.Ref{Digest: ref.Digest, Size: ref.Size, Manifest: man.Digest}
	}
	liar()
	isKind(t, c.FetchAny(t.Context(), ref.Digest, []string{bad.name()}), forgeyard.Corrupt, bad.name())
	if c.store.Has(t.Context(), ref.Digest) {
		t.Fatal("wrong bytes have the name")
	}
	if e := c.bad(); len(e) != 1 || e[0].Peer != bad.host.ID() || e[0].Digest != ref.Digest {
		t.Fatalf("%+v", e)
	}
	d := newNode(t)
	d.meet(bad.host, good.host)
	if err := d.FetchAny(t.Context(), ref.Digest, []string{bad.name(), good.name()}); err != nil {
		t.Fatal(err)
	}
	d.holds(t, ref, data)
}

// mute speaks the protocols and never sends a block: deaf does not even answer
// who-has, else it claims to have everything.
func mute(t *testing.T, deaf bool) host.Host {
	h := newHost(t)
	gone := t.Context().Done()
	h.SetStreamHandler(bsnet.ProtocolBitswap, func(s network.Stream) { _, _ = io.Copy(io.Discard, s) })
	h.SetStreamHandler(Protocol, func(s network.Stream) {
		var q request
		if deaf || readFrame(s, &q) != nil {
			<-gone
			_ = s.Reset()
			return
		}
		r := response{Done: true}
		for range q.Digests {
			r.Answers = append(r.Answers, Answer{Have: true, Size: 1 << 20})
		}
		_ = writeFrame(s, r)
		_ = s.Close()
	})
	return h
}

// A peer that is connected and silent costs at most WantTimeout, and with another
// holder a fraction of it.
func TestSilentPeerNeverHangs(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		silent, good := mute(t, deaf), newNode(t)
		data := noise(1, 300_000)
		ref := good.store.put(t, data)

		alone := newNode(t)
		alone.dial(t, silent)
		within(t, 3*time.Second, "a silent peer alone", func() {
			isKind(t, alone.Fetch(t.Context(), ref, []string{silent.ID().String()}), forgeyard.Unavailable, silent.ID().String())
		})

		c := newNode(t)
		c.dial(t, silent)
		c.meet(good.host)
		within(t, 1500*time.Millisecond, "a silent peer beside a good one", func() {
			if err := c.Fetch(t.Context(), ref, []string{silent.ID().String(), good.name()}); err != nil {
				t.Fatal(err)
			}
		})
		c.holds(t, ref, data)
	}
}

// All that a silent peer owes is taken over by the one that has time, long before
// the silent one is given up.
func TestHedgeTakesOverFromASilentPeer(t *testing.T) {
	silent, good := mute(t, false), newNode(t)
	c := newNode(t, func(c *Config) { c.WantTimeout = 8 * time.Second })
	c.dial(t, silent, good.host)
	data := noise(1, 40<<20)
	ref := good.store.put(t, data)
	if err := c.Fetch(t.Context(), ref, []string{silent.ID().String(), good.name()}); err != nil {
		t.Fatal(err)
	}
	c.holds(t, ref, data)
	if st := c.Stats(); st.Hedged == 0 || st.SilentPeers != 0 {
		t.Fatalf("%+v", st)
	}
}

// A peer whose machine is gone refuses the dial: half a second is not reached.
func TestDeadPeerCostsNothing(t *testing.T) {
	dead, good, c := newHost(t), newNode(t), newNode(t)
	c.meet(dead, good.host)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	ref := good.store.put(t, []byte("alive"))
	within(t, 500*time.Millisecond, "a dead peer", func() {
		if err := c.Fetch(t.Context(), ref, []string{dead.ID().String(), good.name()}); err != nil {
			t.Fatal(err)
		}
	})
	within(t, 500*time.Millisecond, "a dead peer alone", func() {
		isKind(t, c.Fetch(t.Context(), cas.Ref{Digest: cas.Sum([]byte("x")), Size: 1}, []string{dead.ID().String(), "no-such-runner"}),
			forgeyard.Unavailable, dead.ID().String(), "no-such-runner")
	})
}

// RA-412: a connection that is lost in the middle is noticed at once, and what came stays:
// the next try, with whoever has it, goes on from there.
func TestConnectionLostInTheMiddle(t *testing.T) {
	a, b, c := newNode(t), newNode(t), newNode(t)
	c.meet(a.host)
	data := noise(1, 64<<20)
	ref := a.store.put(t, data)
	some := make(chan struct{}, 1000)
	c.store.stored = func(int) { some <- struct{}{} }
	done := make(chan error, 1)
	go func() { done <- c.Fetch(t.Context(), ref, []string{a.name()}) }()
	for range 10 {
		<-some
	}
	if err := a.host.Close(); err != nil {
		t.Fatal(err)
	}
	lost := time.Now()
	isKind(t, <-done, forgeyard.Unavailable, a.name())
	if took := time.Since(lost); took > 500*time.Millisecond {
		t.Fatalf("noticed after %v", took)
	}
	b.store.put(t, data)
	c.meet(b.host)
	if err := c.Fetch(t.Context(), ref, []string{b.name()}); err != nil {
		t.Fatal(err)
	}
	c.holds(t, ref, data)
	if n := b.Stats().BlocksOut; n > 56 {
		t.Fatalf("%d of 64 blocks came again", n)
	}
}

// A context's deadline is kept, and says whom we waited for.
func TestDeadlineNamesThePeers(t *testing.T) {
	silent, c := mute(t, false), newNode(t, func(c *Config) { c.WantTimeout = time.Minute })
	c.dial(t, silent)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	within(t, time.Second, "the deadline", func() {
		isKind(t, c.Fetch(ctx, cas.Ref{Digest: cas.Sum([]byte("x")), Size: 1}, []string{silent.ID().String()}), forgeyard.Unavailable, silent.ID().String())
	})
}

// A peer that refuses what it promised is passed over; a part is fetched from whoever has it.
func TestPartHolders(t *testing.T) {
	a, b, c := newNode(t), newNode(t), newNode(t)
	c.dial(t, a.host, b.host)
	data := noise(1, 8*cas.BlockSize)
	ref := a.store.put(t, data)
	b.store.put(t, data)
	enc, _ := a.store.Block(t.Context(), ref.Manifest)
	m, err := cas.DecodeManifest(enc)
	if err != nil {
		t.Fatal(err)
	}
	for i, blk := range m.Blocks { // each lost every second block
		delete([]*memStore{a.store, b.store}[i%2].blocks, blk.Digest)
	}
	if err := c.Fetch(t.Context(), ref, []string{a.name()}); err != nil {
		t.Fatal(err)
	}
	c.holds(t, ref, data)
	if n := c.Stats().Refusals; n < 4 {
		t.Fatalf("%d refusals", n)
	}
}

// C19: 50,000 wants of each of 20 peers leave our memory as it was, and we still serve.
func TestC19WantFloodIsBounded(t *testing.T) {
	srv := newNode(t)
	ref := srv.store.put(t, noise(1, 1000))
	const peers, wants = 20, 50_000
	m := message.New(false)
	for i := range wants {
		m.AddEntry(toCID(cas.Sum(fmt.Append(nil, i))), 1, pb.Message_Wantlist_Block, false)
	}
	before := heap()
	for range peers {
		h := newHost(t)
		if err := h.Connect(t.Context(), libpeer.AddrInfo{ID: srv.host.ID(), Addrs: srv.host.Addrs()}); err != nil {
			t.Fatal(err)
		}
		st, err := h.NewStream(t.Context(), srv.host.ID(), bsnet.ProtocolBitswap)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.ToNetV1(st); err != nil {
			t.Fatal(err)
		}
		if err := st.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, st) // until it was read to its end
		if n := len(srv.server.WantlistForPeer(h.ID())); n == 0 || n > queuedWants {
			t.Fatalf("%d wants of one peer are remembered, the bound is %d", n, queuedWants)
		}
	}
	if grown := heap() - before; grown > 64<<20 {
		t.Fatalf("the flood left %d MiB behind", grown>>20)
	}
	c := newNode(t)
	c.meet(srv.host)
	if err := c.Fetch(t.Context(), ref, []string{srv.name()}); err != nil {
		t.Fatal(err)
	}
}

// C19, the other way: whatever is fetched at once, no peer is asked for more than the window.
func TestC19OurOwnWantsAreBounded(t *testing.T) {
	a, c := newNode(t), newNode(t, func(c *Config) { c.Window = 16 })
	c.meet(a.host)
	errs := make(chan error)
	for k := range 6 {
		var entries []cas.Entry
		for i := range 200 {
			entries = append(entries, file(nameOf(i), a.store.put(t, noise(uint64(k*1000+i), 2000))))
		}
		root, _ := a.store.tree(t, entries...)
		go func() { errs <- c.FetchTree(t.Context(), root.Digest, []string{a.name()}) }()
	}
	for range 6 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if st := c.Stats(); st.MostOutstanding > 16 || st.Outstanding != 0 {
		t.Fatalf("%+v", st)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Peers that ask for much and read nothing do not keep others waiting.
func TestStalledReadersDoNotBlockOthers(t *testing.T) {
	srv, c := newNode(t), newNode(t)
	c.meet(srv.host)
	m := message.New(false)
	for i := range 40 {
		ref := srv.store.put(t, noise(uint64(i), cas.BlockSize))
		m.AddEntry(toCID(ref.Digest), 1, pb.Message_Wantlist_Block, true)
	}
	const stalled = 3
	opened := make(chan struct{}, 1000)
	for range stalled {
		h := newHost(t)
		h.SetStreamHandler(bsnet.ProtocolBitswap, func(network.Stream) { opened <- struct{}{} }) // never read
		if err := h.Connect(t.Context(), libpeer.AddrInfo{ID: srv.host.ID(), Addrs: srv.host.Addrs()}); err != nil {
			t.Fatal(err)
		}
		st, err := h.NewStream(t.Context(), srv.host.ID(), bsnet.ProtocolBitswap)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.ToNetV1(st); err != nil {
			t.Fatal(err)
		}
	}
	// Each of them holds as many messages as one peer may have under way.
	for n := range stalled * outstandingBytes / targetMessage {
		select {
		case <-opened:
		case <-time.After(10 * time.Second):
			t.Fatalf("only %d messages are being sent at once: the stalled readers hold every sender", n)
		}
	}
	data := noise(99, 10<<20)
	ref := srv.store.put(t, data)
	within(t, 2*time.Second, "a fetch beside stalled readers", func() {
		if err := c.Fetch(t.Context(), ref, []string{srv.name()}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFaultsAddUpToAKind(t *testing.T) {
	s := &session{x: newNode(t).Exchange, op: opFetch, subject: cas.Empty(), answers: map[libpeer.ID]bool{"p": true}}
	for _, c := range []struct {
		faults []fault
		kind   forgeyard.Kind
	}{
		{nil, forgeyard.NotFound},
		{[]fault{{forgeyard.Corrupt, "a", "lied"}}, forgeyard.Corrupt},
		{[]fault{{forgeyard.Corrupt, "a", "lied"}, {forgeyard.Unavailable, "b", "silent"}}, forgeyard.Unavailable},
		{[]fault{{forgeyard.Unavailable, "b", "silent"}, {forgeyard.Corrupt, "a", "lied"}}, forgeyard.Unavailable},
	} {
		s.faults = c.faults
		err := s.failure(cas.Empty())
		isKind(t, err, c.kind)
		for _, f := range c.faults {
			if !strings.Contains(err.Error(), f.name+": "+f.text) {
				t.Errorf("%v does not name %s", err, f.name)
			}
		}
	}
}
