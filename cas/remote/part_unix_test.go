//go:build unix

package remote

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
)

// A part that somebody else could write to after it was verified is not gone on with; one's
// own is.
func TestPartOfAnother(t *testing.T) {
	_, s, dir := serve(t)
	data := bytes.Repeat([]byte("words "), 1000)
	ref, err := s.Put(t.Context(), bytes.NewReader(data), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, path := filepath.Join(dir, partPrefix+ref.Digest.Hex()+partSuffix), filepath.Join(dir, "out")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lay := map[string]func(){
		"my own":         func() {},
		"writable":       func() { must(os.Chmod(name, 0o666)) },
		"of two names":   func() { must(os.Link(name, filepath.Join(dir, "mine"))) },
		"a link":         func() { must(os.Rename(name, filepath.Join(dir, "away"))); must(os.Symlink("away", name)) },
		"another user's": func() { must(os.Chown(name, 12345, 12345)) },
	}
	if os.Geteuid() != 0 {
		delete(lay, "another user's") // only root can make one
	}
	for what, f := range lay {
		t.Run(what, func(t *testing.T) {
			must(os.WriteFile(name, data[:3000], 0o600))
			f()
			laid, err := os.Stat(name)
			must(err)
			var had int64
			s.Had = func(n int64) { had += n }
			_, err = s.File(t.Context(), ref, path)
			must(err)
			st, err := os.Stat(path)
			must(err)
			if own := what == "my own"; os.SameFile(laid, st) != own || (had == 3000) != own {
				t.Errorf("same file %v, %d bytes taken over", os.SameFile(laid, st), had)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			for _, p := range []string{name, path, filepath.Join(dir, "mine"), filepath.Join(dir, "away")} {
				if err := os.Remove(p); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
		})
	}
}
