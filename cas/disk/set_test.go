package disk

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// A set has what was put into it and nothing else, as a map of whole digests says.
func TestDigestSet(t *testing.T) {
	var s digestSet
	twin := map[forgeyard.Digest]bool{{}: true, {31: 1}: true}
	s.add(forgeyard.Digest{})
	for i := range 50_000 {
		d := cas.Sum(binary.LittleEndian.AppendUint64(nil, uint64(i)))
		if s.has(d) {
			t.Fatalf("has %d before", i)
		}
		if i%3 > 0 {
			d[0] = 7 // many in one shard
			if s.add(d); i%3 == 2 {
				s.add(d) // twice
			}
			twin[d] = true
		}
	}
	for d := range twin {
		if !s.has(d) {
			t.Fatalf("lacks %s", d)
		}
	}
	n := 0
	for i := range s.shards {
		n += s.shards[i].n
	}
	if n != len(twin)-2 {
		t.Fatalf("%d, not %d", n, len(twin)-2)
	}
}

// What ten million digests take: at most three quarters of a map's memory, whichever of the
// two has just grown. FORGEYARD_TEST_MILLIONS=10 takes as many; one million shows the ratio.
func TestDigestSetIsSmall(t *testing.T) {
	n := 1_000_000
	if os.Getenv("FORGEYARD_TEST_MILLIONS") == "10" {
		n *= 10
	}
	digest := func(i int) (d forgeyard.Digest) {
		// Spread like digests, cheaper than hashing.
		x := uint64(i) * 0x9e3779b97f4a7c15
		for at := 0; at < len(d); at += 8 {
			x ^= x >> 29
			x *= 0xbf58476d1ce4e5b9
			binary.LittleEndian.PutUint64(d[at:], x^x>>32)
		}
		return d
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var s digestSet
	for i := range n {
		s.add(digest(i))
	}
	set := heap() - before
	runtime.KeepAlive(&s)
	before = heap()
	m := map[forgeyard.Digest]struct{}{}
	for i := range n {
		m[digest(i)] = struct{}{}
	}
	whole := heap() - before
	runtime.KeepAlive(m)
	t.Logf("%d digests: %d MiB, a map %d MiB", n, set>>20, whole>>20)
	if set > int64(n)*32 || set > whole*3/4 {
		t.Errorf("%d digests take %d bytes, a map %d", n, set, whole)
	}
}
