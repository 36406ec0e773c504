package peer

import (
	"bytes"
	"hash"
	"sync"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
	mhcore "github.com/multiformats/go-multihash/core"
	"github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// RegisterHasher makes go-multihash, and with it bitswap, use the same BLAKE3 as
// package cas, which hashes two to nine times faster than its default. Repeating
// it does nothing.
//
// It writes go-multihash's registry, an unlocked map that every libp2p host
// reads: call it once in main before the first host is made. New looks whether it
// was called and warns when not; nothing but speed depends on it.
var RegisterHasher = sync.OnceFunc(func() {
	mhcore.RegisterVariableSize(mh.BLAKE3, func(size int) (hash.Hash, bool) {
		if size != -1 && size != forgeyard.DigestSize {
			return nil, false
		}
		return blake3.New(), true
	})
})

func hasherRegistered() bool {
	h, err := mhcore.GetHasher(mh.BLAKE3)
	if err != nil {
		return false
	}
	_, ok := h.(*blake3.Hasher)
	return ok
}

// cidPrefix is what stands before the digest in every CID of ours: version 1, raw
// codec, blake3 multihash of 32 bytes.
var cidPrefix = cid.Prefix{Version: 1, Codec: cid.Raw, MhType: mh.BLAKE3, MhLength: forgeyard.DigestSize}.Bytes()

// toCID names a block as bitswap does.
func toCID(d forgeyard.Digest) cid.Cid {
	c, err := cid.Cast(append(bytes.Clone(cidPrefix), d[:]...))
	invariant.NoError(err, "a digest behind our prefix is a CID")
	return c
}

// fromCID is the inverse; other codecs and hashes name nothing of ours.
func fromCID(c cid.Cid) (forgeyard.Digest, bool) {
	b := c.Bytes()
	if len(b) != len(cidPrefix)+forgeyard.DigestSize || !bytes.HasPrefix(b, cidPrefix) {
		return forgeyard.Digest{}, false
	}
	return forgeyard.Digest(b[len(cidPrefix):]), true
}
