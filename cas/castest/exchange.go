package castest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Site is an exchange and those it can fetch from.
type Site struct {
	cas.Exchange
	Peers []Peer
}

// Peer is one of them.
type Peer struct {
	Name string // what it is called among a fetch's providers
	Gone func() // its machine goes, and does not answer from now on
}

// RunExchange holds the exchanges that open makes against the contract. Each call of store
// gives an empty store. Open gives an exchange that writes to local, and a peer over each of
// the other stores, all of them connected.
func RunExchange(t *testing.T, store func(t *testing.T) cas.Store, open func(t *testing.T, local cas.Store, peers ...cas.Store) Site) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, exchangeCase)
	}{
		{"WhatIsFetchedIsHere", fetched},
		{"WhatIsHereIsNotFetched", fetchedHere},
		{"WhoIsConnectedIsAskedToo", fetchedUnnamed},
		{"NobodyHasIt", fetchedNowhere},
		{"ProviderThatDoesNotAnswer", fetchedFromGone},
		{"C01/OnlyWrongBytes", fetchedWrong},
		{"C02/WrongBytesBesideRightOnes", fetchedDespite},
		{"NoSpaceIsSaid", fetchedFull},
		{"WhatWasVerifiedIsKept", fetchedInParts},
		{"RefsThatCannotBe", fetchedBadRef},
		{"EndsWithItsCaller", fetchedEnded},
		{"ManyFetchOneBlob", fetchedTogether},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, exchangeCase{store, open}) })
	}
}

type exchangeCase struct {
	store func(t *testing.T) cas.Store
	open  func(t *testing.T, local cas.Store, peers ...cas.Store) Site
}

// twoPeers is the usual scene: a store of ours, and two others.
func (c exchangeCase) twoPeers(t *testing.T) (local, a, b cas.Store, s Site) {
	local, a, b = c.store(t), c.store(t), c.store(t)
	return local, a, b, c.open(t, local, a, b)
}

func wantBytes(t *testing.T, s cas.Store, ref cas.Ref, want []byte) {
	t.Helper()
	if !s.Has(context.Background(), ref.Digest) || !bytes.Equal(Read(t, s, ref.Digest), want) {
		t.Fatalf("%d bytes are not here as they were there", len(want))
	}
}

func fetched(t *testing.T, c exchangeCase) {
	local, a, _, s := c.twoPeers(t)
	for i, n := range sizes {
		b := Bytes(uint64(i), n)
		ref, err := a.Put(t.Context(), bytes.NewReader(b), cas.PutOptions{ByContent: i%2 == 1})
		must(t, err)
		must(t, s.Fetch(t.Context(), ref, []string{s.Peers[0].Name}))
		wantBytes(t, local, ref, b)
	}
	b := Bytes(99, 2*cas.BlockSize+1) // of which only the digest is known
	ref := Put(t, a, b)
	must(t, s.Fetch(t.Context(), cas.Ref{Digest: ref.Digest, Size: ref.Size}, []string{s.Peers[0].Name}))
	wantBytes(t, local, ref, b)
}

func fetchedHere(t *testing.T, c exchangeCase) {
	local := c.store(t)
	s := c.open(t, local)
	ref := Put(t, local, Bytes(1, 100))
	must(t, s.Fetch(t.Context(), ref, []string{"no-such-runner"}))
	must(t, s.Fetch(t.Context(), cas.Ref{Digest: cas.Empty()}, nil)) // nobody need be asked for nothing
}

func fetchedUnnamed(t *testing.T, c exchangeCase) {
	local, a, b, s := c.twoPeers(t)
	one, two := Bytes(1, 100), Bytes(2, cas.BlockSize+1)
	ref := Put(t, b, one)
	must(t, s.Fetch(t.Context(), ref, []string{s.Peers[0].Name})) // who was named has it not
	wantBytes(t, local, ref, one)
	ref = Put(t, a, two)
	must(t, s.Fetch(t.Context(), ref, nil))
	wantBytes(t, local, ref, two)
}

func fetchedNowhere(t *testing.T, c exchangeCase) {
	_, _, _, s := c.twoPeers(t)
	for i, n := range []int{10, 3 * cas.BlockSize} {
		ref, _ := Describe(t, Bytes(uint64(i), n))
		WantKind(t, s.Fetch(t.Context(), ref, []string{s.Peers[0].Name}), forgeyard.NotFound)
	}
	ref, _ := Describe(t, Bytes(1, 10))
	WantKind(t, c.open(t, c.store(t)).Fetch(t.Context(), ref, nil), forgeyard.NotFound)
}

func fetchedFromGone(t *testing.T, c exchangeCase) {
	local, a, b, s := c.twoPeers(t)
	ref := Put(t, a, Bytes(1, 100))
	s.Peers[0].Gone()
	providers := []string{s.Peers[0].Name, "no-such-runner"}
	start := time.Now()
	err := s.Fetch(t.Context(), ref, providers)
	WantKind(t, err, forgeyard.Unavailable)
	for _, p := range providers {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%v does not name %s", err, p)
		}
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("a provider that is gone cost %v", took)
	}
	Put(t, b, Bytes(1, 100))
	must(t, s.Fetch(t.Context(), ref, append(providers, s.Peers[1].Name)))
	wantBytes(t, local, ref, Bytes(1, 100))
}

// zeroed gives other bytes than those that it has, under the right names.
type zeroed struct{ cas.Store }

func (z zeroed) Block(ctx context.Context, d forgeyard.Digest) ([]byte, error) {
	b, err := z.Store.Block(ctx, d)
	clear(b)
	return b, err
}

func fetchedWrong(t *testing.T, c exchangeCase) {
	for i, n := range []int{100, 3 * cas.BlockSize} {
		local, bad := c.store(t), c.store(t)
		s := c.open(t, local, zeroed{bad})
		ref := Put(t, bad, Bytes(uint64(i), n))
		err := s.Fetch(t.Context(), ref, []string{s.Peers[0].Name})
		WantKind(t, err, forgeyard.Corrupt)
		if !strings.Contains(err.Error(), s.Peers[0].Name) {
			t.Errorf("%v does not name the peer", err)
		}
		if local.Has(t.Context(), ref.Digest) {
			t.Error("wrong bytes are here")
		}
	}
}

func fetchedDespite(t *testing.T, c exchangeCase) {
	for i, n := range []int{100, 3 * cas.BlockSize} {
		local, bad, good := c.store(t), c.store(t), c.store(t)
		s := c.open(t, local, zeroed{bad}, good)
		b := Bytes(uint64(i), n)
		ref := Put(t, bad, b)
		Put(t, good, b)
		must(t, s.Fetch(t.Context(), ref, []string{s.Peers[0].Name, s.Peers[1].Name}))
		wantBytes(t, local, ref, b)
	}
}

// full has no room for anything.
type full struct{ cas.Store }

func (full) err() error { return forgeyard.Errorf("full", forgeyard.NoSpace, "there is no room") }

func (f full) Put(context.Context, io.Reader, cas.PutOptions) (cas.Ref, error) {
	return cas.Ref{}, f.err()
}

func (f full) Partial(context.Context, cas.Manifest) (cas.Partial, error) { return nil, f.err() }

func fetchedFull(t *testing.T, c exchangeCase) {
	a := c.store(t)
	s := c.open(t, full{c.store(t)}, a)
	for i, n := range []int{100, 3 * cas.BlockSize} {
		ref := Put(t, a, Bytes(uint64(i), n))
		WantKind(t, s.Fetch(t.Context(), ref, []string{s.Peers[0].Name}), forgeyard.NoSpace)
	}
}

func fetchedInParts(t *testing.T, c exchangeCase) {
	local, a, b, s := c.twoPeers(t)
	data := Bytes(7, 4*cas.BlockSize)
	ref, m := Describe(t, data)
	p, err := a.Partial(t.Context(), m)
	must(t, err)
	for _, i := range []int{0, 2} {
		must(t, p.PutBlock(i, data[i*cas.BlockSize:(i+1)*cas.BlockSize]))
	}
	must(t, p.Close())
	if err := s.Fetch(t.Context(), ref, []string{s.Peers[0].Name}); err == nil {
		t.Fatal("half a blob is a whole one")
	}
	in, err := local.Stat(t.Context(), ref.Digest)
	if err != nil || in.Complete || in.Have != 2*cas.BlockSize {
		t.Fatalf("of half a blob is here: %+v %v", in, err)
	}
	s.Peers[0].Gone()
	Put(t, b, data)
	must(t, s.Fetch(t.Context(), ref, []string{s.Peers[1].Name}))
	wantBytes(t, local, ref, data)
}

func fetchedBadRef(t *testing.T, c exchangeCase) {
	_, a, _, s := c.twoPeers(t)
	ref := Put(t, a, Bytes(1, 100))
	for want, refs := range map[forgeyard.Kind][]cas.Ref{
		forgeyard.Invalid: {{Size: 1}, {Digest: ref.Digest, Size: -1}, {Digest: ref.Digest, Size: 5, Manifest: ref.Digest}},
		forgeyard.Limit:   {{Digest: ref.Digest, Size: cas.MaxBlobSize + 1}},
	} {
		for _, r := range refs {
			WantKind(t, s.Fetch(t.Context(), r, []string{s.Peers[0].Name}), want)
		}
	}
}

func fetchedEnded(t *testing.T, c exchangeCase) {
	local, a, _, s := c.twoPeers(t)
	ref := Put(t, a, Bytes(1, 3*cas.BlockSize))
	ended, end := context.WithCancel(t.Context())
	end()
	WantKind(t, s.Fetch(ended, ref, []string{s.Peers[0].Name}), forgeyard.Interrupted)
	late, end := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer end()
	WantKind(t, s.Fetch(late, ref, []string{s.Peers[0].Name}), forgeyard.Unavailable)
	must(t, s.Fetch(t.Context(), ref, []string{s.Peers[0].Name}))
	wantBytes(t, local, ref, Bytes(1, 3*cas.BlockSize))
}

func fetchedTogether(t *testing.T, c exchangeCase) {
	local, a, b, s := c.twoPeers(t)
	data := Bytes(1, 5*cas.BlockSize)
	ref := Put(t, a, data)
	Put(t, b, data)
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = s.Fetch(t.Context(), ref, []string{s.Peers[i%2].Name})
		})
	}
	wg.Wait()
	must(t, errors.Join(errs...))
	wantBytes(t, local, ref, data)
}

// Direct is an Exchange without a network: it reads the stores of others. It passes
// RunExchange.
type Direct struct {
	To   cas.Store
	From map[string]cas.Store // by name; one that does not answer is nil
}

var _ cas.Exchange = Direct{}

// Fetch implements cas.Exchange.
func (x Direct) Fetch(ctx context.Context, ref cas.Ref, providers []string) error {
	const op = "fetch"
	switch {
	case ref.Digest.IsZero() || ref.Size < 0 || !ref.Manifest.IsZero() && ref.Size <= cas.BlockSize:
		return forgeyard.Errorf(op, forgeyard.Invalid, "%+v names no blob", ref)
	case ref.Size > cas.MaxBlobSize:
		return forgeyard.Errorf(op, forgeyard.Limit, "size %d exceeds %d", ref.Size, cas.MaxBlobSize)
	}
	if ref.Digest == cas.Empty() || x.To.Has(ctx, ref.Digest) {
		return nil
	}
	names := slices.Clone(providers)
	for n := range x.From {
		if !slices.Contains(names, n) && x.From[n] != nil {
			names = append(names, n)
		}
	}
	kind, why := forgeyard.NotFound, []string{"nobody has " + ref.Digest.Short()}
	for _, n := range names {
		var err error = forgeyard.Errorf(op, forgeyard.Unavailable, "it does not answer")
		if from := x.From[n]; from != nil {
			err = x.copy(ctx, ref, from)
		}
		switch k := forgeyard.KindOf(err); {
		case err == nil:
			return nil
		case k == forgeyard.NotFound:
			continue
		case k != forgeyard.Corrupt && k != forgeyard.Unavailable:
			return err
		case kind != forgeyard.Unavailable:
			kind = k
		}
		why = append(why, n+": "+err.Error())
	}
	return forgeyard.Errorf(op, kind, "%s", strings.Join(why, ", "))
}

func (x Direct) copy(ctx context.Context, ref cas.Ref, from cas.Store) error {
	switch err := ctx.Err(); {
	case errors.Is(err, context.DeadlineExceeded):
		return forgeyard.Errorf("fetch", forgeyard.Unavailable, "the time is over")
	case err != nil:
		return forgeyard.E("fetch", forgeyard.Interrupted, err)
	}
	in, err := from.Stat(ctx, ref.Digest)
	if err != nil {
		return err
	}
	if in.Ref.Manifest.IsZero() {
		b, err := from.Block(ctx, ref.Digest)
		if err == nil {
			_, err = x.To.Put(ctx, bytes.NewReader(b), cas.PutOptions{Expect: ref.Digest})
		}
		return err
	}
	enc, err := from.Block(ctx, in.Ref.Manifest)
	if err != nil {
		return err
	}
	m, err := cas.DecodeManifest(enc)
	if err != nil || cas.Sum(enc) != in.Ref.Manifest {
		return forgeyard.Errorf("fetch", forgeyard.Corrupt, "the manifest is another one")
	}
	p, err := x.To.Partial(ctx, m)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }() // what was verified stays
	var lacks error
	for _, i := range p.Missing() {
		b, err := from.Block(ctx, m.Blocks[i].Digest)
		if forgeyard.KindOf(err) == forgeyard.NotFound && err != nil {
			lacks = err
			continue
		}
		if err == nil {
			err = p.PutBlock(i, b)
		}
		if err != nil {
			return err
		}
	}
	if lacks != nil {
		return lacks
	}
	_, err = p.Commit(ctx, cas.Durable)
	return err
}
