package mesh

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

func testToken(t *testing.T, s *testSite) Token {
	t.Helper()
	sec, err := NewTokenSecret()
	must(t, err)
	id, err := NewIdentity()
	must(t, err)
	return Token{SiteID: s.id, TokenID: forgeyard.TokenID(ulidFor("token")), Secret: sec, Peers: []PeerAddr{{PeerID: id.PeerID(), Addrs: []string{"/ip4/127.0.0.1/tcp/7444"}}}}
}

func testEnrolment(t *testing.T, s *testSite) (Identity, Enrolment) {
	t.Helper()
	id, err := NewIdentity()
	must(t, err)
	now := time.Now()
	return id, Enrolment{
		SiteID: s.id, SiteName: s.name, SitePublicKey: s.pub, RunnerID: "R", Name: "cell-1", Roles: []string{RoleVoter}, GossipKey: NewSecret(bytes.Repeat([]byte{7}, GossipKeySize)),
		Credential: s.credential(t, id.PeerID(), "R", now, now.Add(time.Hour)), SiteKey: s.key, Peers: testToken(t, s).Peers,
	}
}

// A join token, a key, a secret value never appears in a log line, an error or JSON, in any
// spelling (RA-253; for those of a job see TestSecrets of node/runner).
func TestSecretsAreNeverPrinted(t *testing.T) {
	s := newTestSite(t, "north")
	tok := testToken(t, s)
	id, e := testEnrolment(t, s)
	text, err := tok.Text()
	must(t, err)
	secrets := [][]byte{tok.Secret.Reveal(), e.GossipKey.Reveal(), s.key.Reveal(), id.seed.Reveal()}
	hidden := struct { // unexported fields: fmt calls no methods on them
		t Token
		e Enrolment
		i Identity
		k Secret
		c Config
		g GossipConfig
		m joinMessage
	}{tok, e, id, s.key, Config{Identity: id}, GossipConfig{Key: e.GossipKey}, joinMessage{Secret: tok.Secret}}
	values := []any{tok, &tok, e, &e, id, &id, s.key, &s.key, hidden, &hidden, hidden.c, hidden.g, hidden.m, []any{tok, e, id}, map[string]any{"x": e}}
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	jlog := slog.New(slog.NewJSONHandler(&out, nil))
	for _, v := range values {
		for _, f := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b"} {
			fmt.Fprintf(&out, f+"\n", v)
		}
		if b, err := json.Marshal(v); err == nil {
			out.Write(b)
		}
		log.Info("x", "v", v)
		jlog.Info("x", "v", v)
	}
	fmt.Fprintln(&out, errors.Join(forgeyard.Errorf("x", forgeyard.Invalid, "%v %v %v", tok, e, id)))
	all := out.String()
	for i, sec := range secrets {
		dec := strings.Trim(fmt.Sprint(sec), "[]")
		for _, form := range []string{string(sec), hex.EncodeToString(sec), strings.ToUpper(hex.EncodeToString(sec)), base64.StdEncoding.EncodeToString(sec), base64.RawURLEncoding.EncodeToString(sec), dec, strings.ReplaceAll(dec, " ", ", ")} {
			if strings.Contains(all, form) || strings.Contains(all, form[:len(form)/2]) {
				t.Errorf("secret %d is printed as %q", i, form)
			}
		}
	}
	if strings.Contains(all, text[:40]) {
		t.Error("the token's text is printed")
	}
	if !strings.Contains(all, redacted) {
		t.Error("nothing was redacted: the test looks at nothing")
	}
}

func TestTokenText(t *testing.T) {
	s := newTestSite(t, "north")
	tok := testToken(t, s)
	text, err := tok.Text()
	must(t, err)
	got, err := ParseToken(" " + text + "\n")
	must(t, err)
	if got.SiteID != tok.SiteID || got.TokenID != tok.TokenID || !got.Secret.Equal(tok.Secret) || got.Peers[0].PeerID != tok.Peers[0].PeerID {
		t.Fatalf("got %v", got)
	}
	changed := []byte(text)
	changed[len(changed)/2] ^= 1
	for name, bad := range map[string]string{"empty": "", "prefix": "fyj2_" + text[5:], "cut": text[:len(text)-3], "changed": string(changed), "long": tokenPrefix + strings.Repeat("A", maxTokenText), "letters": tokenPrefix + "!!!"} {
		_, err := ParseToken(bad)
		wantKind(t, err, forgeyard.Invalid)
		if len(bad) > 60 && strings.Contains(err.Error(), bad[20:50]) {
			t.Errorf("%s: the error quotes the token", name)
		}
		t.Log(name, "→", err)
	}
	if SecretHash(tok.Secret) == SecretHash(NewSecret(nil)) || SecretHash(tok.Secret) != SecretHash(got.Secret) {
		t.Fatal("hash")
	}
}

func TestIdentityIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	ids := make([]Identity, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			var err error
			if ids[i], err = LoadOrCreateIdentity(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id.PeerID() != ids[0].PeerID() || id.IsZero() {
			t.Fatal("racing creators disagree")
		}
	}
	path := filepath.Join(dir, identityDir, nodeKeyFile)
	st, err := os.Stat(path)
	must(t, err)
	if runtime.GOOS != "windows" && st.Mode().Perm() != 0o600 {
		t.Fatal(st.Mode())
	}
	left, err := os.ReadDir(filepath.Dir(path))
	must(t, err)
	if len(left) != 1 {
		t.Fatalf("left over: %v", left)
	}
	if runtime.GOOS != "windows" {
		must(t, os.Chmod(path, 0o644))
		_, err = LoadOrCreateIdentity(dir)
		wantKind(t, err, forgeyard.Denied)
		must(t, os.Chmod(path, 0o600))
	}
	must(t, os.WriteFile(path, []byte("fyk1_AAAA"), 0o600))
	_, err = LoadOrCreateIdentity(dir)
	wantKind(t, err, forgeyard.Corrupt)
}

// RA-079, RA-082: an enrolment is good with the key it was given to and with no other, so
// that a machine which looks the same, or has a copy of this file, is not this runner.
func TestEnrolmentFile(t *testing.T) {
	s := newTestSite(t, "north")
	dir := t.TempDir()
	_, err := LoadEnrolment(dir)
	wantKind(t, err, forgeyard.NotFound)
	id, e := testEnrolment(t, s)
	must(t, e.Check(id.PeerID()))
	must(t, SaveEnrolment(dir, e))
	must(t, SaveEnrolment(dir, e))
	got, err := LoadEnrolment(dir)
	must(t, err)
	must(t, got.Check(id.PeerID()))
	if !got.SiteKey.Equal(e.SiteKey) || !got.GossipKey.Equal(e.GossipKey) || got.Name != e.Name || got.Peers[0].PeerID != e.Peers[0].PeerID {
		t.Fatal("changed on the way")
	}
	other, err := NewIdentity()
	must(t, err)
	wantKind(t, got.Check(other.PeerID()), forgeyard.Denied)
	path := filepath.Join(dir, identityDir, enrolmentFile)
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, b[:len(b)/2], 0o600))
	_, err = LoadEnrolment(dir)
	wantKind(t, err, forgeyard.Corrupt)

	south := newTestSite(t, "south")
	err = CheckRejoin(e, testToken(t, south))
	wantKind(t, err, forgeyard.Denied)
	if !strings.Contains(err.Error(), string(s.id)) || !strings.Contains(err.Error(), string(south.id)) {
		t.Fatal("both sites must be named:", err)
	}
	must(t, CheckRejoin(e, testToken(t, s)))
	must(t, CheckRejoin(Enrolment{}, testToken(t, s)))
}

func TestCredentialTimes(t *testing.T) {
	s := newTestSite(t, "north")
	id, err := NewIdentity()
	must(t, err)
	now := time.Unix(1_800_000_000, 0)
	raw := s.credential(t, id.PeerID(), "R", now, now.Add(time.Hour))
	c, err := ParseCredential(raw)
	must(t, err)
	must(t, c.Verify(s.pub, id.PeerID(), now.Add(time.Hour-time.Second)))
	wantKind(t, c.Verify(s.pub, id.PeerID(), now.Add(time.Hour)), forgeyard.Denied)
	must(t, c.Verify(s.pub, id.PeerID(), time.Unix(0, 0))) // a clock that lost its battery
	for _, bad := range []Claims{{}, {Site: s.id, Runner: "R", Peer: id.PeerID(), NotBefore: now, NotAfter: now}} {
		_, err := IssueCredential(s.key, bad)
		wantKind(t, err, forgeyard.Invalid)
	}
	raw[len(raw)-1] ^= 1
	c, err = ParseCredential(raw)
	must(t, err)
	wantKind(t, c.Verify(s.pub, id.PeerID(), now), forgeyard.Denied)
}

func FuzzToken(f *testing.F) {
	f.Add("fyj1_AAAA")
	f.Add("fyj1_")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.Invalid {
				t.Fatal(err)
			}
			return
		}
		if _, err := tok.Text(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzTokenBody gets past the checksum.
func FuzzTokenBody(f *testing.F) {
	f.Add([]byte{0xa0})
	f.Add([]byte("\xa4\x01x\x1a01HF000000000000000000000\x02x\x1a01HF000000000000000000000\x03X\x20\x00\x04\x80"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if tok, err := ParseToken(armor(tokenPrefix, b)); err == nil {
			if err := tok.check(); err != nil {
				t.Fatal(err)
			}
		} else if forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Fatal(err)
		}
	})
}

func FuzzCredential(f *testing.F) {
	key, pub, err := NewSiteKey()
	if err != nil {
		f.Fatal(err)
	}
	id, err := NewIdentity()
	if err != nil {
		f.Fatal(err)
	}
	raw, err := IssueCredential(key, Claims{Site: "S", Runner: "R", Peer: id.PeerID(), NotBefore: time.Unix(1, 0), NotAfter: time.Unix(2_000_000_000, 0)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte{0x82, 0x40, 0x40})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCredential(b)
		if err != nil {
			return
		}
		if c.Verify(pub, id.PeerID(), time.Unix(1000, 0)) == nil && !bytes.Equal(c.payload, mustParse(t, raw).payload) {
			t.Fatal("a credential that was never signed verifies")
		}
	})
}

func mustParse(t *testing.T, raw []byte) *Credential {
	c, err := ParseCredential(raw)
	must(t, err)
	return c
}

// FuzzFrames reads every message that a peer can send first (RA-472).
func FuzzFrames(f *testing.F) {
	for _, v := range []any{hello{Versions: versions{1, 1}, Site: "S"}, helloReply{Err: &wireError{Kind: 7, Text: "no"}}, joinMessage{Request: JoinRequest{Name: "n"}}, joinReply{}, Meta{Name: "n"}, Enrolment{}} {
		var b bytes.Buffer
		if err := writeFrame(&b, v, maxJoinFrame); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h hello
		var hr helloReply
		var jm joinMessage
		var jr joinReply
		_ = readFrame(bytes.NewReader(b), &h, maxHelloFrame)
		if readFrame(bytes.NewReader(b), &hr, maxHelloFrame) == nil && hr.Err != nil {
			if s := hr.Err.err("x").Error(); strings.ContainsAny(s, "\x1b\n\r") {
				t.Fatalf("the remote writes on our terminal: %q", s)
			}
		}
		if readFrame(bytes.NewReader(b), &jm, maxJoinFrame) == nil {
			_ = jm.Request.check()
		}
		if readFrame(bytes.NewReader(b), &jr, maxJoinFrame) == nil && jr.Enrolment != nil {
			_ = jr.Enrolment.Check("p")
		}
		if len(b) > 4 {
			if m, err := decodeMeta(b[4:]); err == nil {
				_, _ = m.encode(512)
			}
		}
		_, _ = decodeEnrolment(string(b))
	})
}
