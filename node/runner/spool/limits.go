package spool

// The bounds of a log.
const (
	// MaxFrameBytes is what one frame carries: a pipe's buffer, and little enough
	// to pass between control messages on a thin link.
	MaxFrameBytes = 64 << 10
	// segmentBytes is when a new file begins: the unit in which space is given back.
	segmentBytes = 4 << 20
	// chunkBytes bounds one flushed blob: one block of the store and no manifest.
	chunkBytes = 960 << 10
	// fullBytes is what a chunk has at least that took no further frame.
	fullBytes = chunkBytes - MaxFrameBytes - prefixSize - fixedSize
	// endParts of the parts that can be named are kept back from programs: an epoch ends
	// with one or two, however little is in them, and a later epoch says why.
	endParts = 16
	// markBytes is the distance between entries of a segment's index: what is read
	// in vain to find a frame.
	markBytes = 128 << 10
	// DefaultLimit holds the workload back when that much was not yet flushed.
	DefaultLimit = 256 << 20
)
