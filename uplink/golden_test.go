package uplink

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// TestTicketOfVersion1: it may have been written on paper before the upgrade. Its secret
// is thirty-two times the letter s.
func TestTicketOfVersion1(t *testing.T) {
	want := testTicket(t)
	text, err := want.Text()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseTicket(string(golden.Text(t, "testdata/ticket-v1", []byte(text+"\n"))))
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != want.ID || got.Central != want.Central || len(got.Addrs) != 1 || got.Addrs[0] != want.Addrs[0] || got.Name != want.Name || !got.Secret.Equal(want.Secret) || got.Expires != want.Expires {
		t.Fatalf("%v", got)
	}
	h := SecretHash(got.Secret.Reveal())
	golden.Bytes(t, "testdata/ticket-hash-v1.hex", h[:])
}

// TestWitnessFileOfVersion1: a witness that forgot across an upgrade would let the
// allowance count as used up.
func TestWitnessFileOfVersion1(t *testing.T) {
	want := reckon.Sighting{Index: 4711, Boot: "boot-1", Instant: 90_000_000_000, Wall: 1_800_000_000_000}
	path := filepath.Join(t.TempDir(), "witness")
	if err := os.WriteFile(path, golden.Bytes(t, "testdata/witness-v1.hex", want.Encode()), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := OpenWitness(WitnessConfig{Path: path, Clock: clock.NewManual(time.Unix(1_800_000_000, 0))})
	if err != nil || w.mem.Seen != want {
		t.Fatalf("%+v %v", w, err)
	}
}
