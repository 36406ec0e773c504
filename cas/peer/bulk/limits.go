package bulk

import (
	"time"

	"github.com/forgeyard/forgeyard-node/cas"
)

// Every bound, with its reason.
const (
	// maxBody is the largest body of a frame: one block.
	maxBody = cas.BlockSize

	// MaxOpen is the most blocks that are wanted and not answered on one connection.
	// What exceeds it is refused as Busy, never dropped.
	MaxOpen = 1024

	// maxPark is the longest that a want waits for a block that is on its way: long
	// enough for a block to cross a thin line twice, short enough that who waits in
	// vain soon asks somebody else.
	maxPark = 10 * time.Second

	// aliveEvery is how often a peer whose wants are parked hears that we live.
	aliveEvery = 250 * time.Millisecond

	// minRate is the slowest peer that is still served, bytes a second: it turns the
	// size of a frame into the time in which it must be taken or given.
	minRate = 64 << 10

	// maxTogether is how many wants of small objects are answered together, and maxSmall how
	// large one of them may be: a more urgent want waits no longer for them than for one block.
	maxTogether = 64
	maxSmall    = maxBody / maxTogether

	// keptManifests of a connection save reading one for each range of the same blob.
	keptManifests = 2

	// maxUnasked is how many bytes may come that are not wanted (any more): twice
	// what can be under way when wants are taken back.
	maxUnasked = 64 << 20

	// readBuffer holds many small frames; a block goes past it.
	readBuffer = 64 << 10

	// pieceSize is how much of a block is read before it is sent: it is in the processor's
	// cache still when it is encrypted, and is what a connection gives the kernel at once.
	pieceSize = 128 << 10

	// largePage is the processor's, and slabBlocks how many buffers are made at once: few, so
	// that a node that brings one small blob is hardly larger for it.
	largePage  = 2 << 20
	slabBlocks = 8

	// lead is where a block's bytes begin in memory, behind their head: a row of the cache.
	lead = 64

	// writeBuffer gathers small frames into one write.
	writeBuffer = 64 << 10
)
