package peer

import (
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
)

// BenchmarkFetch brings one large blob, and a directory of small files, over loopback.
func BenchmarkFetch(b *testing.B) {
	b.Run("256MiB", func(b *testing.B) {
		src := newNode(b)
		ref := src.store.put(b, noise(1, 256<<20))
		b.SetBytes(ref.Size)
		for b.Loop() {
			n := newNode(b)
			n.dial(b, src.host)
			if err := n.Fetch(b.Context(), ref, []string{src.name()}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("10000x4KiB", func(b *testing.B) {
		src := newNode(b)
		var entries []cas.Entry
		for i := range 10_000 {
			entries = append(entries, file(nameOf(i), src.store.put(b, noise(uint64(i), 4096))))
		}
		root, _ := src.store.tree(b, entries...)
		b.SetBytes(10_000 * 4096)
		for b.Loop() {
			n := newNode(b)
			n.dial(b, src.host)
			if err := n.FetchTree(b.Context(), root.Digest, []string{src.name()}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
