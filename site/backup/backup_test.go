package backup

import (
	"bytes"
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

func sample(t testing.TB) []byte {
	s := &site.State{}
	for i, b := range []site.Body{
		site.Init{Site: "01HF000000000000000000000S", Name: "lab", PublicKey: []byte{1}, Config: sitecfg.Site{Voters: 3}, Runner: "01HF000000000000000000000R", Node: "n1", Peer: "p1"},
		site.TokenCreate{Token: "T", Hash: [32]byte{2}, Expires: 2_000_000_000_000, Uses: 1},
	} {
		next, r := s.ApplyEntry(uint64(i+1), 1, site.Command{ID: forgeyard.MessageID(rune('a' + i)), At: 1_800_000_000_000, By: "ana", Body: b}.Encode())
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		s = next
	}
	return Encode(s, Header{Term: 3, At: 1_800_000_000_000, Program: "1", By: "01HF000000000000000000000R"})
}

func TestBackupOfVersion1(t *testing.T) {
	was := golden.Bytes(t, "testdata/backup-v1.hex", sample(t))
	h, s, err := Decode(was)
	if err != nil {
		t.Fatal(err)
	}
	if h.Name != "lab" || h.Index != 2 || h.Term != 3 || h.Incarnation != 1 || s.Tokens.Len() != 1 || !bytes.Equal(Encode(s, h), was) {
		t.Fatalf("%+v", h)
	}
}

// No byte of a backup can change, and none be missing, without notice.
func TestDamageIsSeen(t *testing.T) {
	b := sample(t)
	for i := range b {
		bad := slices.Clone(b)
		bad[i] ^= 0x40
		if _, _, err := Decode(bad); err == nil {
			t.Fatalf("byte %d was changed and nothing was said", i)
		}
	}
	for _, n := range []int{0, 3, 8, len(b) / 2, len(b) - 1} {
		if _, _, err := Decode(b[:n]); err == nil {
			t.Fatalf("%d of %d bytes pass", n, len(b))
		}
	}
	if _, _, err := Decode(append(slices.Clone(b), 0)); err == nil {
		t.Fatal("a byte too many passes")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(sample(f))
	f.Add([]byte("FYBK\x01\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, s, err := Decode(b)
		if err == nil && (s.Site != h.Site || s.Index != h.Index) {
			t.Fatalf("%+v", h)
		}
	})
}
