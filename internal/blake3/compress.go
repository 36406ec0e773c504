package blake3

import (
	"encoding/binary"
	"math/bits"
)

const (
	chunkStart = 1
	chunkEnd   = 2
	parent     = 4
	root       = 8
)

type words = [8]uint32

var iv = words{0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19}

// permuted is where each word of the message comes from in the next round.
var permuted = [16]uint8{2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8}

// node is a compression that was not made yet: who knows whether it is the root?
type node struct {
	cv      words
	block   [16]uint32
	counter uint64
	size    uint32
	flags   uint32
}

// chain is the chaining value of a node, or with the root's flag the hash.
func (n *node) chain() words {
	v := [16]uint32{
		n.cv[0], n.cv[1], n.cv[2], n.cv[3], n.cv[4], n.cv[5], n.cv[6], n.cv[7],
		iv[0], iv[1], iv[2], iv[3], uint32(n.counter), uint32(n.counter >> 32), n.size, n.flags,
	}
	m := n.block
	for range 7 {
		quarter(&v, 0, 4, 8, 12, m[0], m[1])
		quarter(&v, 1, 5, 9, 13, m[2], m[3])
		quarter(&v, 2, 6, 10, 14, m[4], m[5])
		quarter(&v, 3, 7, 11, 15, m[6], m[7])
		quarter(&v, 0, 5, 10, 15, m[8], m[9])
		quarter(&v, 1, 6, 11, 12, m[10], m[11])
		quarter(&v, 2, 7, 8, 13, m[12], m[13])
		quarter(&v, 3, 4, 9, 14, m[14], m[15])
		old := m
		for i, from := range permuted {
			m[i] = old[from]
		}
	}
	var out words
	for i := range out {
		out[i] = v[i] ^ v[i+8]
	}
	return out
}

func quarter(v *[16]uint32, a, b, c, d int, x, y uint32) {
	v[a] += v[b] + x
	v[d] = bits.RotateLeft32(v[d]^v[a], -16)
	v[c] += v[d]
	v[b] = bits.RotateLeft32(v[b]^v[c], -12)
	v[a] += v[b] + y
	v[d] = bits.RotateLeft32(v[d]^v[a], -8)
	v[c] += v[d]
	v[b] = bits.RotateLeft32(v[b]^v[c], -7)
}

// chunkNode is the last compression of a chunk of at most ChunkSize bytes.
func chunkNode(b []byte, counter uint64) node {
	n := node{cv: iv, counter: counter, size: blockSize, flags: chunkStart}
	for len(b) > blockSize {
		n.load(b[:blockSize])
		n.cv, n.flags = n.chain(), 0
		b = b[blockSize:]
	}
	n.load(b)
	n.size, n.flags = uint32(len(b)), n.flags|chunkEnd
	return n
}

// load fills the block, with zeros behind b.
func (n *node) load(b []byte) {
	var padded [blockSize]byte
	copy(padded[:], b)
	for i := range n.block {
		n.block[i] = binary.LittleEndian.Uint32(padded[4*i:])
	}
}

func parentNode(left, right words) node {
	n := node{cv: iv, size: blockSize, flags: parent}
	copy(n.block[:8], left[:])
	copy(n.block[8:], right[:])
	return n
}

// chunksPlain hashes sixteen whole chunks, the first of which is counter, a multiple of
// sixteen, into out[…][at:].
func chunksPlain(in []byte, counter uint64, out *level, at int) {
	for i := range lanes {
		n := chunkNode(in[i*ChunkSize:(i+1)*ChunkSize], counter+uint64(i))
		out.put(at+i, n.chain())
	}
}

// parentsPlain makes sixteen parents l[…][at:] of the pairs in l[…][2*at:].
func parentsPlain(l *level, at int) {
	for i := range lanes {
		n := parentNode(l.get(2*(at+i)), l.get(2*(at+i)+1))
		l.put(at+i, n.chain())
	}
}

// level is the chaining values of neighbours in the tree: the same word of all in a row.
type level [8][maxChunks]uint32

const levelStride = maxChunks * 4

func (l *level) get(i int) (w words) {
	for k := range w {
		w[k] = l[k][i]
	}
	return w
}

func (l *level) put(i int, w words) {
	for k := range w {
		l[k][i] = w[k]
	}
}
