//go:build unix

package capture_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
)

// noise is a state that nothing compresses.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func inPieces(t testing.TB) capture.Expect {
	e := expect(t)
	e.Pieces = true
	e.Contract.MaxBytes = 1 << 30
	return e
}

func restored(t *testing.T, store cas.Store, g capture.Ingested, p string) []byte {
	t.Helper()
	dst := place(t)
	must(t, capture.Restore(t.Context(), store, g.Manifest, dst))
	b, err := os.ReadFile(filepath.Join(dst, p))
	must(t, err)
	return b
}

// A checkpoint of a large file costs what has changed since the one before, and comes back
// the same (CK-211: the store shares what content has in common; no checkpoint needs another
// one to be read, so CK-209's chain has one link).
func TestNextCheckpointCostsWhatChanged(t *testing.T) {
	store, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	state := noise(24<<20, 1)
	files := map[string]string{"state/big": string(state), "state/small": "a", "state/dir/other": string(state[:3<<20])}
	first := newSlot(t, files)
	a, err := capture.IngestSealed(t.Context(), store, first.dir, inPieces(t))
	must(t, err)
	// Both are of one slot here, and so of one owner.
	must(t, store.Pin(t.Context(), cas.Pin{Owner: "checkpoint/first", Trees: []forgeyard.Digest{a.Payload}, Roots: []forgeyard.Digest{a.Manifest.Marker}}))
	before := store.Holds()

	// One place is written over, and eleven bytes are pushed in before all the rest.
	copy(state[10<<20:], noise(1000, 2))
	state = append(noise(11, 3), state...)
	files["state/big"] = string(state)
	second := newSlot(t, files)
	b, err := capture.IngestSealed(t.Context(), store, second.dir, inPieces(t))
	must(t, err)
	if more := store.Holds().Bytes - before.Bytes; more > 5<<20 {
		t.Errorf("the second of %d bytes cost %d", len(state), more)
	}
	if !a.Manifest.Pieces || a.Manifest.Files != 3 {
		t.Errorf("%+v", a.Manifest)
	}
	if got := restored(t, store, b, "state/big"); !bytes.Equal(got, state) {
		t.Errorf("%d bytes came back that differ", len(got))
	}
	if got := restored(t, store, b, "state/dir/other"); cas.Sum(got) != second.marker.Files[indexOf(second.marker, "state/dir/other")].BLAKE3 {
		t.Error("the file beside it differs")
	}
	// The first needs nothing of the second.
	must(t, store.Unpin(t.Context(), b.Owner))
	_, err = store.GC(t.Context(), false)
	must(t, err)
	if got := restored(t, store, a, "state/small"); string(got) != "a" {
		t.Errorf("%q", got)
	}
}

func indexOf(m checkpoint.Marker, p string) int {
	for i, f := range m.Files {
		if f.Path == p {
			return i
		}
	}
	return -1
}

// What is in pieces is checked as what is whole: the digest that the marker names, a secret
// over the seam of two pieces, a file that grows, a piece that a disk has spoilt.
func TestPiecesAreCheckedLikeWholes(t *testing.T) {
	state := noise(5<<20, 4)
	whole := func() *slot { return newSlot(t, map[string]string{"big": string(state)}) }
	store := newMemory()

	s := whole()
	s.marker.Files[0].BLAKE3 = cas.Sum([]byte("another"))
	s.seal()
	_, err := capture.IngestSealed(t.Context(), store, s.dir, inPieces(t))
	if f, _ := checkpoint.FindingOf(err); f.Code != checkpoint.CodeDigest {
		t.Errorf("another digest: %v", err)
	}

	for at := 1<<20 - len(secret); at <= 1<<20; at += 3 { // every piece ends by then
		spoilt := bytes.Clone(state)
		copy(spoilt[at:], secret)
		s := newSlot(t, map[string]string{"big": string(spoilt)})
		fresh := newMemory()
		_, err := capture.IngestSealed(t.Context(), fresh, s.dir, inPieces(t))
		if f, _ := checkpoint.FindingOf(err); f.Code != checkpoint.CodeSecret || len(fresh.pins) != 0 {
			t.Errorf("a secret at %d: %v", at, err)
		}
	}

	store = newMemory()
	g, err := capture.IngestSealed(t.Context(), store, whole().dir, inPieces(t))
	must(t, err)
	var piece forgeyard.Digest
	for d, b := range store.blobs {
		if len(b) > 128<<10 {
			piece = d
		}
	}
	store.flip(t, piece)
	dst := place(t)
	if err := capture.Restore(t.Context(), store, g.Manifest, dst); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("a spoilt piece: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(dst)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Of a site that has programs which read no pieces nothing is kept in pieces.
func TestWithoutPiecesFilesAreWhole(t *testing.T) {
	store := newMemory()
	s := newSlot(t, map[string]string{"big": string(noise(2<<20, 5))})
	e := inPieces(t)
	e.Pieces = false
	g, err := capture.IngestSealed(t.Context(), store, s.dir, e)
	must(t, err)
	if g.Manifest.Pieces || store.blobs[s.marker.Files[0].BLAKE3] == nil {
		t.Errorf("%+v", g.Manifest)
	}
}
