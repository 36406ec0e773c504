// Package cas decides what content is called and when bytes deserve their name.
//
// It owns the one hash function, the manifest of a large file, the canonical
// tree of a directory, their deterministic encodings, and the contracts that a
// store (cas/disk) and an exchange (cas/peer) fulfil.
//
//	blob      bytes, named by their BLAKE3-256
//	manifest  how a blob larger than BlockSize divides into blocks; an object itself
//	tree      a directory: sorted names, modes, link targets; an object itself
//	ref       whole digest + size + manifest (when there is one): enough to fetch
//
// Invariants: the same content has the same name everywhere; bytes that do not
// hash to a name are never returned under it; an object is visible whole or not
// at all.
//
// The package is pure. It stores nothing and fetches nothing.
package cas
