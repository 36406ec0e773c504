package peer

import (
	"encoding/binary"
	"io"

	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

// Protocol asks a peer about content and asks it to keep some. One stream is one
// request. Each message is a frame:
//
//	┌────────────────┬──────────────────────────────┐
//	│ length, 4 B BE │ deterministic CBOR, ≤ 256 KiB │
//	└────────────────┴──────────────────────────────┘
//
//	ask        request{1: 1, 2: [digest, …], 6: fetching}       → response{1: true, 3: [answer, …]}
//	replicate  request{1: 2, 3: [root, …], 4: owner, 5: expiry} → response{4: bytes so far} … response{1: true}
//
// A response with 2 is an error and the last one. There is no checksum: the
// connection has one.
const Protocol protocol.ID = "/forgeyard/cas/1"

// Request kinds. They travel: append only.
const (
	kindAsk       = 1
	kindReplicate = 2
)

type request struct {
	Kind    uint8              `cbor:"1,keyasint"`
	Digests []forgeyard.Digest `cbor:"2,keyasint,omitempty"`
	Roots   []Root             `cbor:"3,keyasint,omitempty"`
	Owner   string             `cbor:"4,keyasint,omitempty"`
	Expires forgeyard.Wall     `cbor:"5,keyasint,omitempty"`

	// Fetching says that the asker is bringing the first digest in and will serve what
	// it has of it meanwhile.
	Fetching bool `cbor:"6,keyasint,omitempty"`
}

type response struct {
	Done     bool     `cbor:"1,keyasint,omitempty"`
	Error    *refusal `cbor:"2,keyasint,omitempty"`
	Answers  []Answer `cbor:"3,keyasint,omitempty"`
	Progress int64    `cbor:"4,keyasint,omitempty"` // bytes that arrived so far
}

// refusal is an error on the wire: the kind, and a text for people.
type refusal struct {
	Kind string `cbor:"1,keyasint"`
	Text string `cbor:"2,keyasint,omitempty"`
}

// Answer is what a peer says about one digest.
type Answer struct {
	Have     bool             `cbor:"1,keyasint,omitempty"` // complete there, as a blob or as a block
	Size     int64            `cbor:"2,keyasint,omitempty"` // bytes of the whole, where known
	Manifest forgeyard.Digest `cbor:"3,keyasint,omitzero"`  // of a blob above cas.BlockSize
	Partial  int64            `cbor:"4,keyasint,omitempty"` // bytes verified there of an incomplete blob
	Fetching bool             `cbor:"5,keyasint,omitempty"` // on its way in there, as a whole or as a part of something
}

// RootKind says what a root keeps. It travels: append only.
type RootKind uint8

const (
	// Blob is one blob.
	Blob RootKind = 1
	// Tree is a directory with all that it names; Ref.Digest names the tree, the
	// rest of the ref may be unset.
	Tree RootKind = 2
)

// Root is one thing to replicate.
type Root struct {
	Kind RootKind `cbor:"1,keyasint"`
	Ref  cas.Ref  `cbor:"2,keyasint"`
}

func (q request) validate() error {
	switch q.Kind {
	case kindAsk:
		if len(q.Digests) == 0 || len(q.Digests) > maxAsk {
			return forgeyard.Errorf(opAsk, forgeyard.Limit, "%d digests in one question, not in [1, %d]", len(q.Digests), maxAsk)
		}
		return nil
	case kindReplicate:
		return validateRoots(q.Roots, q.Owner, q.Expires)
	}
	return forgeyard.Errorf("cas peer", forgeyard.Invalid, "request kind %d is unknown", q.Kind)
}

func validateRoots(roots []Root, owner string, expires forgeyard.Wall) error {
	if len(roots) == 0 || len(roots) > maxRoots {
		return forgeyard.Errorf(opReplicate, forgeyard.Limit, "%d roots, not in [1, %d]", len(roots), maxRoots).WithHint("put them into a tree")
	}
	if err := cas.ValidateOwner(owner); err != nil {
		return err
	}
	if expires < 0 {
		return forgeyard.Errorf(opReplicate, forgeyard.Invalid, "the expiry %d is negative", expires)
	}
	for _, r := range roots {
		if r.Kind != Blob && r.Kind != Tree {
			return forgeyard.Errorf(opReplicate, forgeyard.Invalid, "root kind %d is unknown", r.Kind)
		}
		if err := validateRef(opReplicate, r.Ref); err != nil {
			return err
		}
	}
	return nil
}

// validateRef checks what can be checked of a ref. A size above BlockSize without
// a manifest is allowed: the manifest is then asked for.
func validateRef(op string, r cas.Ref) error {
	switch {
	case r.Digest.IsZero():
		return forgeyard.Errorf(op, forgeyard.Invalid, "the ref has no digest")
	case r.Size < 0:
		return forgeyard.Errorf(op, forgeyard.Invalid, "%s: size %d is negative", r.Digest.Short(), r.Size)
	case r.Size > cas.MaxBlobSize:
		return forgeyard.Errorf(op, forgeyard.Limit, "%s: size %d exceeds %d", r.Digest.Short(), r.Size, cas.MaxBlobSize)
	case !r.Manifest.IsZero() && r.Size <= cas.BlockSize:
		return forgeyard.Errorf(op, forgeyard.Invalid, "%s: %d bytes have no manifest", r.Digest.Short(), r.Size)
	}
	return nil
}

// err turns a refusal into our error.
func (r *refusal) err(op, from string) error {
	kind := forgeyard.ParseKind(r.Kind)
	return forgeyard.Errorf(op, kind, "%s: %s", from, forgeyard.Clip(r.Text, maxErrorText))
}

func refusalOf(err error) *refusal {
	return &refusal{Kind: forgeyard.KindOf(err).String(), Text: forgeyard.Clip(err.Error(), maxErrorText)}
}

// writeFrame writes v as one frame in one write.
func writeFrame(w io.Writer, v any) error {
	b := cborx.Marshal(v)
	if len(b) > maxFrame {
		return forgeyard.Errorf("cas peer", forgeyard.Limit, "a message of %d bytes exceeds %d", len(b), maxFrame)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b)))
	_, err := w.Write(append(frame, b...))
	return err
}

// readFrame reads one frame into v. It allocates no more than what arrives.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return forgeyard.Errorf("cas peer", forgeyard.Limit, "a message of %d bytes exceeds %d", n, maxFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return cborx.Unmarshal(b, v)
}
