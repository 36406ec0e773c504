package bundle

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

var bg = context.Background()

func store(t testing.TB) *disk.Store {
	t.Helper()
	s, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func unsigned([]byte) ([]byte, error) { return []byte("signed"), nil }

// sample is a store with a tree of all kinds, and the bundle of it.
func sample(t testing.TB) (*disk.Store, Head) {
	t.Helper()
	s := store(t)
	put := func(b []byte) cas.Ref { return castest.Put(t, s, b) }
	entry := func(name string, k cas.Kind, r cas.Ref) cas.Entry {
		return cas.Entry{Name: name, Kind: k, Size: r.Size, Digest: r.Digest, Manifest: r.Manifest}
	}
	dir := func(es ...cas.Entry) cas.Ref {
		tr := cas.Tree{Entries: es}
		tr.Sort()
		b, err := tr.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return put(b)
	}
	large := put(castest.Bytes(1, 2*cas.BlockSize+77))
	sub := dir(entry("large", cas.File, large), entry("empty", cas.File, put(nil)), cas.Entry{Name: "link", Kind: cas.Symlink, Target: "large"})
	root := dir(entry("small", cas.File, put([]byte("small"))), entry("sub", cas.Dir, sub), entry("again", cas.Dir, sub))
	alone := put(castest.Bytes(2, 100))
	pins := []cas.Pin{{Owner: "person/lab", Roots: []forgeyard.Digest{alone.Digest}, Trees: []forgeyard.Digest{root.Digest}, Expires: time.UnixMilli(1_900_000_000_000).UTC()}}
	return s, build(t, s, pins)
}

func build(t testing.TB, s cas.Store, pins []cas.Pin) Head {
	t.Helper()
	objects, err := Closure(bg, s, pins)
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewHead(Index{Site: "S", Made: 1_800_000_000_000, Note: "to the mill", Pins: pins, Records: []Record{{Kind: "outbox/1", Body: []byte("x")}}, Objects: objects}, unsigned)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func file(t testing.TB, s cas.Store, h Head) []byte {
	t.Helper()
	b := bytes.NewBuffer(h.Bytes())
	if err := Data(bg, h, s, 0, b); err != nil {
		t.Fatal(err)
	}
	if int64(b.Len()) != h.Size() {
		t.Fatalf("%d bytes were written, the head says %d", b.Len(), h.Size())
	}
	return b.Bytes()
}

func wantWhole(t *testing.T, from, to cas.Store, h Head) {
	t.Helper()
	for _, o := range h.Index.Objects {
		if !bytes.Equal(castest.Read(t, from, o.Digest), castest.Read(t, to, o.Digest)) {
			t.Errorf("%s differs", o.Digest.Short())
		}
	}
}

// Everything that the pins name arrives, byte for byte, and nothing twice in the file.
func TestRoundTrip(t *testing.T) {
	from, h := sample(t)
	b := file(t, from, h)
	got, err := ReadHead(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), h.Bytes()) || got.ID() != h.ID() {
		t.Error("the head is another one")
	}
	if len(got.Index.Objects) != 7 { // two directories, small, empty, large, its manifest, alone
		t.Errorf("%d objects", len(got.Index.Objects))
	}
	to := store(t)
	var done int64
	if fresh, err := Import(bg, got, bytes.NewReader(b), to, func(n int64) { done += n }); err != nil || fresh != h.Index.DataSize() {
		t.Fatal(fresh, err)
	}
	if done != h.Index.DataSize() {
		t.Errorf("progress ends at %d of %d", done, h.Index.DataSize())
	}
	wantWhole(t, from, to, h)
	done = 0
	if fresh, err := Import(bg, got, noFile{t}, to, func(n int64) { done += n }); err != nil || fresh != 0 || done != h.Index.DataSize() {
		t.Errorf("a second import: %v, %d bytes", err, done)
	}
}

// noFile fails the test when it is read: what is there is not read again.
type noFile struct{ t *testing.T }

func (f noFile) ReadAt([]byte, int64) (int, error) {
	f.t.Error("the file is read, and everything is there")
	return 0, errors.New("unread")
}

// A file that was cut off anywhere is finished from there, and is the same file.
func TestExportGoesOn(t *testing.T) {
	from, h := sample(t)
	whole := file(t, from, h)
	for _, n := range []int64{h.DataAt(), h.DataAt() + 1, h.DataAt() + cas.BlockSize, h.DataAt() + cas.BlockSize + 5000, h.Size() - 1, h.Size()} {
		part := slices.Clone(whole[:n])
		good, err := Verify(bg, h, bytes.NewReader(part), nil)
		if (err == nil) != (n == h.Size()) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if err != nil {
			castest.WantKind(t, err, forgeyard.Corrupt)
		}
		rest := bytes.NewBuffer(part[:h.DataAt()+good])
		if err := Data(bg, h, from, good, rest); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(rest.Bytes(), whole) {
			t.Errorf("cut at %d and finished, it is another file", n)
		}
	}
	large := h.Index.Objects[slices.IndexFunc(h.Index.Objects, func(o Object) bool { return o.Size > cas.BlockSize })]
	castest.WantKind(t, Data(bg, h, from, h.Index.DataSize()-large.Size+1, &bytes.Buffer{}), forgeyard.Invalid)
}

// An import that is cut off keeps what was verified, down to the block, and the next one
// reads only the rest.
func TestImportGoesOn(t *testing.T) {
	from, h := sample(t)
	b := file(t, from, h)
	for _, n := range []int64{h.DataAt() + 1, h.DataAt() + cas.BlockSize + 5000, h.DataAt() + 2*cas.BlockSize + 400, h.Size() - 1} {
		to := store(t)
		first, err := Import(bg, h, bytes.NewReader(b[:n]), to, nil)
		castest.WantKind(t, err, forgeyard.Corrupt)
		if !strings.Contains(err.Error(), "the file ends at byte") {
			t.Errorf("%v", err)
		}
		c := &counting{r: bytes.NewReader(b)}
		if rest, err := Import(bg, h, c, to, nil); err != nil || first+rest != h.Index.DataSize() {
			t.Fatalf("%d bytes and then %d were brought: %v", first, rest, err)
		}
		wantWhole(t, from, to, h)
		// The manifest is read again, and at most one block was on its way.
		if most := h.Size() - n + cas.BlockSize + 1000; c.n > most {
			t.Errorf("cut at %d: %d bytes are read, at most %d are missing", n, c.n, most)
		}
	}
}

type counting struct {
	r *bytes.Reader
	n int64
}

func (c *counting) ReadAt(b []byte, at int64) (int, error) {
	n, err := c.r.ReadAt(b, at)
	c.n += int64(n)
	return n, err
}

// No wrong byte of the data gets in, wherever it is: the error names the object and the
// byte, and nothing wrong has a name.
func TestWrongBytes(t *testing.T) {
	from, h := sample(t)
	whole := file(t, from, h)
	for at := h.DataAt(); at < h.Size(); at += 1 + (h.Size()-h.DataAt())/23 {
		b := slices.Clone(whole)
		b[at] ^= 0x40
		to := store(t)
		_, err := Import(bg, h, bytes.NewReader(b), to, nil)
		castest.WantKind(t, err, forgeyard.Corrupt)
		if good, _ := Verify(bg, h, bytes.NewReader(b), nil); h.DataAt()+good > at {
			t.Errorf("byte %d is wrong, and %d are called right", at, good)
		}
		for _, o := range h.Index.Objects {
			if to.Has(bg, o.Digest) && cas.Sum(castest.Read(t, to, o.Digest)) != o.Digest {
				t.Errorf("byte %d: %s is another object", at, o.Digest.Short())
			}
		}
	}
}

// A manifest of another blob is refused, though it is itself what the index says.
func TestLyingManifest(t *testing.T) {
	s := store(t)
	one, other := castest.Bytes(5, cas.BlockSize+1), castest.Bytes(6, cas.BlockSize+1)
	a, b := castest.Put(t, s, one), castest.Put(t, s, other)
	m := castest.Read(t, s, b.Manifest)
	h, err := NewHead(Index{Site: "S", Objects: []Object{{Digest: b.Manifest, Size: int64(len(m))}, {Digest: a.Digest, Size: a.Size, Manifest: b.Manifest}}}, unsigned)
	if err != nil {
		t.Fatal(err)
	}
	f := append(append(h.Bytes(), m...), one...)
	_, err = Import(bg, h, bytes.NewReader(f), store(t), nil)
	castest.WantKind(t, err, forgeyard.Corrupt)
	_, err = Verify(bg, h, bytes.NewReader(f), nil)
	castest.WantKind(t, err, forgeyard.Corrupt)
	castest.WantKind(t, Data(bg, h, s, 0, &bytes.Buffer{}), forgeyard.Corrupt)
}

// What the pins name and the store lacks is said before anything is written.
func TestExportOfWhatIsNotHere(t *testing.T) {
	s := store(t)
	absent := cas.Sum([]byte("absent"))
	for _, p := range []cas.Pin{{Owner: "x", Roots: []forgeyard.Digest{absent}}, {Owner: "x", Trees: []forgeyard.Digest{absent}}} {
		_, err := Closure(bg, s, []cas.Pin{p})
		castest.WantKind(t, err, forgeyard.NotFound)
	}
	blob := castest.Put(t, s, []byte("no directory"))
	_, err := Closure(bg, s, []cas.Pin{{Owner: "x", Trees: []forgeyard.Digest{blob.Digest}}})
	castest.WantKind(t, err, forgeyard.Invalid)
}

func TestInterrupted(t *testing.T) {
	from, h := sample(t)
	b := file(t, from, h)
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_, ierr := Import(ctx, h, bytes.NewReader(b), store(t), nil)
	_, verr := Verify(ctx, h, bytes.NewReader(b), nil)
	_, cerr := Closure(ctx, from, h.Index.Pins)
	for _, err := range []error{ierr, Data(ctx, h, from, 0, &bytes.Buffer{}), verr, cerr} {
		castest.WantKind(t, err, forgeyard.Interrupted)
	}
}

// An index that contradicts itself or its bounds is not made, and not read.
func TestHostileIndex(t *testing.T) {
	d := func(n byte) forgeyard.Digest { return forgeyard.Digest{n} }
	for name, spoil := range map[string]func(*Index){
		"other format":        func(x *Index) { x.Format = "forgeyard.bundle/2" },
		"no site":             func(x *Index) { x.Site = "" },
		"long note":           func(x *Index) { x.Note = strings.Repeat("n", MaxNoteBytes+1) },
		"note is no text":     func(x *Index) { x.Note = "\xff" },
		"no digest":           func(x *Index) { x.Objects[0].Digest = forgeyard.Digest{} },
		"negative size":       func(x *Index) { x.Objects[0].Size = -1 },
		"huge object":         func(x *Index) { x.Objects[0] = Object{Digest: d(9), Size: 1 << 60, Manifest: d(1)} },
		"empty with bytes":    func(x *Index) { x.Objects[0].Size = 0 },
		"large, no manifest":  func(x *Index) { x.Objects[0].Size = cas.BlockSize + 1 },
		"small with manifest": func(x *Index) { x.Objects[1].Manifest = d(1) },
		"manifest behind": func(x *Index) {
			x.Objects = []Object{{Digest: d(2), Size: 2 << 20, Manifest: d(1)}, {Digest: d(1), Size: 3}}
		},
		"manifest is too large": func(x *Index) {
			x.Objects = append(x.Objects, Object{Digest: d(3), Size: 2 << 20, Manifest: d(1)}, Object{Digest: d(4), Size: 2 << 20, Manifest: d(3)})
		},
		"twice":               func(x *Index) { x.Objects = append(x.Objects, x.Objects[0]) },
		"record without kind": func(x *Index) { x.Records = []Record{{}} },
		"long record":         func(x *Index) { x.Records = []Record{{Kind: "k", Body: make([]byte, MaxRecordBytes+1)}} },
		"pin without owner":   func(x *Index) { x.Pins = []cas.Pin{{}} },
		"many pins":           func(x *Index) { x.Pins = make([]cas.Pin, maxPins+1) },
	} {
		x := Index{Format: format, Site: "S", Objects: []Object{{Digest: d(1), Size: 5}, {Digest: d(2), Size: 7}}}
		if err := x.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(&x)
		if k := forgeyard.KindOf(x.Validate()); k != forgeyard.Invalid && k != forgeyard.Limit {
			t.Errorf("%s: %v", name, x.Validate())
		}
		_, err := ReadHead(bytes.NewReader(Head{Raw: cborx.Marshal(x), Signature: []byte("s")}.Bytes()))
		if k := forgeyard.KindOf(err); k != forgeyard.Invalid && k != forgeyard.Limit {
			t.Errorf("%s, read: %v", name, err)
		}
	}
}

func TestHostileHead(t *testing.T) {
	_, h := sample(t)
	b := h.Bytes()
	for n := range b {
		if _, err := ReadHead(bytes.NewReader(b[:n])); forgeyard.KindOf(err) != forgeyard.Corrupt {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	long := binary.BigEndian.AppendUint32([]byte(magic), maxIndex+1)
	for name, b := range map[string][]byte{
		"text":          []byte(strings.Repeat("hello ", 9)),
		"too long":      binary.BigEndian.AppendUint32(long, 0),
		"not canonical": Head{Raw: append([]byte{0xbf}, append(slices.Clone(h.Raw[1:]), 0xff)...)}.Bytes(),
	} {
		if _, err := ReadHead(bytes.NewReader(b)); err == nil || forgeyard.KindOf(err) == forgeyard.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewHead(Index{Site: "S"}, func([]byte) ([]byte, error) { return nil, errWontSign }); !errors.Is(err, errWontSign) {
		t.Errorf("%v", err)
	}
}

var errWontSign = errors.New("no key")

func TestSame(t *testing.T) {
	_, h := sample(t)
	x := h.Index
	x.Made++
	if !Same(x, h.Index) {
		t.Error("the time makes another bundle")
	}
	if x.Note = "to the quarry"; Same(x, h.Index) {
		t.Error("the note does not")
	}
}

// The bytes of a bundle stay what they are.
func TestGolden(t *testing.T) {
	x := Index{
		Site: "S", Made: 1_800_000_000_000, Note: "to the mill", Records: []Record{{Kind: "outbox/1", Body: []byte{1, 2}}},
		Pins:    []cas.Pin{{Owner: "person/lab", Roots: []forgeyard.Digest{{1}}, Expires: time.UnixMilli(1_900_000_000_000).UTC()}},
		Objects: []Object{{Digest: forgeyard.Digest{1}, Size: 5}, {Digest: forgeyard.Digest{2}, Size: 2 << 20, Manifest: forgeyard.Digest{1}}},
	}
	h, err := NewHead(x, unsigned)
	if err != nil {
		t.Fatal(err)
	}
	was := golden.Bytes(t, "testdata/head-v1.hex", h.Bytes())
	if got, err := ReadHead(bytes.NewReader(was)); err != nil || !Same(got.Index, h.Index) {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzReadHead(f *testing.F) {
	h, err := NewHead(Index{Site: "S", Objects: []Object{{Digest: forgeyard.Digest{1}, Size: 5}}}, unsigned)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(h.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ReadHead(bytes.NewReader(b))
		if err != nil {
			return
		}
		if !bytes.HasPrefix(b, h.Bytes()) {
			t.Error("what was read is not what stands there")
		}
		// A head that is read leads to no crash, whatever follows it.
		if _, err := Verify(bg, h, bytes.NewReader(b), nil); err == nil && int64(len(b)) < h.Size() {
			t.Error("data that is not there is right")
		}
	})
}
