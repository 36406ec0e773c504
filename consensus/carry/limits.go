package carry

const (
	// maxEntries bounds the entries of one append that are read. Ours have at most 256;
	// what an earlier or a later program may send is not far from it.
	maxEntries = 4096

	// maxRaw bounds one field: an entry is a command of 1 MiB at most, and its frame.
	maxRaw = 4 << 20

	// maxDepth bounds a value that is passed over: no message is deeper than 3.
	maxDepth = 8

	// readBuffer holds the usual append of many commands. A field larger than it is read
	// into its place at once.
	readBuffer = 64 << 10

	// keepBuffer is the largest buffer that a connection keeps between two messages.
	keepBuffer = 1 << 20

	// maxPool is how many connections to a peer are kept: one for heartbeats, one
	// pipeline, one spare.
	maxPool = 3

	// scale is how many bytes of a snapshot a timeout is for.
	scale = 256 << 10
)
