// Package bundle is content in a file, for a place that no wire reaches: objects, what
// shall keep them there, and records, under an index that its maker has signed.
//
//	┌───────────┬──────────────┬──────────────────┬───────┬───────────┬──────┐
//	│ magic 8   │ index len 4  │ signature len 4  │ index │ signature │ data │
//	└───────────┴──────────────┴──────────────────┴───────┴───────────┴──────┘
//	index  CBOR {0 format, 1 site, 2 wall time in ms, 3 note, 4 pins, 5 records,
//	       6 objects [[digest, size, manifest], ...]}
//	data   the objects' bytes in the index's order, without gaps
//
// Lengths are big-endian. An object above cas.BlockSize has a manifest, which is an object
// further in front, so every block of the data can be checked before it is kept, and
// writing and reading both go on where they were cut off.
//
// It decides what a bundle is, which of its bytes are believed, and what an export must
// hold so that everything its pins name is in it. Whose signature counts is the caller's.
package bundle

import (
	"bytes"
	"encoding/binary"
	"io"
	"iter"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

// magic begins as PNG's does: a transfer that changes line ends or the eighth bit spoils
// it visibly.
const magic = "\x89FYB\r\n\x1a\n"

const format = "forgeyard.bundle/1"

// Bounds, with their reason.
const (
	// MaxObjects bounds the index, which is in memory as a whole; more go into several
	// bundles.
	MaxObjects = 1 << 20
	// MaxRecords and MaxRecordBytes bound what is said beside content.
	MaxRecords     = 64 << 10
	MaxRecordBytes = 1 << 20
	// MaxNoteBytes is a few lines of a person.
	MaxNoteBytes = 1024

	maxPins      = 1024
	maxIndex     = 128 << 20 // MaxObjects of 75 bytes, and the records
	maxSignature = 64 << 10  // a signature and what proves the signer's right

	// MaxHeadBytes bounds what ReadHead reads.
	MaxHeadBytes = maxIndex + maxSignature + fixed
	fixed        = len(magic) + 4 + 4
)

// Index says what is in a bundle. It is what is signed.
type Index struct {
	Format  string           `cbor:"0,keyasint"`
	Site    forgeyard.SiteID `cbor:"1,keyasint"` // whose content it is
	Made    forgeyard.Wall   `cbor:"2,keyasint"`
	Note    string           `cbor:"3,keyasint,omitempty"` // a person's words
	Pins    []cas.Pin        `cbor:"4,keyasint,omitempty"` // what shall be kept where it arrives
	Records []Record         `cbor:"5,keyasint,omitempty"`
	Objects []Object         `cbor:"6,keyasint"`
}

// Object is one blob in the data.
type Object struct {
	_        struct{}         `cbor:",toarray"`
	Digest   forgeyard.Digest // of the whole bytes
	Size     int64            // in bytes
	Manifest forgeyard.Digest // exactly when Size > cas.BlockSize
}

// Record is something said from one place to another, by the kind of its reader.
type Record struct {
	_    struct{} `cbor:",toarray"`
	Kind string
	Body []byte
}

// DataSize is how many bytes of data belong to the index.
func (x Index) DataSize() (n int64) {
	for _, o := range x.Objects {
		n += o.Size
	}
	return n
}

// Same reports whether two indexes ask for the same bundle, made at whatever time: a file
// that was begun under the one may then be finished, under its own.
func Same(a, b Index) bool {
	a.Made, b.Made, a.Format, b.Format = 0, 0, format, format
	return bytes.Equal(cborx.Marshal(a), cborx.Marshal(b))
}

// Validate checks the index against its bounds and itself.
func (x Index) Validate() error {
	const op = "bundle"
	switch {
	case x.Format != format:
		return forgeyard.Errorf(op, forgeyard.Invalid, "format %q is not known, %q is", forgeyard.Clip(x.Format, 40), format).WithHint("read it with the version that wrote it, or a newer one")
	case x.Site == "" || len(x.Site) > 64:
		return forgeyard.Errorf(op, forgeyard.Invalid, "the site %q must be 1 to 64 letters", forgeyard.Clip(string(x.Site), 80))
	case len(x.Note) > MaxNoteBytes || !utf8.ValidString(x.Note):
		return forgeyard.Errorf(op, forgeyard.Limit, "the note of %d bytes must be text of at most %d", len(x.Note), MaxNoteBytes)
	case len(x.Objects) > MaxObjects:
		return tooMany(len(x.Objects))
	case len(x.Records) > MaxRecords || len(x.Pins) > maxPins:
		return forgeyard.Errorf(op, forgeyard.Limit, "%d records and %d pins, at most %d and %d are allowed", len(x.Records), len(x.Pins), MaxRecords, maxPins)
	}
	for _, p := range x.Pins {
		if err := p.Validate(); err != nil {
			return err
		}
	}
	for i, r := range x.Records {
		if r.Kind == "" || len(r.Kind) > 64 || len(r.Body) > MaxRecordBytes {
			return forgeyard.Errorf(op, forgeyard.Invalid, "record %d of kind %q has %d bytes, at most %d and a kind of 1 to 64 letters are allowed", i, forgeyard.Clip(r.Kind, 80), len(r.Body), MaxRecordBytes)
		}
	}
	return x.validateObjects()
}

func tooMany(n int) error {
	return forgeyard.Errorf("bundle", forgeyard.Limit, "%d objects are more than the bound of %d", n, MaxObjects).WithHint("divide them over several bundles")
}

func (x Index) validateObjects() error {
	at := make(map[forgeyard.Digest]int, len(x.Objects))
	for i, o := range x.Objects {
		bad := func(why string) error {
			return forgeyard.Errorf("bundle", forgeyard.Invalid, "object %d (%s, %d bytes) %s", i, o.Digest.Short(), o.Size, why)
		}
		switch {
		case o.Digest.IsZero():
			return bad("has no digest")
		case o.Size < 0 || o.Size > cas.MaxBlobSize:
			return bad("is out of bounds")
		case (o.Size == 0) != (o.Digest == cas.Empty()):
			return bad("disagrees with itself on whether it is empty")
		case (o.Size > cas.BlockSize) == o.Manifest.IsZero():
			return bad("must have a manifest exactly if it is larger than a block")
		}
		if _, twice := at[o.Digest]; twice {
			return bad("stands twice")
		}
		if !o.Manifest.IsZero() {
			if m, ok := at[o.Manifest]; !ok || x.Objects[m].Size > cas.BlockSize {
				return bad("has no manifest in front of it")
			}
		}
		at[o.Digest] = i
	}
	return nil
}

// Head is the file up to its data.
type Head struct {
	Index     Index
	Raw       []byte // of the index, as signed
	Signature []byte
}

// NewHead encodes the index and lets sign sign it.
func NewHead(x Index, sign func(raw []byte) ([]byte, error)) (Head, error) {
	x.Format = format
	if x.Objects == nil {
		x.Objects = []Object{} // one content, one encoding
	}
	if err := x.Validate(); err != nil {
		return Head{}, err
	}
	raw := cborx.Marshal(x)
	if len(raw) > maxIndex {
		return Head{}, forgeyard.Errorf("bundle", forgeyard.Limit, "the index has %d bytes, the bound is %d", len(raw), maxIndex).WithHint("divide it over several bundles")
	}
	sig, err := sign(raw)
	if err != nil {
		return Head{}, err
	}
	return Head{Index: x, Raw: raw, Signature: sig}, nil
}

// ID names the bundle: two files of one index are one bundle.
func (h Head) ID() forgeyard.Digest { return cas.Sum(h.Raw) }

// DataAt is where the data begins in the file.
func (h Head) DataAt() int64 { return int64(fixed + len(h.Raw) + len(h.Signature)) }

// Size is that of the whole file.
func (h Head) Size() int64 { return h.DataAt() + h.Index.DataSize() }

// Bytes is the file up to its data.
func (h Head) Bytes() []byte {
	b := make([]byte, 0, h.DataAt())
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.Raw)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.Signature)))
	b = append(b, h.Raw...)
	return append(b, h.Signature...)
}

// ReadHead reads a file up to its data. It says nothing about who signed it.
func ReadHead(r io.Reader) (Head, error) {
	const op = "bundle"
	var start [fixed]byte
	got, err := io.ReadFull(r, start[:])
	if k := min(got, len(magic)); string(start[:k]) != magic[:k] {
		return Head{}, forgeyard.Errorf(op, forgeyard.Invalid, "it begins with %q: that is no bundle", start[:k])
	}
	if err != nil {
		return Head{}, cut(err, "its first bytes")
	}
	n, s := binary.BigEndian.Uint32(start[len(magic):]), binary.BigEndian.Uint32(start[len(magic)+4:])
	if n > maxIndex || s > maxSignature {
		return Head{}, forgeyard.Errorf(op, forgeyard.Limit, "an index of %d bytes and a signature of %d, the bounds are %d and %d", n, s, maxIndex, maxSignature)
	}
	var b bytes.Buffer // a length is a claim: memory is taken as bytes come
	if _, err := io.CopyN(&b, r, int64(n)+int64(s)); err != nil {
		return Head{}, cut(err, "its index")
	}
	h := Head{Raw: b.Bytes()[:n:n], Signature: b.Bytes()[n:]}
	if err := cborx.UnmarshalCanonical(h.Raw, &h.Index); err != nil {
		return Head{}, forgeyard.E(op, forgeyard.Invalid, err).WithHint("the file is damaged: copy it again")
	}
	if err := h.Index.Validate(); err != nil {
		return Head{}, err
	}
	return h, nil
}

// cut is an error of a file that ends too early.
func cut(err error, where string) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return forgeyard.Errorf("bundle", forgeyard.Corrupt, "the file ends within %s", where).WithHint("it was not copied whole: copy it again")
	}
	return forgeyard.E("bundle", forgeyard.Other, err)
}

// piece is the most that is checked at once: an object without a manifest, or a block.
type piece struct {
	object Object
	block  int
	digest forgeyard.Digest
	size   int64
	at     int64 // in the data
}

// pieces lists the data in order. manifest reads an object's manifest; it is asked when
// its turn comes, after every piece in front.
func (x Index) pieces(manifest func(Object) (cas.Manifest, error)) iter.Seq2[piece, error] {
	return func(yield func(piece, error) bool) {
		var at int64
		for _, o := range x.Objects {
			if o.Manifest.IsZero() {
				if !yield(whole(o, at), nil) {
					return
				}
				at += o.Size
				continue
			}
			m, err := manifest(o)
			if err != nil {
				yield(piece{}, err)
				return
			}
			for k, b := range m.Blocks {
				if !yield(piece{object: o, block: k, digest: b.Digest, size: b.Size, at: at}, nil) {
					return
				}
				at += b.Size
			}
		}
	}
}

func whole(o Object, at int64) piece { return piece{object: o, digest: o.Digest, size: o.Size, at: at} }

// decodeManifest reads the manifest of an object, and holds it against the object.
func decodeManifest(o Object, b []byte) (cas.Manifest, error) {
	m, err := cas.DecodeManifest(b)
	if err == nil && (m.Whole != o.Digest || m.Size != o.Size) {
		err = forgeyard.Errorf("bundle", forgeyard.Corrupt, "the manifest %s is of %s with %d bytes, not of %s with %d", o.Manifest.Short(), m.Whole.Short(), m.Size, o.Digest.Short(), o.Size)
	}
	return m, err
}
