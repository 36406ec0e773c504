package capture

import (
	"math/rand/v2"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/blake3"
	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// cutAll cuts as the intake does.
func cutAll(b []byte, old cuts) cuts {
	c := cutter{old: old}
	var marks []cas.Mark
	h := cas.NewMarkingHasher(func(m cas.Mark) { marks = append(marks, m) })
	for at := 0; at <= len(b); at += pieceBatch {
		end := min(at+pieceBatch, len(b))
		_, _ = h.Write(b[at:end])
		c.cut(b[c.at:end], marks, end-at < pieceBatch)
		marks = nil
	}
	return c.now
}

// What has the bytes of before is taken from memory, and nothing else is: here the memory
// lies about every name, so that it shows which it was asked for.
func TestMemoryIsAskedForWhatIsTheSame(t *testing.T) {
	if !blake3.Wide() {
		needs.Lacking(t, "AVX-512: without it no part of the hash names a run")
	}
	b := make([]byte, 21<<20+777)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	first := cutAll(b, cuts{})
	lie := forgeyard.Digest{1}
	remembered := func(ps []piece) (n int) {
		for _, p := range ps {
			if p.name == lie {
				n++
			}
		}
		return n
	}
	liar := cuts{marks: first.marks}
	for _, p := range first.pieces {
		liar.pieces = append(liar.pieces, piece{at: p.at, size: p.size, name: lie})
	}
	if got := cutAll(b, liar); remembered(got.pieces) != len(first.pieces)-1 { // the last bytes have no mark
		t.Errorf("%d of %d pieces are remembered", remembered(got.pieces), len(first.pieces))
	}
	b[9<<20] ^= 1
	got := cutAll(b, liar)
	for _, p := range got.pieces {
		if p.name == lie && p.at <= 9<<20 && 9<<20 < p.at+int64(p.size) {
			t.Errorf("the piece of %d bytes at %d has changed", p.size, p.at)
		}
	}
	if n := remembered(got.pieces); n < len(first.pieces)-4 {
		t.Errorf("one byte changed, and %d of %d pieces are remembered", n, len(first.pieces))
	}
}
