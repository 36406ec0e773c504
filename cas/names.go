package cas

import (
	"context"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Space says what kind of name somebody outside gave to some bytes. It is stored:
// append only.
type Space uint8

const (
	// SpaceSHA256: the key is the SHA-256 of the bytes. Whoever binds it has hashed them.
	SpaceSHA256 Space = 1
	// SpaceAction: the key names an action of the remote execution API, and the bytes
	// are its result. Nothing can be checked by hashing: who may bind is decided outside.
	SpaceAction Space = 2
	// SpacePlain: the key is what an HTTP client chose, and the bytes are its own affair.
	SpacePlain Space = 3
)

// Name is what somebody outside calls some bytes.
type Name struct {
	Space Space
	Key   [32]byte
}

// Binding says for which bytes a name stands.
type Binding struct {
	Name Name
	Ref  Ref       // of the bytes; they may be gone from the store while the name is still bound
	Used time.Time // when it was last bound or resolved, to the hour: what Trim goes by
}

// Names finds bytes by other names than their own. A store on a disk keeps them beside
// its index, where they survive a restart. It is safe for concurrent use.
type Names interface {
	// Bind makes each name stand for its bytes, all or none. A name that was bound is
	// bound anew. The bytes are in the store already.
	Bind(ctx context.Context, class Class, bs ...Binding) error
	// Resolve gives the bindings of those names that have one, in the order of the
	// names, and notes that they were used.
	Resolve(ctx context.Context, names ...Name) ([]Binding, error)
	// Unbind forgets names; those that are not bound are no error.
	Unbind(ctx context.Context, names ...Name) error
	// Trim forgets the names of a space that were not used since, and of the others the
	// longest unused ones above most (0: no bound). It says how many.
	Trim(ctx context.Context, space Space, since time.Time, most int) (int, error)
	// Keep holds complete objects, with their manifests and blocks, back from collection
	// and eviction at least until then, as a pin would. It never shortens: of two calls the
	// later time counts. Objects that are not here are reported, in order; one that is not
	// reported was here when the call was answered and is kept from then on (C08). More than
	// MaxKeep away is Invalid.
	Keep(ctx context.Context, until time.Time, ds ...forgeyard.Digest) (missing []forgeyard.Digest, err error)
}
