package tree_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/tree"
)

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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lay makes files from "path": "content"; "-> target" is a link, "dir" of "path/" a directory,
// a leading "#!" makes it executable.
func lay(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for p, content := range files {
		full := filepath.Join(dir, p)
		must(t, os.MkdirAll(filepath.Dir(full), 0o755))
		target, isLink := strings.CutPrefix(content, "-> ")
		switch {
		case strings.HasSuffix(p, "/"):
			must(t, os.MkdirAll(full, 0o755))
		case isLink:
			must(t, os.Symlink(target, full))
		case strings.HasPrefix(content, "#!"):
			must(t, os.WriteFile(full, []byte(content), 0o755))
		default:
			must(t, os.WriteFile(full, []byte(content), 0o640))
		}
	}
	return dir
}

// list describes a directory, one line a name.
func list(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		st, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%v %d %q", st.Mode(), st.ModTime().Unix(), rel)
		switch {
		case st.Mode().IsRegular():
			c, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %s", cas.Sum(c).Short())
		case st.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %s", target)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

var sample = map[string]string{
	"a.txt": "alpha", "empty": "", "bin/run": "#!/bin/sh\n", "bin/link": "-> ../a.txt", "deep/er/est/x": "y",
	"hollow/": "", "dangling": "-> nowhere", "big": strings.Repeat("0123456789abcdef", 1<<17) + "end", "name with\nnewline": "ok",
}

// RA-259: one folder is one tree, whoever captures it and however often; it is laid out the
// same each time, and captured again it has the same name.
func TestCaptureAndMaterialise(t *testing.T) {
	ctx, s := context.Background(), store(t)
	dir := lay(t, sample)
	ref, err := tree.Capture(ctx, s, dir, tree.Options{Owner: "test/1"})
	must(t, err)
	if ref.Files != 13 || ref.Bytes != int64(len("alpha")+len("#!/bin/sh\n")+1+2+16<<17+3) {
		t.Fatalf("%+v", ref)
	}
	if again, err := tree.Capture(ctx, s, dir, tree.Options{}); err != nil || again != ref {
		t.Fatalf("the same directory has another name: %+v %v", again, err)
	}
	var lists []string
	for i, o := range []tree.Materialisation{{}, {}, {ReadOnly: true}, {Chown: true, UID: 1234, GID: 4321}} {
		if o.Chown && os.Getuid() != 0 {
			t.Log("not root: the chown case is left out")
			continue
		}
		dst := filepath.Join(t.TempDir(), "work")
		r, err := tree.Materialise(ctx, s, ref.Digest, dst, o)
		must(t, err)
		if r.Files != ref.Files || r.Bytes != ref.Bytes {
			t.Fatalf("%+v of %+v", r, ref)
		}
		got := list(t, dst)
		lists = append(lists, got)
		for line := range strings.Lines(got) {
			if !strings.Contains(line, fmt.Sprint(" ", tree.FixedTime.Unix(), " ")) {
				t.Errorf("%d: time of %s", i, line)
			}
			if o.ReadOnly && !strings.Contains(line, "->") && strings.Contains(strings.Fields(line)[0], "w") {
				t.Errorf("writable: %s", line)
			}
		}
		if back, err := tree.Capture(ctx, s, dst, tree.Options{}); err != nil || back != ref {
			t.Fatalf("captured again: %+v %v", back, err)
		}
		_, err = tree.Materialise(ctx, s, ref.Digest, dst, o)
		castest.WantKind(t, err, forgeyard.Conflict)
		must(t, tree.Remove(dst))
		must(t, tree.Remove(dst))
		if _, err := os.Lstat(dst); !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if lists[0] != lists[1] {
		t.Fatalf("two times, two results:\n%s\n%s", lists[0], lists[1])
	}
}

// The workload may write its copy; the store's file stays what it was (RA-186, RA-508).
func TestWorkloadCannotChangeTheStore(t *testing.T) {
	ctx, s := context.Background(), store(t)
	content := castest.Bytes(1, 2*cas.BlockSize)
	ref, err := tree.Capture(ctx, s, lay(t, map[string]string{"big": string(content), "small": "abc"}), tree.Options{})
	must(t, err)
	dst := filepath.Join(t.TempDir(), "w")
	_, err = tree.Materialise(ctx, s, ref.Digest, dst, tree.Materialisation{})
	must(t, err)
	for _, n := range []string{"big", "small"} {
		f, err := os.OpenFile(filepath.Join(dst, n), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("overwritten"), 0)
		must(t, err)
		must(t, f.Close())
	}
	if !bytes.Equal(castest.Read(t, s, cas.Sum(content)), content) || string(castest.Read(t, s, cas.Sum([]byte("abc")))) != "abc" {
		t.Fatal("the store changed")
	}
}

// RA-260: what is captured is named by the BLAKE3 of its bytes.
func TestCaptureFile(t *testing.T) {
	ctx, s := context.Background(), store(t)
	dir := lay(t, map[string]string{"f": "#!x", "l": "-> f"})
	e, err := tree.CaptureFile(ctx, s, filepath.Join(dir, "f"), tree.Options{})
	if err != nil || e.Name != "f" || !e.Exec || e.Digest != cas.Sum([]byte("#!x")) {
		t.Fatalf("%+v %v", e, err)
	}
	for _, p := range []string{"l", "."} {
		_, err = tree.CaptureFile(ctx, s, filepath.Join(dir, p), tree.Options{})
		castest.WantKind(t, err, forgeyard.Invalid)
	}
	_, err = tree.CaptureFile(ctx, s, filepath.Join(dir, "none"), tree.Options{})
	castest.WantKind(t, err, forgeyard.NotFound)
}

// RA-257, RA-258: what outputs are captured by keeps the bounds of bytes and of files, and so
// does what lays them out again.
func TestCaptureLimits(t *testing.T) {
	ctx, s := context.Background(), store(t)
	dir := lay(t, map[string]string{"a": "12345", "b": "12345", "c/d": "12345"})
	for _, c := range []struct {
		l    tree.Limits
		want forgeyard.Kind
	}{
		{tree.Limits{MaxFiles: 4, MaxBytes: 15}, forgeyard.Other},
		{tree.Limits{MaxFiles: 3}, forgeyard.Limit},
		{tree.Limits{MaxFiles: 1}, forgeyard.Limit},
		{tree.Limits{MaxBytes: 14}, forgeyard.Limit},
	} {
		_, err := tree.Capture(ctx, s, dir, tree.Options{Limits: c.l})
		if forgeyard.KindOf(err) != c.want {
			t.Errorf("%+v: %v", c.l, err)
		}
		if err == nil {
			ref, _ := tree.Capture(ctx, s, dir, tree.Options{})
			for _, l := range []tree.Limits{{MaxFiles: 3}, {MaxBytes: 14}} {
				_, err := tree.Materialise(ctx, s, ref.Digest, filepath.Join(t.TempDir(), "w"), tree.Materialisation{Limits: l})
				castest.WantKind(t, err, forgeyard.Limit)
			}
		}
	}
	deep := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(deep, strings.Repeat("d/", cas.MaxDepth+1)), 0o700))
	_, err := tree.Capture(ctx, s, deep, tree.Options{})
	castest.WantKind(t, err, forgeyard.Limit)
	// Sparse: a size that was never written.
	big := t.TempDir()
	must(t, os.WriteFile(filepath.Join(big, "sparse"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(big, "sparse"), 1<<40))
	_, err = tree.Capture(ctx, s, big, tree.Options{})
	castest.WantKind(t, err, forgeyard.Limit)
}

func TestMaterialiseMissingAndWrong(t *testing.T) {
	ctx, s := context.Background(), store(t)
	to := func() string { return filepath.Join(t.TempDir(), "w") }
	_, err := tree.Materialise(ctx, s, cas.Sum([]byte("no such tree")), to(), tree.Materialisation{})
	castest.WantKind(t, err, forgeyard.NotFound)
	blob := castest.Put(t, s, []byte("no tree"))
	_, err = tree.Materialise(ctx, s, blob.Digest, to(), tree.Materialisation{})
	castest.WantKind(t, err, forgeyard.Invalid)

	put := func(es ...cas.Entry) forgeyard.Digest {
		enc, err := cas.Tree{Entries: es}.Encode()
		must(t, err)
		return castest.Put(t, s, enc).Digest
	}
	missing := put(cas.Entry{Name: "x", Kind: cas.File, Size: 3, Digest: cas.Sum([]byte("xyz"))})
	_, err = tree.Materialise(ctx, s, missing, to(), tree.Materialisation{})
	castest.WantKind(t, err, forgeyard.NotFound)
	if !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("does not name the path: %v", err)
	}
	lie := put(cas.Entry{Name: "x", Kind: cas.File, Size: 3, Digest: blob.Digest})
	_, err = tree.Materialise(ctx, s, lie, to(), tree.Materialisation{})
	castest.WantKind(t, err, forgeyard.Invalid)
	// A subtree's link may be fine below its parent and lead out of the subtree as a root.
	sub := cas.Tree{Entries: []cas.Entry{{Name: "l", Kind: cas.Symlink, Target: "../x"}}}
	enc, err := sub.Encode()
	must(t, err)
	subRef := castest.Put(t, s, enc)
	top := put(cas.Entry{Name: "d", Kind: cas.Dir, Size: subRef.Size, Digest: subRef.Digest})
	_, err = tree.Materialise(ctx, s, top, to(), tree.Materialisation{})
	must(t, err)
	_, err = tree.Materialise(ctx, s, subRef.Digest, to(), tree.Materialisation{})
	castest.WantKind(t, err, forgeyard.Invalid)
}

func TestClosureFetchesOnTheWay(t *testing.T) {
	ctx, s := context.Background(), store(t)
	ref, err := tree.Capture(ctx, s, lay(t, map[string]string{"a/x": "1", "b/x": "1", "b/c/y": "2", "z": "", "big": string(castest.Bytes(1, cas.BlockSize+1))}), tree.Options{})
	must(t, err)
	asked := make(chan forgeyard.Digest, 100)
	trees, files, err := tree.Closure(ctx, ref.Ref, func(ctx context.Context, r cas.Ref) ([]byte, error) {
		asked <- r.Digest
		return castest.Read(t, s, r.Digest), nil
	}, tree.Limits{})
	must(t, err)
	if len(trees) != 4 || trees[0] != ref.Ref || len(files) != 3 || len(asked) != 4 {
		t.Fatalf("%d trees, %d files, %d asked", len(trees), len(files), len(asked))
	}
	for _, r := range append(trees, files...) {
		if info, err := s.Stat(ctx, r.Digest); err != nil || info.Ref != r {
			t.Fatalf("%+v is not %+v: %v", info.Ref, r, err)
		}
	}
	_, _, err = tree.Closure(ctx, ref.Ref, func(context.Context, cas.Ref) ([]byte, error) { return []byte("lie"), nil }, tree.Limits{})
	castest.WantKind(t, err, forgeyard.Corrupt)
	_, _, err = tree.Closure(ctx, ref.Ref, tree.FromStore(s), tree.Limits{MaxFiles: 5})
	castest.WantKind(t, err, forgeyard.Limit)
}

// 2¹⁰⁰ paths in a hundred small trees.
func TestTreeBombIsBounded(t *testing.T) {
	ctx, s := context.Background(), store(t)
	enc, err := cas.Tree{}.Encode()
	must(t, err)
	ref := castest.Put(t, s, enc)
	for range 100 {
		enc, err := cas.Tree{Entries: []cas.Entry{
			{Name: "a", Kind: cas.Dir, Size: ref.Size, Digest: ref.Digest},
			{Name: "b", Kind: cas.Dir, Size: ref.Size, Digest: ref.Digest},
		}}.Encode()
		must(t, err)
		ref = castest.Put(t, s, enc)
	}
	err = tree.Walk(ctx, ref, tree.FromStore(s), tree.Limits{MaxFiles: 10_000}, func(string, cas.Entry) error { return nil })
	castest.WantKind(t, err, forgeyard.Limit)
	trees, _, err := tree.Closure(ctx, ref, tree.FromStore(s), tree.Limits{})
	if err != nil || len(trees) != 101 {
		t.Fatalf("%d %v", len(trees), err)
	}
	must(t, s.Pin(ctx, cas.Pin{Owner: "test/bomb", Trees: []forgeyard.Digest{ref.Digest}}))
	if r, err := s.GC(ctx, false); err != nil || r.Removed != 0 {
		t.Fatalf("%+v %v", r, err)
	}
}

// What nests deeper than a tree may is refused wherever it is walked, and a pin of it, or of
// an entry whose kind is a lie, stops no collection and keeps what it can.
func TestTreesThatLie(t *testing.T) {
	ctx, s := context.Background(), store(t)
	put := func(es ...cas.Entry) cas.Ref {
		enc, err := cas.Tree{Entries: es}.Encode()
		must(t, err)
		return castest.Put(t, s, enc)
	}
	deep := put()
	for range cas.MaxDepth + 70 {
		deep = put(cas.Entry{Name: "d", Kind: cas.Dir, Size: deep.Size, Digest: deep.Digest})
	}
	blob := castest.Put(t, s, []byte("no tree"))
	wrongKind := put(cas.Entry{Name: "d", Kind: cas.Dir, Size: blob.Size, Digest: blob.Digest})
	wrongSize := put(cas.Entry{Name: "f", Kind: cas.File, Size: blob.Size + 1, Digest: blob.Digest})
	for name, c := range map[string]struct {
		root cas.Ref
		want forgeyard.Kind
	}{
		"too deep":                   {deep, forgeyard.Limit},
		"a directory that is a file": {wrongKind, forgeyard.Invalid},
		"a file as the root":         {blob, forgeyard.Invalid},
		"a size that is not its own": {wrongSize, forgeyard.Invalid},
	} {
		_, err := tree.Materialise(ctx, s, c.root.Digest, filepath.Join(t.TempDir(), "x"), tree.Materialisation{})
		castest.WantKind(t, err, c.want)
		if c.root != wrongSize { // sizes are seen where the bytes are
			if _, _, err := tree.Closure(ctx, c.root, tree.FromStore(s), tree.Limits{}); forgeyard.KindOf(err) != c.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		must(t, s.Pin(ctx, cas.Pin{Owner: "test/" + strings.ReplaceAll(name, " ", "-"), Trees: []forgeyard.Digest{c.root.Digest}}))
	}
	loose := castest.Put(t, s, []byte("loose"))
	if r, err := s.GC(ctx, false); err != nil || r.Removed != 1 || s.Has(ctx, loose.Digest) {
		t.Fatalf("%+v %v", r, err)
	}
}
