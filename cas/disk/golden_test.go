package disk

import (
	"bytes"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

func goldenPin() cas.Pin {
	return cas.Pin{
		Owner: "job/01HF000000000000000000000J/outputs", Roots: []forgeyard.Digest{cas.Sum([]byte("a")), cas.Sum([]byte("b"))}, Trees: []forgeyard.Digest{cas.Sum([]byte("t"))},
		Expires: time.Unix(1_800_000_000, 500).UTC(),
	}
}

// TestPinOfVersion1: a pin that cannot be read stops all collections.
func TestPinOfVersion1(t *testing.T) {
	want := goldenPin()
	got, err := decodePin(golden.Bytes(t, "testdata/pin-v1.hex", encodePin(want)))
	if err != nil || got.Owner != want.Owner || len(got.Roots) != 2 || got.Roots[1] != want.Roots[1] || len(got.Trees) != 1 || got.Trees[0] != want.Trees[0] || !got.Expires.Equal(want.Expires) {
		t.Fatalf("%+v %v", got, err)
	}
	bare, err := decodePin(encodePin(cas.Pin{Owner: "a"}))
	if err != nil || !bare.Expires.IsZero() {
		t.Fatalf("a pin for ever: %+v %v", bare, err)
	}
}

// FuzzDecodePin gets past the checksum half of the time: what is read keeps the rules of
// a pin, and is written and read as the same.
func FuzzDecodePin(f *testing.F) {
	f.Add(encodePin(goldenPin())[forgeyard.DigestSize:], true)
	f.Add(encodePin(goldenPin()), false)
	f.Add([]byte{0xa0}, true)
	f.Fuzz(func(t *testing.T, b []byte, sum bool) {
		if sum {
			d := cas.Sum(b)
			b = append(d[:], b...)
		}
		p, err := decodePin(b)
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		first := encodePin(p)
		again, err := decodePin(first)
		if err != nil || !bytes.Equal(encodePin(again), first) {
			t.Fatalf("%v: %+v", err, p)
		}
	})
}

// FuzzDecodeLocation: the rows of the index. A row that is damaged is no place on a disk.
func FuzzDecodeLocation(f *testing.F) {
	c := cas.Sum([]byte("c"))
	f.Add(c[:], make([]byte, 17))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, container, v []byte) {
		l, ok := decodeLocation(container, v)
		if !ok {
			return
		}
		if l.off < 0 || l.size < 1 || l.size > cas.BlockSize || !bytes.Equal(l.container[:], container) {
			t.Fatalf("%+v", l)
		}
		if again, ok := decodeLocation(l.container[:], l.encode()); !ok || again != l {
			t.Fatalf("%+v, then %+v", l, again)
		}
	})
}
