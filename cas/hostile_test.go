package cas_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// A few bytes that announce more than there is are refused for it, without room being made
// for what they announce; and so is what nests without end.
func TestHugeCounts(t *testing.T) {
	head := func(format string) []byte {
		return append([]byte{0xa4, 0x00, byte(0x60 + len(format))}, format...) // a map of four, the first the format
	}
	manifest, tree := head("forgeyard.manifest/1"), head("forgeyard.tree/1")
	tree[0] = 0xa2
	list := func(front []byte, key byte, count ...byte) []byte {
		return append(append(bytes.Clone(front), key), count...)
	}
	huge := [][]byte{
		{0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, // an array of 2⁶⁴-1
		{0x9b, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff}, // of 2⁴⁰
		{0x9a, 0x7f, 0xff, 0xff, 0xff},                         // of 2³¹
		{0x9a, 0x00, 0x01, 0x00, 0x00},                         // of 65536, and nothing in it
		{0x5b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, // a string instead, of 2⁶³
		{0xbb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, // a map instead
		bytes.Repeat([]byte{0x81}, 100_000),                    // an array in an array in an array
		bytes.Repeat([]byte{0xa1, 0x00}, 50_000),
		bytes.Repeat([]byte{0xc1}, 50_000), // tags
	}
	size := append(bytes.Clone(manifest), 0x01, 0x1b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff) // a size of 2⁶⁴-1
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i, h := range huge {
		if _, err := cas.DecodeTree(list(tree, 0x01, h...)); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("tree %d: %v", i, err)
		}
		if _, err := cas.DecodeManifest(list(manifest, 0x03, h...)); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("manifest %d: %v", i, err)
		}
		if _, err := cas.DecodeManifest(list(size, 0x03, h...)); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("manifest of a huge size %d: %v", i, err)
		}
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("%d bytes were taken to refuse %d inputs", took, 3*len(huge))
	}
}
