package blake3

import "math/bits"

// Part is what some bytes are to a larger whole in which they lie: the chaining value over
// their chunks, by their numbers there. Who has the parts of all has the hash of the whole,
// and need not see the bytes in their order.
type Part [8]uint32

// SumAt is the hash of b and its part of a whole in which it begins with chunk first. That must
// be a multiple of the least power of two that is no less than the chunks of b, and there must
// be more than b in the whole.
func SumAt(b []byte, first uint64) ([32]byte, Part) {
	if len(b) <= unit {
		n := last(b, first)
		return Sum256(b), n.chain()
	}
	alone, there := tree{}, tree{first: first}
	for len(b) > unit {
		n := alone.fit(len(b))
		alone.take(b[:n])
		there.take(b[:n])
		b = b[n:]
	}
	n := there.top(b)
	return alone.finish(b), n.chain()
}

// Join is the hash of a whole of at least two parts, each but the last over the same power of
// two of chunks, the last over no more.
func Join(parts []Part) [32]byte {
	var t tree // of parts in place of chunks
	end := len(parts) - 1
	for _, p := range parts[:end] {
		t.push(p, 1)
	}
	var n node
	for cv, occupied := words(parts[end]), t.chunks; occupied != 0; occupied &= occupied - 1 {
		n = parentNode(t.stack[bits.TrailingZeros64(occupied)], cv)
		if occupied&(occupied-1) != 0 {
			cv = n.chain()
		}
	}
	return n.hash()
}
