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

func goldenRecord() record {
	return record{
		Size: 2_400_000, Gen: 3, Stored: 1_800_000_000_000_000_500, Used: 500_000, Synced: true, Inline: true,
		Manifests: []forgeyard.Digest{cas.Sum([]byte("m"))},
	}
}

// The rows of the index as version 1 wrote them.
func TestRowsOfVersion1(t *testing.T) {
	r, ok := decodeRecord(golden.Bytes(t, "testdata/record-v1.hex", goldenRecord().encode()))
	if w := goldenRecord(); !ok || r.Size != w.Size || r.Gen != w.Gen || r.Stored != w.Stored || r.Used != w.Used || !r.Synced || !r.Inline || len(r.Manifests) != 1 || r.Manifests[0] != w.Manifests[0] {
		t.Fatalf("%+v %v", r, ok)
	}
	part := partialRecord{Whole: cas.Sum([]byte("w")), Size: 3 << 20, Have: 1 << 20, Bits: []byte{2}}
	p, ok := decodePartial(golden.Bytes(t, "testdata/partial-v1.hex", marshal(part)))
	if !ok || p.Whole != part.Whole || p.Size != part.Size || p.Have != part.Have || !p.has(1) || p.has(0) {
		t.Fatalf("%+v %v", p, ok)
	}
	stone := tombstone{At: 1_800_000_000, Why: goneEvicted, Size: 7, Used: 500_000}
	g, ok := decodeGone(golden.Bytes(t, "testdata/gone-v1.hex", marshal(stone)))
	if !ok || g != stone {
		t.Fatalf("%+v %v", g, ok)
	}
	name := cas.Name{Space: cas.SpaceAction, Key: [32]byte{1}}
	row := nameRecord{Ref: cas.Ref{Digest: cas.Sum([]byte("w")), Size: 9}, Hour: 500_000}
	n, nr, ok := decodeName(nameKey(name), golden.Bytes(t, "testdata/name-v1.hex", marshal(row)))
	if !ok || n != name || nr != row {
		t.Fatalf("%+v %+v %v", n, nr, ok)
	}
}

// FuzzDecodeRows: a row that is damaged is absent, or keeps its bounds and is written and
// read as the same; none of them stops the store.
func FuzzDecodeRows(f *testing.F) {
	f.Add(goldenRecord().encode())
	f.Add(marshal(partialRecord{Size: 3 << 20, Have: 1 << 20, Bits: []byte{2}}))
	f.Add(marshal(tombstone{At: 1, Why: goneEvicted, Size: 7}))
	f.Add(marshal(nameRecord{Ref: cas.Ref{Digest: cas.Sum([]byte("w")), Size: 9}, Hour: 1}))
	f.Add([]byte{0, 0, 0, 0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, ok := decodeRecord(b); ok {
			again, ok := decodeRecord(r.encode())
			if !ok || r.Size < 0 || r.Size > cas.MaxBlobSize || !bytes.Equal(again.encode(), r.encode()) {
				t.Fatalf("%+v", r)
			}
		}
		if p, ok := decodePartial(b); ok {
			if p.Have < 0 || p.Have > p.Size {
				t.Fatalf("%+v", p)
			}
			for i := range len(p.Bits)*8 + 9 {
				p.has(i)
			}
		}
		if g, ok := decodeGone(b); ok && (g.Size < 0 || g.Why.String() == "") {
			t.Fatalf("%+v", g)
		}
		if _, r, ok := decodeName(nameKey(cas.Name{Space: cas.SpacePlain}), b); ok && (r.Ref.Digest.IsZero() || r.Ref.Size < 0) {
			t.Fatalf("%+v", r)
		}
		decodeKept(b)
	})
}
