package control

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// CK-243: what is chosen to go on from is read where it is asked for, as far as it lies there.
func TestChosenAndSpoilt(t *testing.T) {
	dir := t.TempDir()
	store, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx := context.Background()
	content := bytes.Repeat([]byte("state of a job "), 10_000)
	put := func(b []byte) cas.Ref {
		r, err := store.Put(ctx, bytes.NewReader(b), cas.PutOptions{Class: cas.Durable})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	f := put(content)
	tree := cas.Tree{Entries: []cas.Entry{{Name: "n", Kind: cas.File, Size: f.Size, Digest: f.Digest, Manifest: f.Manifest}}}
	b, err := tree.Encode()
	if err != nil {
		t.Fatal(err)
	}
	m := checkpoint.Manifest{Payload: put(b).Digest, Bytes: f.Size, Files: 1}
	s := checkpointService{storeNode{store: store}}
	if err := s.spoilt(ctx, m); err != nil {
		t.Fatalf("a whole one: %v", err)
	}
	if err := s.spoilt(ctx, checkpoint.Manifest{Payload: forgeyard.Digest{1}}); err != nil {
		t.Errorf("one that is not here is judged where it is restored: %v", err)
	}
	hit := false
	err = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		was, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(was, content[:64]) {
			return err
		}
		hit = true
		if err := os.Chmod(p, 0o600); err != nil {
			return err
		}
		return os.WriteFile(p, bytes.Replace(was, []byte("state"), []byte("stale"), 1), 0o600)
	})
	if err != nil || !hit {
		t.Fatalf("nothing was spoilt: %v", err)
	}
	if err := s.spoilt(ctx, m); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("a spoilt one: %v", err)
	}
}

// A payload in pieces has more files than a checkpoint may have, and is looked through all the
// same; what could not be looked through is not called good.
func TestChosenInPieces(t *testing.T) {
	store, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	put := func(v cas.Tree) cas.Ref {
		b, err := v.Encode()
		if err != nil {
			t.Fatal(err)
		}
		r, err := store.Put(t.Context(), bytes.NewReader(b), cas.PutOptions{Class: cas.Durable})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var file, root cas.Tree
	const pieces = 4096
	for i := range pieces {
		file.Entries = append(file.Entries, cas.Entry{Name: fmt.Sprintf("%04x", i), Kind: cas.File, Digest: cas.Empty()})
	}
	one := put(file)
	for i := range 2*checkpoint.MaxFiles/pieces + 1 {
		root.Entries = append(root.Entries, cas.Entry{Name: fmt.Sprintf("%04x", i), Kind: cas.Dir, Size: one.Size, Digest: one.Digest, Manifest: one.Manifest})
	}
	m := checkpoint.Manifest{Payload: put(root).Digest, Files: len(root.Entries)}
	if err := (checkpointService{storeNode{store: store}}).spoilt(t.Context(), m); err != nil {
		t.Error(err)
	}
	for kind, want := range map[forgeyard.Kind]forgeyard.Kind{forgeyard.Corrupt: forgeyard.Conflict, forgeyard.Limit: forgeyard.Unavailable, forgeyard.Other: forgeyard.Unavailable} {
		if err := unfit(m.Payload, forgeyard.Errorf("walk", kind, "odd")); forgeyard.KindOf(err) != want {
			t.Errorf("%s: %v", kind, err)
		}
	}
	for _, err := range []error{nil, forgeyard.Errorf("fetch", forgeyard.NotFound, "not here")} {
		if err := unfit(m.Payload, err); err != nil {
			t.Error(err)
		}
	}
}
