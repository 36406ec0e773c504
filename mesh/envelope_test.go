package mesh

import (
	"bytes"
	"crypto/ed25519"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

// What a node signs of an envelope is never anything else that it signs, and is believed under
// its own name in its one spelling only.
func TestEnvelopeIsSignedByTheNode(t *testing.T) {
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("DSSEv1 1 t 2 {}")
	name, sig, err := id.SignEnvelope(data)
	if err != nil || name != id.PeerID().String() {
		t.Fatal(name, err)
	}
	if err := CheckEnvelope(name, data, sig); err != nil {
		t.Error(err)
	}
	if _, _, err := id.SignEnvelope([]byte(BundleDomain + "x")); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("what is no envelope: %v", err)
	}
	if _, _, err := (Identity{}).SignEnvelope(data); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("without a key: %v", err)
	}
	raw := append([]byte(BundleDomain), 'x')
	asMember := ed25519.Sign(ed25519.NewKeyFromSeed(id.seed.Reveal()), raw)
	changed := bytes.Clone(sig)
	changed[3] ^= 1
	for what, err := range map[string]error{
		"another's name":        CheckEnvelope(other.PeerID().String(), data, sig),
		"another signature":     CheckEnvelope(name, data, changed),
		"other bytes":           CheckEnvelope(name, append(bytes.Clone(data), ' '), sig),
		"no name":               CheckEnvelope("nobody", data, sig),
		"the name as a CID":     CheckEnvelope(peer.ToCid(id.PeerID()).String(), data, sig),
		"not of an envelope":    CheckEnvelope(name, raw, asMember),
		"an empty signature":    CheckEnvelope(name, data, nil),
		"a name with blanks":    CheckEnvelope(" "+name, data, sig),
		"nothing that is named": CheckEnvelope("", data, sig),
	} {
		if forgeyard.KindOf(err) != forgeyard.Denied {
			t.Errorf("%s: %v", what, err)
		}
	}
}
