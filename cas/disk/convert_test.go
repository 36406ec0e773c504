package disk_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
)

// oldStore unpacks a store as the version with an index of bbolt left it.
func oldStore(t *testing.T) string {
	t.Helper()
	f, err := os.Open("testdata/store-bbolt.tar.gz")
	must(t, err)
	defer func() { _ = f.Close() }() // it was only read
	z, err := gzip.NewReader(f)
	must(t, err)
	dir := t.TempDir()
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return dir
		}
		must(t, err)
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.FileInfo().IsDir() {
			must(t, os.MkdirAll(path, 0o700))
			continue
		}
		b, err := io.ReadAll(tr)
		must(t, err)
		must(t, os.WriteFile(path, b, h.FileInfo().Mode().Perm()))
	}
}

// A node that is upgraded in place opens its store at once: objects, blocks, names, pins,
// partial blobs and counters are what they were.
func TestStoreOfBboltIsConverted(t *testing.T) {
	dir := oldStore(t)
	for round := range 2 {
		s, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
		must(t, err)
		if _, err := os.Stat(filepath.Join(dir, "index.db")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the old index stays: %v", err)
		}
		u, err := s.Usage(ctx)
		if err != nil || u.Objects != 8 || u.Bytes < 4_530_000+cas.BlockSize || u.Bytes > 4_540_000+cas.BlockSize {
			t.Fatalf("round %d: %+v %v", round, u, err)
		}
		small, large := []byte("a small object"), bytes.Repeat([]byte("large "), 400_000)
		content := bytes.Repeat([]byte("content"), 300_000)
		for _, b := range [][]byte{small, bytes.Repeat([]byte("middle"), 5000), large, content} {
			if !bytes.Equal(castest.Read(t, s, cas.Sum(b)), b) {
				t.Fatal("did not come back")
			}
		}
		ref, m := castest.Describe(t, large)
		if _, err := s.Block(ctx, m.Blocks[1].Digest); err != nil {
			t.Fatal(err)
		}
		info, err := s.Stat(ctx, ref.Digest)
		if err != nil || info.Ref != ref || len(info.Pinned) != 1 || info.Pinned[0].Owner != "checkpoint/1" {
			t.Fatalf("%+v %v", info, err)
		}
		names, err := s.Resolve(ctx, cas.Name{Space: cas.SpaceSHA256, Key: sha256.Sum256(small)})
		if err != nil || len(names) != 1 || names[0].Ref.Digest != cas.Sum(small) {
			t.Fatalf("%+v %v", names, err)
		}
		part := bytes.Repeat([]byte("partial."), 3*cas.BlockSize/8)
		part[5] = 'x'
		_, pm := castest.Describe(t, part)
		p, err := s.Partial(ctx, pm)
		must(t, err)
		if got := p.Missing(); len(got) != 2 || got[0] != 1 {
			t.Fatalf("%v are missing", got)
		}
		must(t, p.Close())
		must(t, s.Close())
	}
	s := open(t, disk.Config{Dir: dir, NoSync: true})
	castest.Put(t, s, castest.Bytes(1, 30_000)) // its generation follows the old ones
	r, err := s.GC(ctx, false)
	if err != nil || r.Kept == 0 || !s.Has(ctx, cas.Sum(bytes.Repeat([]byte("large "), 400_000))) {
		t.Fatalf("%+v %v", r, err)
	}
}

// Killed in the middle of the conversion, it begins anew; an old index that cannot be read
// is set aside and the files tell what they hold.
func TestStoreOfBboltConvertedAgain(t *testing.T) {
	dir := oldStore(t)
	old, err := os.ReadFile(filepath.Join(dir, "index.db"))
	must(t, err)
	s, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
	must(t, err)
	must(t, s.Close())
	must(t, os.WriteFile(filepath.Join(dir, "index.db"), old, 0o600))
	s, err = disk.Open(disk.Config{Dir: dir, NoSync: true})
	must(t, err)
	if u, err := s.Usage(ctx); err != nil || u.Objects != 8 {
		t.Fatalf("%+v %v", u, err)
	}
	must(t, s.Close())

	for name, b := range map[string][]byte{"empty": nil, "garbage": castest.Bytes(1, 1<<16), "short": old[:5000]} {
		t.Run(name, func(t *testing.T) {
			dir := oldStore(t)
			must(t, os.WriteFile(filepath.Join(dir, "index.db"), b, 0o600))
			s := open(t, disk.Config{Dir: dir, NoSync: true})
			large := bytes.Repeat([]byte("large "), 400_000)
			if r, err := s.GC(ctx, false); err != nil || !bytes.Equal(castest.Read(t, s, cas.Sum(large)), large) {
				t.Fatalf("%+v %v", r, err)
			}
		})
	}
}
