package castest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Cataloged is a store that remembers more than objects.
type Cataloged interface {
	cas.Store
	cas.Catalog
}

// RunCatalog holds the stores that open makes against the contract of cas.Catalog.
func RunCatalog(t *testing.T, open func(t *testing.T) Cataloged) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Cataloged)
	}{
		{"AliasOfWhatIsPut", aliasOfPut},
		{"AliasOfWhatIsHere", aliasOfHere},
		{"C01/WrongSHA256LeavesNothing", aliasWrong},
		{"C08/TouchedIsNotCollected", touched},
		{"Actions", actions},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, open(t)) })
	}
}

func aliasOfPut(t *testing.T, s Cataloged) {
	ctx := context.Background()
	for i, n := range []int{10, 20_000, cas.BlockSize + 9} {
		for _, byContent := range []bool{false, true} {
			b := Bytes(uint64(100+i), n)
			sha := cas.SHA256(sha256.Sum256(b))
			ref, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{SHA256: sha, ByContent: byContent})
			must(t, err)
			if got, err := s.Alias(ctx, sha); err != nil || got != ref.Digest {
				t.Fatalf("%d bytes: %v %v", n, got, err)
			}
		}
	}
	if got, err := s.Alias(ctx, sha256.Sum256(nil)); err != nil || got != cas.Empty() {
		t.Fatalf("of nothing: %v %v", got, err)
	}
	_, err := s.Alias(ctx, cas.SHA256{1})
	WantKind(t, err, forgeyard.NotFound)
}

// What was put without a SHA-256 gets one later, and loses it with its bytes.
func aliasOfHere(t *testing.T, s Cataloged) {
	ctx := context.Background()
	b := Bytes(110, 2*cas.BlockSize)
	sha := cas.SHA256(sha256.Sum256(b))
	ref := Put(t, s, b)
	_, err := s.Alias(ctx, sha)
	WantKind(t, err, forgeyard.NotFound)
	if got, err := s.AddAlias(ctx, ref.Digest); err != nil || got != sha {
		t.Fatalf("%s %v", got, err)
	}
	if got, err := s.Alias(ctx, sha); err != nil || got != ref.Digest {
		t.Fatalf("%v %v", got, err)
	}
	small := Bytes(111, 50)
	Put(t, s, small)
	if _, err := s.Put(ctx, bytes.NewReader(small), cas.PutOptions{SHA256: sha256.Sum256(small)}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Alias(ctx, sha256.Sum256(small)); err != nil || got != cas.Sum(small) {
		t.Fatalf("put again with it: %v %v", got, err)
	}
	_, err = s.AddAlias(ctx, cas.Sum([]byte("absent")))
	WantKind(t, err, forgeyard.NotFound)
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	_, err = s.Alias(ctx, sha)
	WantKind(t, err, forgeyard.NotFound)
}

func aliasWrong(t *testing.T, s Cataloged) {
	ctx := context.Background()
	for _, n := range []int{10, cas.BlockSize + 9} {
		b := Bytes(120, n)
		_, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{SHA256: cas.SHA256{1}})
		WantKind(t, err, forgeyard.Corrupt)
		if s.Has(ctx, cas.Sum(b)) {
			t.Fatal("wrong bytes were kept")
		}
		_, err = s.Alias(ctx, cas.SHA256{1})
		WantKind(t, err, forgeyard.NotFound)
	}
}

// C08: what a client was told is here stays for as long as he was told.
func touched(t *testing.T, s Cataloged) {
	ctx := context.Background()
	large, small, other := Put(t, s, Bytes(130, cas.BlockSize+1)), Put(t, s, Bytes(131, 10)), Put(t, s, Bytes(132, 10))
	absent := cas.Sum([]byte("absent"))
	missing, err := s.Touch(ctx, time.Now().Add(time.Hour), large.Digest, absent, small.Digest, cas.Empty())
	if err != nil || len(missing) != 1 || missing[0] != absent {
		t.Fatalf("%v %v", missing, err)
	}
	if _, err := s.Touch(ctx, time.Now().Add(-time.Hour), small.Digest, other.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	if !s.Has(ctx, large.Digest) || !s.Has(ctx, large.Manifest) || !s.Has(ctx, small.Digest) || s.Has(ctx, other.Digest) {
		t.Fatal("what was touched is not what is here")
	}
	_, err = s.Touch(ctx, time.Now().Add(cas.MaxTouch+time.Hour), small.Digest)
	WantKind(t, err, forgeyard.Invalid)
}

func actions(t *testing.T, s Cataloged) {
	ctx := context.Background()
	_, err := s.Action(ctx, []byte("a"))
	WantKind(t, err, forgeyard.NotFound)
	must(t, s.PutAction(ctx, []byte("a"), []byte("one")))
	must(t, s.PutAction(ctx, []byte("ab"), nil))
	must(t, s.PutAction(ctx, []byte("a"), []byte("two")))
	if v, err := s.Action(ctx, []byte("a")); err != nil || string(v) != "two" {
		t.Fatalf("%q %v", v, err)
	}
	if v, err := s.Action(ctx, []byte("ab")); err != nil || len(v) != 0 {
		t.Fatalf("%q %v", v, err)
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		must(t, s.DropAction(ctx, []byte("a")))
	}
	_, err = s.Action(ctx, []byte("a"))
	WantKind(t, err, forgeyard.NotFound)
	if _, err := s.Action(ctx, []byte("ab")); err != nil {
		t.Fatal(err)
	}
	most := Bytes(140, cas.MaxActionBytes)
	must(t, s.PutAction(ctx, most[:cas.MaxActionKey], most))
	if v, err := s.Action(ctx, most[:cas.MaxActionKey]); err != nil || !bytes.Equal(v, most) {
		t.Fatalf("%d bytes: %v", len(v), err)
	}
	WantKind(t, s.PutAction(ctx, []byte("a"), append(most, 0)), forgeyard.Limit)
	WantKind(t, s.PutAction(ctx, nil, nil), forgeyard.Invalid)
	WantKind(t, s.PutAction(ctx, most[:cas.MaxActionKey+1], nil), forgeyard.Invalid)
}
