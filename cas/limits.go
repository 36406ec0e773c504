package cas

import "time"

// Every bound of the encodings, with its reason.
const (
	// BlockSize is the largest block, and the largest blob that has no manifest.
	// 1 MiB: a peer's wrong answer costs at most that much, and it stays far below
	// the 4 MiB at which bitswap silently stops answering.
	BlockSize = 1 << 20

	// MaxBlocks keeps an encoded manifest (about 40 bytes a block) within one block,
	// so that a manifest never needs a manifest.
	MaxBlocks = 24 << 10

	// MaxBlobSize is what MaxBlocks full blocks hold: 24 GiB.
	MaxBlobSize = int64(MaxBlocks) * BlockSize

	// MaxTreeEntries bounds one directory; mail spools and package caches stay below.
	MaxTreeEntries = 64 << 10

	// MaxTreeBytes bounds one encoded directory: MaxTreeEntries entries of usual names.
	MaxTreeBytes = 16 << 20

	// MaxNameBytes is NAME_MAX of every filesystem we write to.
	MaxNameBytes = 255

	// MaxTargetBytes is PATH_MAX: no longer link can be made on Linux.
	MaxTargetBytes = 4096

	// MaxDepth bounds how deep trees nest, and with it recursion and open directories.
	MaxDepth = 128

	// MaxOwnerBytes bounds the name of a pin's owner.
	MaxOwnerBytes = 256

	// MaxPinRoots bounds one pin; a wider closure is named by a tree.
	MaxPinRoots = 64 << 10

	// MaxKeep bounds how long Names.Keep keeps; who needs it longer pins it.
	MaxKeep = 24 * time.Hour
)
