package cas

import (
	"context"
	"encoding/hex"
	"io"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Ref names a blob so that any peer can fetch it block by block.
type Ref struct {
	Digest   forgeyard.Digest `cbor:"1,keyasint"`          // of the whole bytes
	Size     int64            `cbor:"2,keyasint"`          // in bytes
	Manifest forgeyard.Digest `cbor:"3,keyasint,omitzero"` // zero for blobs of at most BlockSize
}

// Class says when a write is acknowledged.
type Class uint8

const (
	// Durable is acknowledged after data, rename and index are synced.
	Durable Class = iota
	// Cache is not synced; it is checked at first use after an unclean stop.
	Cache
)

// PutOptions bind a Put.
type PutOptions struct {
	Class  Class
	Expect forgeyard.Digest // when set, other bytes are refused as Corrupt and leave nothing behind
	Size   int64            // when > 0, the admission reserves it before the first byte

	// ByContent divides a large blob where its content says (see Chunking), so that it
	// shares blocks with another version of itself.
	ByContent bool

	// Owner, when set, keeps the object for that owner from this put on, so that a
	// collection in the middle of an upload takes nothing from it (C13). The hold is in
	// memory: it ends with Pin (which replaces it) or Unpin of the owner, or with the
	// process. An upload puts its pieces under an owner, then pins the root under the
	// same owner; there is no moment between at which a piece is unprotected.
	Owner string

	// SHA256, when set, is what the bytes must hash to, or they are refused as Corrupt. The
	// object is found under it from then on (Names, SpaceSHA256).
	SHA256 SHA256
}

// SHA256 is the other name of some bytes, for clients that speak it. Zero: none.
type SHA256 [32]byte

// IsZero reports whether there is none.
func (s SHA256) IsZero() bool { return s == SHA256{} }

// String gives the 64 hex digits that sha256sum prints.
func (s SHA256) String() string { return hex.EncodeToString(s[:]) }

// Info is what a store knows of an object.
type Info struct {
	Ref      Ref
	Stored   time.Time
	Pinned   []Pin // who keeps it; empty when nobody does
	Complete bool  // false: only some blocks of it are here
	Have     int64 // bytes that are here and verified
}

// Pin keeps the closure of its roots from being collected.
//
// The kind of a root is said by who pins it and never guessed from its bytes: a
// user's blob that happens to decode as a tree keeps itself and nothing else.
// Below a tree every edge has its kind in the entry. Roots need not be here yet.
type Pin struct {
	Owner   string             `cbor:"1,keyasint"`           // "attempt/<id>", "person/<name>", "checkpoint/<id>", "delegation/<id>"; one pin an owner
	Roots   []forgeyard.Digest `cbor:"2,keyasint,omitempty"` // blobs or manifests: kept as bytes, with the manifest and every block
	Trees   []forgeyard.Digest `cbor:"3,keyasint,omitempty"` // trees: kept with all that they name
	Expires time.Time          `cbor:"4,keyasint,omitzero"`  // zero: until unpinned
}

// Usage is what a store holds.
type Usage struct {
	Bytes, Limit, Pinned int64 // bytes; limit 0 means only the disk bounds it
	Objects              int64
	DiskFree             int64
}

// GCReport tells what a collection removed, or would remove.
type GCReport struct {
	Examined, Removed int64
	Freed             int64 // bytes
	Kept              int64
}

// Object is an open blob. Reads verify: a block that does not match its name
// gives an error of kind Corrupt, never the bytes. The caller closes it.
type Object interface {
	io.ReadSeekCloser
	io.ReaderAt
	Ref() Ref
}

// Partial is a blob on its way in. It survives a kill of the process: opening
// the same ref again continues with what was verified before.
type Partial interface {
	// Missing lists the block indices that are not here yet, ascending.
	Missing() []int
	// PutBlock verifies block i against the manifest and keeps it. Wrong bytes
	// give Corrupt and change nothing. b stays the caller's.
	PutBlock(i int, b []byte) error
	// Commit verifies that all is here and gives the blob its name. It is
	// idempotent. With something missing it gives Conflict.
	Commit(ctx context.Context, class Class) (Ref, error)
	// Close lets go of it; what was verified stays for the next attempt.
	Close() error
}

// Store keeps objects on this machine. It is safe for concurrent use. Errors:
// NotFound (not here), Corrupt (quarantined now), NoSpace (names the bound and
// what to do), Limit (object larger than the store's bound), Invalid.
type Store interface {
	// Put reads r to its end, names the bytes and keeps them; a blob larger than
	// BlockSize gets a manifest, stored too. Putting what is here costs no write.
	Put(ctx context.Context, r io.Reader, o PutOptions) (Ref, error)
	// Open opens a complete blob by the digest of its whole bytes.
	Open(ctx context.Context, d forgeyard.Digest) (Object, error)
	// Block returns the verified bytes of a blob of at most BlockSize, or of a block of
	// a larger or of a partial blob, by the block's own digest. The caller owns the slice.
	Block(ctx context.Context, d forgeyard.Digest) ([]byte, error)
	// BlockSize is Block's length without reading; NotFound when it is not here.
	BlockSize(ctx context.Context, d forgeyard.Digest) (int64, error)
	// Has reports whether a complete blob of that name is here.
	Has(ctx context.Context, d forgeyard.Digest) bool
	// Stat tells all about one object.
	Stat(ctx context.Context, d forgeyard.Digest) (Info, error)
	// Partial starts or continues the arrival of a blob by its manifest. The manifest
	// itself is stored at once.
	Partial(ctx context.Context, m Manifest) (Partial, error)
	// Path returns a file that holds the blob, for reflink or copy into a workspace, and a
	// release function. The file is read-only and never handed to a workload.
	Path(ctx context.Context, d forgeyard.Digest) (path string, release func(), err error)
	// Pin replaces the owner's pin; Unpin removes it and is idempotent.
	Pin(ctx context.Context, p Pin) error
	Unpin(ctx context.Context, owner string) error
	Pins(ctx context.Context) ([]Pin, error)
	// GC removes what no pin keeps and no write in flight needs.
	GC(ctx context.Context, dryRun bool) (GCReport, error)
	Usage(ctx context.Context) (Usage, error)
}

// Holder is a Store that keeps for an owner also what he did not bring by one Put, under
// the terms of PutOptions.Owner. What is not here yet is kept from its arrival on.
type Holder interface {
	Hold(owner string, ds ...forgeyard.Digest) error
}

// BlockReader is a Store that saves who serves many blocks a new slice for each.
type BlockReader interface {
	// ReadBlock is Block into the caller's buffer, of which it returns a part; when the
	// buffer is too small it returns a slice of its own. Without check, bytes that this
	// process compared with their name before, in a file that nobody touched since, are
	// not compared again: for callers whose own readers compare.
	ReadBlock(ctx context.Context, d forgeyard.Digest, buf []byte, check bool) ([]byte, error)
}

// BlockOpener is a Store that gives large blocks piece by piece: who sends one then has no
// more of it in memory than stays in the processor's cache.
type BlockOpener interface {
	// OpenBlock opens a block if ReadBlock without check would compare nothing. Else it
	// returns nil, and ReadBlock says what there is.
	OpenBlock(d forgeyard.Digest) Pieces
}

// Pieces is an open block, for one caller at a time.
type Pieces interface {
	Size() int64
	// ReadAt is io.ReaderAt's. After an error the next use of the block compares its bytes.
	ReadAt(p []byte, off int64) (int, error)
	Close() error
}

// Small is an object of at most BlockSize bytes among others that are put together. Digest
// and Bytes are the caller's, Ref and Err the answer.
type Small struct {
	Digest forgeyard.Digest // what the bytes are expected to be; zero: whatever they are
	Bytes  []byte           // only read
	Ref    Ref
	Err    error
}

// Many is a Store that looks at many objects, or takes many small ones, at once. One by one
// each pays for a look of its own, and for its own part in a commit.
type Many interface {
	// Lacks gives the positions of those refs whose blobs are not here, as Has would say,
	// in their order.
	Lacks(ctx context.Context, refs []Ref) []int
	// PutMany is Put of each object, with as few commits as there can be. Wrong bytes are
	// the fault of their own object and cost the others nothing. Of the options Class and
	// Owner count.
	PutMany(ctx context.Context, objects []Small, o PutOptions)
}

// ManyReader is a Store that reads many small objects in one pass. One by one each is looked
// for twice: what it is, and where its bytes are.
type ManyReader interface {
	// ReadMany gives f the bytes of those names that lie together, in an order of its own. f
	// must not keep the bytes, nor use the store. What f is not given is to be read by Block,
	// which finds it elsewhere or says what is wrong with it. Check is that of ReadBlock.
	ReadMany(ctx context.Context, names []forgeyard.Digest, check bool, f func(i int, b []byte))
}

// Exchange brings content from elsewhere into the local store.
type Exchange interface {
	// Fetch returns when the blob is complete in the local store, verified. It tries
	// the given providers first, then whoever is connected. Errors: NotFound (every provider
	// asked, nobody has it), Unavailable (deadline, or providers did not answer; names them),
	// Corrupt (only wrong bytes were offered; names the peer), NoSpace. It never hangs past ctx or its own
	// per-provider deadline, and what was verified is kept for the next try.
	Fetch(ctx context.Context, ref Ref, providers []string) error
}
