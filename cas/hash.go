package cas

import (
	"github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
)

// Sum names some bytes. It is the one hash function of the whole module; the
// tests hold it against a second library and against b3sum.
func Sum(b []byte) forgeyard.Digest { return blake3.Sum256(b) }

// Empty names no bytes at all. Every store has it without storing it, because
// bitswap never sends a block of length zero.
func Empty() forgeyard.Digest { return Sum(nil) }

// Hasher names bytes that pass by. It is an io.Writer that never fails.
type Hasher struct{ h *blake3.Hasher }

// NewHasher starts with no bytes.
func NewHasher() *Hasher { return &Hasher{h: blake3.New()} }

// Write implements io.Writer.
func (h *Hasher) Write(p []byte) (int, error) { return h.h.Write(p) }

// Sum names what was written so far and may be followed by more writes.
func (h *Hasher) Sum() forgeyard.Digest {
	var d forgeyard.Digest
	h.h.Sum(d[:0])
	return d
}

// Reset forgets what was written.
func (h *Hasher) Reset() { h.h.Reset() }
