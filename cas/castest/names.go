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

// Named is a store that finds its objects by other names too.
type Named interface {
	cas.Store
	cas.Names
}

// RunNames holds the stores that open makes against the contract of cas.Names. Each call
// of open gives an empty store.
func RunNames(t *testing.T, open func(t *testing.T) Named) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Named)
	}{
		{"PutBindsItsSHA256", putBinds},
		{"C01/WrongSHA256LeavesNothing", wrongSHA256},
		{"BindResolveUnbind", bindResolve},
		{"Trim", trim},
		{"C08/KeptIsNotCollected", kept},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, open(t)) })
	}
}

func sha256Of(b []byte) cas.Name { return cas.Name{Space: cas.SpaceSHA256, Key: sha256.Sum256(b)} }

func resolve(t *testing.T, s Named, names ...cas.Name) []cas.Binding {
	t.Helper()
	got, err := s.Resolve(context.Background(), names...)
	must(t, err)
	return got
}

func putBinds(t *testing.T, s Named) {
	ctx := context.Background()
	for i, n := range []int{10, 20_000, cas.BlockSize + 9} {
		b := Bytes(uint64(100+i), n)
		if i == 1 {
			Put(t, s, b) // here already, without the name
		}
		for _, byContent := range []bool{false, true} {
			ref, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{SHA256: sha256.Sum256(b), ByContent: byContent})
			must(t, err)
			if got := resolve(t, s, sha256Of(b)); len(got) != 1 || got[0].Ref != ref {
				t.Fatalf("%d bytes: %+v", n, got)
			}
		}
	}
	if got := resolve(t, s, sha256Of([]byte("absent"))); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
}

func wrongSHA256(t *testing.T, s Named) {
	for _, n := range []int{10, cas.BlockSize + 9} {
		b := Bytes(120, n)
		_, err := s.Put(context.Background(), bytes.NewReader(b), cas.PutOptions{SHA256: cas.SHA256{1}})
		WantKind(t, err, forgeyard.Corrupt)
		if s.Has(context.Background(), cas.Sum(b)) || len(resolve(t, s, cas.Name{Space: cas.SpaceSHA256, Key: cas.SHA256{1}})) != 0 {
			t.Fatal("wrong bytes were kept")
		}
	}
}

func bindResolve(t *testing.T, s Named) {
	ctx := context.Background()
	one, two := Put(t, s, Bytes(121, 10)), Put(t, s, Bytes(122, cas.BlockSize+1))
	a, b, c := cas.Name{Space: cas.SpaceAction, Key: [32]byte{1}}, cas.Name{Space: cas.SpacePlain, Key: [32]byte{1}}, cas.Name{Space: cas.SpacePlain, Key: [32]byte{2}}
	must(t, s.Bind(ctx, cas.Durable, cas.Binding{Name: a, Ref: one}, cas.Binding{Name: b, Ref: two}))
	got := resolve(t, s, c, b, a)
	if len(got) != 2 || got[0].Name != b || got[0].Ref != two || got[1].Name != a || got[1].Ref != one {
		t.Fatalf("%+v", got)
	}
	if age := time.Since(got[0].Used); age < -time.Hour || age > 2*time.Hour {
		t.Fatalf("used at %v", got[0].Used)
	}
	must(t, s.Bind(ctx, cas.Cache, cas.Binding{Name: a, Ref: two}, cas.Binding{Name: c, Ref: one}))
	if got := resolve(t, s, a, c); len(got) != 2 || got[0].Ref != two || got[1].Ref != one {
		t.Fatalf("bound anew: %+v", got)
	}
	must(t, s.Unbind(ctx, a, cas.Name{Space: cas.SpaceAction, Key: [32]byte{9}}))
	if got := resolve(t, s, a, b); len(got) != 1 || got[0].Name != b {
		t.Fatalf("%+v", got)
	}
	// Of several, one that is no name: none is bound.
	WantKind(t, s.Bind(ctx, cas.Cache, cas.Binding{Name: a, Ref: one}, cas.Binding{Name: cas.Name{Key: [32]byte{3}}, Ref: one}), forgeyard.Invalid)
	WantKind(t, s.Bind(ctx, cas.Cache, cas.Binding{Name: a}), forgeyard.Invalid)
	if got := resolve(t, s, a); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
}

func trim(t *testing.T, s Named) {
	ctx := context.Background()
	ref := Put(t, s, Bytes(123, 10))
	var actions []cas.Name
	for i := range 10 {
		actions = append(actions, cas.Name{Space: cas.SpaceAction, Key: [32]byte{byte(i)}})
		must(t, s.Bind(ctx, cas.Cache, cas.Binding{Name: actions[i], Ref: ref}))
	}
	plain := cas.Name{Space: cas.SpacePlain, Key: [32]byte{1}}
	must(t, s.Bind(ctx, cas.Cache, cas.Binding{Name: plain, Ref: ref}))
	for _, c := range []struct {
		since time.Time
		most  int
		gone  int
		left  int
	}{
		{time.Now().Add(-2 * time.Hour), 0, 0, 10},
		{time.Now().Add(-2 * time.Hour), 7, 3, 7},
		{time.Now().Add(2 * time.Hour), 0, 7, 0},
	} {
		n, err := s.Trim(ctx, cas.SpaceAction, c.since, c.most)
		if err != nil || n != c.gone || len(resolve(t, s, actions...)) != c.left {
			t.Fatalf("%+v: %d gone, %d left: %v", c, n, len(resolve(t, s, actions...)), err)
		}
	}
	if got := resolve(t, s, plain); len(got) != 1 {
		t.Fatal("another space was trimmed")
	}
}

// C08: what a client was told is here stays for as long as he was told.
func kept(t *testing.T, s Named) {
	ctx := context.Background()
	large, small, other := Put(t, s, Bytes(130, cas.BlockSize+1)), Put(t, s, Bytes(131, 10)), Put(t, s, Bytes(132, 10))
	absent := cas.Sum([]byte("absent"))
	missing, err := s.Keep(ctx, time.Now().Add(time.Hour), large.Digest, absent, small.Digest, cas.Empty())
	if err != nil || len(missing) != 1 || missing[0] != absent {
		t.Fatalf("%v %v", missing, err)
	}
	if _, err := s.Keep(ctx, time.Now().Add(-time.Hour), small.Digest, other.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	if !s.Has(ctx, large.Digest) || !s.Has(ctx, large.Manifest) || !s.Has(ctx, small.Digest) || s.Has(ctx, other.Digest) {
		t.Fatal("what was kept is not what is here")
	}
	_, err = s.Keep(ctx, time.Now().Add(cas.MaxKeep+time.Hour), small.Digest)
	WantKind(t, err, forgeyard.Invalid)
}
