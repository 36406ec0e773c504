package forgeyard

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// DigestSize is the length of a digest in bytes.
const DigestSize = 32

const digestPrefix = "b3:"

// Digest is the BLAKE3-256 of some bytes and the name of every object. Its text
// is `b3:` and 64 hex digits, equal to what b3sum prints. Hashing is done in
// package cas; here a digest is only a name.
type Digest [DigestSize]byte

// IsZero reports whether the digest is unset.
func (d Digest) IsZero() bool { return d == Digest{} }

func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return digestPrefix + hex.EncodeToString(d[:])
}

// Hex returns the 64 hex digits without the prefix.
func (d Digest) Hex() string { return hex.EncodeToString(d[:]) }

// Short returns the prefix and the first 12 hex digits, for people.
func (d Digest) Short() string {
	if d.IsZero() {
		return ""
	}
	return digestPrefix + hex.EncodeToString(d[:6])
}

// ParseDigest reads `b3:` and 64 lower-case hex digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	h, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(h) != 2*DigestSize || strings.ToLower(h) != h {
		return d, badDigest(s)
	}
	if _, err := hex.Decode(d[:], []byte(h)); err != nil {
		return Digest{}, badDigest(s)
	}
	if d.IsZero() {
		return d, badDigest(s)
	}
	return d, nil
}

func badDigest(s string) error {
	return E("parse", Invalid, fmt.Errorf("%q is not a digest: b3: and 64 lower-case hex digits are expected", Clip(s, 80)))
}

// MarshalText writes the text form; the zero digest is empty.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the text form; empty is the zero digest.
func (d *Digest) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*d = Digest{}
		return nil
	}
	v, err := ParseDigest(string(b))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// MarshalBinary writes the 32 bytes, which is how a digest travels in CBOR.
func (d Digest) MarshalBinary() ([]byte, error) { return d[:], nil }

// UnmarshalBinary reads 32 bytes.
func (d *Digest) UnmarshalBinary(b []byte) error {
	if len(b) != DigestSize {
		return E("parse", Invalid, fmt.Errorf("a digest has %d bytes, this one %d", DigestSize, len(b)))
	}
	copy(d[:], b)
	return nil
}
