//go:build unix

package capture_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
)

// node is one that keys are sealed for.
type node struct{ *age.X25519Identity }

func newNode(t *testing.T) node {
	id, err := age.GenerateX25519Identity()
	must(t, err)
	return node{id}
}

func (n node) unseal(sealed []byte) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), n.X25519Identity)
	if err != nil {
		return nil, forgeyard.E("open", forgeyard.Denied, err)
	}
	return io.ReadAll(r)
}

func restricted(t *testing.T, nodes ...node) capture.Expect {
	e := expect(t)
	e.Sensitivity, e.Pieces = checkpoint.Restricted, true
	e.Seal = func(key []byte) ([]byte, error) {
		var to []age.Recipient
		for _, n := range nodes {
			to = append(to, n.Recipient())
		}
		var b bytes.Buffer
		w, err := age.Encrypt(&b, to...)
		if err != nil {
			return nil, err
		}
		_, err = w.Write(key)
		err = errors.Join(err, w.Close())
		return b.Bytes(), err
	}
	return e
}

// CK-012 CK-181 CK-182: of a restricted payload nothing that says anything is in the store: no
// content, no name, no digest that a guess could be held against. Who it is sealed for gets it
// back, and nobody else.
func TestSealed(t *testing.T) {
	one, two, stranger := newNode(t), newNode(t), newNode(t)
	files := map[string]string{"state/secretname": "alpha", "state/large": large, "cursor": "", "d/e/b": "beta"}
	s, store := newSlot(t, files), newMemory()
	must(t, os.Mkdir(filepath.Join(s.dir, "hollow"), 0o755))
	g, err := capture.IngestSealed(t.Context(), store, s.dir, restricted(t, one, two))
	must(t, err)
	m := g.Manifest
	if !m.Sealed || m.Pieces || m.Sensitivity != checkpoint.Restricted || m.Files != 4 || m.Bytes != int64(9+len(large)) || m.Marker == s.marker.Digest() {
		t.Fatalf("%+v", m)
	}
	for _, text := range []string{"secretname", "hollow", "alpha", "beta", large[:64], s.marker.Files[0].BLAKE3.Hex()} {
		if store.contains(text) {
			t.Errorf("the store holds %.20q", text)
		}
	}
	for _, f := range s.marker.Files {
		if _, err := store.Open(t.Context(), f.BLAKE3); err == nil && f.Size > 0 {
			t.Errorf("the store holds %s by the digest of what is in it", f.Path)
		}
	}
	for _, n := range []node{one, two} {
		dst := place(t)
		marker, err := capture.RestoreSealed(t.Context(), store, m, dst, n.unseal)
		must(t, err)
		if marker.Digest() != s.marker.Digest() {
			t.Error("another marker came back")
		}
		for p, want := range files {
			if b, err := os.ReadFile(filepath.Join(dst, p)); err != nil || string(b) != want {
				t.Errorf("%s: %d bytes, %v", p, len(b), err)
			}
		}
		if info, err := os.Stat(filepath.Join(dst, "hollow")); err != nil || !info.IsDir() || info.Mode().Perm() != 0o555 {
			t.Errorf("a directory without a file: %v", err)
		}
	}
	for name, try := range map[string]func(dst string) error{
		"stranger": func(dst string) error {
			_, err := capture.RestoreSealed(t.Context(), store, m, dst, stranger.unseal)
			return err
		},
		"no key": func(dst string) error { return capture.Restore(t.Context(), store, m, dst) },
	} {
		dst := place(t)
		err := try(dst)
		if left, _ := os.ReadDir(filepath.Dir(dst)); forgeyard.KindOf(err) != forgeyard.Denied || len(left) != 0 {
			t.Errorf("%s: %v, left %v", name, err, left)
		}
	}
}

// Nothing of a restricted checkpoint is stored where nobody can seal it, what a resolved secret is
// in is refused as ever, and a byte that the marker does not promise too.
func TestRestrictedRefuses(t *testing.T) {
	n := newNode(t)
	for name, c := range map[string]struct {
		edit func(s *slot, e *capture.Expect)
		want checkpoint.Code
		kind forgeyard.Kind
	}{
		"no keys": {func(_ *slot, e *capture.Expect) { e.Seal = nil }, "", forgeyard.Unavailable},
		"secret":  {func(s *slot, _ *capture.Expect) { s.put("conf", "token="+secret) }, checkpoint.CodeSecret, forgeyard.Invalid},
		"other bytes": {func(s *slot, _ *capture.Expect) {
			s.marker.Files[0].BLAKE3 = cas.Sum([]byte("another"))
			s.seal()
		}, checkpoint.CodeDigest, forgeyard.Corrupt},
	} {
		s, store, e := newSlot(t, map[string]string{"a": "alpha"}), newMemory(), restricted(t, n)
		c.edit(s, &e)
		_, err := capture.IngestSealed(t.Context(), store, s.dir, e)
		if f, _ := checkpoint.FindingOf(err); f.Code != c.want || forgeyard.KindOf(err) != c.kind || len(store.pins)+len(store.held) != 0 {
			t.Errorf("%s: %v", name, err)
		}
		if store.contains(secret) || store.contains("alpha") {
			t.Errorf("%s: it is in the store", name)
		}
	}
}

// K01: one byte that the disk changed makes it corrupt, wherever it is, and nothing is left of it.
func TestSealedDamage(t *testing.T) {
	n := newNode(t)
	s, store := newSlot(t, payload()), newMemory()
	g, err := capture.IngestSealed(t.Context(), store, s.dir, restricted(t, n))
	must(t, err)
	lie := g.Manifest
	lie.Bytes++
	if _, err := capture.RestoreSealed(t.Context(), store, lie, place(t), n.unseal); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("a manifest that lies: %v", err)
	}
	// One file for another: both verify in the store, and neither is what the marker says.
	whole := maps(store)
	for d := range whole {
		was := store.blobs[d]
		store.blobs[d] = slices.Clone(was)
		if len(was) == 0 {
			continue
		}
		store.blobs[d][len(was)-1] ^= 1
		dst := place(t)
		if _, err := capture.RestoreSealed(t.Context(), store, g.Manifest, dst, n.unseal); err == nil && d != g.ID && !blockOf(store, d) {
			t.Errorf("%s was changed, and it was restored", d.Short())
		} else if left, _ := os.ReadDir(filepath.Dir(dst)); err != nil && len(left) != 0 {
			t.Errorf("%s: left %v", d.Short(), left)
		}
		store.blobs[d] = was
		must(t, tree.Remove(dst))
	}
}

func maps(s *memory) map[forgeyard.Digest]bool {
	out := map[forgeyard.Digest]bool{}
	for d := range s.blobs {
		out[d] = true
	}
	return out
}

// blockOf reports a manifest of a large blob: this store reads large blobs without it.
func blockOf(s *memory, d forgeyard.Digest) bool {
	for _, r := range s.refs {
		if r.Manifest == d {
			return true
		}
	}
	return false
}

// A person who may read it gets the tree and the checkpoint's own key, and opens it where they are.
func TestOpenSealed(t *testing.T) {
	n := newNode(t)
	build, store, e := t.TempDir(), newMemory(), restricted(t, n)
	must(t, os.MkdirAll(filepath.Join(build, "state/sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(build, "state/sub/y"), []byte(large), 0o755))
	must(t, os.WriteFile(filepath.Join(build, "cursor"), []byte("7"), 0o644))
	g, err := capture.IngestExit(t.Context(), store, build, e)
	must(t, err)
	from := filepath.Join(t.TempDir(), "fetched")
	var key []byte
	must(t, tree.Walk(t.Context(), cas.Ref{Digest: g.Payload}, tree.FromStore(store), tree.Limits{MaxFiles: 100, MaxBytes: 1 << 30}, func(p string, x cas.Entry) error {
		if x.Kind != cas.File {
			return os.MkdirAll(filepath.Join(from, p), 0o755)
		}
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(from, p)), 0o755))
		if p == "key" {
			key, err = n.unseal(store.blobs[x.Digest])
			must(t, err)
		}
		return os.WriteFile(filepath.Join(from, p), store.blobs[x.Digest], 0o644)
	}))
	dst := place(t)
	must(t, capture.OpenSealed(t.Context(), from, store.blobs[g.Manifest.Marker], key, dst))
	b, err := os.ReadFile(filepath.Join(dst, "state/sub/y"))
	if info, _ := os.Stat(filepath.Join(dst, "state/sub/y")); err != nil || string(b) != large || info.Mode().Perm() != 0o555 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if info, err := os.Stat(dst); err != nil || info.Mode().Perm() != 0o500 {
		t.Errorf("open to others of the machine: %v, %v", info.Mode(), err)
	}
	// The key of one checkpoint opens no other one.
	e.LastSeq = g.Marker.Seq
	next, err := capture.IngestExit(t.Context(), store, build, e)
	must(t, err)
	if err := capture.OpenSealed(t.Context(), from, store.blobs[next.Manifest.Marker], key, place(t)); err == nil || !strings.Contains(err.Error(), "sealed marker") {
		t.Errorf("%v", err)
	}
	if next.Payload == g.Payload {
		t.Error("the same state is the same ciphertext: who sees the store sees that nothing changed")
	}
}

// FuzzSealedIndex: who can seal for a node's key can write any index; it is an error or a payload,
// and on an error nothing is left.
func FuzzSealedIndex(f *testing.F) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("\xa2\x01\x01\x02\x42{}"))
	f.Add([]byte("\xa3\x01\x01\x02\x42{}\x03\x81\x62.."))
	f.Fuzz(func(t *testing.T, plain []byte) {
		var sealed bytes.Buffer
		w, err := age.Encrypt(&sealed, id.Recipient())
		must(t, err)
		_, err = w.Write(plain)
		must(t, errors.Join(err, w.Close()))
		dst := place(t)
		err = capture.OpenSealed(t.Context(), t.TempDir(), sealed.Bytes(), []byte(id.String()), dst)
		if left, _ := os.ReadDir(filepath.Dir(dst)); err != nil && len(left) != 0 {
			t.Errorf("%v, left %v", err, left)
		}
	})
}
