//go:build unix

package tree_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/tree"
)

// oneByOne hides that a store reads many at once.
type oneByOne struct{ tree.Source }

// patchy is a store whose pass misses every third object.
type patchy struct{ *disk.Store }

func (p patchy) ReadMany(ctx context.Context, names []forgeyard.Digest, check bool, f func(i int, b []byte)) {
	p.Store.ReadMany(ctx, names, check, func(i int, b []byte) {
		if i%3 != 0 {
			f(i, b)
		}
	})
}

// A folder is the same whether its small files are read one by one, together, or in part
// together, and whatever umask the process has.
func TestSmallFilesTogether(t *testing.T) {
	ctx, s := context.Background(), store(t)
	files := map[string]string{"same": "1 file", "same again": "1 file", "zeros": strings.Repeat("\x00", 4096), "big": strings.Repeat("b", 40<<10)}
	for i := range 300 {
		files[fmt.Sprintf("d%d/f%d", i%7, i)] = fmt.Sprint("#!"[:2*(i%2)], i, " file")
	}
	ref, err := tree.Capture(ctx, s, lay(t, files), tree.Options{})
	must(t, err)
	make := func(src tree.Source, o tree.Materialisation, mask int) string {
		defer syscall.Umask(syscall.Umask(mask))
		dst := filepath.Join(t.TempDir(), "work")
		r, err := tree.Materialise(ctx, src, ref.Digest, dst, o)
		must(t, err)
		if r.Files != ref.Files || r.Bytes != ref.Bytes || r.Copied != int64(len(files)) {
			t.Errorf("%+v of %+v", r, ref)
		}
		return list(t, dst)
	}
	for _, o := range []tree.Materialisation{{}, {ReadOnly: true}} {
		want := make(oneByOne{s}, o, 0o022)
		for name, src := range map[string]tree.Source{"together": s, "in part": patchy{s}} {
			for _, mask := range []int{0, 0o022, 0o077} {
				if got := make(src, o, mask); got != want {
					t.Errorf("%s, %+v, umask %03o: another folder:\n%s\nwant\n%s", name, o, mask, got, want)
				}
			}
		}
	}
}

// What one pass does not find is looked for by itself, which names what is missing.
func TestSmallFileMissingAmongMany(t *testing.T) {
	ctx, s := context.Background(), store(t)
	var es []cas.Entry
	for i := range 100 {
		b := castest.Bytes(uint64(i), 500)
		ref, _ := castest.Describe(t, b)
		if i != 40 {
			castest.Put(t, s, b)
		}
		es = append(es, cas.Entry{Name: fmt.Sprintf("f%02d", i), Kind: cas.File, Digest: ref.Digest, Size: ref.Size})
	}
	enc, err := cas.Tree{Entries: es}.Encode()
	must(t, err)
	_, err = tree.Materialise(ctx, s, castest.Put(t, s, enc).Digest, filepath.Join(t.TempDir(), "work"), tree.Materialisation{})
	castest.WantKind(t, err, forgeyard.NotFound)
	if !strings.Contains(err.Error(), "f40") {
		t.Errorf("it does not say which: %v", err)
	}
}

// counting is a store that counts its passes.
type counting struct {
	*disk.Store
	passes *atomic.Int64
}

func (c counting) ReadMany(ctx context.Context, names []forgeyard.Digest, check bool, f func(i int, b []byte)) {
	c.passes.Add(1)
	c.Store.ReadMany(ctx, names, check, f)
}

// A tree that is refused while it is walked has none of the gathered files made.
func TestRefusedTreeMakesNoFiles(t *testing.T) {
	ctx, s := context.Background(), counting{store(t), &atomic.Int64{}}
	ref, err := tree.Capture(ctx, s, lay(t, map[string]string{"a": "1", "b": "2", "c": "3"}), tree.Options{})
	must(t, err)
	dst := filepath.Join(t.TempDir(), "work")
	_, err = tree.Materialise(ctx, s, ref.Digest, dst, tree.Materialisation{Limits: tree.Limits{MaxFiles: 2}})
	castest.WantKind(t, err, forgeyard.Limit)
	made, err := os.ReadDir(dst)
	must(t, err)
	if len(made) != 0 || s.passes.Load() != 0 {
		t.Errorf("%d files, %d passes", len(made), s.passes.Load())
	}
}

// A small tree takes little memory, whatever a large one may gather.
func TestSmallTreeTakesLittle(t *testing.T) {
	ctx, s := context.Background(), store(t)
	ref, err := tree.Capture(ctx, s, lay(t, map[string]string{"a": "1", "b": "2"}), tree.Options{})
	must(t, err)
	dst := t.TempDir()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range 8 {
		_, err := tree.Materialise(ctx, s, ref.Digest, filepath.Join(dst, fmt.Sprint(i)), tree.Materialisation{})
		must(t, err)
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / 8; each > 1<<20 {
		t.Errorf("%d bytes were allocated for a tree of two files", each)
	}
}
