package mesh

import (
	"bytes"
	"crypto/ed25519"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

// memberSignature says which member made some bytes, to somebody who was not there: it
// carries the credential that makes the signer a member.
//
//	┌─ CBOR array ────────────────────────────────┐
//	│ credential: bytes │ signature: 64 bytes      │  signature = Ed25519(node key, domain ‖ bytes)
//	└─────────────────────────────────────────────┘
type memberSignature struct {
	_          struct{} `cbor:",toarray"`
	Credential []byte
	Signature  []byte
}

// Domains of what members sign, so that a signature under one thing is never one under
// another. Append only.
const (
	// BundleDomain is for the index of a bundle.
	BundleDomain = "forgeyard bundle index v1\x00"
)

// envelopePrefix begins whatever is signed of an envelope (DSSE's version 1), and nothing else
// that a node signs.
const envelopePrefix = "DSSEv1 "

// SignEnvelope signs what is to be signed of an envelope, and says by which name others know the
// key: the node's peer id, which is the key.
func (i Identity) SignEnvelope(data []byte) (keyID string, sig []byte, err error) {
	switch {
	case i.IsZero():
		return "", nil, forgeyard.Errorf("signature", forgeyard.Invalid, "there is no key to sign with")
	case !bytes.HasPrefix(data, []byte(envelopePrefix)):
		return "", nil, forgeyard.Errorf("signature", forgeyard.Invalid, "it is not of an envelope: it does not begin with %q", envelopePrefix)
	}
	return i.id.String(), ed25519.Sign(ed25519.NewKeyFromSeed(i.seed.Reveal()), data), nil
}

// CheckEnvelope says why the node of that name has not signed what is to be signed of an
// envelope, or nil. Whether it is a member, only the site's state knows.
func CheckEnvelope(keyID string, data, sig []byte) error {
	const op = "signature"
	id, err := peer.Decode(keyID)
	if err != nil || id.String() != keyID { // a name has one spelling
		return forgeyard.Errorf(op, forgeyard.Denied, "%q is no name of a node's key", forgeyard.Clip(keyID, 80))
	}
	pub, err := id.ExtractPublicKey()
	if err != nil {
		return forgeyard.Errorf(op, forgeyard.Denied, "peer %s has no key in its name: %w", id, err)
	}
	if ok, err := pub.Verify(data, sig); err != nil || !ok || !bytes.HasPrefix(data, []byte(envelopePrefix)) {
		return forgeyard.Errorf(op, forgeyard.Denied, "node %s has not signed these bytes: they were changed, or somebody else made them", id)
	}
	return nil
}

// SignAsMember signs bytes with this node's key, under its credential.
func (i Identity) SignAsMember(domain string, credential, data []byte) ([]byte, error) {
	if i.IsZero() {
		return nil, forgeyard.Errorf("signature", forgeyard.Invalid, "there is no key to sign with")
	}
	if _, err := ParseCredential(credential); err != nil {
		return nil, err
	}
	k := ed25519.NewKeyFromSeed(i.seed.Reveal())
	return encMode.Marshal(memberSignature{Credential: credential, Signature: ed25519.Sign(k, append([]byte(domain), data...))})
}

// OpenMemberSignature says which member of the site signed the bytes. The credential must
// have been good at the time that the bytes name; that the member is one still, only the
// site's state knows.
func OpenMemberSignature(raw []byte, domain string, data []byte, site ed25519.PublicKey, at time.Time) (*Credential, error) {
	const op = "signature"
	if len(raw) > maxHelloFrame {
		return nil, forgeyard.Errorf(op, forgeyard.Invalid, "%d bytes, the limit is %d", len(raw), maxHelloFrame)
	}
	var s memberSignature
	if err := decMode.Unmarshal(raw, &s); err != nil {
		return nil, forgeyard.Errorf(op, forgeyard.Invalid, "it cannot be read: %w", err)
	}
	c, err := ParseCredential(s.Credential)
	if err != nil {
		return nil, err
	}
	pub, err := c.Peer.ExtractPublicKey()
	if err != nil {
		return nil, forgeyard.Errorf(op, forgeyard.Denied, "peer %s has no key in its name: %w", c.Peer, err)
	}
	if ok, err := pub.Verify(append([]byte(domain), data...), s.Signature); err != nil || !ok {
		return nil, forgeyard.Errorf(op, forgeyard.Denied, "runner %s has not signed these bytes: they were changed, or somebody else made them", c.Runner)
	}
	if err := c.verifySignature(site, c.Peer); err != nil {
		return nil, forgeyard.E("", forgeyard.Denied, err).WithHint("a site believes its own members only")
	}
	if at.Before(c.NotBefore) || !at.Before(c.NotAfter) {
		return nil, forgeyard.Errorf(op, forgeyard.Denied, "it names the time %s, the credential of runner %s is good from %s to %s", at.UTC().Format(time.RFC3339), c.Runner, c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339))
	}
	return c, nil
}
