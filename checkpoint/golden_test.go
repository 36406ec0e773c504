package checkpoint_test

import (
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/golden"
)

// TestMarkerOfVersion1 has every field: programs of others write this file, and its
// digest is part of the checkpoint's identity.
func TestMarkerOfVersion1(t *testing.T) {
	m := sampleMarker()
	m.ParentSeq, m.EffectsOpen = 41, []string{"mail to ana"}
	got, err := checkpoint.ParseMarker(golden.Text(t, "testdata/marker-v1.json", append(m.Encode(), '\n')))
	if err != nil || got.Digest() != m.Digest() {
		t.Fatalf("%+v %v", got, err)
	}
}

// TestManifestOfVersion1: the digest of these bytes is what the log calls the checkpoint.
func TestManifestOfVersion1(t *testing.T) {
	m, err := checkpoint.NewManifest(sampleMarker(), cas.Sum([]byte("tree")), checkpoint.Binding{Authority: authority(), Contract: cas.Sum([]byte("contract")), OS: "linux", Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	m.Parent = cas.Sum([]byte("parent"))
	got, err := checkpoint.ParseManifest(golden.Bytes(t, "testdata/manifest-v1.hex", m.Encode()))
	if err != nil || got != m || got.ID() != m.ID() {
		t.Fatalf("%+v %v", got, err)
	}
}
