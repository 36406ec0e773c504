package mesh

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/forgeyard/forgeyard-node"
)

const (
	enrolmentFile   = "enrolment"
	enrolmentPrefix = "fye1_"
)

// Roles a credential may carry. They are text so that a site can add one without a release.
const (
	RoleRunner = "runner"
	RoleVoter  = "voter"
)

// PeerAddr says where a peer may be found. Only the peer id is binding; the rest are hints.
type PeerAddr struct {
	RunnerID   forgeyard.RunnerID `cbor:"1,keyasint,omitempty"`
	PeerID     peer.ID            `cbor:"2,keyasint"`
	Addrs      []string           `cbor:"3,keyasint,omitempty"` // multiaddrs without the peer id
	GossipAddr string             `cbor:"4,keyasint,omitempty"` // host:port
}

func (p PeerAddr) check() error {
	if p.PeerID == "" {
		return errors.New("a peer has no peer id")
	}
	if len(p.Addrs) > maxAddrs {
		return fmt.Errorf("peer %s has %d addresses, the limit is %d", p.PeerID, len(p.Addrs), maxAddrs)
	}
	if len(p.GossipAddr) > maxAddrText || len(p.RunnerID) > maxName {
		return fmt.Errorf("peer %s has a field that is too long", p.PeerID)
	}
	_, err := parseAddrs(p.Addrs)
	return err
}

func parseAddrs(in []string) ([]ma.Multiaddr, error) {
	out := make([]ma.Multiaddr, 0, len(in))
	for _, s := range in {
		if len(s) > maxAddrText {
			return nil, fmt.Errorf("an address of %d letters is over the limit of %d", len(s), maxAddrText)
		}
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", forgeyard.Clip(s, 80), err)
		}
		out = append(out, a)
	}
	return out, nil
}

// Enrolment is what a node knows once it belongs to a site. It holds secrets and prints none.
type Enrolment struct {
	SiteID        forgeyard.SiteID   `cbor:"1,keyasint"`
	SiteName      string             `cbor:"2,keyasint"`
	SitePublicKey ed25519.PublicKey  `cbor:"3,keyasint"`
	RunnerID      forgeyard.RunnerID `cbor:"4,keyasint"`
	Name          string             `cbor:"5,keyasint"`
	Roles         []string           `cbor:"6,keyasint"`
	GossipKey     Secret             `cbor:"7,keyasint"`           // 32 bytes, the same on every member
	Credential    []byte             `cbor:"8,keyasint"`           // signed; see Credential
	SiteKey       Secret             `cbor:"9,keyasint,omitempty"` // Ed25519 seed; only on nodes that may vote
	Peers         []PeerAddr         `cbor:"10,keyasint,omitempty"`
}

func (e Enrolment) String() string {
	return fmt.Sprintf("enrolment of %s (%s) in site %s (%s)", e.Name, e.RunnerID, e.SiteName, e.SiteID)
}
func (e Enrolment) GoString() string             { return e.String() }
func (e Enrolment) Format(f fmt.State, _ rune)   { _, _ = f.Write([]byte(e.String())) }
func (e Enrolment) MarshalText() ([]byte, error) { return []byte(e.String()), nil }
func (e Enrolment) LogValue() slog.Value         { return slog.StringValue(e.String()) }

// Check says what is wrong with an enrolment of the peer id, or nil. It does not look at the time.
func (e Enrolment) Check(id peer.ID) error {
	switch {
	case e.SiteID == "" || e.RunnerID == "":
		return forgeyard.Errorf("enrolment", forgeyard.Invalid, "it has no site id or no runner id")
	case len(e.SitePublicKey) != ed25519.PublicKeySize:
		return forgeyard.Errorf("enrolment", forgeyard.Invalid, "the site's public key has %d bytes, %d are expected", len(e.SitePublicKey), ed25519.PublicKeySize)
	case len(e.GossipKey.Reveal()) != GossipKeySize:
		return forgeyard.Errorf("enrolment", forgeyard.Invalid, "the gossip key has %d bytes, %d are expected", len(e.GossipKey.Reveal()), GossipKeySize)
	case len(e.Peers) > MaxPeers:
		return forgeyard.Errorf("enrolment", forgeyard.Limit, "%d peers, the limit is %d", len(e.Peers), MaxPeers)
	}
	for _, p := range e.Peers {
		if err := p.check(); err != nil {
			return forgeyard.E("enrolment", forgeyard.Invalid, err)
		}
	}
	c, err := ParseCredential(e.Credential)
	if err != nil {
		return err
	}
	if c.Site != e.SiteID || c.Runner != e.RunnerID {
		return forgeyard.Errorf("enrolment", forgeyard.Invalid, "the credential is for runner %s of site %s, the enrolment for runner %s of site %s", c.Runner, c.Site, e.RunnerID, e.SiteID)
	}
	if !e.SiteKey.IsZero() {
		k, err := siteKey(e.SiteKey)
		if err != nil {
			return err
		}
		if !e.SitePublicKey.Equal(k.Public()) {
			return forgeyard.Errorf("enrolment", forgeyard.Invalid, "the site key does not belong to the site's public key")
		}
	}
	return c.verifySignature(e.SitePublicKey, id)
}

// SaveEnrolment writes <dir>/identity/enrolment durably, replacing an older one whole.
func SaveEnrolment(dir string, e Enrolment) error {
	b, err := encMode.Marshal(e)
	if err != nil {
		return forgeyard.E("enrolment", forgeyard.Invalid, err)
	}
	path := filepath.Join(dir, identityDir, enrolmentFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return diskError("enrolment", err)
	}
	if err := writeDurably(path, []byte(armor(enrolmentPrefix, b)+"\n"), false); err != nil {
		return diskError("enrolment", err)
	}
	return nil
}

// LoadEnrolment reads it. NotFound: this node belongs to no site yet. Corrupt: the file is damaged.
func LoadEnrolment(dir string) (Enrolment, error) {
	path := filepath.Join(dir, identityDir, enrolmentFile)
	b, err := readSecretFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Enrolment{}, forgeyard.Errorf("enrolment", forgeyard.NotFound, "this node belongs to no site").WithHint("run `init --site NAME` or `join TOKEN`")
	}
	if err != nil {
		return Enrolment{}, err
	}
	e, err := decodeEnrolment(string(b))
	if err != nil {
		return Enrolment{}, forgeyard.E("enrolment "+path, forgeyard.Corrupt, err).WithHint("restore the file from a backup, or join again")
	}
	return e, nil
}

func decodeEnrolment(text string) (Enrolment, error) {
	var e Enrolment
	b, err := unarmor("enrolment", enrolmentPrefix, text)
	if err == nil {
		err = decode(b, &e)
	}
	return e, err
}

// CheckRejoin says whether a node with this enrolment may use the token: only
// one of its own site. A node is moved to another site by removing its data, never by a token.
func CheckRejoin(e Enrolment, t Token) error {
	if e.SiteID == "" || e.SiteID == t.SiteID {
		return nil
	}
	return forgeyard.Errorf("join", forgeyard.Denied, "this node belongs to site %s (%s), the token is for site %s", e.SiteName, e.SiteID, t.SiteID).
		WithHint("remove it from its site and start with an empty data directory to move it")
}
