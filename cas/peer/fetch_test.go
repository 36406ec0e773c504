package peer

import (
	"bytes"
	"context"
	"testing"
	"time"

	mh "github.com/multiformats/go-multihash"
	lukechampine "lukechampine.com/blake3"

	"github.com/ipfs/go-cid"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

func TestNamesAreBlake3CIDs(t *testing.T) {
	if !hasherRegistered() {
		t.Fatal("go-multihash does not hash with our library")
	}
	for _, n := range []int{0, 1, 64, 1023, 1024, 1025, 70_000} {
		b := noise(uint64(n), n)
		d := cas.Sum(b)
		if forgeyard.Digest(lukechampine.Sum256(b)) != d {
			t.Fatalf("%d bytes: the two libraries differ", n)
		}
		want, err := cid.Prefix{Version: 1, Codec: cid.Raw, MhType: mh.BLAKE3, MhLength: 32}.Sum(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := toCID(d); !got.Equals(want) {
			t.Fatalf("%v, bitswap computes %v", got, want)
		}
		if back, ok := fromCID(want); !ok || back != d {
			t.Fatalf("%v does not come back", want)
		}
	}
	h, _ := mh.Sum([]byte("x"), mh.SHA2_256, -1)
	for _, c := range []cid.Cid{cid.NewCidV0(h), cid.NewCidV1(cid.Raw, h), cid.NewCidV1(cid.DagCBOR, toCID(cas.Empty()).Hash())} {
		if _, ok := fromCID(c); ok {
			t.Errorf("%v names nothing of ours", c)
		}
	}
}

func TestBlockstoreOnlyReads(t *testing.T) {
	s := newStore()
	ref := s.put(t, []byte("bytes"))
	bs := blocksOf{store: s, log: newNode(t).cfg.Log}
	blk, err := bs.Get(t.Context(), toCID(ref.Digest))
	if err != nil || string(blk.RawData()) != "bytes" {
		t.Fatal(blk, err)
	}
	if n, err := bs.GetSize(t.Context(), toCID(ref.Digest)); err != nil || n != 5 {
		t.Fatal(n, err)
	}
	if ok, err := bs.Has(t.Context(), toCID(cas.Sum([]byte("other")))); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := bs.Put(t.Context(), blk); forgeyard.KindOf(err) != forgeyard.Denied {
		t.Fatal(err)
	}
}

func TestFetchBringsVerifiedBytes(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	for _, n := range []int{1, 5000, cas.BlockSize, cas.BlockSize + 1, 5*cas.BlockSize + 17} {
		data := noise(uint64(n), n)
		ref := a.store.put(t, data)
		if err := b.Fetch(t.Context(), ref, []string{a.name()}); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		b.holds(t, ref, data)
	}
	writes := b.store.writes()
	if err := b.Fetch(t.Context(), a.store.put(t, noise(1, 1)), nil); err != nil || b.store.writes() != writes {
		t.Fatalf("what is here is not fetched again: %v", err)
	}
	if st := b.Stats(); st.Outstanding != 0 || st.BlocksIn == 0 || st.BytesIn < 6*cas.BlockSize {
		t.Fatalf("%+v", st)
	}
}

// The empty object is never asked for: bitswap would never answer.
func TestEmptyObjectIsAnsweredLocally(t *testing.T) {
	n := newNode(t)
	for _, f := range []func() error{
		func() error { return n.Fetch(t.Context(), cas.Ref{Digest: cas.Empty()}, nil) },
		func() error { return n.FetchAny(t.Context(), cas.Empty(), nil) },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFetchAnyLearnsTheManifest(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.dial(t, a.host)
	for _, n := range []int{100, 3*cas.BlockSize + 5} {
		data := noise(uint64(n), n)
		ref := a.store.put(t, data)
		if err := b.FetchAny(t.Context(), ref.Digest, nil); err != nil { // connected peers only
			t.Fatal(err)
		}
		b.holds(t, ref, data)
	}
}

func TestNobodyHasIt(t *testing.T) {
	a, b, c := newNode(t), newNode(t), newNode(t)
	c.dial(t, a.host, b.host)
	ref := cas.Ref{Digest: cas.Sum([]byte("nowhere")), Size: 7}
	within(t, time.Second, "a No", func() {
		isKind(t, c.Fetch(t.Context(), ref, []string{a.name()}), forgeyard.NotFound, "none of 2 peers")
	})
	isKind(t, newNode(t).Fetch(t.Context(), ref, nil), forgeyard.NotFound, "no peer to ask")
}

func TestRefsThatCannotBe(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	other := a.store.put(t, noise(1, 3<<20))
	for name, c := range map[string]struct {
		ref  cas.Ref
		kind forgeyard.Kind
	}{
		"no digest":           {cas.Ref{Size: 1}, forgeyard.Invalid},
		"negative size":       {cas.Ref{Digest: other.Digest, Size: -1}, forgeyard.Invalid},
		"too large":           {cas.Ref{Digest: other.Digest, Size: cas.MaxBlobSize + 1}, forgeyard.Limit},
		"manifest of another": {cas.Ref{Digest: cas.Sum([]byte("x")), Size: 3 << 20, Manifest: other.Manifest}, forgeyard.Invalid},
	} {
		if err := b.Fetch(t.Context(), c.ref, []string{a.name()}); forgeyard.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// C03: 5,000 chunks at once arrive without a gap, in windows.
func TestC03FiveThousandChunksAtOnce(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	var entries []cas.Entry
	for i := range 5000 {
		entries = append(entries, file(nameOf(i), a.store.put(t, noise(uint64(i), 8000+i%999))))
	}
	root, _ := a.store.tree(t, entries...)
	gaps := make(chan struct{}, 1<<14)
	b.store.stored = func(int) { gaps <- struct{}{} }
	done := make(chan error, 1)
	go func() { done <- b.FetchTree(t.Context(), root.Digest, []string{a.name()}) }()
	for {
		select {
		case <-gaps:
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			if n := b.store.size(); n != 5001 {
				t.Fatalf("%d objects", n)
			}
			if st := b.Stats(); st.MostOutstanding > MaxWindow || st.MostOutstanding < MaxWindow/2 {
				t.Fatalf("the window is not used as meant: %+v", st)
			}
			return
		case <-time.After(2 * time.Second):
			t.Fatal("nothing came for 2 s")
		}
	}
}

// C05: an interrupted fetch goes on with every verified block, in a new exchange.
func TestC05ResumesAfterAnEnd(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	data := noise(5, 64<<20)
	ref := a.store.put(t, data)
	ctx, cancel := context.WithCancel(t.Context())
	half := make(chan struct{}, 100)
	b.store.stored = func(int) {
		if half <- struct{}{}; len(half) == 32 {
			cancel()
		}
	}
	isKind(t, b.Fetch(ctx, ref, []string{a.name()}), forgeyard.Interrupted)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	kept := b.store.writes()
	if b.store.Has(t.Context(), ref.Digest) || kept < 32 || kept == 64 {
		t.Fatalf("%d of 64 blocks kept after the interruption", kept)
	}
	b.store.stored = nil
	again, err := New(Config{Host: b.host, Store: b.store})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if err := again.Fetch(t.Context(), ref, []string{a.name()}); err != nil {
		t.Fatal(err)
	}
	b.holds(t, ref, data)
	if got := again.Stats().BlocksIn; got > int64(64-kept)+1 {
		t.Fatalf("%d blocks came again although %d of 64 were kept", got, kept)
	}
}

// One block that stands many times in a blob is fetched once.
func TestRepeatedBlocks(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	data := bytes.Repeat(noise(9, cas.BlockSize), 6)
	ref := a.store.put(t, data)
	if err := b.Fetch(t.Context(), ref, []string{a.name()}); err != nil {
		t.Fatal(err)
	}
	b.holds(t, ref, data)
	if n := b.Stats().BlocksIn; n != 2 { // the manifest and the block
		t.Fatalf("%d blocks came", n)
	}
}

// Two holders share the work, and fetches of one blob at once are one.
func TestHoldersShareAndFetchesJoin(t *testing.T) {
	a, b, c := newNode(t), newNode(t), newNode(t)
	c.dial(t, a.host, b.host)
	data := noise(3, 96<<20)
	ref := a.store.put(t, data)
	b.store.put(t, data)
	errs := make(chan error, 3)
	for range 3 {
		go func() { errs <- c.Fetch(t.Context(), ref, []string{a.name(), b.name()}) }()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	c.holds(t, ref, data)
	if as, bs := a.Stats().BlocksOut, b.Stats().BlocksOut; as == 0 || bs == 0 || as+bs > 110 {
		t.Fatalf("%d and %d blocks were sent for 97", as, bs)
	}
}

func TestNoSpaceIsTyped(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	b.store.full = true
	isKind(t, b.Fetch(t.Context(), a.store.put(t, []byte("x")), []string{a.name()}), forgeyard.NoSpace)
	if len(b.bad()) != 0 {
		t.Fatal("a full disk is no peer's fault")
	}
}

func TestClosedExchangeRefuses(t *testing.T) {
	a, b := newNode(t), newNode(t)
	ref := a.store.put(t, []byte("x"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	isKind(t, b.Fetch(t.Context(), ref, []string{a.name()}), forgeyard.Unavailable, "closed")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

func nameOf(i int) string {
	return string([]byte{'a' + byte(i/676%26), 'a' + byte(i/26%26), 'a' + byte(i%26)}) + "-file"
}
