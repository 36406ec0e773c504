package mesh

import (
	"crypto/ed25519"

	"github.com/forgeyard/forgeyard-node"
)

// statementDomain stands before the signed bytes, as in a credential.
const statementDomain = "forgeyard site incarnation v1\x00"

// Statement says that an incarnation of the site began, and on which node: what an older
// one is shown, so that it ends. Only nodes that may vote can make one.
//
//	┌─ CBOR array ─────────────────────────────┐
//	│ payload: bytes │ signature: 64 bytes      │  signature = Ed25519(site key, domain ‖ payload)
//	└──────────────────────────────────────────┘
//	payload = CBOR {1 version, 2 site, 3 incarnation, 4 lineage, 5 runner, 6 node's name, 7 wall time in ms}
type Statement struct {
	Version     uint8              `cbor:"1,keyasint"`
	Site        forgeyard.SiteID   `cbor:"2,keyasint"`
	Incarnation uint64             `cbor:"3,keyasint"`
	Lineage     string             `cbor:"4,keyasint"`
	Runner      forgeyard.RunnerID `cbor:"5,keyasint"`
	Node        string             `cbor:"6,keyasint"`
	At          forgeyard.Wall     `cbor:"7,keyasint"`
}

// Sign makes the signed bytes.
func (s Statement) Sign(key Secret) ([]byte, error) {
	k, err := siteKey(key)
	if err != nil {
		return nil, err
	}
	s.Version = 1
	b, err := encMode.Marshal(s)
	if err != nil {
		return nil, forgeyard.E("statement", forgeyard.Invalid, err)
	}
	return encMode.Marshal(credentialEnvelope{Payload: b, Signature: ed25519.Sign(k, append([]byte(statementDomain), b...))})
}

// OpenStatement believes only what the site's key has signed, for that site.
func OpenStatement(raw []byte, site forgeyard.SiteID, key ed25519.PublicKey) (Statement, error) {
	var e credentialEnvelope
	var s Statement
	if len(raw) > maxHelloFrame {
		return s, forgeyard.Errorf("statement", forgeyard.Invalid, "%d bytes, the limit is %d", len(raw), maxHelloFrame)
	}
	if err := decMode.Unmarshal(raw, &e); err != nil {
		return s, forgeyard.Errorf("statement", forgeyard.Invalid, "it cannot be read: %w", err)
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, append([]byte(statementDomain), e.Payload...), e.Signature) {
		return s, forgeyard.Errorf("statement", forgeyard.Denied, "the site's key has not signed it")
	}
	if err := decMode.Unmarshal(e.Payload, &s); err != nil {
		return s, forgeyard.Errorf("statement", forgeyard.Invalid, "it cannot be read: %w", err)
	}
	switch {
	case s.Version != 1:
		return s, forgeyard.Errorf("statement", forgeyard.Invalid, "version %d is not known, 1 is", s.Version)
	case s.Site != site:
		return s, forgeyard.Errorf("statement", forgeyard.Denied, "it is about site %s, not %s", printable(string(s.Site)), site)
	case s.Incarnation == 0 || s.Lineage == "" || len(s.Lineage) > maxName || len(s.Node) > maxName:
		return s, forgeyard.Errorf("statement", forgeyard.Invalid, "incarnation and lineage must be set")
	}
	return s, nil
}
