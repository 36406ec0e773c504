// Package castest is the conformance suite that every cas.Store passes.
//
// It decides what the contract means in cases where words may leave room. It knows
// nothing of how a store keeps things; crashes, full disks and tampering are tested
// where the store is.
package castest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Run holds the stores that open makes against the contract. Each call of open
// gives an empty store; it is closed by the test that opened it, if at all.
func Run(t *testing.T, open func(t *testing.T) cas.Store) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, cas.Store)
	}{
		{"PutAndReadBack", putAndReadBack},
		{"EmptyObject", emptyObject},
		{"PutTwiceCostsNothing", putTwice},
		{"ManyAtOnce", manyAtOnce},
		{"C01/WrongBytesLeaveNothing", wrongBytes},
		{"FailingReaderLeavesNothing", failingReader},
		{"TooLargeIsRefused", tooLarge},
		{"SharedPrefix", sharedPrefix},
		{"ReaderSeeks", readerSeeks},
		{"BlockByName", blockByName},
		{"AbsentIsNotFound", absent},
		{"PathGivesTheBytes", pathBytes},
		{"PartialResumes", partialResumes},
		{"PartialServesBlocks", partialServes},
		{"C01/LyingManifest", lyingManifest},
		{"OtherDivisionOfSameBytes", otherDivision},
		{"a division by content", divisionByContent},
		{"PinsKeepClosures", pinsKeep},
		{"PinRootsAreNotSniffed", rootsNotSniffed},
		{"PinBeforeArrival", pinBeforeArrival},
		{"C13/OwnerHoldsUploads", ownerHolds},
		{"DryRunRemovesNothing", dryRun},
		{"Concurrent", concurrent},
		{"CancelledPut", cancelled},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, open(t)) })
	}
}

// Bytes makes n bytes that depend on the seed only.
func Bytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = r.Read(b) // never fails
	return b
}

// Describe gives the plain manifest and its ref; for small blobs the manifest is zero.
func Describe(t testing.TB, b []byte) (cas.Ref, cas.Manifest) {
	t.Helper()
	mb := cas.NewManifestBuilder()
	if _, err := mb.Write(b); err != nil {
		t.Fatal(err)
	}
	ref, m, _, err := mb.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return ref, m
}

// Put stores bytes or fails the test.
func Put(t testing.TB, s cas.Store, b []byte) cas.Ref {
	t.Helper()
	ref, err := s.Put(context.Background(), bytes.NewReader(b), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// Read reads a whole object or fails the test.
func Read(t testing.TB, s cas.Store, d forgeyard.Digest) []byte {
	t.Helper()
	o, err := s.Open(context.Background(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }() // it was only read
	b, err := io.ReadAll(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// WantKind fails the test unless err has the kind.
func WantKind(t testing.TB, err error, want forgeyard.Kind) {
	t.Helper()
	if err == nil || forgeyard.KindOf(err) != want {
		t.Fatalf("got %v (%v), want %v", err, forgeyard.KindOf(err), want)
	}
}

var sizes = []int{1, 63, 4096, cas.BlockSize - 1, cas.BlockSize, cas.BlockSize + 1, 2 * cas.BlockSize, 3*cas.BlockSize + 5}

func putAndReadBack(t *testing.T, s cas.Store) {
	ctx := context.Background()
	for i, n := range sizes {
		b := Bytes(uint64(i), n)
		want, _ := Describe(t, b)
		var r io.Reader = bytes.NewReader(b)
		if i%2 == 1 {
			r = iotest.OneByteReader(bytes.NewReader(b))
		}
		ref, err := s.Put(ctx, r, cas.PutOptions{Class: cas.Class(i % 2), Expect: want.Digest, Size: int64(n)})
		if err != nil || ref != want {
			t.Fatalf("%d bytes: %+v, want %+v: %v", n, ref, want, err)
		}
		if !s.Has(ctx, ref.Digest) || !bytes.Equal(Read(t, s, ref.Digest), b) {
			t.Fatalf("%d bytes did not come back", n)
		}
		info, err := s.Stat(ctx, ref.Digest)
		if err != nil || info.Ref != want || !info.Complete || info.Have != int64(n) || info.Stored.IsZero() || len(info.Pinned) != 0 {
			t.Fatalf("stat of %d bytes: %+v %v", n, info, err)
		}
		if want.Manifest.IsZero() {
			continue
		}
		m, err := cas.DecodeManifest(Read(t, s, want.Manifest))
		if err != nil || m.Whole != want.Digest {
			t.Fatalf("manifest of %d bytes: %v", n, err)
		}
	}
}

func emptyObject(t *testing.T, s cas.Store) {
	ctx, d := context.Background(), cas.Empty()
	if !s.Has(ctx, d) {
		t.Fatal("the empty object is always here")
	}
	if ref := Put(t, s, nil); ref != (cas.Ref{Digest: d}) {
		t.Fatalf("%+v", ref)
	}
	b, err := s.Block(ctx, d)
	n, err2 := s.BlockSize(ctx, d)
	if err != nil || err2 != nil || b == nil || len(b) != 0 || n != 0 || len(Read(t, s, d)) != 0 {
		t.Fatalf("block %v %v, size %d %v", b, err, n, err2)
	}
	path, release, err := s.Path(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if st, err := os.Stat(path); err != nil || st.Size() != 0 {
		t.Fatalf("%v %v", st, err)
	}
	if info, err := s.Stat(ctx, d); err != nil || !info.Complete {
		t.Fatalf("%+v %v", info, err)
	}
	if _, err := s.GC(ctx, false); err != nil || !s.Has(ctx, d) {
		t.Fatalf("after a collection: %v", err)
	}
}

func putTwice(t *testing.T, s cas.Store) {
	ctx := context.Background()
	for i, n := range []int{100, 3*cas.BlockSize + 9} {
		b := Bytes(uint64(i), n)
		first := Put(t, s, b)
		before, err := s.Usage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		was, err := s.Stat(ctx, first.Digest)
		if err != nil {
			t.Fatal(err)
		}
		path, release, err := s.Path(ctx, first.Digest)
		if err != nil {
			t.Fatal(err)
		}
		release()
		if again := Put(t, s, b); again != first {
			t.Fatalf("%+v, then %+v", first, again)
		}
		after, err := s.Usage(ctx)
		if err != nil || after.Bytes != before.Bytes || after.Objects != before.Objects {
			t.Fatalf("%+v, then %+v %v", before, after, err)
		}
		if is, err := s.Stat(ctx, first.Digest); err != nil || !is.Stored.Equal(was.Stored) {
			t.Fatalf("written again: %s, then %s %v", was.Stored, is.Stored, err)
		}
		same, release, err := s.Path(ctx, first.Digest)
		if err != nil || (same != path && n > cas.BlockSize) { // a small object may have no file of its own
			t.Fatalf("written again: %s, then %s %v", path, same, err)
		}
		release()
	}
}

func wrongBytes(t *testing.T, s cas.Store) {
	ctx := context.Background()
	for i, n := range []int{0, 10, 2*cas.BlockSize + 1} {
		b, other := Bytes(uint64(i), n), Bytes(99, n+1)
		want, _ := Describe(t, other)
		_, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{Expect: want.Digest})
		WantKind(t, err, forgeyard.Corrupt)
		got, _ := Describe(t, b)
		if s.Has(ctx, want.Digest) || (n > 0 && s.Has(ctx, got.Digest)) {
			t.Fatalf("%d wrong bytes left something behind", n)
		}
	}
	u, err := s.Usage(ctx)
	if err != nil || u.Bytes != 0 || u.Objects != 0 {
		t.Fatalf("%+v %v", u, err)
	}
	// What is here already is checked as well.
	ref := Put(t, s, []byte("here"))
	_, err = s.Put(ctx, bytes.NewReader([]byte("not")), cas.PutOptions{Expect: ref.Digest})
	WantKind(t, err, forgeyard.Corrupt)
}

func failingReader(t *testing.T, s cas.Store) {
	ctx, broken := context.Background(), errors.New("the cable is out")
	for _, n := range []int{10, 2*cas.BlockSize + 1} {
		b := Bytes(1, n)
		ref, _ := Describe(t, b)
		_, err := s.Put(ctx, io.MultiReader(bytes.NewReader(b), iotest.ErrReader(broken)), cas.PutOptions{})
		if !errors.Is(err, broken) {
			t.Fatalf("the cause is lost: %v", err)
		}
		if s.Has(ctx, ref.Digest) {
			t.Fatal("something was left behind")
		}
	}
}

func tooLarge(t *testing.T, s cas.Store) {
	_, err := s.Put(context.Background(), bytes.NewReader(nil), cas.PutOptions{Size: cas.MaxBlobSize + 1})
	WantKind(t, err, forgeyard.Limit)
	_, err = s.Put(context.Background(), bytes.NewReader(nil), cas.PutOptions{Owner: "a\nb"})
	WantKind(t, err, forgeyard.Invalid)
}

// Blobs that begin alike, the longer and the shorter one, must not be mixed up.
func sharedPrefix(t *testing.T, s cas.Store) {
	base := Bytes(5, 4*cas.BlockSize+100)
	variant := append([]byte(nil), base...)
	variant[3*cas.BlockSize+1] ^= 1
	for _, b := range [][]byte{base, base[:2*cas.BlockSize], base[:2*cas.BlockSize+1], base[:cas.BlockSize], variant, append(append([]byte(nil), base...), 'x'), base} {
		want, _ := Describe(t, b)
		if ref := Put(t, s, b); ref != want {
			t.Fatalf("%d bytes: %+v, want %+v", len(b), ref, want)
		}
		if !bytes.Equal(Read(t, s, want.Digest), b) {
			t.Fatalf("%d bytes did not come back", len(b))
		}
	}
}

func readerSeeks(t *testing.T, s cas.Store) {
	b := Bytes(6, 3*cas.BlockSize+77)
	ref := Put(t, s, b)
	o, err := s.Open(context.Background(), ref.Digest)
	if err != nil || o.Ref() != ref {
		t.Fatalf("%v", err)
	}
	for _, c := range []struct{ off, n int }{{0, 1}, {cas.BlockSize - 1, 2}, {5, 2 * cas.BlockSize}, {len(b) - 3, 3}} {
		got := make([]byte, c.n)
		if n, err := o.ReadAt(got, int64(c.off)); n != c.n || (err != nil && err != io.EOF) || !bytes.Equal(got, b[c.off:c.off+c.n]) {
			t.Fatalf("%d at %d: %d %v", c.n, c.off, n, err)
		}
	}
	if n, err := o.ReadAt(make([]byte, 10), int64(len(b)-4)); n != 4 || err != io.EOF {
		t.Fatalf("over the end: %d %v", n, err)
	}
	if _, err := o.ReadAt(make([]byte, 1), -1); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatalf("before the start: %v", err)
	}
	if at, err := o.Seek(-10, io.SeekEnd); err != nil || at != int64(len(b)-10) {
		t.Fatalf("%d %v", at, err)
	}
	rest, err := io.ReadAll(o)
	if err != nil || !bytes.Equal(rest, b[len(b)-10:]) {
		t.Fatalf("%v", err)
	}
	if err := errors.Join(o.Close(), o.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := o.ReadAt(make([]byte, 1), 0); err == nil {
		t.Fatal("reads after Close")
	}
}

func blockByName(t *testing.T, s cas.Store) {
	ctx := context.Background()
	b := Bytes(7, 2*cas.BlockSize+9)
	ref, m := Describe(t, b)
	Put(t, s, b)
	for i, off := range m.Offsets() {
		bl := m.Blocks[i]
		n, err := s.BlockSize(ctx, bl.Digest)
		if err != nil || n != bl.Size {
			t.Fatalf("size of block %d: %d %v", i, n, err)
		}
		got, err := s.Block(ctx, bl.Digest)
		if err != nil || !bytes.Equal(got, b[off:off+bl.Size]) {
			t.Fatalf("block %d: %v", i, err)
		}
		got[0] ^= 1 // the slice is the caller's
		if again, err := s.Block(ctx, bl.Digest); err != nil || bytes.Equal(again, got) {
			t.Fatalf("block %d was given out twice: %v", i, err)
		}
	}
	if got, err := s.Block(ctx, ref.Manifest); err != nil || cas.Sum(got) != ref.Manifest {
		t.Fatalf("the manifest as a block: %v", err)
	}
	_, err := s.Block(ctx, ref.Digest)
	WantKind(t, err, forgeyard.NotFound) // a large blob is no block
	small := Put(t, s, []byte("small"))
	if got, err := s.Block(ctx, small.Digest); err != nil || string(got) != "small" {
		t.Fatalf("%q %v", got, err)
	}
}

func absent(t *testing.T, s cas.Store) {
	ctx, d := context.Background(), cas.Sum([]byte("never put"))
	if s.Has(ctx, d) {
		t.Fatal("has it")
	}
	_, err := s.Open(ctx, d)
	WantKind(t, err, forgeyard.NotFound)
	_, err = s.Block(ctx, d)
	WantKind(t, err, forgeyard.NotFound)
	_, err = s.BlockSize(ctx, d)
	WantKind(t, err, forgeyard.NotFound)
	_, err = s.Stat(ctx, d)
	WantKind(t, err, forgeyard.NotFound)
	_, _, err = s.Path(ctx, d)
	WantKind(t, err, forgeyard.NotFound)
}

func pathBytes(t *testing.T, s cas.Store) {
	ctx := context.Background()
	b := Bytes(8, cas.BlockSize+1)
	ref := Put(t, s, b)
	path, release, err := s.Path(ctx, ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, b) {
		t.Fatalf("a collection took what a path was given for: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm()&0o222 != 0 {
		t.Fatalf("writable: %v %v", st.Mode(), err)
	}
	release()
	release()
	if r, err := s.GC(ctx, false); err != nil || r.Removed == 0 || s.Has(ctx, ref.Digest) {
		t.Fatalf("after release: %+v %v", r, err)
	}
}

func concurrent(t *testing.T, s cas.Store) {
	ctx := context.Background()
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for g := range 16 {
		wg.Go(func() {
			for i := range 8 {
				b := Bytes(uint64(i+(g%4)*8), []int{100, 5000, cas.BlockSize + 10}[i%3])
				owner := fmt.Sprintf("test/%d", g)
				ref, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{Owner: owner})
				if err != nil {
					errs <- err
					return
				}
				o, err := s.Open(ctx, ref.Digest)
				if err != nil {
					errs <- fmt.Errorf("held, yet not here: %w", err)
					return
				}
				got, err := io.ReadAll(o)
				if err := errors.Join(err, o.Close()); err != nil || !bytes.Equal(got, b) {
					errs <- fmt.Errorf("read back: %w", err)
					return
				}
				if g == 0 {
					if _, err := s.GC(ctx, false); err != nil {
						errs <- err
						return
					}
				}
			}
			if g%2 == 0 {
				errs <- s.Unpin(ctx, fmt.Sprintf("test/%d", g))
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

func cancelled(t *testing.T, s cas.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Put(ctx, bytes.NewReader(Bytes(1, 100)), cas.PutOptions{})
	WantKind(t, err, forgeyard.Interrupted)
}
