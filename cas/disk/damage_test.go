package disk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

var ctx = context.Background()

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blobFile gives the file of a blob.
func blobFile(t testing.TB, dir string, d forgeyard.Digest) string {
	t.Helper()
	h := d.Hex()
	got, err := filepath.Glob(filepath.Join(dir, "blobs", h[:2], h[2:4], h+".*"))
	if err != nil || len(got) != 1 {
		t.Fatalf("%v %v", got, err)
	}
	return got[0]
}

func quarantined(t testing.TB, dir string) int {
	t.Helper()
	got, err := filepath.Glob(filepath.Join(dir, "quarantine", "*.reason"))
	must(t, err)
	return len(got)
}

func damage(t testing.TB, path string, f func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, os.Chmod(path, 0o600))
	must(t, os.WriteFile(path, f(b), 0o600))
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte { b[at] ^= 1; return b }
}

// C09: a power cut leaves empty, short, wrong or no files. The store opens, says so
// for each blob, keeps the rest, and takes the bytes again.
func TestC09DamagedFiles(t *testing.T) {
	large := castest.Bytes(1, 2*cas.BlockSize+50)
	small := castest.Bytes(2, 1000)
	for name, f := range map[string]func(t *testing.T, path string){
		"empty":   func(t *testing.T, p string) { damage(t, p, func([]byte) []byte { return nil }) },
		"short":   func(t *testing.T, p string) { damage(t, p, func(b []byte) []byte { return b[:len(b)/2] }) },
		"long":    func(t *testing.T, p string) { damage(t, p, func(b []byte) []byte { return append(b, 0) }) },
		"flipped": func(t *testing.T, p string) { damage(t, p, flip(999)) },
		"gone":    func(t *testing.T, p string) { must(t, os.Remove(p)) },
		"a directory": func(t *testing.T, p string) {
			must(t, os.Remove(p))
			must(t, os.Mkdir(p, 0o700))
		},
	} {
		for size, b := range map[string][]byte{"small": small, "large": large} {
			t.Run(name+" "+size, func(t *testing.T) {
				dir := t.TempDir()
				s, err := disk.Open(disk.Config{Dir: dir, NoSync: true, Inline: -1})
				must(t, err)
				ref, other := castest.Put(t, s, b), castest.Put(t, s, []byte("untouched"))
				must(t, s.Close())
				f(t, blobFile(t, dir, ref.Digest))
				s = open(t, disk.Config{Dir: dir, NoSync: true, Inline: -1})
				err = readAll(s, ref.Digest)
				if k := forgeyard.KindOf(err); err == nil || (k != forgeyard.Corrupt && k != forgeyard.NotFound) {
					t.Fatalf("reading: %v", err)
				}
				if name != "gone" && quarantined(t, dir) != 1 {
					t.Fatalf("%d in quarantine", quarantined(t, dir))
				}
				if s.Has(ctx, ref.Digest) || !s.Has(ctx, other.Digest) {
					t.Fatal("has the damaged one, or not the other")
				}
				_, err = s.Stat(ctx, ref.Digest)
				castest.WantKind(t, err, forgeyard.NotFound)
				if again := castest.Put(t, s, b); again != ref || !bytes.Equal(castest.Read(t, s, ref.Digest), b) {
					t.Fatalf("%+v", again)
				}
			})
		}
	}
}

func readAll(s *disk.Store, d forgeyard.Digest) error {
	o, err := s.Open(ctx, d)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, o)
	return errors.Join(err, o.Close())
}

// Rot under an open index: no reader gets a wrong byte, by any way in.
func TestTamperedBlobIsNeverServed(t *testing.T) {
	b := castest.Bytes(3, 3*cas.BlockSize)
	_, m := castest.Describe(t, b)
	for name, read := range map[string]func(s *disk.Store, d forgeyard.Digest) error{
		"open": readAll,
		"block": func(s *disk.Store, _ forgeyard.Digest) error {
			_, err := s.Block(ctx, m.Blocks[1].Digest)
			return err
		},
		"read at": func(s *disk.Store, d forgeyard.Digest) error {
			o, err := s.Open(ctx, d)
			if err != nil {
				return err
			}
			_, err = o.ReadAt(make([]byte, 10), cas.BlockSize+20)
			return errors.Join(err, o.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, disk.Config{Dir: dir, NoSync: true, Inline: -1})
			ref := castest.Put(t, s, b)
			damage(t, blobFile(t, dir, ref.Digest), flip(cas.BlockSize+5))
			if got, err := s.Block(ctx, m.Blocks[0].Digest); err != nil || !bytes.Equal(got, b[:cas.BlockSize]) {
				t.Fatalf("the sound block: %v", err)
			}
			castest.WantKind(t, read(s, ref.Digest), forgeyard.Corrupt)
			if quarantined(t, dir) != 1 || s.Has(ctx, ref.Digest) {
				t.Fatal("not set aside")
			}
			castest.Put(t, s, b)
			must(t, read(s, ref.Digest))
		})
	}
	t.Run("small block", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, disk.Config{Dir: dir, NoSync: true, Inline: -1})
		ref := castest.Put(t, s, []byte("tiny"))
		damage(t, blobFile(t, dir, ref.Digest), flip(1))
		_, err := s.Block(ctx, ref.Digest)
		castest.WantKind(t, err, forgeyard.Corrupt)
	})
	t.Run("manifest", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, disk.Config{Dir: dir, NoSync: true, Inline: -1})
		ref := castest.Put(t, s, b)
		damage(t, blobFile(t, dir, ref.Manifest), flip(50))
		if !bytes.Equal(castest.Read(t, s, ref.Digest), b) || !s.Has(ctx, ref.Manifest) {
			t.Fatal("the blob must be read and its manifest made again")
		}
	})
}

// C15: the index is lost or broken; files and pins tell everything again, and what lay in
// the index itself is taken out of what can be read of it.
func TestC15LostIndex(t *testing.T) {
	for name, c := range map[string]struct {
		inline int64
		lose   func(t *testing.T, dir string)
	}{
		"removed":  {-1, func(t *testing.T, p string) { must(t, os.RemoveAll(p)) }},
		"empty":    {-1, func(t *testing.T, p string) { eachFile(t, p, "*", func(f string) { must(t, os.Truncate(f, 0)) }) }},
		"garbage":  {-1, func(t *testing.T, p string) { eachFile(t, p, "*", garbage(t)) }},
		"manifest": {0, func(t *testing.T, p string) { eachFile(t, p, "MANIFEST-*", garbage(t)) }},
		"options":  {0, func(t *testing.T, p string) { eachFile(t, p, "OPTIONS-*", garbage(t)) }},
		"a file":   {0, func(t *testing.T, p string) { must(t, os.RemoveAll(p)); must(t, os.WriteFile(p, nil, 0o600)) }},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a file" {
				c.inline = -1
			}
			config := disk.Config{Dir: t.TempDir(), NoSync: true, Inline: c.inline}
			s, err := disk.Open(config)
			must(t, err)
			b, part := castest.Bytes(4, 2*cas.BlockSize+1), castest.Bytes(5, 3*cas.BlockSize)
			ref := castest.Put(t, s, b)
			enc, err := cas.Tree{Entries: []cas.Entry{{Name: "f", Kind: cas.File, Size: ref.Size, Digest: ref.Digest, Manifest: ref.Manifest}}}.Encode()
			must(t, err)
			root := castest.Put(t, s, enc)
			free := castest.Put(t, s, []byte("nobody keeps this"))
			must(t, s.Pin(ctx, cas.Pin{Owner: "checkpoint/1", Trees: []forgeyard.Digest{root.Digest}}))
			_, m := castest.Describe(t, part)
			p, err := s.Partial(ctx, m)
			must(t, err)
			must(t, p.PutBlock(1, part[cas.BlockSize:2*cas.BlockSize]))
			must(t, p.Close())
			must(t, s.Close())
			c.lose(t, filepath.Join(config.Dir, "index"))

			s = open(t, config)
			p, err = s.Partial(ctx, m)
			must(t, err)
			if got := p.Missing(); len(got) != 2 {
				t.Fatalf("the partial lost its block: %v", got)
			}
			must(t, p.Close())
			r, err := s.GC(ctx, false)
			must(t, err)
			if !bytes.Equal(castest.Read(t, s, ref.Digest), b) || !s.Has(ctx, root.Digest) || s.Has(ctx, free.Digest) {
				t.Fatalf("what was pinned is not what is here: %+v", r)
			}
			info, err := s.Stat(ctx, ref.Digest)
			if err != nil || info.Ref != ref || len(info.Pinned) != 1 {
				t.Fatalf("%+v %v", info, err)
			}
			if _, err := s.Block(ctx, mustManifest(t, s, ref.Manifest).Blocks[1].Digest); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func eachFile(t *testing.T, dir, pattern string, f func(path string)) {
	t.Helper()
	got, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(got) == 0 {
		t.Fatalf("no %s in %s: %v", pattern, dir, err)
	}
	for _, p := range got {
		f(p)
	}
}

func garbage(t *testing.T) func(string) {
	return func(p string) { must(t, os.WriteFile(p, castest.Bytes(9, 1<<16), 0o600)) }
}

// C15: with the index went a pinned tree, and nobody knows what it kept: nothing is
// collected until it is here again or nobody wants it.
func TestC15LostTreeStopsCollections(t *testing.T) {
	config := disk.Config{Dir: t.TempDir(), NoSync: true}
	s, err := disk.Open(config)
	must(t, err)
	ref := castest.Put(t, s, castest.Bytes(4, 100_000))
	enc, err := cas.Tree{Entries: []cas.Entry{{Name: "f", Kind: cas.File, Size: ref.Size, Digest: ref.Digest}}}.Encode()
	must(t, err)
	root := castest.Put(t, s, enc)
	must(t, s.Pin(ctx, cas.Pin{Owner: "checkpoint/1", Trees: []forgeyard.Digest{root.Digest}}))
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(config.Dir, "index")))

	s, err = disk.Open(config)
	must(t, err)
	_, err = s.GC(ctx, false)
	castest.WantKind(t, err, forgeyard.Conflict)
	must(t, s.Close())
	s = open(t, config) // and a restart does not forget it
	_, err = s.GC(ctx, false)
	castest.WantKind(t, err, forgeyard.Conflict)
	castest.Put(t, s, enc)
	if r, err := s.GC(ctx, false); err != nil || !s.Has(ctx, ref.Digest) || !s.Has(ctx, root.Digest) {
		t.Fatalf("%+v %v", r, err)
	}
}

func mustManifest(t testing.TB, s cas.Store, d forgeyard.Digest) cas.Manifest {
	t.Helper()
	m, err := cas.DecodeManifest(castest.Read(t, s, d))
	must(t, err)
	return m
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	s, err := disk.Open(disk.Config{Dir: dir})
	must(t, err)
	b := castest.Bytes(6, cas.BlockSize+1)
	ref := castest.Put(t, s, b)
	want := cas.Pin{Owner: "person/ann", Roots: []forgeyard.Digest{ref.Digest}, Expires: time.Date(2100, 1, 2, 3, 4, 5, 6, time.UTC)}
	must(t, s.Pin(ctx, want))
	_, err = disk.Open(disk.Config{Dir: dir})
	castest.WantKind(t, err, forgeyard.Conflict)
	u1, err := s.Usage(ctx)
	must(t, err)
	must(t, s.Close())
	must(t, s.Close())
	_, err = s.Put(ctx, bytes.NewReader(b), cas.PutOptions{})
	castest.WantKind(t, err, forgeyard.Unavailable)

	s = open(t, disk.Config{Dir: dir})
	pins, err := s.Pins(ctx)
	if err != nil || len(pins) != 1 || pins[0].Owner != want.Owner || !pins[0].Expires.Equal(want.Expires) || pins[0].Roots[0] != ref.Digest {
		t.Fatalf("%+v %v", pins, err)
	}
	u2, err := s.Usage(ctx)
	if u1.DiskFree, u2.DiskFree = 0, 0; err != nil || u1 != u2 || u1.Pinned == 0 {
		t.Fatalf("%+v, then %+v %v", u1, u2, err)
	}
	if !bytes.Equal(castest.Read(t, s, ref.Digest), b) {
		t.Fatal("did not come back")
	}
}

// A pin ends by the clock that the store was given.
func TestPinExpires(t *testing.T) {
	c := clock.NewManual(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	s := open(t, disk.Config{Dir: t.TempDir(), NoSync: true, Clock: c})
	ref := castest.Put(t, s, []byte("x"))
	must(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{ref.Digest}, Expires: c.Wall().Add(time.Hour)}))
	c.Advance(time.Hour - 1)
	if _, err := s.GC(ctx, false); err != nil || !s.Has(ctx, ref.Digest) {
		t.Fatalf("too early: %v", err)
	}
	c.Advance(1)
	if _, err := s.GC(ctx, false); err != nil || s.Has(ctx, ref.Digest) {
		t.Fatalf("kept for ever: %v", err)
	}
}

// What an unreadable pin keeps is unknown, so nothing is collected; all else works. A power
// cut of a real file system was seen to leave a folder in the place of one.
func TestUnreadablePinStopsCollections(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, file string){
		"rotten": func(t *testing.T, file string) { damage(t, file, flip(40)) },
		"folder": func(t *testing.T, file string) { must(t, errors.Join(os.Remove(file), os.Mkdir(file, 0o700))) },
	} {
		t.Run(name, func(t *testing.T) { unreadablePin(t, spoil) })
	}
}

func unreadablePin(t *testing.T, spoil func(t *testing.T, file string)) {
	dir := t.TempDir()
	s, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
	must(t, err)
	ref := castest.Put(t, s, []byte("x"))
	must(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{ref.Digest}}))
	must(t, s.Close())
	files, err := filepath.Glob(filepath.Join(dir, "pins", "*"))
	must(t, err)
	spoil(t, files[0])
	s = open(t, disk.Config{Dir: dir, NoSync: true})
	_, err = s.GC(ctx, false)
	castest.WantKind(t, err, forgeyard.Corrupt)
	if !strings.Contains(err.Error(), files[0]) || !s.Has(ctx, ref.Digest) {
		t.Fatalf("%v", err)
	}
	castest.Put(t, s, []byte("y"))
}

// A block that rots in the partial file is missing again, and the rest is kept.
func TestPartialRots(t *testing.T) {
	dir := t.TempDir()
	s := open(t, disk.Config{Dir: dir, NoSync: true})
	b := castest.Bytes(7, 3*cas.BlockSize)
	ref, m := castest.Describe(t, b)
	p, err := s.Partial(ctx, m)
	must(t, err)
	for i := range 3 {
		must(t, p.PutBlock(i, b[i*cas.BlockSize:(i+1)*cas.BlockSize]))
	}
	file := filepath.Join(dir, "partial", ref.Manifest.Hex())
	damage(t, file, flip(cas.BlockSize+1))
	_, err = p.Commit(ctx, cas.Durable)
	castest.WantKind(t, err, forgeyard.Corrupt)
	if got := p.Missing(); len(got) != 1 || got[0] != 1 || s.Has(ctx, ref.Digest) {
		t.Fatalf("missing %v", got)
	}
	must(t, p.PutBlock(1, b[cas.BlockSize:2*cas.BlockSize]))
	must(t, p.Close())
	damage(t, file, flip(1))
	_, err = s.Block(ctx, m.Blocks[0].Digest) // a peer asks for it while nobody has it open
	castest.WantKind(t, err, forgeyard.Corrupt)
	p, err = s.Partial(ctx, m)
	must(t, err)
	if got := p.Missing(); len(got) != 1 || got[0] != 0 {
		t.Fatalf("missing %v", got)
	}
	must(t, p.PutBlock(0, b[:cas.BlockSize]))
	if _, err := p.Commit(ctx, cas.Durable); err != nil || !bytes.Equal(castest.Read(t, s, ref.Digest), b) {
		t.Fatal(err)
	}
	must(t, p.Close())
}

// C06: collections race uploads of the same digests. Whoever holds one has it.
func TestC06EvictionRacesUpload(t *testing.T) {
	s := open(t, disk.Config{Dir: t.TempDir(), NoSync: true})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := s.GC(ctx, false); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	var up sync.WaitGroup
	for g := range 4 {
		up.Go(func() {
			owner := "upload/" + string(rune('a'+g))
			for i := range 60 {
				b := castest.Bytes(uint64(i%3), 2000+(i%2)*cas.BlockSize)
				ref, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{Owner: owner})
				if err != nil {
					t.Error(err)
					return
				}
				if err := readAll(s, ref.Digest); err != nil {
					t.Errorf("held and gone: %v", err)
				}
				if i%5 == 4 {
					if err := s.Unpin(ctx, owner); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	up.Wait()
	close(stop)
	wg.Wait()
}

// Files that a kill left between rename and index: adopted when asked for, collected
// when not.
func TestStrayFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, disk.Config{Dir: dir, NoSync: true, Inline: -1})
	stray := func(b []byte, gen string) string {
		h := cas.Sum(b).Hex()
		d := filepath.Join(dir, "blobs", h[:2], h[2:4])
		must(t, os.MkdirAll(d, 0o700))
		p := filepath.Join(d, h+"."+gen)
		must(t, os.WriteFile(p, b, 0o444))
		return p
	}
	wanted, unwanted := []byte("wanted"), []byte("unwanted")
	stray(wanted, "7")
	gone := stray(unwanted, "7")
	if string(castest.Read(t, s, cas.Sum(wanted))) != "wanted" {
		t.Fatal("not adopted")
	}
	old := stray(wanted, "3")
	must(t, s.Pin(ctx, cas.Pin{Owner: "a", Roots: []forgeyard.Digest{cas.Sum(wanted)}}))
	if _, err := s.GC(ctx, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s stays: %v", gone, err)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("an old generation of what is here stays: %v", err)
	}
	if string(castest.Read(t, s, cas.Sum(wanted))) != "wanted" {
		t.Fatal("the kept one went")
	}
}

// A put that finds its bytes in the index while a collection is taking them away
// must not believe the index. The collection syncs, so the moment is long enough to meet.
func TestC06PutMeetsDyingBlob(t *testing.T) {
	s := open(t, disk.Config{Dir: t.TempDir()})
	for round := range 15 {
		var all [][]byte
		for i := range 8 {
			all = append(all, castest.Bytes(uint64(round*8+i), 100))
			if _, err := s.Put(ctx, bytes.NewReader(all[i]), cas.PutOptions{Class: cas.Cache}); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.GC(ctx, false); err != nil {
				t.Error(err)
			}
		})
		for range 20 {
			for _, b := range all {
				ref, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{Class: cas.Cache, Owner: "up"})
				must(t, err)
				if ref.Digest != cas.Sum(b) {
					t.Fatal(ref)
				}
			}
		}
		wg.Wait()
		for _, b := range all {
			must(t, readAll(s, cas.Sum(b)))
		}
		must(t, s.Unpin(ctx, "up"))
	}
}
