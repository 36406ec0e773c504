// Package blake3 computes BLAKE3-256 of large pieces sixteen chunks at a time, where the
// CPU has AVX-512; elsewhere it computes the same, slowly, and nobody should use it but
// tests (Wide says which).
//
// The tree of BLAKE3: chunks of 1 KiB are its leaves, a parent joins two of its subtrees, and
// a subtree on the left has as many chunks as the largest power of two allows. What comes is
// hashed in units of sixteen chunks, up to maxChunks at once; their chaining values go on a
// stack, one for each bit of the number of chunks so far. The last bytes wait, as nobody
// knows whether they are the root. What is not more than a unit is left to a library that has
// eight lanes and is quick with few.
package blake3

import (
	"encoding/binary"
	"math/bits"

	narrow "github.com/zeebo/blake3"
)

// ChunkSize is how many bytes a leaf of the tree has.
const ChunkSize = 1024

const (
	blockSize = 64

	lanes = 16
	unit  = lanes * ChunkSize

	// maxChunks are hashed at once: of their parents, the few at the top are made with
	// lanes that stay empty, 2 % of the work.
	maxChunks = 256
)

// Sum256 is the hash of b.
func Sum256(b []byte) [32]byte {
	if len(b) <= unit {
		return narrow.Sum256(b)
	}
	var t tree
	return t.finish(b[t.whole(b):])
}

// tree is what was hashed of some bytes, without the last of them.
type tree struct {
	first  uint64    // the number of its first chunk
	chunks uint64    // hashed: a multiple of lanes
	stack  [54]words // a subtree of 1<<i chunks at i, if that bit of chunks is set
	marks  func(n int, cv [32]byte)
}

// Hasher hashes what is written to it. Its zero value is ready.
type Hasher struct {
	tree
	tail [unit]byte
	n    int // of tail
}

// OnSubtree has f told of each subtree as it is hashed: how many bytes it is of, and its
// chaining value, which names those bytes at their place in the whole. The same writes give
// the same subtrees, but for the last unit, of which f is never told.
func (h *Hasher) OnSubtree(f func(n int, cv [32]byte)) { h.marks = f }

// Reset forgets what was written.
func (h *Hasher) Reset() { h.chunks, h.n = 0, 0 }

// Write implements io.Writer and never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	all := len(p)
	if h.n > 0 {
		n := copy(h.tail[h.n:], p)
		h.n += n
		p = p[n:]
		if len(p) == 0 {
			return all, nil
		}
		h.take(h.tail[:])
		h.n = 0
	}
	p = p[h.whole(p):]
	h.n = copy(h.tail[:], p)
	return all, nil
}

// whole takes units of p but for the last bytes, and says how many bytes it took.
func (t *tree) whole(p []byte) (took int) {
	for len(p) > unit {
		n := t.fit(len(p))
		t.take(p[:n])
		p = p[n:]
		took += n
	}
	return took
}

// fit is how many bytes of more than a unit may be taken at once: whole chunks, of which some
// bytes more follow.
func (t *tree) fit(size int) int {
	n := uint64(min(maxChunks, (size-1)/ChunkSize))
	n = 1 << (bits.Len64(n) - 1)
	if fit := uint64(1) << bits.TrailingZeros64(t.chunks|maxChunks); n > fit {
		n = fit // else it would not be a subtree
	}
	return int(n) * ChunkSize
}

// take hashes a subtree of whole units that is not the last of all.
func (t *tree) take(p []byte) {
	cv := subtree(p, t.first+t.chunks)
	if t.marks != nil {
		t.marks(len(p), toBytes(cv))
	}
	t.push(cv, uint64(len(p)/ChunkSize))
}

// subtree is the chaining value of a power of two of chunks, at least lanes.
func subtree(p []byte, counter uint64) words {
	var l level
	n := len(p) / ChunkSize
	for i := 0; i < n; i += lanes {
		chunks(p[i*ChunkSize:], counter+uint64(i), &l, i)
	}
	return l.join(n)
}

// join is the chaining value over the first n of a level, a power of two.
func (l *level) join(n int) words {
	for n /= 2; n > 0; n /= 2 {
		for i := 0; i < n; i += lanes {
			parents(l, i)
		}
	}
	return l.get(0)
}

// push puts a subtree of n chunks on the stack and joins those of one size.
func (t *tree) push(cv words, n uint64) {
	i := bits.TrailingZeros64(n)
	t.chunks += n
	for at := t.chunks - n; at>>i&1 == 1; i++ {
		p := parentNode(t.stack[i], cv)
		cv = p.chain()
	}
	t.stack[i] = cv
}

// Sum is the hash of what was written so far; more may follow.
func (h *Hasher) Sum() [32]byte {
	if h.chunks == 0 {
		return narrow.Sum256(h.tail[:h.n])
	}
	return h.finish(h.tail[:h.n])
}

// finish is the hash with the last bytes, one at least and at most a unit. It changes
// nothing.
func (t *tree) finish(tail []byte) [32]byte {
	n := t.top(tail)
	return n.hash()
}

// top is the top of the tree with the last bytes.
func (t *tree) top(tail []byte) node {
	n := last(tail, t.first+t.chunks)
	for occupied := t.chunks; occupied != 0; occupied &= occupied - 1 {
		n = parentNode(t.stack[bits.TrailingZeros64(occupied)], n.chain())
	}
	return n
}

// hash is what a node names if it is the root.
func (n *node) hash() (out [32]byte) {
	n.flags |= root
	return toBytes(n.chain())
}

func toBytes(cv words) (out [32]byte) {
	for i, w := range cv {
		binary.LittleEndian.PutUint32(out[4*i:], w)
	}
	return out
}

// last is the top of the tree of at most a unit of bytes.
func last(b []byte, counter uint64) node {
	if len(b) <= ChunkSize {
		return chunkNode(b, counter)
	}
	var l level
	n := len(b) / ChunkSize
	if len(b) < unit {
		padded(b, counter, &l)
	} else {
		chunks(b, counter, &l, 0)
	}
	if rest := b[n*ChunkSize:]; len(rest) > 0 {
		c := chunkNode(rest, counter+uint64(n))
		l.put(n, c.chain())
		n++
	}
	for ; n > 2; n = (n + 1) / 2 {
		odd := l.get(n - 1)
		parents(&l, 0)
		if n%2 == 1 {
			l.put(n/2, odd) // it has no neighbour yet
		}
	}
	return parentNode(l.get(0), l.get(1))
}

// padded hashes the chunks of less than a unit: the lanes behind them are for nobody. It
// stands alone for the stack that it takes.
//
//go:noinline
func padded(b []byte, counter uint64, l *level) {
	var whole [unit]byte
	copy(whole[:], b)
	chunks(whole[:], counter, l, 0)
}
