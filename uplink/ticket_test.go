package uplink

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/mesh"
)

func testTicket(t testing.TB) Ticket {
	t.Helper()
	return Ticket{ID: "01JD0000000000000000000009", Central: centralID, Addrs: []string{"/ip4/127.0.0.1/tcp/7454"}, Name: "hq", Secret: mesh.NewSecret([]byte(strings.Repeat("s", SecretSize))), Expires: 1}
}

func TestTicketText(t *testing.T) {
	want := testTicket(t)
	text, err := want.Text()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "fyt1_") || strings.ContainsAny(text, " \n") {
		t.Fatal(text)
	}
	got, err := ParseTicket(" " + text[:20] + "\n" + text[20:] + " \n")
	if err != nil || !got.Secret.Equal(want.Secret) || got.ID != want.ID || got.Central != want.Central || got.Addrs[0] != want.Addrs[0] {
		t.Fatalf("%v %v", got, err)
	}
	for _, bad := range []string{"", "fyj1_abc", text[:len(text)-2], text[:30] + "A" + text[31:], "fyt1_" + strings.Repeat("A", 10_000)} {
		_, err := ParseTicket(bad)
		if forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%.20q: %v", bad, err)
		}
		if len(bad) > 20 && strings.Contains(fmt.Sprint(err), bad[10:]) {
			t.Error("the error quotes the ticket")
		}
	}
}

func TestTicketDoesNotPrint(t *testing.T) {
	tk := testTicket(t)
	j, err := json.Marshal(struct{ T Ticket }{tk})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprintf("%v %+v %#v %s %q %x", tk, tk, tk, tk, tk, tk), fmt.Sprint(struct{ T Ticket }{tk}), string(j)} {
		if strings.Contains(s, "ssss") || strings.Contains(s, "7373") {
			t.Error(s)
		}
	}
}

func TestProof(t *testing.T) {
	key, pub, err := mesh.NewSiteKey()
	if err != nil {
		t.Fatal(err)
	}
	sig, err := Prove(key, centralID, "t1", testSiteID, "speaker")
	if err != nil {
		t.Fatal(err)
	}
	if !VerifyProof(pub, sig, centralID, "t1", testSiteID, "speaker") {
		t.Error("the proof holds")
	}
	if VerifyProof(pub, sig, centralID, "t2", testSiteID, "speaker") || VerifyProof(pub, sig, centralID, "t1", testSiteID, "thief") || VerifyProof(nil, sig, centralID, "t1", testSiteID, "speaker") {
		t.Error("it proves something else")
	}
	if _, err := Prove(mesh.Secret{}, centralID, "t1", testSiteID, "speaker"); forgeyard.KindOf(err) != forgeyard.Denied {
		t.Errorf("%v", err)
	}
}

func FuzzParseTicket(f *testing.F) {
	text, err := testTicket(f).Text()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("fyt1_")
	f.Fuzz(func(t *testing.T, s string) {
		tk, err := ParseTicket(s)
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.Invalid {
				t.Fatal(err)
			}
			return
		}
		if _, err := tk.Text(); err != nil {
			t.Fatalf("what was read can be written: %v", err)
		}
	})
}

func FuzzDecodeDelegation(f *testing.F) {
	f.Add(cborx.Marshal(map[int]any{1: 5, 2: map[int]any{}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := DecodeDelegation(b); err == nil && (d.Seq == 0 || d.Grant.ID == "") {
			t.Fatalf("%+v", d)
		}
	})
}
