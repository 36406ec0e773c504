package cas

import (
	narrow "github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/blake3"
)

// wideFrom is from how many bytes on sixteen chunks at a time are faster than eight, whatever
// the last chunk is.
const wideFrom = 128 << 10

// Sum names some bytes. It is the one hash function of the whole module, computed by other
// instructions where they are faster; the tests hold it against a second library and against
// b3sum.
func Sum(b []byte) forgeyard.Digest {
	if len(b) >= wideFrom && blake3.Wide() {
		return blake3.Sum256(b)
	}
	return narrow.Sum256(b)
}

// Part is what a block is to the whole in which it lies.
type Part = blake3.Part

// Parts says whether SumAt goes on this CPU: where it does not, the whole is hashed in its order.
func Parts() bool { return blake3.Wide() }

// SumAt names a block of a whole that is longer than a block, and gives its part of it. The whole
// is divided into blocks of BlockSize, and off is where this one begins.
func SumAt(b []byte, off int64) (forgeyard.Digest, Part) {
	return blake3.SumAt(b, uint64(off/blake3.ChunkSize))
}

// Join names the whole from the parts of all its blocks.
func Join(parts []Part) forgeyard.Digest { return blake3.Join(parts) }

// Empty names no bytes at all. Every store has it without storing it, because
// bitswap never sends a block of length zero.
func Empty() forgeyard.Digest { return Sum(nil) }

// Hasher names bytes that pass by. It is an io.Writer that never fails.
type Hasher struct {
	wide   *blake3.Hasher // one of the two
	narrow *narrow.Hasher
}

// NewHasher starts with no bytes.
func NewHasher() *Hasher {
	if blake3.Wide() {
		return &Hasher{wide: &blake3.Hasher{}}
	}
	return &Hasher{narrow: narrow.New()}
}

// Mark names a run of bytes at its place in what is hashed: two wholes that are written in
// the same pieces and have the same mark at one place have the same bytes there.
type Mark struct {
	Bytes int
	Name  forgeyard.Digest
}

// NewMarkingHasher is NewHasher that tells f of each run that it has named, in their order.
// Of the last bytes there is never a mark, and none at all where no part of the hash names a
// run that is long.
func NewMarkingHasher(f func(Mark)) *Hasher {
	h := NewHasher()
	if h.wide != nil {
		h.wide.OnSubtree(func(n int, cv [32]byte) { f(Mark{Bytes: n, Name: cv}) })
	}
	return h
}

// Write implements io.Writer.
func (h *Hasher) Write(p []byte) (int, error) {
	if h.wide != nil {
		return h.wide.Write(p)
	}
	return h.narrow.Write(p)
}

// Sum names what was written so far and may be followed by more writes.
func (h *Hasher) Sum() forgeyard.Digest {
	if h.wide != nil {
		return h.wide.Sum()
	}
	var d forgeyard.Digest
	h.narrow.Sum(d[:0])
	return d
}

// Reset forgets what was written.
func (h *Hasher) Reset() {
	if h.wide != nil {
		h.wide.Reset()
		return
	}
	h.narrow.Reset()
}
