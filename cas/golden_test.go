package cas_test

import (
	"bytes"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// TestManifestOfVersion1: its bytes are named by their digest, so every store has them.
func TestManifestOfVersion1(t *testing.T) {
	_, m, enc := build(t, pattern(2*cas.BlockSize+7), 1<<16)
	got, err := cas.DecodeManifest(golden.Bytes(t, "testdata/manifest-v1.hex", enc))
	if err != nil || got.Size != m.Size || got.Whole != m.Whole || len(got.Blocks) != 3 || got.Blocks[2] != m.Blocks[2] {
		t.Fatalf("%+v %v", got, err)
	}
}

// TestTreeOfVersion1 has an entry of each kind, and of each optional field.
func TestTreeOfVersion1(t *testing.T) {
	tr := cas.Tree{Entries: []cas.Entry{
		file("a", "x"), file("empty", ""),
		{Name: "big", Kind: cas.File, Size: cas.BlockSize + 1, Digest: cas.Sum([]byte("w")), Manifest: cas.Sum([]byte("m"))},
		{Name: "dir", Kind: cas.Dir, Size: 30, Digest: cas.Sum([]byte("t"))},
		{Name: "link", Kind: cas.Symlink, Target: "../x"},
		{Name: "run.sh", Kind: cas.File, Exec: true, Size: 2, Digest: cas.Sum([]byte("#!"))},
	}}
	tr.Sort()
	enc, err := tr.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := cas.DecodeTree(golden.Bytes(t, "testdata/tree-v1.hex", enc))
	if err != nil || len(got.Entries) != len(tr.Entries) {
		t.Fatalf("%+v %v", got, err)
	}
	for i, e := range got.Entries {
		if e != tr.Entries[i] {
			t.Errorf("%+v, was %+v", e, tr.Entries[i])
		}
	}
	if again, err := got.Encode(); err != nil || !bytes.Equal(again, enc) {
		t.Errorf("%v: what was read has another name", err)
	}
}
