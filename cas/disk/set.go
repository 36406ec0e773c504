package disk

import (
	"encoding/binary"

	"github.com/forgeyard/forgeyard-node"
)

// digestSet remembers digests by their first half. A collection of a store of ten million
// pinned objects holds one: a Go map of whole digests takes more than twice as much, and
// half as much again while it grows. Two digests with one first half are as hard to find
// as to guess a key of 64 bits, and harm as little: one object too many is kept, and a
// manifest of the other is made again from its blob.
//
// It is 256 tables by the first byte, each of open places that grows by itself, so that
// growing never takes a second copy of all.
type digestSet struct {
	shards [256]shard
}

type half [2]uint64

type shard struct {
	places []half // zero: open
	n      int
	zero   bool // the half that is all zeros
}

func halfOf(d forgeyard.Digest) half {
	return half{binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:16])}
}

func (s *digestSet) has(d forgeyard.Digest) bool {
	t, h := &s.shards[d[0]], halfOf(d)
	if h == (half{}) {
		return t.zero
	}
	return len(t.places) > 0 && t.places[t.find(h)] == h
}

func (s *digestSet) add(d forgeyard.Digest) {
	t, h := &s.shards[d[0]], halfOf(d)
	if h == (half{}) {
		t.zero = true
		return
	}
	if t.n >= len(t.places)*4/5 {
		t.grow()
	}
	if i := t.find(h); t.places[i] != h {
		t.places[i] = h
		t.n++
	}
}

// find gives h's place, or the open one that it would have. There is always an open one.
func (t *shard) find(h half) int {
	// The first byte is the same for all of a shard: the rest says where.
	i := int((h[1] ^ h[0]<<8) % uint64(len(t.places)))
	for t.places[i] != (half{}) && t.places[i] != h {
		if i++; i == len(t.places) {
			i = 0
		}
	}
	return i
}

// grow makes it half as large again.
func (t *shard) grow() {
	old := t.places
	t.places = make([]half, max(8, len(old)*3/2))
	for _, h := range old {
		if h != (half{}) {
			t.places[t.find(h)] = h
		}
	}
}
