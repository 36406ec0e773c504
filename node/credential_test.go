package node

import (
	"crypto/ed25519"
	"slices"
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

// RA-075, RA-338: doctor and health warn weeks before a credential ends, when its renewal is overdue,
// and say that it has ended when it has.
func TestCredentialWarns(t *testing.T) {
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for left, want := range map[time.Duration]string{
		credentialLife: checkOK, credentialRenew: checkOK, credentialRenew/2 - time.Second: checkWarn, time.Second: checkWarn, 0: checkFail, -time.Hour: checkFail,
	} {
		c := check("credential")
		sayCredential(c, now.Add(left), now)
		if c.Status != want || (want == checkOK) != (c.Fix == "") {
			t.Errorf("%s left: %s, %q", left, c.Status, c.Fix)
		}
	}
}

// RA-086: programs read these words in `status`; a word that changes breaks them.
func TestStateWords(t *testing.T) {
	has := []string{StateStarting, StateConnecting, StateRegistering, StateOnline, StateDraining, StateReconnecting, StateShuttingDown, StateOffline}
	if want := []string{"starting", "connecting", "registering", "online", "draining", "reconnecting", "shutting_down", "offline"}; !slices.Equal(has, want) {
		t.Errorf("%q, promised are %q", has, want)
	}
}
