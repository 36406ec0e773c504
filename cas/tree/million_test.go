package tree_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/tree"
)

// million stores a tree of 1,048,560 entries in sixteen folders, no two with one name.
func million(t *testing.T, s cas.Store) cas.Ref {
	t.Helper()
	var file cas.Ref
	var root cas.Tree
	for i := range 16 {
		sub := cas.Tree{Entries: make([]cas.Entry, 0, 65_534)}
		for j := range 65_534 {
			if j%8192 == 0 {
				file = castest.Put(t, s, fmt.Appendf(nil, "%d/%d", i, j))
			}
			sub.Entries = append(sub.Entries, cas.Entry{Name: fmt.Sprintf("file-%02d-%05d", i, j), Kind: cas.File, Size: file.Size, Digest: file.Digest})
		}
		enc, err := sub.Encode()
		must(t, err)
		ref := castest.Put(t, s, enc)
		root.Entries = append(root.Entries, cas.Entry{Name: fmt.Sprintf("dir-%02d", i), Kind: cas.Dir, Size: ref.Size, Digest: ref.Digest, Manifest: ref.Manifest})
	}
	enc, err := root.Encode()
	must(t, err)
	return castest.Put(t, s, enc)
}

// peak runs f and tells how far the heap went above what it was, looked at whenever f asks.
func peak(f func(look func())) int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, top := int64(m.HeapAlloc), int64(0)
	f(func() {
		runtime.GC()
		runtime.ReadMemStats(&m)
		top = max(top, int64(m.HeapAlloc)-before)
	})
	return top
}

// A tree of a million entries is listed, pinned, collected around and made in part, in
// bounded memory; what is over a bound is refused at the bound, and not after all of it.
func TestMillionEntries(t *testing.T) {
	s := store(t)
	root := million(t, s)
	const all = 16 * 65_535
	n := 0
	top := peak(func(look func()) {
		must(t, tree.Walk(t.Context(), root, tree.FromStore(s), tree.Limits{}, func(string, cas.Entry) error {
			if n++; n%200_000 == 0 {
				look()
			}
			return nil
		}))
	})
	t.Logf("listing holds %d MiB", top>>20)
	if n != all || top > 256<<20 {
		t.Errorf("%d entries, %d MiB", n, top>>20)
	}
	must(t, s.Pin(t.Context(), cas.Pin{Owner: "test/million", Trees: []forgeyard.Digest{root.Digest}}))
	if r, err := s.GC(t.Context(), false); err != nil || r.Removed != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	seen := 0
	err := tree.Walk(t.Context(), root, tree.FromStore(s), tree.Limits{MaxFiles: 1000}, func(string, cas.Entry) error { seen++; return nil })
	castest.WantKind(t, err, forgeyard.Limit)
	if seen > 1000 {
		t.Errorf("%d visited of 1000 that are allowed", seen)
	}
	// Made in part: whoever stops it has what was made until then, and can take it away.
	dst := filepath.Join(t.TempDir(), "dst")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := &countingSource{Source: s, after: 20_000, then: stop}
	top = peak(func(look func()) {
		_, err = tree.Materialise(ctx, c, root.Digest, dst, tree.Materialisation{})
		look()
	})
	castest.WantKind(t, err, forgeyard.Interrupted)
	l, derr := os.ReadDir(filepath.Join(dst, "dir-00"))
	must(t, derr)
	if len(l) < 10_000 || len(l) > 65_534 || top > 256<<20 {
		t.Errorf("%d made, %d MiB", len(l), top>>20)
	}
	must(t, tree.Remove(dst))
	if _, err := os.Lstat(dst); !os.IsNotExist(err) {
		t.Error("something stays")
	}
	_, err = tree.Materialise(t.Context(), s, root.Digest, dst, tree.Materialisation{Limits: tree.Limits{MaxFiles: 5000}})
	castest.WantKind(t, err, forgeyard.Limit)
}

// countingSource calls then when so many blocks were read.
type countingSource struct {
	tree.Source
	n, after int64
	then     func()
}

func (c *countingSource) Block(ctx context.Context, d forgeyard.Digest) ([]byte, error) {
	if atomic.AddInt64(&c.n, 1) == c.after {
		c.then()
	}
	return c.Source.Block(ctx, d)
}
