package peer

import "time"

// Every bound, with its reason.
const (
	// MaxWindow is the most wants outstanding at one peer. A stock server drops
	// what exceeds 1024 without a word; half of it leaves room for what it has not
	// yet struck off its list.
	MaxWindow = 512

	// windowBytes is the most bytes outstanding at one peer, and with it what
	// arrives faster than the store writes: twice what a server sends ahead.
	windowBytes = 32 << 20

	// bulkBytes is the same on a bulk connection, where nothing is sent in vain: enough
	// for a long line of 1 Gbit/s.
	bulkBytes = 16 << 20

	// buffers is how many blocks of bulk connections are in memory at once, over all
	// fetches, on their way to the store.
	buffers = 24

	// servedPerPeer is how many bulk connections of one peer are served: one, and the
	// one that follows it when the peer dialled anew.
	servedPerPeer = 2

	// maxSiblings bounds those that share one fetch. Each costs a window of wants.
	maxSiblings = 32

	// parkTime is how long a sibling is to wait for a block before it says that it
	// came not; it is then asked again, or somebody else.
	parkTime = 4 * time.Second

	// maxLate is how often a want is waited for at a sibling that goes on with others.
	maxLate = 4

	// maxDoubts is how many wrong blocks of one peer may be its disk's fault in one fetch.
	maxDoubts = 4
	// idleBatch is how many blocks that are another's to ask for a lane takes that has
	// been idle: a slow sibling is helped, not overtaken.
	idleBatch = 4

	// outstandingBytes is what our server has under way to one peer (boxo: 1 MiB,
	// which starves a link with any delay).
	outstandingBytes = 16 << 20

	// targetMessage is the size of one bitswap message. boxo opens a stream for
	// each; at its 16 KiB the resource manager resets the excess and blocks are
	// lost. A block and a message together stay below bitswap's 4 MiB.
	targetMessage = 1 << 20

	// queuedWants is how many wants of one peer our server remembers (C19).
	queuedWants = 1024

	// maxEntries bounds what one bitswap message lists, and what those of one peer do that
	// are worked on at once: an entry takes some 400 bytes until then (measured). A stock
	// client fills 2 MiB with wants of 40 bytes each.
	maxEntries = 64 << 10

	// inboundBytes is what messages of one peer have at once of what comes in: four of the
	// largest, or as many of targetMessage as our server has under way.
	inboundBytes = 16 << 20

	// sendWorkers bounds messages being sent at once. A reader that stalls holds at
	// most outstandingBytes/targetMessage of them, so four can stall and others are
	// still served.
	sendWorkers = 80

	// minBlockRate is the slowest link that is still worth waiting for, bytes a
	// second: it turns outstanding bytes into the time after which a block that
	// should have come is called withheld.
	minBlockRate = 64 << 10

	// recentDigests are remembered per link, so that a block that comes twice or
	// after its want was taken back is not mistaken for one that nobody asked for.
	// It exceeds what can be outstanding at a peer several times.
	recentDigests = 8 << 10

	// storeWorkers is how many blocks of one pull are handed to the store at once:
	// enough for its group commit, few enough to bound memory.
	storeWorkers = 16

	// packWorkers is the same where all blocks are small and go to the store many at once: one
	// waits for its commit, one is hashed, one gathers.
	packWorkers = 3

	// smallWant is up to which size a block is small.
	smallWant = 16 << 10

	// firstBytes is what a lane asks for at first; each byte that comes lets it ask for
	// two more, up to the window. So little is asked for twice by siblings that begin at
	// the same moment and do not know of each other yet.
	firstBytes = 2 << 20

	// treeChunk is how many small files of a tree are one pull: some 10 MB of memory. At
	// the end of each a line runs empty.
	treeChunk = 32 << 10

	// largeAtOnce is how many large files of a tree arrive at once. They share each
	// link's window, so more would only fragment the disk.
	largeAtOnce = 3

	// maxAsk is the most digests of one who-has question.
	maxAsk = 1024

	// maxRoots is the most roots of one replication; more go into a tree.
	maxRoots = 1024

	// maxFrame bounds one message of /forgeyard/cas/1: maxRoots roots of about 100
	// bytes, or maxAsk answers of about 90, with room.
	maxFrame = 256 << 10

	// maxErrorText bounds an error's text on the wire.
	maxErrorText = 1 << 10

	// maxConnectedAsked is how many connected peers are asked who-has when nobody
	// was named; a larger site names its providers.
	maxConnectedAsked = 64

	// replicateQueue is how many replications wait for their turn, each holding a stream.
	replicateQueue = 16

	// replicateAlive is how often a node that replicates for another says so.
	replicateAlive = time.Second

	// replicateSilence is how long the other waits for that: several times as long.
	replicateSilence = 15 * time.Second

	// guardTTL ends the pin under which a replication collects its roots, should
	// this process not live to do it. Longer than any replication takes.
	guardTTL = 24 * time.Hour

	// penaltyBase is how long a peer that lied is asked last; it doubles with each
	// lie up to penaltyMax. One that was silent is asked last for silencePenalty.
	penaltyBase    = 30 * time.Second
	penaltyMax     = 10 * time.Minute
	silencePenalty = 5 * time.Second
)
