package cacheapi

import "time"

// Every bound, with its reason.
const (
	// MaxBatchBytes is what BatchReadBlobs and BatchUpdateBlobs carry in one message, as
	// Capabilities declares it. gRPC clients take messages of 4 MiB unless told otherwise;
	// the rest is for digests and framing.
	MaxBatchBytes = 4<<20 - 256<<10

	// MaxMessage bounds a message: MaxBatchBytes and its framing, or the digests of a
	// question of about 50,000 blobs, which is what Bazel asks at once.
	MaxMessage = 4 << 20

	// MaxResult bounds an ActionResult: it travels in one message.
	MaxResult = 3 << 20

	// MaxClosure bounds the blobs and directories that one result or tree may name. Each
	// costs about 200 bytes of memory while it is looked at.
	MaxClosure = 200_000

	// MaxTreeMessage bounds one encoded Tree or Directory.
	MaxTreeMessage = 64 << 20

	// MaxName bounds a resource name or an HTTP path.
	MaxName = 1024

	// ReadChunk is how much of a blob goes into one message of a read.
	ReadChunk = 256 << 10

	// inMemory is the largest upload that is not spooled: a cut costs no more than that.
	inMemory = 1 << 20

	// maxUploads bounds the uploads that wait to be continued, each a file.
	maxUploads = 256

	// uploadLife is how long a cut upload waits for its client.
	uploadLife = 24 * time.Hour

	// syncEvery is how much of a spooled upload a power cut may cost.
	syncEvery = 32 << 20

	// keepGrain is how much longer than was said something may be kept.
	keepGrain = 10 * time.Minute

	// maxAsked bounds the names in one question to a member.
	maxAsked = 1024

	// fetchesAtOnce is how many blobs a miss brings at once: enough to hide a round trip,
	// few enough to leave the link to others.
	fetchesAtOnce = 8
)
