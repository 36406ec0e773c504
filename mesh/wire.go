package mesh

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/fxamacker/cbor/v2"
	"github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// encMode and decMode are the one encoding of this package: deterministic CBOR,
// bounded, no indefinite lengths, no tags, no doubled keys.
var (
	encMode = newEncMode()
	decMode = newDecMode()
)

func newEncMode() cbor.EncMode {
	m, err := cbor.CoreDetEncOptions().EncMode()
	invariant.NoError(err, "the CBOR encoding options are consistent")
	return m
}

func newDecMode() cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
		MaxArrayElements: 256, MaxMapPairs: 256, MaxNestedLevels: 8,
	}.DecMode()
	invariant.NoError(err, "the CBOR decoding options are consistent")
	return m
}

// writeFrame writes
//
//	┌───────────────┬──────────┐
//	│ length, 4 B BE│ CBOR     │
//	└───────────────┴──────────┘
func writeFrame(w io.Writer, v any, limit int) error {
	b, err := encMode.Marshal(v)
	if err != nil {
		return forgeyard.E("encode", forgeyard.Invalid, err)
	}
	if len(b) > limit {
		return forgeyard.Errorf("encode", forgeyard.Limit, "a message of %d bytes is over the limit of %d", len(b), limit)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readFrame(r io.Reader, v any, limit int) error {
	var h [4]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(h[:])
	if n == 0 || int64(n) > int64(limit) {
		return forgeyard.Errorf("decode", forgeyard.Invalid, "a message of %d bytes is not in [1, %d]", n, limit)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return decode(b, v)
}

func decode(b []byte, v any) error {
	if err := decMode.Unmarshal(b, v); err != nil {
		return forgeyard.E("decode", forgeyard.Invalid, err)
	}
	return nil
}

// wireError carries an error's kind, text and hint to the other side.
type wireError struct {
	Kind forgeyard.Kind `cbor:"1,keyasint"`
	Text string         `cbor:"2,keyasint"`
	Hint string         `cbor:"3,keyasint,omitempty"`
	Why  Refusal        `cbor:"4,keyasint,omitempty"`
}

func toWire(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Kind: forgeyard.KindOf(err), Text: err.Error(), Why: WhyRefused(err)}
	var e *forgeyard.Error
	if errors.As(err, &e) && e.Err != nil {
		w.Text, w.Hint = e.Err.Error(), e.Hint
	}
	w.Text, w.Hint = printable(w.Text), printable(w.Hint)
	return w
}

// err is nil for nil. The remote's words are bounded and made printable: they end on a terminal.
func (w *wireError) err(op string) error {
	if w == nil {
		return nil
	}
	return refusedFor(w.Why, &forgeyard.Error{Op: op, Kind: w.Kind, Err: errors.New(printable(w.Text)), Hint: printable(w.Hint)})
}

func printable(s string) string {
	return forgeyard.Clip(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s), 500)
}

// versions is the inclusive range of protocol versions one side speaks.
type versions struct {
	Min uint16 `cbor:"1,keyasint"`
	Max uint16 `cbor:"2,keyasint"`
}

func (v versions) String() string { return fmt.Sprintf("%d–%d", v.Min, v.Max) }

// negotiate returns the highest version both speak.
func negotiate(ours, theirs versions) (uint16, error) {
	v := min(ours.Max, theirs.Max)
	if theirs.Min > theirs.Max || v < max(ours.Min, theirs.Min) {
		return 0, refusedFor(RefusedVersion, forgeyard.Errorf("hello", forgeyard.Denied, "the peer speaks mesh versions %v, this node %v", theirs, ours).
			WithHint("upgrade the older of the two; neighbouring releases work together"))
	}
	return v, nil
}

// armor is prefix + base64url(payload + 4 bytes of its keyed hash): something that
// survives a terminal, and says when a letter was lost.
func armor(prefix string, payload []byte) string {
	return prefix + base64.RawURLEncoding.EncodeToString(append(append([]byte(nil), payload...), checksum(prefix, payload)...))
}

func checksum(prefix string, payload []byte) []byte {
	h := blake3.NewDeriveKey("forgeyard mesh armor checksum v1 " + prefix)
	_, _ = h.Write(payload)
	return h.Sum(nil)[:4]
}

// unarmor never quotes the text: it may be a secret.
func unarmor(what, prefix, text string) ([]byte, error) {
	body, ok := strings.CutPrefix(strings.TrimSpace(text), prefix)
	if !ok {
		return nil, forgeyard.Errorf(what, forgeyard.Invalid, "it does not begin with %q", prefix)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return nil, forgeyard.Errorf(what, forgeyard.Invalid, "it holds a character that is not base64url, or its length is wrong").
			WithHint("copy it again, whole and on one line")
	}
	n := len(b) - 4
	if n < 1 || string(checksum(prefix, b[:n])) != string(b[n:]) {
		return nil, forgeyard.Errorf(what, forgeyard.Invalid, "its checksum is wrong: a part is missing or changed").
			WithHint("copy it again, whole and on one line")
	}
	return b[:n], nil
}
