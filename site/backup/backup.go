// Package backup is the file that `site backup` writes: the whole replicated state of a
// site, with what it needs to be believed.
//
//	┌──────────┬────────┬──────────────┬────────┬─────────────┬───────┬─────────────┐
//	│ "FYBK" 4 │ ver. 1 │ header len 4 │ header │ state len 8 │ state │ checksum 32 │
//	└──────────┴────────┴──────────────┴────────┴─────────────┴───────┴─────────────┘
//	header    CBOR {1 site, 2 name, 3 index, 4 raft term, 5 incarnation, 6 lineage, 7 log format,
//	          8 wall time in ms, 9 program, 10 node, 11 BLAKE3-256 of the state}
//	state     a snapshot of package site
//	checksum  BLAKE3-256 of everything before it
//
// Integers are big-endian. No key is in it: neither the site's, nor a node's, nor the
// gossip key; of a join token only the hash of its secret. What jobs were given as
// environment is in it.
//
// It decides what is a backup, and nothing else. The package is pure.
package backup

import (
	"bytes"
	"encoding/binary"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/site"
)

const (
	magic    = "FYBK"
	version  = 1
	fixed    = len(magic) + 1 + 4
	checksum = 32

	// maxHeader bounds the header: names and numbers.
	maxHeader = 4096

	// MaxBytes bounds a file that is read: a state at all its bounds is far below it.
	MaxBytes = 4 << 30
)

// Header says what is in the file. It can be read without the state.
type Header struct {
	Site        forgeyard.SiteID   `cbor:"1,keyasint"`
	Name        string             `cbor:"2,keyasint"`
	Index       uint64             `cbor:"3,keyasint"` // of the last entry in the state
	Term        uint64             `cbor:"4,keyasint"` // of the leader that vouched for it
	Incarnation uint64             `cbor:"5,keyasint"`
	Lineage     string             `cbor:"6,keyasint,omitempty"`
	Format      site.Format        `cbor:"7,keyasint"`
	At          forgeyard.Wall     `cbor:"8,keyasint"`
	Program     string             `cbor:"9,keyasint"`  // version that wrote it
	By          forgeyard.RunnerID `cbor:"10,keyasint"` // node that wrote it
	Hash        forgeyard.Digest   `cbor:"11,keyasint"` // of the state's bytes
}

// Encode makes the file of a state. Term, At, Program and By are the caller's.
func Encode(s *site.State, h Header) []byte {
	state := s.Encode()
	h.Site, h.Name, h.Index, h.Incarnation, h.Lineage, h.Format, h.Hash = s.Site, s.Name, s.Index, s.Incarnation, s.Lineage(), s.LogFormat(), cas.Sum(state)
	head := cborx.Marshal(h)
	b := make([]byte, 0, fixed+len(head)+8+len(state)+checksum)
	b = append(append(b, magic...), version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	b = append(b, head...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(state)))
	b = append(b, state...)
	sum := cas.Sum(b)
	return append(b, sum[:]...)
}

func corrupt(format string, args ...any) error {
	return forgeyard.Errorf("backup", forgeyard.Corrupt, format, args...).WithHint("use another copy of the file")
}

// Decode checks every byte of a file and returns what it holds.
func Decode(b []byte) (Header, *site.State, error) {
	h, state, err := Split(b)
	if err != nil {
		return h, nil, err
	}
	s, err := site.DecodeState(state)
	if err != nil {
		return h, nil, forgeyard.E("backup", forgeyard.Other, err)
	}
	if s.Site != h.Site || s.Name != h.Name || s.Index != h.Index || s.Incarnation != h.Incarnation || s.Lineage() != h.Lineage || s.LogFormat() != h.Format {
		return h, nil, corrupt("the state is that of site %s at index %d, incarnation %d, the header names another", s.Site, s.Index, s.Incarnation)
	}
	return h, s, nil
}

// Split checks the file's checksum and its header, and returns the state's bytes.
func Split(b []byte) (Header, []byte, error) {
	var h Header
	if len(b) < fixed+8+checksum || string(b[:len(magic)]) != magic {
		return h, nil, forgeyard.Errorf("backup", forgeyard.Invalid, "it is not a backup of a site: %d bytes that do not begin with %s", len(b), magic).
			WithHint("forgeyard-node site backup FILE writes one")
	}
	if v := b[len(magic)]; v != version {
		return h, nil, forgeyard.Errorf("backup", forgeyard.Invalid, "version %d is not known, this program reads %d", v, version).WithHint("restore it with a newer program")
	}
	body, sum := b[:len(b)-checksum], b[len(b)-checksum:]
	if got := cas.Sum(body); !bytes.Equal(got[:], sum) {
		return h, nil, corrupt("the checksum is %x, the bytes have %x", sum[:6], got[:6])
	}
	n := int(binary.BigEndian.Uint32(body[len(magic)+1:]))
	if n > maxHeader || fixed+n+8 > len(body) {
		return h, nil, corrupt("a header of %d bytes, at most %d are expected", n, min(maxHeader, len(body)-fixed-8))
	}
	if err := cborx.Unmarshal(body[fixed:fixed+n], &h); err != nil {
		return h, nil, corrupt("the header cannot be read: %v", err)
	}
	rest := body[fixed+n:]
	if size := binary.BigEndian.Uint64(rest); size != uint64(len(rest)-8) {
		return h, nil, corrupt("the state has %d bytes, its length says %d", len(rest)-8, size)
	}
	state := rest[8:]
	if got := cas.Sum(state); got != h.Hash {
		return h, nil, corrupt("the state's hash is %s, the header names %s", got.Short(), h.Hash.Short())
	}
	return h, state, nil
}
