package tree_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas/tree"
)

// sources lays 1,000 files of 8 KiB, and says how many bytes they are.
func sources(b *testing.B) (dir string, size int64) {
	b.Helper()
	dir = b.TempDir()
	for i := range 1000 {
		name := filepath.Join(dir, strconv.Itoa(i/100), strconv.Itoa(i))
		must(b, os.MkdirAll(filepath.Dir(name), 0o755))
		must(b, os.WriteFile(name, bytes.Repeat([]byte(strconv.Itoa(i)+"\n"), 8<<10/len(strconv.Itoa(i)+"\n")), 0o644))
	}
	return dir, 1000 * (8 << 10)
}

// BenchmarkMaterialise is how inputs come into a workspace (RA-463): a tree of the store
// becomes files.
func BenchmarkMaterialise(b *testing.B) {
	s := store(b)
	dir, size := sources(b)
	ref, err := tree.Capture(b.Context(), s, dir, tree.Options{})
	must(b, err)
	b.SetBytes(size)
	to := b.TempDir()
	for i := 0; b.Loop(); i++ {
		dst := filepath.Join(to, strconv.Itoa(i))
		if _, err := tree.Materialise(b.Context(), s, ref.Digest, dst, tree.Materialisation{}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		must(b, tree.Remove(dst))
		b.StartTimer()
	}
}

// BenchmarkCaptureOutputs is how outputs leave it (RA-465): files are read, cut and hashed, and
// found to be in the store already, so that no disk is measured.
func BenchmarkCaptureOutputs(b *testing.B) {
	s := store(b)
	dir, size := sources(b)
	b.SetBytes(size)
	for b.Loop() {
		if _, err := tree.CaptureOutputs(b.Context(), s, dir, []string{"."}, tree.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
