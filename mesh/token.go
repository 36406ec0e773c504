package mesh

import (
	"crypto/rand"
	"fmt"
	"log/slog"

	"github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
)

const tokenPrefix = "fyj1_"

// tokenSecretSize: 256 bits cannot be guessed, so failed joins need no lockout.
const tokenSecretSize = 32

// Token is what `token create` prints: which site, whom to dial, and the secret
// that proves it. The log keeps SecretHash of the secret, never the secret.
//
//	fyj1_ base64url( CBOR {1 site, 2 token id, 3 secret, 4 peers} ‖ 4-byte checksum )
type Token struct {
	SiteID  forgeyard.SiteID  `cbor:"1,keyasint"`
	TokenID forgeyard.TokenID `cbor:"2,keyasint"`
	Secret  Secret            `cbor:"3,keyasint"` // 32 bytes
	Peers   []PeerAddr        `cbor:"4,keyasint"`
}

// NewTokenSecret draws a secret.
func NewTokenSecret() (Secret, error) {
	b := make([]byte, tokenSecretSize)
	if _, err := rand.Read(b); err != nil {
		return Secret{}, forgeyard.E("token", forgeyard.Other, err)
	}
	return NewSecret(b), nil
}

// SecretHash is what the log keeps of a token's secret.
func SecretHash(s Secret) forgeyard.Digest {
	h := blake3.NewDeriveKey("forgeyard join token secret v1")
	_, _ = h.Write(s.Reveal())
	var d forgeyard.Digest
	copy(d[:], h.Sum(nil))
	return d
}

func (t Token) String() string {
	return fmt.Sprintf("token %s for site %s (secret %s)", t.TokenID, t.SiteID, redacted)
}
func (t Token) GoString() string             { return t.String() }
func (t Token) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(t.String())) }
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
func (t Token) LogValue() slog.Value         { return slog.StringValue(t.String()) }

// Text is the string a person carries to the new node. It holds the secret.
func (t Token) Text() (string, error) {
	if err := t.check(); err != nil {
		return "", err
	}
	b, err := encMode.Marshal(t)
	if err != nil {
		return "", forgeyard.E("token", forgeyard.Invalid, err)
	}
	s := armor(tokenPrefix, b)
	if len(s) > maxTokenText {
		return "", forgeyard.Errorf("token", forgeyard.Limit, "a token of %d letters is over the limit of %d", len(s), maxTokenText).WithHint("name fewer peers or addresses")
	}
	return s, nil
}

func (t Token) check() error {
	if err := forgeyard.CheckULID("site", string(t.SiteID)); err != nil {
		return forgeyard.E("token", forgeyard.Invalid, err)
	}
	if err := forgeyard.CheckULID("token", string(t.TokenID)); err != nil {
		return forgeyard.E("token", forgeyard.Invalid, err)
	}
	if n := len(t.Secret.Reveal()); n != tokenSecretSize {
		return forgeyard.Errorf("token", forgeyard.Invalid, "its secret has %d bytes, %d are expected", n, tokenSecretSize)
	}
	if len(t.Peers) == 0 || len(t.Peers) > maxTokenPeers {
		return forgeyard.Errorf("token", forgeyard.Invalid, "it names %d peers, 1 to %d are expected", len(t.Peers), maxTokenPeers)
	}
	for _, p := range t.Peers {
		if err := p.check(); err != nil {
			return forgeyard.E("token", forgeyard.Invalid, err)
		}
	}
	return nil
}

// ParseToken reads Text. Errors are Invalid, say what is wrong, and never quote the text.
func ParseToken(text string) (Token, error) {
	var t Token
	if len(text) > maxTokenText {
		return Token{}, forgeyard.Errorf("token", forgeyard.Invalid, "%d letters, the limit is %d", len(text), maxTokenText)
	}
	b, err := unarmor("token", tokenPrefix, text)
	if err != nil {
		return Token{}, withTokenHint(err)
	}
	if err := decode(b, &t); err != nil {
		return Token{}, withTokenHint(forgeyard.Errorf("token", forgeyard.Invalid, "its content cannot be read by this version"))
	}
	if err := t.check(); err != nil {
		return Token{}, withTokenHint(err)
	}
	return t, nil
}

func withTokenHint(err error) error {
	if e, ok := err.(*forgeyard.Error); ok && e.Hint == "" {
		return e.WithHint("use the whole line that `forgeyard-node token create` printed on a member")
	}
	return err
}
