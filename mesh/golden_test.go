package mesh

import (
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// The keys of the golden files are counted bytes: they guard nothing.
func countedSecret(from byte) Secret {
	b := make([]byte, 32)
	for i := range b {
		b[i] = from + byte(i)
	}
	return NewSecret(b)
}

func countedIdentity(t *testing.T, from byte) Identity {
	t.Helper()
	i, err := identityFromSeed(countedSecret(from).Reveal())
	must(t, err)
	return i
}

func goldenPeer(t *testing.T) PeerAddr {
	return PeerAddr{RunnerID: "01HF000000000000000000000R", PeerID: countedIdentity(t, 40).PeerID(), Addrs: []string{"/ip4/192.0.2.1/tcp/7450", "/dns4/bench-1.example/udp/7450/quic-v1"}, GossipAddr: "192.0.2.1:7451"}
}

// TestTokenOfVersion1: it may have been written on paper before the upgrade.
func TestTokenOfVersion1(t *testing.T) {
	want := Token{SiteID: "01HF000000000000000000000S", TokenID: "01HF000000000000000000000T", Secret: countedSecret(1), Peers: []PeerAddr{goldenPeer(t)}}
	text, err := want.Text()
	must(t, err)
	got, err := ParseToken(string(golden.Text(t, "testdata/token-v1", []byte(text+"\n"))))
	must(t, err)
	if got.SiteID != want.SiteID || got.TokenID != want.TokenID || !got.Secret.Equal(want.Secret) || fmt.Sprint(got.Peers) != fmt.Sprint(want.Peers) {
		t.Fatalf("%v %v", got, got.Peers)
	}
	h := SecretHash(got.Secret) // what the log knows it by
	golden.Bytes(t, "testdata/token-hash-v1.hex", h[:])
}

func goldenCredential(t *testing.T) []byte {
	t.Helper()
	raw, err := IssueCredential(countedSecret(80), Claims{
		Site: "01HF000000000000000000000S", Runner: "01HF000000000000000000000R", Peer: countedIdentity(t, 7).PeerID(), Roles: []string{RoleVoter, RoleRunner},
		NotBefore: time.Unix(1_800_000_000, 0), NotAfter: time.Unix(1_831_536_000, 0),
	})
	must(t, err)
	return raw
}

func sitePublicKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	k, err := siteKey(countedSecret(80))
	must(t, err)
	return k.Public().(ed25519.PublicKey)
}

// TestCredentialOfVersion1: members carry it for a year, and show it to newer ones.
func TestCredentialOfVersion1(t *testing.T) {
	c, err := ParseCredential(golden.Bytes(t, "testdata/credential-v1.hex", goldenCredential(t)))
	must(t, err)
	must(t, c.Verify(sitePublicKey(t), countedIdentity(t, 7).PeerID(), time.Unix(1_810_000_000, 0)))
	if c.Site != "01HF000000000000000000000S" || c.Runner != "01HF000000000000000000000R" || strings.Join(c.Roles, " ") != "runner voter" || c.NotAfter.Unix() != 1_831_536_000 {
		t.Fatalf("%+v", c.Claims)
	}
}

// openIn puts a golden file where a node looks for it.
func openIn(t *testing.T, name string, b []byte) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, identityDir), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, identityDir, name), b, 0o600))
	return dir
}

// TestNodeKeyOfVersion1: a node whose key cannot be read is another node.
func TestNodeKeyOfVersion1(t *testing.T) {
	want := countedIdentity(t, 7)
	was := golden.Text(t, "testdata/node-key-v1", []byte(armor(nodeKeyPrefix, want.seed.Reveal())+"\n"))
	got, err := LoadOrCreateIdentity(openIn(t, nodeKeyFile, was))
	must(t, err)
	if got.PeerID() != want.PeerID() || !got.seed.Equal(want.seed) {
		t.Fatalf("%v, want %v", got, want)
	}
}

// TestEnrolmentOfVersion1 has every field, the site key of a node that may vote among
// them.
func TestEnrolmentOfVersion1(t *testing.T) {
	want := Enrolment{
		SiteID: "01HF000000000000000000000S", SiteName: "lab", SitePublicKey: sitePublicKey(t), RunnerID: "01HF000000000000000000000R", Name: "bench-2", Roles: []string{RoleRunner, RoleVoter},
		GossipKey: countedSecret(100), Credential: goldenCredential(t), SiteKey: countedSecret(80), Peers: []PeerAddr{goldenPeer(t)},
	}
	dir := t.TempDir()
	must(t, SaveEnrolment(dir, want))
	today, err := os.ReadFile(filepath.Join(dir, identityDir, enrolmentFile))
	must(t, err)
	got, err := LoadEnrolment(openIn(t, enrolmentFile, golden.Text(t, "testdata/enrolment-v1", today)))
	must(t, err)
	must(t, got.Check(countedIdentity(t, 7).PeerID()))
	if got.SiteName != "lab" || got.Name != "bench-2" || !got.SiteKey.Equal(want.SiteKey) || !got.GossipKey.Equal(want.GossipKey) || fmt.Sprint(got.Peers, got.Roles) != fmt.Sprint(want.Peers, want.Roles) {
		t.Fatalf("%v", got)
	}
}

// FuzzEnrolment gets past the checksum: what is read is either the bytes of an enrolment
// or Invalid, and Check never crashes on it.
func FuzzEnrolment(f *testing.F) {
	f.Add([]byte{0xa0})
	if b, err := os.ReadFile("testdata/enrolment-v1"); err == nil {
		if raw, err := unarmor("enrolment", enrolmentPrefix, string(b)); err == nil {
			f.Add(raw)
		}
	}
	id, err := identityFromSeed(countedSecret(7).Reveal())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		e, err := decodeEnrolment(armor(enrolmentPrefix, b))
		if err != nil {
			wantKind(t, err, forgeyard.Invalid)
			return
		}
		_ = e.Check(id.PeerID())
		if _, err := encMode.Marshal(e); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}
