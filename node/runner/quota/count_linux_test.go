package quota

import (
	"os"
	"path/filepath"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCount(t *testing.T) {
	root := t.TempDir()
	build := filepath.Join(root, "build")
	must(t, os.MkdirAll(filepath.Join(build, "a", "b"), 0o755))
	must(t, os.Mkdir(filepath.Join(root, "source"), 0o755))
	big := make([]byte, 1<<20)
	must(t, os.WriteFile(filepath.Join(build, "a", "b", "big"), big, 0o644))
	must(t, os.Link(filepath.Join(build, "a", "b", "big"), filepath.Join(build, "again")))
	must(t, os.Symlink("/usr", filepath.Join(build, "usr")))
	must(t, os.Symlink("..", filepath.Join(build, "round")))
	sparse, err := os.Create(filepath.Join(build, "sparse"))
	must(t, err)
	must(t, sparse.Truncate(1<<40))
	must(t, sparse.Close())
	must(t, os.WriteFile(filepath.Join(root, "source", "in"), big[:8192], 0o644))
	hidden := filepath.Join(build, "hidden")
	must(t, os.WriteFile(hidden, big, 0o644))
	f, err := os.Open(hidden)
	must(t, err)
	defer f.Close()
	must(t, os.Remove(hidden))

	got, c, err := Count(root)
	must(t, err)
	if c.Deep {
		t.Error("three folders are deep")
	}
	if b := got["build"]; b.Files != 7 || b.Bytes < 1<<20 || b.Bytes > 1<<20+1<<16 { // build a b big usr round sparse
		t.Errorf("build %+v", b)
	}
	if s := got["source"]; s.Files != 2 || s.Bytes < 8192 || s.Bytes > 1<<16 {
		t.Errorf("source %+v", s)
	}
	if d := c.Deleted([]int{os.Getpid(), 1 << 30}); d.Files < 1 || d.Bytes < 1<<20 {
		t.Errorf("the file without a name: %+v", d)
	}
	if d := c.Deleted([]int{os.Getpid()}); d.Bytes != 0 {
		t.Errorf("it is counted twice: %+v", d)
	}
	deep := build
	for range maxDepth/2 + 1 {
		deep = filepath.Join(deep, "d", "d")
	}
	must(t, os.MkdirAll(deep, 0o755))
	if _, c, err := Count(root); err != nil || !c.Deep || Of(1).Over(Usage{Deep: true}) == "" {
		t.Errorf("folders without end: %v", err)
	}
	if _, _, err := Count(filepath.Join(build, "usr")); err == nil {
		t.Error("a link was followed")
	}
	if free, err := FreeOf(root); err != nil || free.Bytes <= 0 {
		t.Errorf("%+v %v", free, err)
	}
}
