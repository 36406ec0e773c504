package peer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	libpeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// plain takes the bulk protocol from a node: it speaks bitswap only.
func (n *testNode) plain() {
	for _, id := range bulkProtocols() {
		n.host.RemoveStreamHandler(id)
	}
}

// Blocks travel over the bulk protocol where both ends speak it, over bitswap where
// one does not, and the result is the same. Who offers a later version besides is
// spoken to in the one that both know.
func TestBulkWhereBothSpeakIt(t *testing.T) {
	src := newNode(t)
	data := noise(1, 5*cas.BlockSize+77)
	ref := src.store.put(t, data)
	_, root := src.store.tree(t, file("a", ref), file("b", src.store.put(t, []byte("b"))))
	for _, over := range []bool{true, false} {
		if !over {
			src.plain()
			src.host.SetStreamHandler("/forgeyard/bulk/9", nil) // a version that is not known here
		}
		n := newNode(t)
		n.dial(t, src.host)
		if err := n.FetchTree(t.Context(), root.Digest, []string{src.name()}); err != nil {
			t.Fatal(err)
		}
		n.holds(t, ref, data)
		if s := n.Stats(); s.BulkIn > 0 != over || s.BlocksIn != 9 {
			t.Fatalf("bulk %v: %+v", over, s)
		}
	}
}

// C02, over bitswap: the faults of a peer that does not speak the bulk protocol are
// named as those of one that does.
func TestC02OverBitswap(t *testing.T) {
	bad, good, c := newNode(t), newNode(t), newNode(t)
	bad.plain()
	data := noise(3, 3*cas.BlockSize)
	ref := bad.store.put(t, data)
	good.store.put(t, data)
	for d := range bad.store.blocks {
		bad.store.corrupt[d] = true
	}
	c.meet(bad.host)
	c.dial(t, good.host)
	if err := c.Fetch(t.Context(), ref, []string{bad.name()}); err != nil {
		t.Fatal(err)
	}
	c.holds(t, ref, data)
	if e := c.bad(); len(e) != 1 || e[0].Peer != bad.host.ID() {
		t.Fatalf("%+v", e)
	}
}

// Several that bring the same blob in from one holder behind a bounded line take each
// block from it about once, and the rest from each other.
func TestSiblingsShareOneHolder(t *testing.T) {
	const blocks, takers = 96, 3
	src := newNode(t, func(c *Config) { c.Rates.PeersOut = 64 << 20 })
	data := noise(1, blocks*cas.BlockSize)
	ref := src.store.put(t, data)
	var all []*testNode
	names := []string{src.name()}
	for range takers {
		n := newNode(t)
		n.dial(t, src.host)
		for _, o := range all {
			n.dial(t, o.host)
		}
		all, names = append(all, n), append(names, n.name())
	}
	var wg sync.WaitGroup
	errs := make([]error, takers)
	for i, n := range all {
		wg.Go(func() { errs[i] = n.Fetch(t.Context(), ref, names) })
	}
	wg.Wait()
	for i, n := range all {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		n.holds(t, ref, data)
	}
	// Without siblings it would be takers times as many.
	if out := src.Stats().BlocksOut; out > blocks*3/2 {
		t.Fatalf("the holder sent %d blocks of a blob of %d", out, blocks)
	}
	if s := src.Stats(); s.Parked != 0 {
		t.Fatalf("%+v", s)
	}
}

// A sibling that dies leaves its share to the others, and they end.
func TestSiblingDies(t *testing.T) {
	const blocks = 48
	src := newNode(t, func(c *Config) { c.Rates.PeersOut = 48 << 20 })
	ref := src.store.put(t, noise(1, blocks*cas.BlockSize))
	a, b := newNode(t), newNode(t)
	a.dial(t, src.host, b.host)
	b.dial(t, src.host)
	half := make(chan struct{})
	var once sync.Once
	came := 0
	b.store.stored = func(int) {
		if came++; came > blocks/4 {
			once.Do(func() { close(half) })
		}
	}
	names := []string{src.name(), a.name(), b.name()}
	done := make(chan error, 1)
	go func() { _ = b.Fetch(t.Context(), ref, names) }() // it does not live to the end
	go func() { done <- a.Fetch(t.Context(), ref, names) }()
	<-half
	_ = b.host.Close()
	within(t, 10*time.Second, "the rest", func() {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// The division is the same wherever it is computed, gives each about as much, and
// when one leaves only its own blocks change hands.
func TestStripes(t *testing.T) {
	var keys []uint64
	for i := range 5 {
		keys = append(keys, keyOf(libpeer.ID(fmt.Sprint("peer", i))))
	}
	owner := func(keys []uint64, w want) (best uint64) {
		for _, k := range keys {
			if best == 0 || claimOf(k, w) > claimOf(best, w) {
				best = k
			}
		}
		return best
	}
	for what, manifest := range map[string]forgeyard.Digest{"objects": {}, "a blob": cas.Sum([]byte("manifest"))} {
		share := map[uint64]int{}
		for i := range 5000 {
			w := want{digest: cas.Sum([]byte(fmt.Sprint(i))), manifest: manifest, index: i}
			o := owner(keys, w)
			share[o]++
			if rest := owner(keys[1:], w); o != keys[0] && rest != o {
				t.Fatalf("%s: a block changed hands although its owner stayed", what)
			}
		}
		for k, n := range share {
			if n < 800 || n > 1200 {
				t.Fatalf("%s: %x has %d of 5000", what, k, n)
			}
		}
	}
}

// Of a blob that is no longer than a few rows nobody has much more than the others: what eight
// share goes on from each over its own line seven times. By chance alone the one with the most
// had 1.37 times its share.
func TestStripesOfAShortBlob(t *testing.T) {
	const blobs, blocks, siblings = 200, 128, 8
	most := 0
	for b := range blobs {
		share := [siblings]int{}
		manifest := cas.Sum([]byte(fmt.Sprint("manifest", b)))
		var keys [siblings]uint64
		for k := range keys {
			keys[k] = keyOf(libpeer.ID(fmt.Sprint("peer", b, k)))
		}
		for i := range blocks {
			w, best := want{digest: cas.Sum([]byte(fmt.Sprint(b, i))), manifest: manifest, index: i}, 0
			for k := range keys {
				if claimOf(keys[k], w) > claimOf(keys[best], w) {
					best = k
				}
			}
			share[best]++
		}
		most += slices.Max(share[:])
	}
	if ratio := float64(most) * siblings / (blobs * blocks); ratio > 1.3 {
		t.Errorf("the one with the most blocks has %.2f times its share", ratio)
	}
}

// RA-191: the uplink is asked when no peer has it, and only then.
func TestUplinkIsAskedLast(t *testing.T) {
	up, near := newNode(t), newNode(t)
	both, far := noise(1, 3*cas.BlockSize), noise(2, 2*cas.BlockSize)
	here := near.store.put(t, both)
	up.store.put(t, both)
	there := up.store.put(t, far)
	c := newNode(t, func(c *Config) {
		c.Uplink = "uplink"
		c.Resolve = func(p string) (libpeer.AddrInfo, error) {
			if p == "uplink" {
				return libpeer.AddrInfo{ID: up.host.ID(), Addrs: up.host.Addrs()}, nil
			}
			return libpeer.AddrInfo{}, fmt.Errorf("not known by name")
		}
	})
	c.meet(near.host)
	names := []string{"uplink", near.name()}
	if err := c.Fetch(t.Context(), here, names); err != nil {
		t.Fatal(err)
	}
	if s := up.Stats(); s.BlocksOut != 0 || s.Answered != 0 {
		t.Fatalf("the uplink was used: %+v", s)
	}
	if err := c.Fetch(t.Context(), there, names); err != nil {
		t.Fatal(err)
	}
	c.holds(t, there, far)
	if s := up.Stats(); s.BlocksOut != 3 {
		t.Fatalf("%+v", s)
	}
}

// Rates hold on either side of a tier; what is urgent does not wait for them.
func TestRatesBoundContent(t *testing.T) {
	data := noise(1, 6*cas.BlockSize)
	for what, tune := range map[string]struct{ holder, taker func(*Config) }{
		"out": {func(c *Config) { c.Rates.PeerOut = 4 << 20 }, func(*Config) {}},
		"in":  {func(*Config) {}, func(c *Config) { c.Rates.PeersIn = 4 << 20 }},
	} {
		t.Run(what, func(t *testing.T) {
			src, slow, fast := newNode(t, tune.holder), newNode(t, tune.taker), newNode(t, tune.taker)
			ref := src.store.put(t, data)
			slow.dial(t, src.host)
			fast.dial(t, src.host)
			start := time.Now()
			if err := slow.Fetch(t.Context(), ref, []string{src.name()}); err != nil {
				t.Fatal(err)
			}
			bounded := time.Since(start)
			if bounded < time.Second {
				t.Fatalf("6 MiB at 4 MiB/s took %v", bounded)
			}
			start = time.Now()
			if err := fast.Fetch(WithPriority(t.Context(), bulk.Urgent), ref, []string{src.name()}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > bounded {
				t.Fatalf("what is urgent took %v, content %v", took, bounded)
			}
		})
	}
}

// Serving is bounded for each peer: more connections than two are closed.
func TestBulkServingIsBoundedPerPeer(t *testing.T) {
	src, c := newNode(t), newNode(t)
	c.dial(t, src.host)
	small := src.store.put(t, []byte("small"))
	var open []interface{ Close() error }
	for range servedPerPeer + 1 {
		st, err := c.host.NewStream(t.Context(), src.host.ID(), protocol.ID(bulk.Protocols[0]))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, abrupt{st})
		// A want that is answered, so that the stream is known to be served or refused.
		rec := make(chan error, 1)
		go func() {
			_, err := st.Read(make([]byte, 1))
			rec <- err
		}()
		cl := bulk.NewClient(abrupt{st}, nil, bulk.NewPool(1), c.cfg.Clock, time.Second)
		_ = cl.Ask([]bulk.Block{{Name: small.Digest, Size: small.Size}}, bulk.Terms{}) // one that is reset cannot be written
		if err := <-rec; (err != nil) != (len(open) > servedPerPeer) {
			t.Fatalf("connection %d: %v", len(open), err)
		}
	}
	for _, c := range open {
		_ = c.Close()
	}
}

// E25: the only provider goes away in the middle and comes back; the next try, as a
// node makes it, goes on with what is here and ends in time.
func TestE25ProviderReturns(t *testing.T) {
	src, c := newNode(t), newNode(t)
	data := noise(1, 40*cas.BlockSize)
	ref := src.store.put(t, data)
	c.dial(t, src.host)
	var once sync.Once
	came := 0
	c.store.stored = func(int) {
		if came++; came == 10 {
			once.Do(func() { go func() { _ = c.host.Network().ClosePeer(src.host.ID()) }() })
		}
	}
	within(t, 10*time.Second, "the fetch with its tries", func() {
		for {
			err := c.Fetch(t.Context(), ref, []string{src.name()})
			if err == nil {
				return
			}
			isKind(t, err, forgeyard.Unavailable, src.name())
		}
	})
	c.holds(t, ref, data)
	if s := c.Stats(); s.BlocksIn > 80 {
		t.Fatalf("what was here came again: %+v", s)
	}
}

// The bytes that a store is given are the exchange's own: they are used again.
func TestBuffersAreNotKept(t *testing.T) {
	src, c := newNode(t), newNode(t)
	c.dial(t, src.host)
	for i := range 4 {
		data := noise(uint64(i), 40*cas.BlockSize)
		ref := src.store.put(t, data)
		if err := c.Fetch(context.Background(), ref, []string{src.name()}); err != nil {
			t.Fatal(err)
		}
		o, err := c.store.Open(t.Context(), ref.Digest)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(data))
		if _, err := o.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
			t.Fatal("bytes were written over", err)
		}
	}
}

// lateStore answers who-has late, as over a long line.
type lateStore struct {
	cas.Store
	after time.Duration
}

func (s lateStore) Stat(ctx context.Context, d forgeyard.Digest) (cas.Info, error) {
	select {
	case <-time.After(s.after):
	case <-ctx.Done():
	}
	return s.Store.Stat(ctx, d)
}

// Each tier has a deadline of its own: what a member may not take, the provider beyond the
// site may; and beyond its own time it is given up too.
func TestEachTierHasItsDeadline(t *testing.T) {
	data := noise(3, 2*cas.BlockSize)
	for name, c := range map[string]struct {
		uplink bool
		late   time.Duration
		want   forgeyard.Kind
	}{
		"a late member":          {false, 900 * time.Millisecond, forgeyard.Unavailable},
		"a late uplink":          {true, 900 * time.Millisecond, 0},
		"an uplink that is gone": {true, time.Minute, forgeyard.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			far := newNode(t, func(cfg *Config) { cfg.Store = lateStore{cfg.Store, c.late} })
			ref := far.store.put(t, data)
			n := newNode(t, func(cfg *Config) {
				cfg.WantTimeout, cfg.UplinkTimeout = 300*time.Millisecond, 3*time.Second
				if c.uplink {
					cfg.Uplink = far.name()
				}
			})
			n.dial(t, far.host)
			start := time.Now()
			err := n.Fetch(t.Context(), ref, []string{far.name()})
			took := time.Since(start)
			if c.want == 0 {
				if err != nil {
					t.Fatal(took, err)
				}
				n.holds(t, ref, data)
				return
			}
			isKind(t, err, c.want, far.name())
			if most := map[bool]time.Duration{false: 2 * time.Second, true: 9 * time.Second}[c.uplink]; took > most {
				t.Errorf("it was waited for %v", took)
			}
		})
	}
}
