package castest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openPartial(t testing.TB, s cas.Store, m cas.Manifest) cas.Partial {
	t.Helper()
	p, err := s.Partial(context.Background(), m)
	must(t, err)
	return p
}

// RA-198: what is interrupted goes on from what is here, and has its name only when it is
// whole.
func partialResumes(t *testing.T, s cas.Store) {
	ctx := context.Background()
	b := Bytes(20, 5*cas.BlockSize+3)
	ref, m := Describe(t, b)
	p := openPartial(t, s, m)
	if got := p.Missing(); len(got) != 6 || got[0] != 0 || got[5] != 5 {
		t.Fatalf("missing %v", got)
	}
	WantKind(t, p.PutBlock(6, nil), forgeyard.Invalid)
	WantKind(t, p.PutBlock(-1, nil), forgeyard.Invalid)
	WantKind(t, p.PutBlock(0, b[1:cas.BlockSize+1]), forgeyard.Corrupt)
	WantKind(t, p.PutBlock(0, b[:10]), forgeyard.Corrupt)
	if len(p.Missing()) != 6 {
		t.Fatal("wrong bytes changed something")
	}
	off := m.Offsets()
	for _, i := range []int{4, 0, 5} {
		must(t, p.PutBlock(i, b[off[i]:off[i]+m.Blocks[i].Size]))
	}
	_, err := p.Commit(ctx, cas.Durable)
	WantKind(t, err, forgeyard.Conflict)
	if s.Has(ctx, ref.Digest) {
		t.Fatal("half a blob has the name of the whole")
	}
	_, err = s.Open(ctx, ref.Digest)
	WantKind(t, err, forgeyard.NotFound)
	info, err := s.Stat(ctx, ref.Digest)
	if err != nil || info.Complete || info.Ref != ref || info.Have > 2*cas.BlockSize+3 {
		t.Fatalf("%+v %v", info, err)
	}
	must(t, p.Close())
	must(t, p.Close())

	p = openPartial(t, s, m)
	second := openPartial(t, s, m)
	if got := p.Missing(); len(got) != 3 || got[0] != 1 || got[2] != 3 {
		t.Fatalf("after reopening %v are missing", got)
	}
	for _, i := range p.Missing() {
		must(t, second.PutBlock(i, b[off[i]:off[i]+m.Blocks[i].Size]))
	}
	for range 2 {
		got, err := p.Commit(ctx, cas.Durable)
		if err != nil || got != ref {
			t.Fatalf("%+v %v", got, err)
		}
	}
	if len(second.Missing()) != 0 || !bytes.Equal(Read(t, s, ref.Digest), b) {
		t.Fatal("did not come back")
	}
	must(t, p.Close())
	must(t, second.Close())
	p = openPartial(t, s, m)
	if got, err := p.Commit(ctx, cas.Durable); err != nil || got != ref || len(p.Missing()) != 0 {
		t.Fatalf("of a blob that is here: %+v %v", got, err)
	}
	must(t, p.Close())
	if u, err := s.Usage(ctx); err != nil || u.Objects != 2 || u.Bytes < int64(len(b)) || u.Bytes > int64(len(b))+4096 {
		t.Fatalf("usage %+v %v", u, err)
	}
}

func partialServes(t *testing.T, s cas.Store) {
	ctx := context.Background()
	b := Bytes(21, 3*cas.BlockSize)
	_, m := Describe(t, b)
	p := openPartial(t, s, m)
	must(t, p.PutBlock(1, b[cas.BlockSize:2*cas.BlockSize]))
	check := func(when string) {
		t.Helper()
		got, err := s.Block(ctx, m.Blocks[1].Digest)
		if err != nil || !bytes.Equal(got, b[cas.BlockSize:2*cas.BlockSize]) {
			t.Fatalf("%s: %v", when, err)
		}
		if n, err := s.BlockSize(ctx, m.Blocks[1].Digest); err != nil || n != cas.BlockSize {
			t.Fatalf("%s: %d %v", when, n, err)
		}
		_, err = s.Block(ctx, m.Blocks[0].Digest)
		WantKind(t, err, forgeyard.NotFound)
	}
	check("open")
	must(t, p.Close())
	check("closed")
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	_, err := s.Block(ctx, m.Blocks[1].Digest)
	WantKind(t, err, forgeyard.NotFound) // nobody kept it
	if u, err := s.Usage(ctx); err != nil || u.Bytes != 0 {
		t.Fatalf("%+v %v", u, err)
	}
}

// Every block matches the manifest, and the manifest does not match the whole.
func lyingManifest(t *testing.T, s cas.Store) {
	ctx := context.Background()
	b := Bytes(22, 2*cas.BlockSize+1)
	ref, m := Describe(t, b)
	truth := m
	m.Whole = cas.Sum([]byte("another blob"))
	p := openPartial(t, s, m)
	for i, off := range m.Offsets() {
		must(t, p.PutBlock(i, b[off:off+m.Blocks[i].Size]))
	}
	_, err := p.Commit(ctx, cas.Durable)
	WantKind(t, err, forgeyard.Corrupt)
	must(t, p.Close())
	if s.Has(ctx, m.Whole) || s.Has(ctx, ref.Digest) {
		t.Fatal("something got a name")
	}
	p = openPartial(t, s, truth)
	if len(p.Missing()) != 3 {
		t.Fatalf("%v are missing", p.Missing())
	}
	for i, off := range m.Offsets() {
		must(t, p.PutBlock(i, b[off:off+m.Blocks[i].Size]))
	}
	if got, err := p.Commit(ctx, cas.Cache); err != nil || got != ref {
		t.Fatalf("%+v %v", got, err)
	}
	must(t, p.Close())
	// The same lie about a blob that is here.
	m.Blocks = append([]cas.Block(nil), truth.Blocks...)
	m.Whole, m.Blocks[1].Digest = ref.Digest, m.Blocks[0].Digest
	if p, err := s.Partial(ctx, m); err == nil {
		_, err = p.Commit(ctx, cas.Cache)
		WantKind(t, err, forgeyard.Corrupt)
		must(t, p.Close())
	} else {
		WantKind(t, err, forgeyard.Corrupt)
	}
	if !bytes.Equal(Read(t, s, ref.Digest), b) {
		t.Fatal("the lie did harm")
	}
}

// Two manifests divide one blob; both lead to it, and Put names its own.
func otherDivision(t *testing.T, s cas.Store) {
	ctx := context.Background()
	b := Bytes(23, 2*cas.BlockSize)
	plain, _ := Describe(t, b)
	mb := cas.NewManifestBuilder()
	for at := 0; at < len(b); at += 700_000 {
		_, _ = mb.Write(b[at:min(len(b), at+700_000)]) // below the bound
		mb.Cut()
	}
	ref, m, _, err := mb.Finish()
	must(t, err)
	p := openPartial(t, s, m)
	for i, off := range m.Offsets() {
		must(t, p.PutBlock(i, b[off:off+m.Blocks[i].Size]))
	}
	if got, err := p.Commit(ctx, cas.Durable); err != nil || got != ref {
		t.Fatalf("%+v %v", got, err)
	}
	must(t, p.Close())
	if got := Put(t, s, b); got != plain {
		t.Fatalf("Put names %+v, not its own division %+v", got, plain)
	}
	_, pm := Describe(t, b)
	for _, bl := range append(append([]cas.Block(nil), m.Blocks...), pm.Blocks...) {
		if _, err := s.Block(ctx, bl.Digest); err != nil {
			t.Fatal(err)
		}
	}
	if u, err := s.Usage(ctx); err != nil || u.Objects != 3 {
		t.Fatalf("one blob and two manifests are %+v %v", u, err)
	}
	must(t, s.Pin(ctx, cas.Pin{Owner: "test/m", Roots: []forgeyard.Digest{ref.Manifest}}))
	if _, err := s.GC(ctx, false); err != nil || !bytes.Equal(Read(t, s, ref.Digest), b) {
		t.Fatalf("a pinned manifest keeps its blob: %v", err)
	}
	must(t, s.Unpin(ctx, "test/m"))
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	if u, err := s.Usage(ctx); err != nil || u.Objects != 0 || u.Bytes != 0 {
		t.Fatalf("%+v %v", u, err)
	}
}

// divisionByContent: another version shares all blocks but those around the change,
// whichever division came first and whatever is there under the same name.
func divisionByContent(t *testing.T, s cas.Store) {
	ctx := context.Background()
	put := func(b []byte, byContent bool) (cas.Ref, cas.Manifest) {
		ref, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{ByContent: byContent})
		must(t, err)
		if got := Read(t, s, ref.Digest); !bytes.Equal(got, b) {
			t.Fatalf("%d bytes became %d others", len(b), len(got))
		}
		enc, err := s.Block(ctx, ref.Manifest)
		must(t, err)
		m, err := cas.DecodeManifest(enc)
		must(t, err)
		return ref, m
	}
	was := Bytes(31, 6*cas.BlockSize)
	is := append(append(append([]byte(nil), was[:3*cas.BlockSize]...), "more"...), was[3*cas.BlockSize:]...)
	plain, _ := put(was, false)
	first, m1 := put(was, true)
	second, m2 := put(is, true)
	if first.Digest != plain.Digest || first.Manifest == plain.Manifest || second.Digest == first.Digest {
		t.Fatalf("%+v, %+v and %+v", plain, first, second)
	}
	had := map[forgeyard.Digest]bool{}
	for _, b := range m1.Blocks {
		had[b.Digest] = true
	}
	fresh := 0
	for _, b := range m2.Blocks {
		got, err := s.Block(ctx, b.Digest)
		must(t, err)
		if cas.Sum(got) != b.Digest {
			t.Fatalf("block %s reads as another", b.Digest.Short())
		}
		if !had[b.Digest] {
			fresh++
		}
	}
	if fresh == 0 || fresh > 3 || len(m2.Blocks) < 6 {
		t.Fatalf("%d of %d blocks are new", fresh, len(m2.Blocks))
	}
	if again, _ := put(was, false); again != plain {
		t.Fatalf("a plain put names %+v, not %+v", again, plain)
	}
	small, err := s.Put(ctx, bytes.NewReader(was[:1000]), cas.PutOptions{ByContent: true})
	must(t, err)
	if !small.Manifest.IsZero() {
		t.Fatal("a small blob has a manifest")
	}
	if u, err := s.Usage(ctx); err != nil || u.Objects != 6 {
		t.Fatalf("two large blobs, three manifests and a small one are %+v %v", u, err)
	}
}

// family stores a tree with a small file, a large one and a subtree, and gives all
// digests that belong to it.
func family(t testing.TB, s cas.Store, seed uint64, owner string) (root forgeyard.Digest, all []forgeyard.Digest) {
	t.Helper()
	put := func(b []byte) cas.Ref {
		ref, err := s.Put(context.Background(), bytes.NewReader(b), cas.PutOptions{Owner: owner})
		must(t, err)
		all = append(all, ref.Digest)
		if !ref.Manifest.IsZero() {
			all = append(all, ref.Manifest)
		}
		return ref
	}
	tree := func(es ...cas.Entry) cas.Ref {
		tr := cas.Tree{Entries: es}
		tr.Sort()
		enc, err := tr.Encode()
		must(t, err)
		return put(enc)
	}
	entry := func(name string, k cas.Kind, r cas.Ref) cas.Entry {
		return cas.Entry{Name: name, Kind: k, Size: r.Size, Digest: r.Digest, Manifest: r.Manifest}
	}
	small, large := put(Bytes(seed, 10)), put(Bytes(seed+1, cas.BlockSize+10))
	sub := tree(entry("large", cas.File, large), cas.Entry{Name: "link", Kind: cas.Symlink, Target: "large"})
	r := tree(entry("small", cas.File, small), entry("sub", cas.Dir, sub), entry("sub2", cas.Dir, sub))
	return r.Digest, all
}

func wantAll(t testing.TB, s cas.Store, all []forgeyard.Digest, want bool) {
	t.Helper()
	for i, d := range all {
		if s.Has(context.Background(), d) != want {
			t.Fatalf("object %d of the family: here is not %v", i, want)
		}
	}
}

func pinsKeep(t *testing.T, s cas.Store) {
	ctx := context.Background()
	root, all := family(t, s, 30, "")
	other, gone := family(t, s, 40, "")
	must(t, s.Pin(ctx, cas.Pin{Owner: "attempt/1", Trees: []forgeyard.Digest{root}}))
	must(t, s.Pin(ctx, cas.Pin{Owner: "attempt/2", Trees: []forgeyard.Digest{other}}))
	info, err := s.Stat(ctx, all[1])
	if err != nil || len(info.Pinned) != 1 || info.Pinned[0].Owner != "attempt/1" {
		t.Fatalf("who keeps it: %+v %v", info.Pinned, err)
	}
	must(t, s.Unpin(ctx, "attempt/2"))
	must(t, s.Unpin(ctx, "attempt/2"))
	must(t, s.Unpin(ctx, "nobody"))
	r, err := s.GC(ctx, false)
	if err != nil || r.Removed != int64(len(gone)) || r.Freed < cas.BlockSize || r.Kept == 0 || r.Examined == 0 {
		t.Fatalf("%+v %v", r, err)
	}
	wantAll(t, s, all, true)
	wantAll(t, s, gone, false)
	u, err := s.Usage(ctx)
	if err != nil || u.Pinned != u.Bytes || u.Objects != int64(len(all)) {
		t.Fatalf("%+v %v", u, err)
	}

	// A second pin of the owner replaces the first; an expired one keeps nothing.
	must(t, s.Pin(ctx, cas.Pin{Owner: "attempt/1", Roots: all[:1], Expires: time.Date(2200, 1, 1, 0, 0, 0, 7, time.UTC)}))
	pins, err := s.Pins(ctx)
	if err != nil || len(pins) != 1 || len(pins[0].Trees) != 0 || pins[0].Expires.Year() != 2200 {
		t.Fatalf("%+v %v", pins, err)
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	wantAll(t, s, all[:1], true)
	wantAll(t, s, all[1:], false)
	must(t, s.Pin(ctx, cas.Pin{Owner: "attempt/1", Roots: all[:1], Expires: time.Unix(1, 0)}))
	if pins, err := s.Pins(ctx); err != nil || len(pins) != 0 {
		t.Fatalf("%+v %v", pins, err)
	}
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	wantAll(t, s, all, false)
	WantKind(t, s.Pin(ctx, cas.Pin{}), forgeyard.Invalid)
}

// A user's blob with the bytes of a tree keeps itself, not what it names.
func rootsNotSniffed(t *testing.T, s cas.Store) {
	ctx := context.Background()
	root, all := family(t, s, 50, "")
	must(t, s.Pin(ctx, cas.Pin{Owner: "person/eve", Roots: []forgeyard.Digest{root}}))
	// And a blob that is no tree can be pinned as one without harm.
	junk := Put(t, s, []byte("no tree"))
	must(t, s.Pin(ctx, cas.Pin{Owner: "person/bob", Trees: []forgeyard.Digest{junk.Digest}}))
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	wantAll(t, s, []forgeyard.Digest{root, junk.Digest}, true)
	wantAll(t, s, all[:len(all)-1], false)
}

func pinBeforeArrival(t *testing.T, s cas.Store) {
	ctx := context.Background()
	b := Bytes(60, 2*cas.BlockSize)
	ref, m := Describe(t, b)
	must(t, s.Pin(ctx, cas.Pin{Owner: "attempt/9", Roots: []forgeyard.Digest{ref.Digest}}))
	p := openPartial(t, s, m)
	must(t, p.PutBlock(0, b[:cas.BlockSize]))
	must(t, p.Close())
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	p = openPartial(t, s, m)
	if got := p.Missing(); len(got) != 1 || got[0] != 1 {
		t.Fatalf("the pinned partial was collected: %v", got)
	}
	must(t, p.PutBlock(1, b[cas.BlockSize:]))
	_, err := p.Commit(ctx, cas.Cache)
	must(t, err)
	must(t, p.Close())
	if _, err := s.GC(ctx, false); err != nil || !s.Has(ctx, ref.Digest) || !s.Has(ctx, ref.Manifest) {
		t.Fatalf("%v", err)
	}
}

func ownerHolds(t *testing.T, s cas.Store) {
	ctx := context.Background()
	const owner = "attempt/7"
	root, all := family(t, s, 70, owner)
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	wantAll(t, s, all, true)
	must(t, s.Pin(ctx, cas.Pin{Owner: owner, Trees: []forgeyard.Digest{root}}))
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	wantAll(t, s, all, true)
	must(t, s.Unpin(ctx, owner))
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	wantAll(t, s, all, false)
}

func dryRun(t *testing.T, s cas.Store) {
	ctx := context.Background()
	_, all := family(t, s, 80, "")
	b := Bytes(83, 2*cas.BlockSize)
	_, m := Describe(t, b)
	p := openPartial(t, s, m)
	must(t, p.PutBlock(0, b[:cas.BlockSize]))
	must(t, p.Close())
	dry, err := s.GC(ctx, true)
	must(t, err)
	wantAll(t, s, all, true)
	real, err := s.GC(ctx, false)
	if err != nil || real != dry {
		t.Fatalf("promised %+v, did %+v %v", dry, real, err)
	}
	wantAll(t, s, all, false)
}
