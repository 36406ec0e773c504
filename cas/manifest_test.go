package cas_test

import (
	"bytes"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

func build(t testing.TB, b []byte, step int) (cas.Ref, cas.Manifest, []byte) {
	t.Helper()
	mb := cas.NewManifestBuilder()
	for len(b) > 0 {
		n := min(step, len(b))
		if _, err := mb.Write(b[:n]); err != nil {
			t.Fatal(err)
		}
		b = b[n:]
	}
	ref, m, enc, err := mb.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return ref, m, enc
}

func TestManifestBuilder(t *testing.T) {
	for _, size := range []int{0, 1, cas.BlockSize - 1, cas.BlockSize, cas.BlockSize + 1, 3 * cas.BlockSize, 3*cas.BlockSize + 7} {
		b := pattern(size)
		ref, m, enc := build(t, b, 70001)
		if ref.Digest != cas.Sum(b) || ref.Size != int64(size) {
			t.Fatalf("%d: %+v", size, ref)
		}
		if size <= cas.BlockSize {
			if enc != nil || !ref.Manifest.IsZero() {
				t.Fatalf("%d has a manifest", size)
			}
			continue
		}
		if ref.Manifest != cas.Sum(enc) {
			t.Fatalf("%d: the ref does not name its manifest", size)
		}
		for i, off := range m.Offsets() {
			if cas.Sum(b[off:off+m.Blocks[i].Size]) != m.Blocks[i].Digest {
				t.Fatalf("%d: block %d", size, i)
			}
		}
		got, err := cas.DecodeManifest(enc)
		if err != nil || got.Whole != m.Whole || len(got.Blocks) != len(m.Blocks) {
			t.Fatalf("%d: %v", size, err)
		}
	}
}

func TestManifestOfVariableBlocks(t *testing.T) {
	mb := cas.NewManifestBuilder()
	for _, n := range []int{500_000, 600_000, 7} {
		_, _ = mb.Write(pattern(n))
		mb.Cut()
	}
	_, m, enc, err := mb.Finish()
	if err != nil || len(m.Blocks) != 3 {
		t.Fatalf("%d blocks, %v", len(m.Blocks), err)
	}
	if _, err := cas.DecodeManifest(enc); err != nil {
		t.Fatal(err)
	}
}

func TestDecodeManifestRefuses(t *testing.T) {
	_, good, enc := build(t, pattern(2*cas.BlockSize+9), 1<<16)
	type wire struct {
		Format string           `cbor:"0,keyasint"`
		Size   int64            `cbor:"1,keyasint"`
		Whole  forgeyard.Digest `cbor:"2,keyasint"`
		Blocks []cas.Block      `cbor:"3,keyasint"`
	}
	edit := func(f func(*wire)) []byte {
		w := wire{"forgeyard.manifest/1", good.Size, good.Whole, append([]cas.Block(nil), good.Blocks...)}
		f(&w)
		b, err := cbor.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if !bytes.Equal(edit(func(*wire) {}), enc) {
		t.Fatal("the test's wire form is not the real one")
	}
	unsorted := append([]byte{0xa4, 0x01}, enc[1:]...)
	for name, b := range map[string][]byte{
		"sum":         edit(func(w *wire) { w.Size++ }),
		"format":      edit(func(w *wire) { w.Format = "forgeyard.tree/1" }),
		"no whole":    edit(func(w *wire) { w.Whole = forgeyard.Digest{} }),
		"empty block": edit(func(w *wire) { w.Blocks[0].Size, w.Blocks[1].Size = 0, 2*cas.BlockSize }),
		"large block": edit(func(w *wire) { w.Blocks[0].Size++; w.Blocks[1].Size-- }),
		"no digest":   edit(func(w *wire) { w.Blocks[2].Digest = forgeyard.Digest{} }),
		"small":       edit(func(w *wire) { w.Size, w.Blocks = 9, w.Blocks[2:] }),
		"key order":   unsorted,
		"trailing":    append(append([]byte(nil), enc...), 0),
		"truncated":   enc[:len(enc)-1],
		"indefinite":  append([]byte{0xbf}, append(enc[1:len(enc):len(enc)], 0xff)...),
		"nothing":     nil,
	} {
		if _, err := cas.DecodeManifest(b); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	// 9 as a two-byte integer: the same value, another spelling.
	i := bytes.LastIndexByte(enc, 9)
	long := append(append(append([]byte(nil), enc[:i]...), 0x18, 9), enc[i+1:]...)
	if _, err := cas.DecodeManifest(long); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("long spelling of a number: %v", err)
	}
	if _, err := cas.DecodeManifest(make([]byte, cas.BlockSize+1)); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("too long: %v", err)
	}
}

// The largest blob's manifest is still one block.
func TestManifestBoundFitsOneBlock(t *testing.T) {
	m := cas.Manifest{Size: cas.MaxBlobSize, Whole: cas.Sum([]byte("w")), Blocks: make([]cas.Block, cas.MaxBlocks)}
	for i := range m.Blocks {
		m.Blocks[i] = cas.Block{Digest: cas.Sum([]byte{byte(i)}), Size: cas.BlockSize}
	}
	enc, err := m.Encode()
	if err != nil || len(enc) > cas.BlockSize {
		t.Fatalf("%d bytes, %v", len(enc), err)
	}
	m.Blocks = append(m.Blocks, m.Blocks[0])
	m.Size += cas.BlockSize
	if _, err := m.Encode(); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Fatalf("one more: %v", err)
	}
}

func FuzzDecodeManifest(f *testing.F) {
	_, _, enc := build(f, pattern(cas.BlockSize+1), 1<<16)
	f.Add(enc)
	f.Add([]byte{0xa0})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := cas.DecodeManifest(b)
		if err != nil {
			if k := forgeyard.KindOf(err); k != forgeyard.Invalid && k != forgeyard.Limit {
				t.Fatalf("kind %v: %v", k, err)
			}
			return
		}
		again, err := m.Encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("decoded, yet encodes otherwise: %v", err)
		}
	})
}
