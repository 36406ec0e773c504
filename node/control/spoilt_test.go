package control

import (
	"bytes"
	"context"
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
