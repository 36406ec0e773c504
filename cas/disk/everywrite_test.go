//go:build linux

package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// C11: wherever the disk ends, in bytes or in inodes, each way to write to the store ends,
// done or with NoSpace; nothing acknowledged is lost and nothing wrong has a name; and what
// failed succeeds when there is room, in the same process.
func TestC11WhereverTheDiskEnds(t *testing.T) {
	for name, c := range map[string]struct {
		options  string
		from, to int
		leave    func(t *testing.T, dir string, n int) (undo func())
	}{
		"bytes":  {"size=40m", 0, 420, leavePages},
		"inodes": {"size=64m,nr_inodes=3000", 0, 12, leaveInodes},
	} {
		t.Run(name, func(t *testing.T) {
			dir := smallDisk(t, c.options)
			s := open(t, disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1, ReserveInodes: -1})
			kept := castest.Put(t, s, castest.Bytes(1, 50_000))
			must(t, s.Pin(ctx, cas.Pin{Owner: "kept", Roots: []forgeyard.Digest{kept.Digest}}))
			failed := map[string]int{}
			for n := c.from; n <= c.to; n += max(1, c.to/40) {
				writeEverywhere(t, s, n, failed, func() (undo func()) { return c.leave(t, dir, n) })
			}
			for _, what := range []string{"small", "file", "large", "partial", "pin"} {
				if failed[what] == 0 {
					t.Errorf("the disk never ended for %s: %v", what, failed)
				}
			}
			must(t, s.Close())
			s = open(t, disk.Config{Dir: filepath.Join(dir, "cas"), Reserve: -1, ReserveInodes: -1})
			if c, err := s.Verify(ctx, 0, nil); err != nil || c.Objects != 1 || len(c.Damaged) > 0 {
				t.Errorf("%+v %v", c, err)
			}
			must(t, readAll(s, kept.Digest))
		})
	}
}

// writeEverywhere writes in each way while the disk is nearly full, and again when it is not.
func writeEverywhere(t *testing.T, s *disk.Store, n int, failed map[string]int, full func() (undo func())) {
	t.Helper()
	data := func(i, size int) []byte { return castest.Bytes(uint64(1000*n+i), size) }
	acked := map[forgeyard.Digest]string{}
	put := func(i, size int) func() error {
		return func() error {
			b := data(i, size)
			_, err := s.Put(ctx, bytes.NewReader(b), cas.PutOptions{Size: int64(size)})
			if err == nil {
				acked[cas.Sum(b)] = fmt.Sprint(size)
			}
			return err
		}
	}
	owner := fmt.Sprint("round/", n)
	ways := []struct {
		what string
		do   func() error
	}{
		{"small", put(1, 3000)},
		{"file", put(2, 40_000)},
		{"partial", func() error { return arrive(s, data(3, cas.BlockSize+99), acked) }},
		{"large", put(4, cas.BlockSize+5)},
		{"pin", func() error {
			return s.Pin(ctx, cas.Pin{Owner: owner, Roots: []forgeyard.Digest{cas.Sum(data(1, 3000))}})
		}},
	}
	undo := full()
	for _, w := range ways {
		if err := w.do(); err != nil {
			wantNoSpace(t, err)
			failed[w.what]++
		}
	}
	for d, what := range acked {
		if err := readAll(s, d); err != nil {
			t.Fatalf("round %d: %s bytes were acknowledged: %v", n, what, err)
		}
	}
	undo()
	for _, w := range ways {
		if err := w.do(); err != nil {
			t.Fatalf("round %d: there is room, and %s: %v", n, w.what, err)
		}
	}
	for d, what := range acked {
		if err := readAll(s, d); err != nil {
			t.Fatalf("round %d: %s bytes: %v", n, what, err)
		}
	}
	_, err := s.GC(ctx, false)
	must(t, err)
	must(t, readAll(s, cas.Sum(data(1, 3000))))
	must(t, s.Unpin(ctx, owner))
	_, err = s.GC(ctx, false)
	must(t, err)
	if u, err := s.Usage(ctx); err != nil || u.Objects != 1 {
		t.Fatalf("round %d: %+v %v", n, u, err)
	}
}

// arrive brings a blob in as a fetch does.
func arrive(s *disk.Store, b []byte, acked map[forgeyard.Digest]string) (err error) {
	mb := cas.NewManifestBuilder()
	if _, err := mb.Write(b); err != nil {
		return err
	}
	_, m, _, err := mb.Finish()
	if err != nil {
		return err
	}
	p, err := s.Partial(ctx, m)
	if err != nil {
		return err
	}
	defer func() {
		// What it cannot note at its end is fetched again; that is no error of what was done.
		if cerr := p.Close(); cerr != nil && forgeyard.KindOf(cerr) != forgeyard.NoSpace {
			err = errors.Join(err, cerr)
		}
	}()
	off := m.Offsets()
	for _, i := range p.Missing() {
		if err := p.PutBlock(i, b[off[i]:off[i]+m.Blocks[i].Size]); err != nil {
			return err
		}
	}
	if _, err := p.Commit(ctx, cas.Durable); err != nil {
		return err
	}
	acked[m.Whole] = "arrived"
	return nil
}

// leavePages fills the disk up to so many pages.
func leavePages(t *testing.T, dir string, n int) (undo func()) {
	t.Helper()
	hog := filepath.Join(dir, "hog")
	f, err := os.Create(hog)
	must(t, err)
	var size int64
	for page := make([]byte, 4096); err == nil; {
		var k int
		k, err = f.Write(page)
		size += int64(k)
	}
	if !durable.Full(err) {
		t.Fatal(err)
	}
	must(t, f.Truncate(max(0, size-int64(n)*4096)))
	must(t, f.Close())
	return func() { must(t, os.Remove(hog)) }
}

// leaveInodes takes all inodes but so many.
func leaveInodes(t *testing.T, dir string, n int) (undo func()) {
	t.Helper()
	hog := filepath.Join(dir, "hogs")
	must(t, os.Mkdir(hog, 0o700))
	made := 0
	for ; ; made++ {
		f, err := os.Create(filepath.Join(hog, fmt.Sprint(made)))
		if durable.Full(err) {
			break
		}
		must(t, err)
		must(t, f.Close())
	}
	for i := range min(n, made) {
		must(t, os.Remove(filepath.Join(hog, fmt.Sprint(i))))
	}
	return func() { must(t, os.RemoveAll(hog)) }
}
