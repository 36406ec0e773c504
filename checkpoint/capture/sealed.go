package capture

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"filippo.io/age"
	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

// A restricted payload is kept as ciphertext (69§151). Each checkpoint has a key of its own, an
// age identity, which the caller seals for those who may open it:
//
//	key              that identity, sealed
//	0000/0000, …     the files in the order of the marker, each an age file for that identity
//
// Names, sizes and digests stand in the marker, which is an age file as well, together with the
// directories. What is left to see is how many files there are, and how large.
const (
	keyName    = "key"
	maxKeyFile = 64 << 10
	// sealedIndexVersion is of the plaintext that a marker's file has.
	sealedIndexVersion = 1
)

// Seal encrypts a key for those who may open the checkpoint; Unseal gives it to one of them, and
// is Denied to others.
type (
	Seal   func(key []byte) ([]byte, error)
	Unseal func(sealed []byte) ([]byte, error)
)

// box is the key of one checkpoint that is being taken.
type box struct {
	to     age.Recipient
	sealed []byte
}

func newBox(seal Seal) (*box, error) {
	if seal == nil {
		return nil, forgeyard.Errorf("ingest", forgeyard.Unavailable, "a restricted checkpoint is sealed, and nobody here has a key for it")
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, forgeyard.E("ingest", forgeyard.Other, err)
	}
	key := []byte(id.String())
	defer clear(key)
	sealed, err := seal(key)
	return &box{to: id.Recipient(), sealed: sealed}, err
}

// index is what a sealed marker's file holds.
type index struct {
	Version int      `cbor:"1,keyasint"`
	Marker  []byte   `cbor:"2,keyasint"`
	Dirs    []string `cbor:"3,keyasint,omitempty"` // those without a file too
}

// putSealed stores what r has as an age file. plain is what was read.
func (in *intake) putSealed(ctx context.Context, r io.Reader) (plain, sealed cas.Ref, err error) {
	h := cas.NewHasher()
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w, err := age.Encrypt(pw, in.box.to)
		if err == nil {
			plain.Size, err = io.Copy(io.MultiWriter(w, h), &cancelled{ctx, r})
			err = errors.Join(err, w.Close())
		}
		pw.CloseWithError(err)
	}()
	sealed, err = in.store.Put(ctx, pr, cas.PutOptions{Class: cas.Durable, Owner: in.owner})
	pr.Close() // a put that gave up leaves nobody behind who reads the file
	<-done
	plain.Digest = h.Sum()
	return plain, sealed, err
}

// sealedPayload stores the tree and the marker of a sealed checkpoint.
func (in *intake) sealedPayload(m checkpoint.Marker, listing []seen, refs map[string]kept) (root, marker cas.Ref, err error) {
	key, err := in.bytes(in.box.sealed)
	if err != nil {
		return root, marker, err
	}
	x := index{Version: sealedIndexVersion, Marker: m.Encode()}
	for _, s := range listing {
		if s.Kind == checkpoint.Directory && s.Path != "." {
			x.Dirs = append(x.Dirs, s.Path)
		}
	}
	slices.Sort(x.Dirs)
	if _, marker, err = in.putSealed(in.ctx, bytes.NewReader(cborx.Marshal(x))); err != nil {
		return root, marker, err
	}
	files := make([]cas.Entry, len(m.Files))
	for i, f := range m.Files {
		s := refs[f.Path].sealed
		files[i] = cas.Entry{Kind: cas.File, Size: s.Size, Digest: s.Digest, Manifest: s.Manifest}
	}
	top, err := in.numbered(files)
	if err != nil {
		return root, marker, err
	}
	top.Entries = append(top.Entries, cas.Entry{Name: keyName, Kind: cas.File, Size: key.Size, Digest: key.Digest, Manifest: key.Manifest})
	top.Sort()
	root, err = in.treeOf(top)
	return root, marker, err
}

// RestoreSealed is Restore for a sealed payload. It tells what the marker says, too.
func RestoreSealed(ctx context.Context, store cas.Store, m checkpoint.Manifest, dst string, unseal Unseal) (marker checkpoint.Marker, err error) {
	entries := map[string]cas.Entry{}
	limits := tree.Limits{MaxFiles: maxEntries, MaxBytes: m.Stored() + 1}
	err = tree.Walk(ctx, cas.Ref{Digest: m.Payload}, tree.FromStore(store), limits, func(p string, e cas.Entry) error {
		if e.Kind == cas.File {
			entries[p] = e
		}
		return nil
	})
	if err != nil {
		return marker, corruptIfOdd(err)
	}
	sealedKey, err := readAll(ctx, store, entries[keyName].Digest, maxKeyFile)
	if err != nil {
		return marker, forgeyard.E("restore", forgeyard.Other, err)
	}
	b, err := readAll(ctx, store, m.Marker, 2*checkpoint.MaxMarkerBytes)
	if err != nil {
		return marker, forgeyard.E("restore", forgeyard.Other, err)
	}
	key, err := unseal(sealedKey)
	if err != nil {
		return marker, forgeyard.E("restore", forgeyard.Denied, err)
	}
	defer clear(key)
	o, err := newOpener(key, b, func(name string) (io.ReadCloser, error) { return store.Open(ctx, entries[name].Digest) })
	if err != nil {
		return marker, forgeyard.E("restore", forgeyard.Other, err)
	}
	switch marker = o.marker; {
	case len(marker.Files) != m.Files || marker.Bytes() != m.Bytes || len(entries) != m.Files+1:
		return marker, forgeyard.Errorf("restore", forgeyard.Corrupt, "its marker has %d bytes in %d files, its manifest says %d in %d", marker.Bytes(), len(marker.Files), m.Bytes, m.Files)
	case marker.Attempt != m.Attempt || marker.Epoch != m.Epoch || marker.Seq != m.Seq:
		return marker, forgeyard.Errorf("restore", forgeyard.Corrupt, "its marker is of epoch %d slot %d, its manifest of epoch %d slot %d", marker.Epoch, marker.Seq, m.Epoch, m.Seq)
	}
	return marker, place(dst, func(tmp string) error { return o.all(ctx, tmp) })
}

// SealedKey is the sealed key of a payload that is in the local store.
func SealedKey(ctx context.Context, store cas.Store, m checkpoint.Manifest) ([]byte, error) {
	b, err := readAll(ctx, store, m.Payload, cas.MaxTreeBytes)
	if err != nil {
		return nil, forgeyard.E("checkpoint key", forgeyard.Other, err)
	}
	t, err := cas.DecodeTree(b)
	if err != nil {
		return nil, forgeyard.E("checkpoint key", forgeyard.Corrupt, err)
	}
	i := slices.IndexFunc(t.Entries, func(e cas.Entry) bool { return e.Name == keyName && e.Kind == cas.File })
	if i < 0 {
		return nil, forgeyard.Errorf("checkpoint key", forgeyard.Corrupt, "its payload has none")
	}
	return readAll(ctx, store, t.Entries[i].Digest, maxKeyFile)
}

// OpenSealed puts a sealed payload, whose tree lies in the directory from, at dst as RestoreSealed
// does; key is the checkpoint's own.
func OpenSealed(ctx context.Context, from string, marker, key []byte, dst string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return forgeyard.E("open", forgeyard.Other, err)
	}
	defer root.Close()
	o, err := newOpener(key, marker, func(name string) (io.ReadCloser, error) { return root.Open(filepath.FromSlash(name)) })
	if err != nil {
		return err
	}
	return place(dst, func(tmp string) error {
		if err := o.all(ctx, tmp); err != nil {
			return err
		}
		return os.Chmod(tmp, 0o500) // whoever asked for it has it, and no other account of the machine
	})
}

func corruptIfOdd(err error) error {
	switch forgeyard.KindOf(err) {
	case forgeyard.Limit, forgeyard.Invalid:
		return forgeyard.E("payload", forgeyard.Corrupt, err)
	}
	return err
}

// opener decrypts one payload.
type opener struct {
	id     age.Identity
	marker checkpoint.Marker
	dirs   []string
	source func(name string) (io.ReadCloser, error)
}

func newOpener(key, sealedMarker []byte, source func(string) (io.ReadCloser, error)) (*opener, error) {
	bad := func(err error) error { return forgeyard.E("sealed marker", forgeyard.Corrupt, err) }
	id, err := age.ParseX25519Identity(string(key))
	if err != nil {
		return nil, forgeyard.Errorf("checkpoint key", forgeyard.Corrupt, "it is no key of a checkpoint")
	}
	r, err := age.Decrypt(bytes.NewReader(sealedMarker), id)
	if err != nil {
		return nil, bad(err)
	}
	b, err := io.ReadAll(io.LimitReader(r, 2*checkpoint.MaxMarkerBytes))
	if err != nil {
		return nil, bad(err)
	}
	var x index
	if err := cborx.UnmarshalCanonical(b, &x); err != nil {
		return nil, bad(err)
	}
	if x.Version != sealedIndexVersion || len(x.Dirs) > maxEntries {
		return nil, bad(forgeyard.Errorf("index", forgeyard.Invalid, "version %d with %d directories, this program reads version %d with up to %d", x.Version, len(x.Dirs), sealedIndexVersion, maxEntries))
	}
	o := &opener{id: id, dirs: x.Dirs, source: source}
	if o.marker, err = checkpoint.ParseMarker(x.Marker); err != nil {
		return nil, bad(err)
	}
	return o, nil
}

// all writes the whole payload below dir, read-only and synced.
func (o *opener) all(ctx context.Context, dir string) error {
	dirs, err := o.makeDirs(dir)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(restoreWorkers)
	for i, f := range o.marker.Files {
		g.Go(func() error { return o.file(ctx, dir, path.Join(pieceDir(i), pieceName(i)), f) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return closeDirs(dir, dirs)
}

// makeDirs makes the directories that are named and those that files need, parents first.
func (o *opener) makeDirs(dir string) ([]string, error) {
	all := map[string]bool{}
	need := func(d string) {
		for ; d != "." && d != "/" && !all[d]; d = path.Dir(d) {
			all[d] = true
		}
	}
	for _, d := range o.dirs {
		need(d)
	}
	for _, f := range o.marker.Files {
		need(path.Dir(f.Path))
	}
	var out []string
	for d := range all {
		if !filepath.IsLocal(filepath.FromSlash(d)) {
			return nil, forgeyard.Errorf("payload", forgeyard.Corrupt, "%q cannot be a path on this system", forgeyard.Clip(d, 80))
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Count(a, "/") - strings.Count(b, "/") })
	for _, d := range out {
		if err := os.Mkdir(filepath.Join(dir, filepath.FromSlash(d)), 0o700); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (o *opener) file(ctx context.Context, dir, name string, want checkpoint.File) (err error) {
	in, err := o.source(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if !filepath.IsLocal(filepath.FromSlash(want.Path)) {
		return forgeyard.Errorf("payload", forgeyard.Corrupt, "%q cannot be a path on this system", forgeyard.Clip(want.Path, 80))
	}
	f, err := os.OpenFile(filepath.Join(dir, filepath.FromSlash(want.Path)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := o.copy(ctx, f, in, want); err != nil {
		return errors.Join(err, f.Close())
	}
	return seal(f, want.Mode.Exec())
}

func (o *opener) copy(ctx context.Context, f io.Writer, in io.Reader, want checkpoint.File) error {
	r, err := age.Decrypt(&cancelled{ctx, in}, o.id)
	if err != nil {
		return forgeyard.E("payload", forgeyard.Corrupt, err)
	}
	h := cas.NewHasher()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, want.Size+1))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if pe := (*fs.PathError)(nil); err != nil && !errors.As(err, &pe) {
		err = forgeyard.E("payload", forgeyard.Corrupt, err)
	}
	if d := h.Sum(); err == nil && (n != want.Size || d != want.BLAKE3) {
		err = forgeyard.Errorf("payload", forgeyard.Corrupt, "a file has %d bytes that are %s, its marker says %d that are %s", n, d.Short(), want.Size, want.BLAKE3.Short())
	}
	return err
}
