package gocache

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// folder keeps outputs and entries on this machine:
//
//	a/xx/HEX   an entry, by its action id
//	o/xx/HEX   an output, by its id
//	trimmed    when old files were last removed
//
// A file is written beside its place and renamed: whole or not there. Nothing is synced,
// so an output is used only if it has its size.
type folder struct {
	dir string
	now func() time.Time
}

const (
	unusedFor = 5 * 24 * time.Hour // then a file goes
	trimEvery = 24 * time.Hour
	usedEvery = time.Hour // how coarsely uses are noted
)

func (f folder) path(kind string, id []byte) string {
	h := hex.EncodeToString(id)
	return filepath.Join(f.dir, kind, h[:2], h)
}

// get finds an action's output.
func (f folder) get(action []byte) (entry, string, bool) {
	path := f.path("a", action)
	b, err := os.ReadFile(path)
	if err != nil {
		return entry{}, "", false
	}
	e, err := parseEntry(b)
	if err != nil {
		return entry{}, "", false // damaged: as good as none, and written again
	}
	out := f.path("o", e.output)
	st, err := os.Stat(out)
	if err != nil || st.Size() != e.size {
		return entry{}, "", false
	}
	if now := f.now(); now.Sub(st.ModTime()) > usedEvery {
		_ = os.Chtimes(out, now, now) // only an early trim is at stake
		_ = os.Chtimes(path, now, now)
	}
	return e, out, true
}

// has gives the place of an output that is here.
func (f folder) has(e entry) (string, bool) {
	path := f.path("o", e.output)
	st, err := os.Stat(path)
	return path, err == nil && st.Size() == e.size
}

// output writes an output: fill brings its bytes.
func (f folder) output(id []byte, fill func(io.Writer) error) (string, error) {
	path := f.path("o", id)
	return path, f.write(path, fill)
}

func (f folder) entry(action []byte, e entry) error {
	return f.write(f.path("a", action), func(w io.Writer) error {
		_, err := w.Write(e.encode())
		return err
	})
}

func (f folder) write(path string, fill func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return f.failed(err)
	}
	t, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return f.failed(err)
	}
	err = fill(t)
	if err = errors.Join(err, t.Close()); err == nil {
		err = os.Rename(t.Name(), path)
	}
	if err != nil {
		_ = os.Remove(t.Name()) // or a trim does
		return f.failed(err)
	}
	return nil
}

// failed types the error of a write.
func (f folder) failed(err error) error {
	if durable.Full(err) {
		return forgeyard.E("gocache", forgeyard.NoSpace, err).WithHint("free space on the disk of %s, or remove that folder: it is only a cache", f.dir)
	}
	return forgeyard.E("gocache", forgeyard.Other, err)
}

// trim removes what was not used for long, once a day.
func (f folder) trim() error {
	mark := filepath.Join(f.dir, "trimmed")
	now := f.now()
	if st, err := os.Stat(mark); err == nil && now.Sub(st.ModTime()) < trimEvery {
		return nil
	}
	if err := os.WriteFile(mark, fmt.Appendln(nil, now.UTC().Format(time.RFC3339)), 0o644); err != nil {
		return forgeyard.E("gocache", forgeyard.Other, err)
	}
	for _, kind := range []string{"a", "o"} {
		err := filepath.WalkDir(filepath.Join(f.dir, kind), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !(strings.HasPrefix(e.Name(), ".new-") || isHex(e.Name())) {
				return nil // what cannot be read is not ours to remove
			}
			if st, err := e.Info(); err == nil && now.Sub(st.ModTime()) > unusedFor {
				_ = os.Remove(path) // somebody else was faster, or may write here and we not
			}
			return nil
		})
		if err != nil {
			return forgeyard.E("gocache", forgeyard.Other, err)
		}
	}
	return nil
}

func isHex(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }
