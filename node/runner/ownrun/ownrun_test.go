package ownrun

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// What a child leaves is what its daemon reads.
func TestResultIsRead(t *testing.T) {
	for _, want := range []Result{
		{Summary: "2 names: 3 objects, 12 B", Outputs: []Output{{Name: "scope", Tree: true, Digest: forgeyard.Digest{1}, Size: 7}, {Name: "calib", Digest: forgeyard.Digest{2}, Manifest: forgeyard.Digest{3}, Size: 1 << 40}}},
		{Category: job.DiskFull, Error: "input big (/data/big): no space"},
		{},
	} {
		dir := t.TempDir()
		if err := Write(dir, want); err != nil {
			t.Fatal(err)
		}
		want.Version = version
		if got, err := Read(dir); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %+v, not %+v", err, got, want)
		}
	}
}

// A child that was killed left nothing or a part; one of another version speaks of what this
// program does not know. None of it is taken for a result.
func TestResultIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		text string // empty: no file
		kind forgeyard.Kind
	}{
		"nothing":         {"", forgeyard.NotFound},
		"a part":          {`{"version":1,"summary":"2 na`, forgeyard.Corrupt},
		"no JSON":         {"done\n", forgeyard.Corrupt},
		"another version": {`{"version":2}`, forgeyard.Invalid},
		"no version":      {`{"summary":"all is well"}`, forgeyard.Invalid},
		"no digest":       {`{"version":1,"outputs":[{"name":"a","digest":"b3:00"}]}`, forgeyard.Corrupt},
		"without an end":  {`{"version":1,"summary":"` + strings.Repeat("x", maxBytes) + `"}`, forgeyard.Corrupt},
		"two of them":     {`{"version":1,"summary":"a"}{"version":1,"error":"b"}`, forgeyard.Corrupt},
	} {
		dir := t.TempDir()
		if c.text != "" {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := Read(dir); forgeyard.KindOf(err) != c.kind || !reflect.DeepEqual(r, Result{}) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, file), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil {
		t.Error("a folder was read as a result")
	}
	if err := Write(dir, Result{}); err == nil {
		t.Error("a result was written over a folder")
	}
}

// Whatever stands there, it is a result that reads the same once it is written again, or an
// error of a kind that the daemon knows what to do with.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1,"summary":"1 name","outputs":[{"name":"a","tree":true,"digest":"` + forgeyard.Digest{1}.String() + `","size":3}]}`))
	f.Add([]byte(`{"version":1,"category":"disk_full","error":"no space"}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1}garbage`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Read(dir)
		if err != nil {
			if k := forgeyard.KindOf(err); (k != forgeyard.Corrupt && k != forgeyard.Invalid) || !reflect.DeepEqual(r, Result{}) {
				t.Fatalf("%v of kind %v, with %+v", err, k, r)
			}
			return
		}
		if err := Write(dir, r); err != nil {
			t.Fatal(err)
		}
		again, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		x, err1 := json.Marshal(r)
		y, err2 := json.Marshal(again)
		if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
			t.Fatalf("%s, then %s (%v, %v)", x, y, err1, err2)
		}
	})
}
