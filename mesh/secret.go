package mesh

import (
	"crypto/subtle"
	"fmt"
	"log/slog"

	"github.com/fxamacker/cbor/v2"
)

const redacted = "[redacted]"

// Secret holds bytes that no formatter, encoder or logger prints. Only Reveal
// gives them, and the deterministic CBOR of our own files and encrypted streams.
//
// The bytes are behind a function on purpose: fmt calls no method on a value in an
// unexported field, and follows a pointer when the verb is a wrong one, but a
// function prints as an address always.
type Secret struct{ get func() []byte }

// NewSecret copies b.
func NewSecret(b []byte) Secret {
	c := append([]byte(nil), b...)
	return Secret{get: func() []byte { return c }}
}

// Reveal returns the bytes. The caller must not change, print or keep them in a value that prints.
func (s Secret) Reveal() []byte {
	if s.get == nil {
		return nil
	}
	return s.get()
}

// IsZero reports whether the secret is unset.
func (s Secret) IsZero() bool { return len(s.Reveal()) == 0 }

// Equal compares in constant time.
func (s Secret) Equal(o Secret) bool { return subtle.ConstantTimeCompare(s.Reveal(), o.Reveal()) == 1 }

func (Secret) String() string               { return redacted }
func (Secret) GoString() string             { return redacted }
func (Secret) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(redacted)) }
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
func (Secret) LogValue() slog.Value         { return slog.StringValue(redacted) }

// MarshalCBOR writes the bytes: only files of mode 0600 and encrypted streams are CBOR here.
func (s Secret) MarshalCBOR() ([]byte, error) { return encMode.Marshal(s.Reveal()) }

// UnmarshalCBOR reads the bytes.
func (s *Secret) UnmarshalCBOR(b []byte) error {
	var v []byte
	if err := decMode.Unmarshal(b, &v); err != nil {
		return err
	}
	*s = NewSecret(v)
	return nil
}

var (
	_ cbor.Marshaler   = Secret{}
	_ cbor.Unmarshaler = (*Secret)(nil)
)
