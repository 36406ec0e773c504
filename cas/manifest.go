package cas

import (
	"github.com/forgeyard/forgeyard-node"
)

// Block is one piece of a large blob.
type Block struct {
	_      struct{}         `cbor:",toarray"`
	Digest forgeyard.Digest // of the block's bytes
	Size   int64            // 1..BlockSize
}

// Manifest says how a blob larger than BlockSize divides into blocks, so that
// each can be checked before it is kept.
//
//	{0: "forgeyard.manifest/1", 1: size, 2: whole digest, 3: [[block digest, block size], ...]}
//
// A manifest is a claim: its blocks may all match while the whole does not. Only
// hashing the assembled bytes gives them the whole's name (C01).
type Manifest struct {
	Size   int64            // bytes of the whole, the sum of the blocks
	Whole  forgeyard.Digest // of the whole bytes
	Blocks []Block          // in order; variable sizes are allowed
}

type manifestWire struct {
	Format string           `cbor:"0,keyasint"`
	Size   int64            `cbor:"1,keyasint"`
	Whole  forgeyard.Digest `cbor:"2,keyasint"`
	Blocks []Block          `cbor:"3,keyasint"`
}

// Validate checks the manifest's own sums.
func (m Manifest) Validate() error {
	const op = "cas manifest"
	switch {
	case m.Size <= BlockSize:
		return forgeyard.Errorf(op, forgeyard.Invalid, "size %d: only a blob above %d bytes has a manifest", m.Size, BlockSize)
	case m.Size > MaxBlobSize || len(m.Blocks) > MaxBlocks:
		return forgeyard.Errorf(op, forgeyard.Limit, "size %d in %d blocks exceeds %d bytes or %d blocks", m.Size, len(m.Blocks), MaxBlobSize, MaxBlocks)
	case m.Whole.IsZero():
		return forgeyard.Errorf(op, forgeyard.Invalid, "the whole digest is missing")
	}
	var sum int64
	for i, b := range m.Blocks {
		if b.Size < 1 || b.Size > BlockSize || b.Digest.IsZero() {
			return forgeyard.Errorf(op, forgeyard.Invalid, "block %d has %d bytes, not in [1, %d], or no digest", i, b.Size, BlockSize)
		}
		sum += b.Size
	}
	if sum != m.Size {
		return forgeyard.Errorf(op, forgeyard.Invalid, "the blocks sum up to %d bytes, the manifest says %d", sum, m.Size)
	}
	return nil
}

// Encode validates and gives the one encoding, whose Sum is the manifest's name.
func (m Manifest) Encode() ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return encMode.Marshal(manifestWire{Format: manifestFormat, Size: m.Size, Whole: m.Whole, Blocks: m.Blocks})
}

// DecodeManifest reads what Encode wrote and refuses everything else.
func DecodeManifest(b []byte) (Manifest, error) {
	var w manifestWire
	err := decodeCanonical("manifest", b, BlockSize, &w, func() error {
		if w.Format != manifestFormat {
			return forgeyard.Errorf("cas decode manifest", forgeyard.Invalid, "format %q is not %q", forgeyard.Clip(w.Format, 40), manifestFormat)
		}
		return w.manifest().Validate()
	})
	if err != nil {
		return Manifest{}, err
	}
	return w.manifest(), nil
}

func (w manifestWire) manifest() Manifest {
	return Manifest{Size: w.Size, Whole: w.Whole, Blocks: w.Blocks}
}

// Offsets gives where each block starts.
func (m Manifest) Offsets() []int64 {
	out := make([]int64, len(m.Blocks))
	var at int64
	for i, b := range m.Blocks {
		out[i] = at
		at += b.Size
	}
	return out
}

// ManifestBuilder divides bytes that pass by into blocks and names the whole. It
// buffers nothing. It is an io.Writer.
type ManifestBuilder struct {
	whole, block *Hasher
	size, cur    int64 // bytes in all, bytes in the open block
	blocks       []Block
}

// NewManifestBuilder starts with no bytes.
func NewManifestBuilder() *ManifestBuilder {
	return &ManifestBuilder{whole: NewHasher(), block: NewHasher()}
}

// Write adds bytes, cutting a block whenever one is full. Above MaxBlobSize it
// fails with Limit.
func (b *ManifestBuilder) Write(p []byte) (int, error) {
	if b.size+int64(len(p)) > MaxBlobSize {
		return 0, forgeyard.Errorf("cas manifest", forgeyard.Limit, "the blob is larger than %d bytes", MaxBlobSize)
	}
	n := len(p)
	for len(p) > 0 {
		k := min(int64(len(p)), BlockSize-b.cur)
		_, _ = b.whole.Write(p[:k]) // a Hasher never fails
		_, _ = b.block.Write(p[:k])
		b.cur, b.size, p = b.cur+k, b.size+k, p[k:]
		if b.cur == BlockSize {
			b.Cut()
		}
	}
	return n, nil
}

// Cut ends the open block early, for blocks that content defines.
func (b *ManifestBuilder) Cut() {
	if b.cur == 0 {
		return
	}
	b.blocks = append(b.blocks, Block{Digest: b.block.Sum(), Size: b.cur})
	b.block.Reset()
	b.cur = 0
}

// Blocks gives the blocks cut so far; the caller must not change them.
func (b *ManifestBuilder) Blocks() []Block { return b.blocks }

// Size gives the bytes so far.
func (b *ManifestBuilder) Size() int64 { return b.size }

// Finish cuts the last block and names all. For at most BlockSize bytes the
// manifest is the zero one, its encoding nil and the ref has none.
func (b *ManifestBuilder) Finish() (Ref, Manifest, []byte, error) {
	b.Cut()
	ref := Ref{Digest: b.whole.Sum(), Size: b.size}
	if b.size <= BlockSize {
		return ref, Manifest{}, nil, nil
	}
	m := Manifest{Size: b.size, Whole: ref.Digest, Blocks: b.blocks}
	enc, err := m.Encode()
	if err != nil {
		return Ref{}, Manifest{}, nil, err
	}
	ref.Manifest = Sum(enc)
	return ref, m, enc, nil
}
