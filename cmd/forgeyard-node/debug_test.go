package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

// A bundle has what could be had, and names what could not; a setting whose name speaks of a
// secret has no value in it, and a default has none to hide.
func TestDebugBundle(t *testing.T) {
	settings := []*forgeyardv1.Setting{
		{Key: "name", Value: "n1", Source: "file"}, {Key: "secrets", Value: "{PIN: /keys/pin}", Source: "file"}, {Key: "cache_api.token_file", Value: "hush", Source: "file"},
		{Key: "secrets", Value: "{}", Source: "default"},
	}
	hide(settings)
	for i, want := range []string{"n1", "(not shown)", "(not shown)", "{}"} {
		if settings[i].Value != want {
			t.Errorf("%s is %q, want %q", settings[i].Key, settings[i].Value, want)
		}
	}
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	var m manifest
	err := writeNew(file, func(w io.Writer) error {
		return m.write(t.Context(), w, []part{
			{"a.json", func(context.Context) ([]byte, error) { return []byte("{}"), nil }},
			{"b.json", func(context.Context) ([]byte, error) { return nil, errors.New("no quorum") }},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(b)
	}
	if len(got) != 2 || got["forgeyard-debug/a.json"] != "{}" || !strings.Contains(got["forgeyard-debug/manifest.json"], "no quorum") {
		t.Errorf("%v", got)
	}
	if i, err := os.Stat(file); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", i.Mode(), err)
	}
	if err := writeNew(file, func(io.Writer) error { return nil }); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("a file that is there: %v", err)
	}
	bad := filepath.Join(filepath.Dir(file), "bad")
	if err := writeNew(bad, func(io.Writer) error { return errors.New("no") }); err == nil {
		t.Error("a bundle that failed is there")
	}
	full := func(io.Writer) error { return &fs.PathError{Op: "write", Path: bad, Err: syscall.ENOSPC} }
	if err := writeNew(bad, full); forgeyard.KindOf(err) != forgeyard.NoSpace {
		t.Errorf("on a full disk: %v", err)
	}
	nowhere := filepath.Join(filepath.Dir(file), "no", "such")
	if err := writeNew(nowhere, func(io.Writer) error { return nil }); forgeyard.KindOf(err) != forgeyard.NotFound || strings.Contains(err.Error(), ".forgeyard-debug") {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if l, err := os.ReadDir(filepath.Dir(file)); err != nil || len(l) != 1 {
		t.Errorf("%v is left, %v", l, err)
	}
}
