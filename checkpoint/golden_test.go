package checkpoint_test

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/job/machine"
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

// TestManifestOfVersion1: the digest of these bytes is what the log calls the checkpoint
// (CK-043); beside it stand when it was committed and who has a copy (CK-048).
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
	c := checkpoint.CommitOf(m, 1_700_000_000_000, []forgeyard.RunnerID{nodeA})
	if c.Manifest != m.ID() || c.At != 1_700_000_000_000 || c.Payload != m.Payload || c.Epoch != 2 || c.Seq != 42 || len(c.Replicas) != 1 {
		t.Errorf("the log has %+v", c)
	}
}

// TestManifestOfVersion2 says on what machine it was taken too (CK-047 109). One of version 1
// is read as before, by whoever reads this one.
func TestManifestOfVersion2(t *testing.T) {
	var facts machine.Facts
	golden.Fill(t, &facts)
	m, err := checkpoint.NewManifest(sampleMarker(), cas.Sum([]byte("tree")), checkpoint.Binding{Authority: authority(), Contract: cas.Sum([]byte("contract")), OS: "linux", Arch: "amd64", Machine: &facts})
	if err != nil {
		t.Fatal(err)
	}
	got, err := checkpoint.ParseManifest(golden.Bytes(t, "testdata/manifest-v2.hex", m.Encode()))
	if err != nil || !reflect.DeepEqual(got, m) || got.ID() != m.ID() || got.Version != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	if c := checkpoint.CommitOf(m, 1, nil); c.Where == nil || !reflect.DeepEqual(c.Where.Machine, &facts) || c.Where.OS != "linux" {
		t.Errorf("the log is not told where it was taken: %+v", c.Where)
	}
}

// TestSealedManifest: of a restricted checkpoint the manifest names the marker by its ciphertext.
func TestSealedManifest(t *testing.T) {
	sealed := cas.Sum([]byte("ciphertext"))
	m, err := checkpoint.NewManifest(sampleMarker(), cas.Sum([]byte("tree")), checkpoint.Binding{Authority: authority(), Contract: cas.Sum([]byte("contract")), OS: "linux", Arch: "amd64", Sensitivity: checkpoint.Restricted, Sealed: sealed})
	if err != nil {
		t.Fatal(err)
	}
	got, err := checkpoint.ParseManifest(golden.Bytes(t, "testdata/manifest-sealed.hex", m.Encode()))
	if err != nil || !reflect.DeepEqual(got, m) || !got.Sealed || got.Marker != sealed || got.Stored() <= got.Bytes {
		t.Fatalf("%+v %v", got, err)
	}
}
