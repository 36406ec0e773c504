package mesh

import (
	"bytes"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

func identities(t testing.TB, n int) (out []Identity) {
	t.Helper()
	for i := range n {
		id, err := identityFromSeed(bytes.Repeat([]byte{byte(i + 1)}, 32))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, id)
	}
	return out
}

// A value is sealed for the keys that are named: each of them opens it, no other does, and a
// changed byte is found.
func TestSealed(t *testing.T) {
	ids := identities(t, 3)
	sealed, err := Seal([]byte("value\n"), []peer.ID{ids[0].PeerID(), ids[1].PeerID()})
	if err != nil || bytes.Contains(sealed, []byte("value")) {
		t.Fatalf("%v", err)
	}
	for i, id := range ids {
		b, err := id.Open(sealed)
		if (string(b) == "value\n") != (i < 2) || (err == nil) != (i < 2) {
			t.Errorf("node %d: %q, %v", i, b, err)
		}
	}
	for at := range sealed {
		bad := bytes.Clone(sealed)
		bad[at] ^= 1
		if b, err := ids[0].Open(bad); err == nil && string(b) != "value\n" || err != nil && forgeyard.KindOf(err) != forgeyard.Denied {
			t.Fatalf("byte %d changed: %q, %v", at, b, err)
		}
	}
	if _, err := Seal([]byte("v"), nil); err == nil {
		t.Error("sealed for nobody")
	}
	if _, err := Seal([]byte("v"), []peer.ID{"nonsense"}); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Error(err)
	}
}

// FuzzOpen: whatever the log holds, it is opened or refused.
func FuzzOpen(f *testing.F) {
	id := identities(f, 1)[0]
	sealed, err := Seal([]byte("value"), []peer.ID{id.PeerID()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte("age-encryption.org/v1\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := id.Open(b); err == nil && string(v) != "value" {
			t.Fatalf("%q was never sealed", v)
		}
	})
}
