package node

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// E10: a member whose clock is far behind signs credentials that are over already. A node
// keeps the one it has.
func TestE10RenewedCredentialLastsLonger(t *testing.T) {
	key, _, err := mesh.NewSiteKey()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := crypto.UnmarshalEd25519PublicKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	signed := func(wall time.Time) []byte {
		raw, err := mesh.IssueCredential(key, mesh.Claims{
			Site: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Runner: "01ARZ3NDEKTSV4RRFFQ69G5FAW", Peer: id, Roles: []string{mesh.RoleRunner},
			NotBefore: wall, NotAfter: wall.Add(credentialLife),
		})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	has := now.Add(credentialRenew)
	if err := lastsLonger(signed(now), has); err != nil {
		t.Errorf("a credential that lasts longer: %v", err)
	}
	for _, wall := range []time.Time{now.Add(-463 * 24 * time.Hour), has.Add(-credentialLife)} {
		if err := lastsLonger(signed(wall), has); forgeyard.KindOf(err) != forgeyard.Stale {
			t.Errorf("signed at %s: %v", wall, err)
		}
	}
	if err := lastsLonger([]byte("noise"), has); err == nil {
		t.Error("noise is a credential")
	}
}
