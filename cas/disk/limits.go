package disk

import "time"

const (
	// maxBatch bounds how many objects share one index commit; more would only make
	// the first of them wait longer.
	maxBatch = 256

	// manyBytes bounds the objects of one commit among many that are put together: a quarter
	// of what the index holds in memory before it writes a table.
	manyBytes = 1 << 20

	// syncAllFrom is from how many files on one sync of the whole filesystem is used in
	// place of one each. Measured on ext4: 12,800 small files took 42 s one by one.
	syncAllFrom = 8

	// parallelSyncs lets one journal commit of the filesystem serve many files.
	parallelSyncs = 16

	// flushBlocks is how many verified blocks of a partial may lack their mark in the
	// index. They are found again after a kill by hashing, so this costs time only.
	flushBlocks = 64

	// maxCatchUp is how many blocks one put reads back to go on with the hash of the
	// whole. The rest is read by the commit.
	maxCatchUp = 16

	// writeSlice is how much is given to the kernel with one write. Measured on ext4 in a
	// virtual machine, Linux 6.18: 1 GiB by writes of 64 to 256 KiB took 0.3 s of CPU, by
	// writes of 512 KiB and more 1.0 to 2.2 s, because large pieces of memory are those
	// that went back to the host.
	writeSlice = 128 << 10

	// directFrom is from which size on a blob that comes in is written past the kernel's
	// cache. Smaller ones are likely read again at once, and cheap either way. Measured on
	// ext4 in a virtual machine: 1 GiB took 0.14 s of CPU each time, by way of the cache
	// 0.3 to 2.3 s, because its pages had gone back to the host.
	directFrom = 32 << 20

	// directAlign is what memory, offset and length of such a write are a multiple of: the
	// largest logical sector in use.
	directAlign = 4096

	// gcPage is how many objects a collection removes in one index commit, and how
	// long it can make a pin wait.
	gcPage = 256

	// maxQuarantine bounds the files kept for people to look at; the oldest go first.
	maxQuarantine = 64

	// vouchFor is how long a look at the bytes of a blob that is given out by its path
	// holds: as long as damage below the filesystem can reach a workload unseen.
	vouchFor = 24 * time.Hour

	// maxVouched bounds how many of those looks are remembered: some 10 MB.
	maxVouched = 1 << 16

	// maxSeen bounds the blobs of which some blocks were looked at: at most 24 KiB each, and
	// 6 MB with many large ones.
	maxSeen = 256

	// vouchFrom is from which size on a blob is remembered as it is stored. What is
	// smaller is read by block, or hashed in no time.
	vouchFrom = 128 << 10

	// defaultInline is up to which size an object lies in the index. A file takes a block of
	// 4 KiB, an inode, and two syncs of directories.
	defaultInline = 16 << 10

	// maxUsed bounds how many uses of objects are remembered before they are written.
	maxUsed = 1024

	// highMark and lowMark are the shares of the limit, in percent, between which an
	// eviction works.
	highMark = 90
	lowMark  = 80

	// dryDraws is how many samples in a row may give nothing before an eviction ends.
	dryDraws = 16

	// maxGone and maxGoneAge bound what is remembered of objects that are not here any more:
	// some 6 MB.
	maxGone    = 100_000
	maxGoneAge = 30 * 24 * time.Hour

	// convertPage is how many rows of an older index are converted in one commit.
	convertPage = 4096

	// convertTimeout bounds the wait for the older index's own lock, which ours makes moot.
	convertTimeout = 5 * time.Second

	// maxReserve and maxReserveInodes cap the defaults of Config on large disks.
	maxReserve       = 256 << 20
	maxReserveInodes = 4096

	// Ballast is 1/64 of the disk between these two. An index that met a full disk is opened
	// again: it writes what it had in memory, 4 MiB at most, into a table, begins a log, and
	// has what the collection removes in both. A disk of less than 768 MiB has less.
	minBallast = 64 << 10
	maxBallast = 12 << 20

	// overhead is added to what a put reserves: its index entries and directories.
	overhead = 16 << 10

	// inodesPerPut: the file and up to two new directories.
	inodesPerPut = 3

	// maxPinBytes bounds a pin file that is read back.
	maxPinBytes = 8 << 20
)
