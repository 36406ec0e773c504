package mesh

import (
	"crypto/ed25519"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

func goldenStatement() Statement {
	return Statement{Site: "01HF000000000000000000000S", Incarnation: 2, Lineage: "2-01HF000000000000000000000L", Runner: "01HF000000000000000000000R", Node: "bench-1", At: 1_800_000_000_000}
}

// TestStatementOfVersion1: a node that was away meets it years later.
func TestStatementOfVersion1(t *testing.T) {
	today, err := goldenStatement().Sign(countedSecret(80))
	must(t, err)
	got, err := OpenStatement(golden.Bytes(t, "testdata/statement-v1.hex", today), "01HF000000000000000000000S", sitePublicKey(t))
	must(t, err)
	want := goldenStatement()
	want.Version = 1
	if got != want {
		t.Fatalf("%+v", got)
	}
}

// signed puts the site's signature under any payload.
func signed(t *testing.T, payload []byte) []byte {
	t.Helper()
	k, err := siteKey(countedSecret(80))
	must(t, err)
	b, err := encMode.Marshal(credentialEnvelope{Payload: payload, Signature: ed25519.Sign(k, append([]byte(statementDomain), payload...))})
	must(t, err)
	return b
}

// Only the site's key ends an incarnation: neither another key, nor its signature under
// something else, nor a statement about another site, nor one that names nothing.
func TestStatementIsTheSitesOwn(t *testing.T) {
	good, err := goldenStatement().Sign(countedSecret(80))
	must(t, err)
	foreign, err := goldenStatement().Sign(countedSecret(81))
	must(t, err)
	changed := append([]byte(nil), good...)
	changed[len(changed)-1] ^= 1
	of := func(change func(*Statement)) []byte {
		s := goldenStatement()
		s.Version = 1
		change(&s)
		b, err := encMode.Marshal(s)
		must(t, err)
		return signed(t, b)
	}
	for name, c := range map[string]struct {
		raw  []byte
		kind forgeyard.Kind
		text string
	}{
		"another key":      {foreign, forgeyard.Denied, "has not signed it"},
		"a changed bit":    {changed, forgeyard.Denied, "has not signed it"},
		"a credential":     {goldenCredential(t), forgeyard.Denied, "has not signed it"},
		"no bytes":         {nil, forgeyard.Invalid, "cannot be read"},
		"too long":         {make([]byte, maxHelloFrame+1), forgeyard.Invalid, "the limit is"},
		"cut":              {good[:len(good)-1], forgeyard.Invalid, "cannot be read"},
		"no payload":       {signed(t, nil), forgeyard.Invalid, "cannot be read"},
		"a later version":  {of(func(s *Statement) { s.Version = 2 }), forgeyard.Invalid, "version 2 is not known"},
		"another site":     {of(func(s *Statement) { s.Site = "01HF000000000000000000000X" }), forgeyard.Denied, "it is about site 01HF000000000000000000000X"},
		"no incarnation":   {of(func(s *Statement) { s.Incarnation = 0 }), forgeyard.Invalid, "must be set"},
		"no lineage":       {of(func(s *Statement) { s.Lineage = "" }), forgeyard.Invalid, "must be set"},
		"an endless name":  {of(func(s *Statement) { s.Node = strings.Repeat("n", maxName+1) }), forgeyard.Invalid, "must be set"},
		"an endless group": {of(func(s *Statement) { s.Lineage = strings.Repeat("l", maxName+1) }), forgeyard.Invalid, "must be set"},
	} {
		_, err := OpenStatement(c.raw, "01HF000000000000000000000S", sitePublicKey(t))
		if forgeyard.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenStatement(good, "01HF000000000000000000000S", nil); forgeyard.KindOf(err) != forgeyard.Denied {
		t.Errorf("a node that knows no key of the site believes: %v", err)
	}
	if _, err := goldenStatement().Sign(Secret{}); err == nil {
		t.Error("a node that holds no site key signs")
	}
}

// FuzzStatement reads any bytes, and the same once more under the site's signature, as a
// member that lies could make them: what is believed is complete, and about this site.
func FuzzStatement(f *testing.F) {
	f.Add([]byte{0x82, 0x40, 0x40})
	f.Add([]byte{0xa0})
	if b, err := encMode.Marshal(goldenStatement()); err == nil {
		f.Add(b)
	}
	if b, err := goldenStatement().Sign(countedSecret(80)); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const site = "01HF000000000000000000000S"
		if _, err := OpenStatement(b, site, sitePublicKey(t)); err == nil && len(b) < ed25519.SignatureSize {
			t.Fatal("bytes without a signature are believed")
		}
		s, err := OpenStatement(signed(t, b), site, sitePublicKey(t))
		switch {
		case err != nil && forgeyard.KindOf(err) != forgeyard.Invalid && forgeyard.KindOf(err) != forgeyard.Denied:
			t.Fatal(err)
		case err == nil && (s.Site != site || s.Incarnation == 0 || s.Lineage == "" || s.Version != 1):
			t.Fatalf("%+v is believed", s)
		}
	})
}
