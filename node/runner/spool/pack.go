package spool

import (
	"bufio"
	"errors"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// A packed chunk of the store has the frames of one that is not, as one zstd frame with its
// checksum:
//
//	0   8 bytes  "FYLOG", 0, packedVersion, 0
//	8   zstd     the frames; unpacked they have at most chunkBytes less the header
//
// What does not get smaller stands unpacked, and segments always do. What zstd writes may change
// with its library; what it reads does not.
const packedVersion = 2

var packedHeader = []byte{'F', 'Y', 'L', 'O', 'G', 0, packedVersion, 0}

// packWindow is the memory that unpacking takes: a chunk fits into it.
const packWindow = 1 << 20

// pack packs a chunk.
func pack(b []byte) []byte {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(packWindow))
	invariant.NoError(err, "the encoder takes its options")
	out := e.EncodeAll(b[headerSize:], slices.Clone(packedHeader))
	if len(out) >= len(b) {
		return b
	}
	return out
}

// unpacked are the frames of a chunk, whose header was read. done says at the end of them
// whether that is the end of the chunk.
func unpacked(r io.Reader, packed bool) (frames *bufio.Reader, done func() error, err error) {
	if !packed {
		return bufio.NewReader(r), func() error { return nil }, nil
	}
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(packWindow), zstd.WithDecoderMaxMemory(packWindow))
	if err != nil {
		return nil, nil, corrupt("%v", err)
	}
	few := &io.LimitedReader{R: damaged{d}, N: chunkBytes - headerSize + 1}
	return bufio.NewReader(few), func() error {
		d.Close()
		if few.N == 0 {
			return corrupt("a packed chunk has more than %d bytes", chunkBytes)
		}
		return nil
	}, nil
}

// damaged tells bytes that are no zstd from trouble with reading them.
type damaged struct{ r io.Reader }

func (d damaged) Read(b []byte) (int, error) {
	n, err := d.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) && forgeyard.KindOf(err) == forgeyard.Other {
		err = corrupt("a packed chunk: %v", err)
	}
	return n, err
}
