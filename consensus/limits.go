package consensus

import "time"

const (
	// MaxCommand bounds one command. Bulk never passes through Raft: a larger
	// command would hold up heartbeats and leases behind it on a thin link.
	MaxCommand = 1 << 20

	// maxAppendEntries bounds one append message and one group commit. 256
	// commands of the usual few hundred bytes are far below a second on a
	// 1 Mbit/s link.
	maxAppendEntries = 256

	// maxBatch and maxBatchBytes bound the commands of one entry, a larger command goes
	// alone. 64 KiB are half a second on a 1 Mbit/s link, and about 200 commands.
	maxBatch      = 256
	maxBatchBytes = 64 << 10

	// maxSenders is how many entries of gathered commands are under way at once: a few
	// callers need not wait for each other. More would only make the entries smaller.
	maxSenders = 2

	// manyFlying is how many commands under way keep others from leaving beside them. At 16
	// callers all of them together cost a fifth less of the processor than in two halves.
	manyFlying = 4

	// maxAhead bounds the entries that a leader sends before its own disk has them: as many
	// as go with one message.
	maxAhead = maxAppendEntries

	// maxWaiting bounds the proposals that wait for a sender.
	maxWaiting = 16384

	// logCacheEntries keeps the newest entries in memory, so that followers
	// which keep up cost no disk reads.
	logCacheEntries = 1024

	// deleteChunk bounds the entries removed in one transaction: a compaction
	// of a large log must not hold the store's write lock past the deadline.
	deleteChunk = 1024

	// probeBytes must fit before a node returns from a full disk; less would
	// let it come back only to fill up at the next election.
	probeBytes = 1 << 20

	// maxMarks bounds the remembered state hashes. A check follows its mark at
	// once; eight outlast several leaders that die between the two.
	maxMarks = 8

	// loopInstalls is how often the same snapshot may be installed with no
	// entry stored in between before it is called a loop. Two happen when a
	// reply is lost.
	loopInstalls = 3

	// maxEvents bounds the queue towards OnEvent; the oldest go first.
	maxEvents = 256

	// maxLineage bounds the name of a lineage: an identifier and a little room.
	maxLineage = 64

	// maxMarker bounds the rebuild marker file.
	maxMarker = 4096

	// lossStep is between the turns of voters that lost the leader at once, and between
	// questions: some exchanges on a site's network, far below any heartbeat timeout.
	lossStep = 10 * time.Millisecond

	boltTimeout = time.Second // to get the lock of a database that nobody holds
)
