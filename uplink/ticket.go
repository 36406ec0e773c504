package uplink

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"unicode"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/zeebo/blake3"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// Protocols of the central daemon on the mesh.
const (
	// ProtoEnrol carries Enrol and nothing else, for sites that hold a ticket.
	ProtoEnrol protocol.ID = "/forgeyard/enrol/1"
	// ProtoUplink carries DelegationService, for members of enrolled sites.
	ProtoUplink protocol.ID = "/forgeyard/uplink/1"
)

const ticketPrefix = "fyt1_"

// Ticket is what `forgeyard-central ticket create` prints: which daemon, where it
// is, and the secret that proves it. The daemon keeps SecretHash of the secret.
//
//	fyt1_ base64url( CBOR {1 id, 2 peer id, 3 addrs, 4 name, 5 secret, 6 expires} ‖ 4-byte checksum )
//
// It prints as its id; the secret leaves it by Text only.
type Ticket struct {
	ID      forgeyard.TokenID `cbor:"1,keyasint"`
	Central string            `cbor:"2,keyasint"` // libp2p peer id: pinned, so nobody else can answer
	Addrs   []string          `cbor:"3,keyasint"` // multiaddrs without the peer id; hints
	Name    string            `cbor:"4,keyasint,omitempty"`
	Secret  mesh.Secret       `cbor:"5,keyasint"` // 32 bytes
	Expires forgeyard.Wall    `cbor:"6,keyasint"` // for people; the daemon's own clock decides
}

func (t Ticket) String() string               { return "ticket " + string(t.ID) + " of " + t.Central }
func (t Ticket) GoString() string             { return t.String() }
func (t Ticket) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(t.String())) }
func (t Ticket) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
func (t Ticket) LogValue() slog.Value         { return slog.StringValue(t.String()) }

// ticketWire is Ticket without its methods, which would be asked to encode it.
type ticketWire Ticket

// NewSecret draws the secret of a ticket.
func NewSecret() (mesh.Secret, error) {
	b := make([]byte, SecretSize)
	if _, err := rand.Read(b); err != nil {
		return mesh.Secret{}, forgeyard.E("ticket", forgeyard.Other, err)
	}
	return mesh.NewSecret(b), nil
}

// SecretHash is what the daemon keeps of a ticket's secret.
func SecretHash(secret []byte) [32]byte {
	h := blake3.NewDeriveKey("forgeyard uplink ticket secret v1")
	_, _ = h.Write(secret)
	var d [32]byte
	copy(d[:], h.Sum(nil))
	return d
}

// SecretMatches compares in constant time.
func SecretMatches(secret []byte, hash [32]byte) bool {
	got := SecretHash(secret)
	return len(secret) == SecretSize && subtle.ConstantTimeCompare(got[:], hash[:]) == 1
}

// Text is the string a person carries to the site. It holds the secret.
func (t Ticket) Text() (string, error) {
	if err := t.check(); err != nil {
		return "", err
	}
	b := cborx.Marshal(ticketWire(t))
	sum := cas.Sum(b)
	s := ticketPrefix + base64.RawURLEncoding.EncodeToString(append(b, sum[:4]...))
	if len(s) > maxTicketText {
		return "", forgeyard.Errorf("ticket", forgeyard.Limit, "a ticket of %d letters is over the limit of %d", len(s), maxTicketText).WithHint("listen on fewer addresses, or name one with --listen HOST:PORT")
	}
	return s, nil
}

func (t Ticket) check() error {
	if err := forgeyard.CheckULID("ticket", string(t.ID)); err != nil {
		return err
	}
	if _, err := peer.Decode(t.Central); err != nil {
		return forgeyard.Errorf("ticket", forgeyard.Invalid, "it names no daemon: %w", err)
	}
	switch n := len(t.Secret.Reveal()); {
	case n != SecretSize:
		return forgeyard.Errorf("ticket", forgeyard.Invalid, "its secret has %d bytes, %d are expected", n, SecretSize)
	case len(t.Addrs) == 0 || len(t.Addrs) > maxTicketAddrs:
		return forgeyard.Errorf("ticket", forgeyard.Invalid, "it has %d addresses, 1 to %d are expected", len(t.Addrs), maxTicketAddrs)
	case len(t.Name) > MaxName:
		return forgeyard.Errorf("ticket", forgeyard.Invalid, "its name has %d bytes, the limit is %d", len(t.Name), MaxName)
	}
	return nil
}

// ParseTicket reads Text, and forgives spaces and line ends of a paste. Errors are
// Invalid, say what is wrong, and never quote the text.
func ParseTicket(text string) (Ticket, error) {
	t, err := parseTicket(text)
	if err != nil {
		return Ticket{}, forgeyard.E("", forgeyard.Invalid, err).WithHint("paste the whole line that `forgeyard-central ticket create` printed")
	}
	return t, nil
}

func parseTicket(text string) (Ticket, error) {
	if len(text) > 2*maxTicketText {
		return Ticket{}, forgeyard.Errorf("ticket", forgeyard.Invalid, "%d letters, the limit is %d", len(text), maxTicketText)
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
	body, ok := strings.CutPrefix(text, ticketPrefix)
	if !ok {
		return Ticket{}, forgeyard.Errorf("ticket", forgeyard.Invalid, "it does not begin with %s; a ticket comes from the central daemon", ticketPrefix)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(b) < 5 {
		return Ticket{}, forgeyard.Errorf("ticket", forgeyard.Invalid, "a letter is wrong or missing")
	}
	b, sum := b[:len(b)-4], b[len(b)-4:]
	if want := cas.Sum(b); string(want[:4]) != string(sum) {
		return Ticket{}, forgeyard.Errorf("ticket", forgeyard.Invalid, "its checksum does not match: a letter is wrong or missing")
	}
	var w ticketWire
	if err := cborx.Unmarshal(b, &w); err != nil {
		return Ticket{}, forgeyard.Errorf("ticket", forgeyard.Invalid, "its content cannot be read by this version")
	}
	t := Ticket(w)
	return t, t.check()
}

// proofDomain stands before the signed bytes, so that a signature of the site key
// over anything else is never a proof.
const proofDomain = "forgeyard uplink enrolment v1\x00"

type proof struct {
	Central string            `cbor:"1,keyasint"`
	Ticket  forgeyard.TokenID `cbor:"2,keyasint"`
	Site    forgeyard.SiteID  `cbor:"3,keyasint"`
	Speaker string            `cbor:"4,keyasint"` // peer id that shows it: a copy is worth nothing to others
}

func proofBytes(p proof) []byte { return append([]byte(proofDomain), cborx.Marshal(p)...) }

// Prove signs that the site asks the daemon, through the speaker, under the ticket.
func Prove(siteKey mesh.Secret, central string, ticket forgeyard.TokenID, site forgeyard.SiteID, speaker string) ([]byte, error) {
	if n := len(siteKey.Reveal()); n != ed25519.SeedSize {
		return nil, forgeyard.Errorf("uplink connect", forgeyard.Denied, "this node has no site key").WithHint("run it on the leader; only nodes that may vote hold the key")
	}
	return ed25519.Sign(ed25519.NewKeyFromSeed(siteKey.Reveal()), proofBytes(proof{central, ticket, site, speaker})), nil
}

// VerifyProof checks what Prove signed.
func VerifyProof(public ed25519.PublicKey, sig []byte, central string, ticket forgeyard.TokenID, site forgeyard.SiteID, speaker string) bool {
	return len(public) == ed25519.PublicKeySize && ed25519.Verify(public, proofBytes(proof{central, ticket, site, speaker}), sig)
}
