package mesh

import (
	"crypto/ed25519"
	"crypto/rand"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

// credentialDomain stands before the signed bytes, so that a signature of the
// site key over anything else is never a credential.
const credentialDomain = "forgeyard member credential v1\x00"

// Claims are what the site key signs about a member.
type Claims struct {
	Site      forgeyard.SiteID
	Runner    forgeyard.RunnerID
	Peer      peer.ID
	Roles     []string
	NotBefore time.Time // whole seconds
	NotAfter  time.Time // whole seconds
}

// Credential is a parsed member credential. It is public: it is bound to the
// peer id, and worthless without that peer's key.
//
//	┌─ CBOR array ─────────────────────────────┐
//	│ payload: bytes │ signature: 64 bytes      │  signature = Ed25519(site key, domain ‖ payload)
//	└──────────────────────────────────────────┘
//	payload = CBOR {1 version, 2 site, 3 runner, 4 peer id, 5 roles, 6 not_before, 7 not_after}
type Credential struct {
	Claims
	payload, signature []byte
}

type credentialPayload struct {
	Version   uint8              `cbor:"1,keyasint"`
	Site      forgeyard.SiteID   `cbor:"2,keyasint"`
	Runner    forgeyard.RunnerID `cbor:"3,keyasint"`
	Peer      peer.ID            `cbor:"4,keyasint"`
	Roles     []string           `cbor:"5,keyasint"`
	NotBefore int64              `cbor:"6,keyasint"` // seconds since 1970
	NotAfter  int64              `cbor:"7,keyasint"`
}

type credentialEnvelope struct {
	_         struct{} `cbor:",toarray"`
	Payload   []byte
	Signature []byte
}

// NewSiteKey draws the key that signs a site's credentials. The seed goes only to nodes that may vote.
func NewSiteKey() (Secret, ed25519.PublicKey, error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Secret{}, nil, forgeyard.E("site key", forgeyard.Other, err)
	}
	return NewSecret(priv.Seed()), pub, nil
}

func siteKey(s Secret) (ed25519.PrivateKey, error) {
	if len(s.Reveal()) != ed25519.SeedSize {
		return nil, forgeyard.Errorf("site key", forgeyard.Invalid, "it has %d bytes, %d are expected", len(s.Reveal()), ed25519.SeedSize)
	}
	return ed25519.NewKeyFromSeed(s.Reveal()), nil
}

// IssueCredential signs the claims; a renewal is the same claims with later times.
func IssueCredential(key Secret, c Claims) ([]byte, error) {
	k, err := siteKey(key)
	if err != nil {
		return nil, err
	}
	roles := slices.Clone(c.Roles)
	slices.Sort(roles)
	p := credentialPayload{Version: 1, Site: c.Site, Runner: c.Runner, Peer: c.Peer, Roles: slices.Compact(roles), NotBefore: c.NotBefore.Unix(), NotAfter: c.NotAfter.Unix()}
	if err := p.check(); err != nil {
		return nil, err
	}
	b, err := encMode.Marshal(p)
	if err != nil {
		return nil, forgeyard.E("credential", forgeyard.Invalid, err)
	}
	return encMode.Marshal(credentialEnvelope{Payload: b, Signature: ed25519.Sign(k, append([]byte(credentialDomain), b...))})
}

func (p credentialPayload) check() error {
	switch {
	case p.Version != 1:
		return forgeyard.Errorf("credential", forgeyard.Invalid, "version %d is not known, 1 is", p.Version)
	case p.Site == "" || p.Runner == "" || p.Peer == "" || len(p.Site) > maxName || len(p.Runner) > maxName:
		return forgeyard.Errorf("credential", forgeyard.Invalid, "site, runner and peer must be set")
	case len(p.Roles) > maxRoles || slices.ContainsFunc(p.Roles, func(r string) bool { return r == "" || len(r) > maxName }):
		return forgeyard.Errorf("credential", forgeyard.Invalid, "%d roles, at most %d of at most %d letters are allowed", len(p.Roles), maxRoles, maxName)
	case p.NotBefore <= 0 || p.NotAfter <= p.NotBefore:
		return forgeyard.Errorf("credential", forgeyard.Invalid, "not_after %d is not later than not_before %d", p.NotAfter, p.NotBefore)
	}
	return nil
}

// ParseCredential decodes without believing: call Verify.
func ParseCredential(raw []byte) (*Credential, error) {
	var e credentialEnvelope
	var p credentialPayload
	if len(raw) > maxHelloFrame {
		return nil, forgeyard.Errorf("credential", forgeyard.Invalid, "%d bytes, the limit is %d", len(raw), maxHelloFrame)
	}
	err := decMode.Unmarshal(raw, &e)
	if err == nil {
		err = decMode.Unmarshal(e.Payload, &p)
	}
	if err != nil {
		return nil, forgeyard.Errorf("credential", forgeyard.Invalid, "the credential cannot be read: %w", err)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	c := Claims{Site: p.Site, Runner: p.Runner, Peer: p.Peer, Roles: p.Roles, NotBefore: time.Unix(p.NotBefore, 0).UTC(), NotAfter: time.Unix(p.NotAfter, 0).UTC()}
	return &Credential{Claims: c, payload: e.Payload, signature: e.Signature}, nil
}

// Verify says why the credential does not admit the peer at this wall time, or
// nil. A clock that reads earlier than NotBefore is itself wrong, since the site key has already
// signed that moment; a machine that lost its clock overnight is not shut out by it.
func (c *Credential) Verify(site ed25519.PublicKey, id peer.ID, wall time.Time) error {
	if err := c.verifySignature(site, id); err != nil {
		return err
	}
	if !wall.Before(c.NotAfter) {
		return refusedFor(RefusedExpired, forgeyard.Errorf("credential", forgeyard.Denied, "the credential of runner %s expired at %s, it is %s here", c.Runner, c.NotAfter.Format(time.RFC3339), wall.UTC().Format(time.RFC3339)).
			WithHint("check both clocks; a member renews it by itself while it can reach the site, else join again"))
	}
	return nil
}

func (c *Credential) verifySignature(site ed25519.PublicKey, id peer.ID) error {
	if len(site) != ed25519.PublicKeySize || !ed25519.Verify(site, append([]byte(credentialDomain), c.payload...), c.signature) {
		return forgeyard.Errorf("credential", forgeyard.Denied, "the credential of runner %s is not signed by the key of site %s", forgeyard.Clip(string(c.Runner), 64), forgeyard.Clip(string(c.Site), 64))
	}
	if c.Peer != id {
		return forgeyard.Errorf("credential", forgeyard.Denied, "the credential is of peer %s, the connection of peer %s", c.Peer, id)
	}
	return nil
}
