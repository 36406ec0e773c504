package mesh

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// TestMemberSignatureOfVersion1: a bundle lies in a drawer for years.
func TestMemberSignatureOfVersion1(t *testing.T) {
	data := []byte("an index")
	today, err := countedIdentity(t, 7).SignAsMember(BundleDomain, goldenCredential(t), data)
	must(t, err)
	c, err := OpenMemberSignature(golden.Bytes(t, "testdata/member-signature-v1.hex", today), BundleDomain, data, sitePublicKey(t), time.Unix(1_810_000_000, 0))
	must(t, err)
	if c.Runner != "01HF000000000000000000000R" {
		t.Fatalf("%+v", c.Claims)
	}
}

// Whoever is not a member of the site, or did not sign these bytes for this use, is not
// believed.
func TestMemberSignatureIsTheMembersOwn(t *testing.T) {
	data, at := []byte("an index"), time.Unix(1_810_000_000, 0)
	sign := func(i Identity, domain string) []byte {
		b, err := i.SignAsMember(domain, goldenCredential(t), data)
		must(t, err)
		return b
	}
	good := sign(countedIdentity(t, 7), BundleDomain)
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)-1] ^= 1
	other, _ := ed25519.NewKeyFromSeed(countedSecret(81).Reveal()).Public().(ed25519.PublicKey)
	for name, c := range map[string]struct {
		raw  []byte
		data string
		key  ed25519.PublicKey
		at   time.Time
		kind forgeyard.Kind
		text string
	}{
		"another's credential": {sign(countedIdentity(t, 8), BundleDomain), "an index", sitePublicKey(t), at, forgeyard.Denied, "has not signed"},
		"another use":          {sign(countedIdentity(t, 7), "something else\x00"), "an index", sitePublicKey(t), at, forgeyard.Denied, "has not signed"},
		"other bytes":          {good, "another index", sitePublicKey(t), at, forgeyard.Denied, "has not signed"},
		"a changed bit":        {flipped, "an index", sitePublicKey(t), at, forgeyard.Denied, "has not signed"},
		"another site":         {good, "an index", other, at, forgeyard.Denied, "is not signed by the key of site"},
		"no key of the site":   {good, "an index", nil, at, forgeyard.Denied, "is not signed by the key of site"},
		"before it was member": {good, "an index", sitePublicKey(t), time.Unix(1_799_999_999, 0), forgeyard.Denied, "is good from"},
		"after it was member":  {good, "an index", sitePublicKey(t), time.Unix(1_831_536_000, 0), forgeyard.Denied, "is good from"},
		"no bytes":             {nil, "an index", sitePublicKey(t), at, forgeyard.Invalid, "cannot be read"},
		"too long":             {make([]byte, maxHelloFrame+1), "an index", sitePublicKey(t), at, forgeyard.Invalid, "the limit is"},
		"a bare credential":    {goldenCredential(t), "an index", sitePublicKey(t), at, forgeyard.Invalid, ""},
	} {
		_, err := OpenMemberSignature(c.raw, BundleDomain, []byte(c.data), c.key, c.at)
		if forgeyard.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (Identity{}).SignAsMember(BundleDomain, goldenCredential(t), data); err == nil {
		t.Error("no key signs")
	}
	if _, err := countedIdentity(t, 7).SignAsMember(BundleDomain, nil, data); err == nil {
		t.Error("who has no credential signs as a member")
	}
}

func FuzzMemberSignature(f *testing.F) {
	f.Add([]byte{0x82, 0x40, 0x40})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := OpenMemberSignature(b, BundleDomain, []byte("an index"), sitePublicKey(t), time.Unix(1_810_000_000, 0))
		if err == nil {
			t.Fatal("bytes that no member made are believed")
		}
		if k := forgeyard.KindOf(err); k != forgeyard.Invalid && k != forgeyard.Denied {
			t.Fatal(err)
		}
	})
}
