package peer

import (
	"context"
	"errors"
	"fmt"
	"testing"

	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// sourceTree makes a tree with everything a tree can hold.
func sourceTree(t *testing.T, s *memStore) (root cas.Ref, objects int) {
	t.Helper()
	var deep []cas.Entry
	for i := range 300 {
		deep = append(deep, file(nameOf(i), s.put(t, noise(uint64(i), 100+i))))
	}
	_, deepDir := s.tree(t, deep...)
	_, emptyDir := s.tree(t)
	big := s.put(t, noise(77, 4*cas.BlockSize+3))
	_, mid := s.tree(t, named("deep", deepDir), named("deep-again", deepDir), file("big", big), named("nothing", emptyDir),
		cas.Entry{Name: "link", Kind: cas.Symlink, Target: "../top"})
	root, _ = s.tree(t, named("mid", mid), file("top", s.put(t, []byte("top"))), file("empty", cas.Ref{Digest: cas.Empty()}),
		// The bytes of a directory may also be a mere file, met first: the directory must lead on all the same.
		file("a-listing", cas.Ref{Digest: mid.Digest, Size: mid.Size}))
	return root, 300 + 3 + 1 + 1 + 1 // files, dirs below the root, big, top, root
}

func closureMissing(t *testing.T, s *memStore, root forgeyard.Digest) (missing int) {
	t.Helper()
	b, ok := s.blobs[root]
	if !ok {
		return 1
	}
	tr, err := cas.DecodeTree(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tr.Entries {
		switch {
		case e.Kind == cas.Dir:
			missing += closureMissing(t, s, e.Digest)
		case e.Kind == cas.File && e.Digest != cas.Empty() && !s.Has(t.Context(), e.Digest):
			missing++
		}
	}
	return missing
}

func TestFetchTreeBringsTheClosure(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	root, _ := sourceTree(t, a.store)
	var last Progress
	if err := b.FetchTreeProgress(t.Context(), root.Digest, []string{a.name()}, func(p Progress) { last = p }); err != nil {
		t.Fatal(err)
	}
	if n := closureMissing(t, b.store, root.Digest); n != 0 {
		t.Fatalf("%d objects are missing", n)
	}
	if last.Objects != last.TotalObjects || last.Bytes != last.TotalBytes || last.Objects < 300 {
		t.Fatalf("%+v", last)
	}
	writes := b.store.writes()
	if err := b.FetchTree(t.Context(), root.Digest, nil); err != nil || b.store.writes() != writes {
		t.Fatalf("a second fetch wrote %d: %v", b.store.writes()-writes, err)
	}
}

// C05 for trees: what came before the end is not fetched again. RA-181: the tree says what
// belongs to it, what of that is missing is found first, and only that is asked for.
func TestC05TreeResumes(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	root, _ := sourceTree(t, a.store)
	ctx, cancel := context.WithCancel(t.Context())
	n := make(chan struct{}, 1000)
	b.store.stored = func(int) {
		if n <- struct{}{}; len(n) >= 150 {
			cancel()
		}
	}
	err := b.FetchTree(ctx, root.Digest, []string{a.name()})
	if err == nil && closureMissing(t, b.store, root.Digest) == 0 {
		t.Log("all of it had come before the cut was seen")
	} else {
		isKind(t, err, forgeyard.Interrupted)
	}
	kept := b.store.size()
	before := b.Stats().BlocksIn
	if err := b.FetchTree(t.Context(), root.Digest, []string{a.name()}); err != nil {
		t.Fatal(err)
	}
	if n := closureMissing(t, b.store, root.Digest); n != 0 {
		t.Fatalf("%d objects are missing", n)
	}
	// What was under way at the end may come once more.
	if again := b.Stats().BlocksIn - before; again > int64(320-kept)+MaxWindow || kept < 100 {
		t.Fatalf("%d blocks came again after %d were kept", again, kept)
	}
}

// A directory too large for one block has a manifest like any blob.
func TestLargeDirectory(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	one := a.store.put(t, []byte("one"))
	var entries []cas.Entry
	for i := range 17_000 {
		entries = append(entries, file(fmt.Sprintf("%060d", i), one))
	}
	sub, subDir := a.store.tree(t, entries...)
	if sub.Size <= cas.BlockSize {
		t.Fatalf("%d bytes are no large directory", sub.Size)
	}
	root, _ := a.store.tree(t, named("large", subDir))
	for _, r := range []cas.Ref{root, sub} {
		if err := b.FetchTree(t.Context(), r.Digest, []string{a.name()}); err != nil {
			t.Fatal(err)
		}
	}
	if n := closureMissing(t, b.store, root.Digest); n != 0 {
		t.Fatalf("%d objects are missing", n)
	}
}

func TestTreeThatIsNone(t *testing.T) {
	a, b := newNode(t), newNode(t)
	b.meet(a.host)
	ref := a.store.put(t, []byte("no tree"))
	isKind(t, b.FetchTree(t.Context(), ref.Digest, []string{a.name()}), forgeyard.Invalid, "not a directory")
	isKind(t, b.FetchTree(t.Context(), forgeyard.Digest{}, nil), forgeyard.Invalid)
}

// One file that the named provider lost comes from a connected peer that has
// nothing else of the tree.
func TestTreeLackingOneFile(t *testing.T) {
	a, b, c := newNode(t), newNode(t), newNode(t)
	c.dial(t, a.host, b.host)
	lost := a.store.put(t, noise(1, 5000))
	root, _ := a.store.tree(t, file("kept", a.store.put(t, noise(2, 5000))), file("lost", lost))
	a.store.forget(lost.Digest)
	isKind(t, c.FetchTree(t.Context(), root.Digest, []string{a.name()}), forgeyard.NotFound, lost.Digest.Short())
	b.store.put(t, noise(1, 5000))
	if err := c.FetchTree(t.Context(), root.Digest, []string{a.name()}); err != nil {
		t.Fatal(err)
	}
}

func TestProvidersAreResolvedAndHinted(t *testing.T) {
	a := newNode(t)
	ref := a.store.put(t, []byte("hinted"))
	b := newNode(t, func(c *Config) {
		c.Resolve = func(name string) (libpeer.AddrInfo, error) {
			if name == "uplink" {
				return libpeer.AddrInfo{ID: a.host.ID(), Addrs: a.host.Addrs()}, nil
			}
			return libpeer.AddrInfo{}, errors.New("no such runner")
		}
		c.Providers = func(_ context.Context, d forgeyard.Digest) []string {
			if d == ref.Digest {
				return []string{"uplink"}
			}
			return nil
		}
	})
	if err := b.Fetch(t.Context(), ref, []string{"runner-7"}); err != nil {
		t.Fatal(err)
	}
	isKind(t, b.Fetch(t.Context(), cas.Ref{Digest: cas.Sum([]byte("x")), Size: 1}, []string{"runner-7"}), forgeyard.Unavailable, "runner-7: no such runner")
}
