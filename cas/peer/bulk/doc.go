// Package bulk decides how blocks travel between two nodes that have much to say
// to each other: over one long connection, many wants under way at once.
//
//	┌─────────┬───────┬──────────┬─────────┬──────────────┐
//	│ kind 1B │ id 4B │ index 4B │ size 4B │ body, ≤ 1 MiB │   integers big-endian
//	└─────────┴───────┴──────────┴─────────┴──────────────┘
//
//	want    →  id, first block   count 4 · priority 1 · flags 1 · park ms 4 · name 32
//	cancel  →  id, first block   count 4
//	block   ←  id, block         its bytes
//	refuse  ←  id, first block   count 4 · reason 1
//	alive   ←                    bytes that arrived at the sender 8
//
// A want names one object by its own digest (count 0), or a range of the blocks of
// a manifest. Each block of it is answered once: with its bytes, or with a refusal
// that says why; only a cancel ends that. A want with a park time waits there for a
// block that is not there yet, which is how several receivers of one holder bring
// each other what the holder sent once. While wants wait so, or for a rate, their side
// is told four times a second that the other lives, and how much came in there.
//
// Server answers one connection: highest priority first, then in the order of the
// wants, one block at a time, so that a want of a higher priority waits for one block
// at most. It holds one block in memory, whatever is wanted.
//
// Client asks over one connection. It does not verify: the bytes are handed on with
// the name under which they were asked for, and whoever keeps them hashes them, in
// parallel to what arrives.
//
// Invariants: no frame costs memory that its sender has not sent; a peer that stops
// in the middle of a frame, or takes nothing, is let go within the time that the
// frame's size allows; what was not asked for is not handed on.
package bulk

const op = "cas bulk"
