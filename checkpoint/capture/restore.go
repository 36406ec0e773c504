package capture

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// LoadManifest reads a manifest from the local store and makes sure that it has the
// name it was asked for by.
func LoadManifest(ctx context.Context, store cas.Store, id forgeyard.Digest) (checkpoint.Manifest, error) {
	b, err := readAll(ctx, store, id, checkpoint.MaxManifestBytes)
	if err != nil {
		return checkpoint.Manifest{}, forgeyard.E("checkpoint manifest", forgeyard.Other, err)
	}
	m, err := checkpoint.ParseManifest(b)
	if err == nil && m.ID() != id {
		err = forgeyard.Errorf("checkpoint manifest", forgeyard.Corrupt, "%s holds the manifest %s", id.Short(), m.ID().Short())
	}
	return m, err
}

// Restore puts the payload of a manifest at dst, which must not exist: verified, synced,
// renamed into place, read-only (tree.Remove takes it away). On any error dst is absent. The content must be in the
// local store, with the marker of one that has files in pieces; fetching is the caller's. Errors: Corrupt (quarantine this checkpoint, go
// on with the one before), NotFound (a piece is not here), Conflict (dst exists), and
// what the disk says.
func Restore(ctx context.Context, store cas.Store, m checkpoint.Manifest, dst string) error {
	if m.Sealed {
		return forgeyard.Errorf("restore", forgeyard.Denied, "it is sealed, and nothing here opens it")
	}
	return place(dst, func(tmp string) error {
		r := restorer{ctx: ctx, store: store, dir: tmp, manifest: m}
		return r.all()
	})
}

// place makes dst out of what fill puts into a directory beside it: all of it, or nothing.
func place(dst string, fill func(tmp string) error) (err error) {
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		return forgeyard.Errorf("restore", forgeyard.Conflict, "%s exists; a payload is never mixed with what was there", dst)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dst), "."+filepath.Base(dst)+".restore-")
	if err != nil {
		return forgeyard.E("restore", forgeyard.Other, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tree.Remove(tmp))
		}
	}()
	if err := fill(tmp); err != nil {
		return forgeyard.E("restore", forgeyard.Other, err)
	}
	if err := os.Rename(tmp, dst); err != nil {
		return forgeyard.E("restore", forgeyard.Other, err)
	}
	if err := syncDir(filepath.Dir(dst)); err != nil {
		return errors.Join(forgeyard.E("restore", forgeyard.Other, err), tree.Remove(dst))
	}
	return nil
}

// restorer fills one directory. Every byte is read verified, which is why it does not
// clone: a clone shares whatever the disk has done to the store's copy (K01).
type restorer struct {
	ctx      context.Context
	store    cas.Store
	dir      string
	manifest checkpoint.Manifest
	dirs     []string // parents first
	bytes    int64
	files    int
	inPieces map[string]checkpoint.File // what is a directory in the tree, and a file in the marker
	open     *joined                    // whose pieces are met
	writers  *errgroup.Group
	writing  context.Context
}

func (r *restorer) all() error {
	m := r.manifest
	if err := r.readMarker(); err != nil {
		return err
	}
	// One more of each than was promised shows the lie without following it.
	limits := tree.Limits{MaxFiles: maxEntries, MaxBytes: m.Bytes + 1}
	if r.inPieces != nil {
		limits.MaxFiles += m.Bytes/int64(cas.ByContent.Least) + 3*int64(m.Files) // its pieces, and their last ones and folders
	}
	r.writers, r.writing = errgroup.WithContext(r.ctx)
	r.writers.SetLimit(restoreWorkers)
	err := tree.Walk(r.writing, cas.Ref{Digest: m.Payload}, tree.FromStore(r.store), limits, r.visit)
	if err == nil {
		r.end()
	}
	if e := r.writers.Wait(); e != nil { // it came first, or ended the walk
		err = e
	}
	if err != nil {
		return corruptIfOdd(err)
	}
	if r.bytes != m.Bytes || r.files != m.Files {
		return forgeyard.Errorf("payload", forgeyard.Corrupt, "it has %d bytes in %d files, its manifest says %d in %d", r.bytes, r.files, m.Bytes, m.Files)
	}
	return closeDirs(r.dir, r.dirs)
}

// closeDirs makes the directories below root, and root, read-only and durable.
func closeDirs(root string, dirs []string) error {
	for _, d := range append(slices.Clone(dirs), ".") {
		p := filepath.Join(root, filepath.FromSlash(d))
		if err := errors.Join(os.Chmod(p, 0o555), syncDir(p)); err != nil {
			return err
		}
	}
	return nil
}

// readMarker finds out which files are kept in pieces.
func (r *restorer) readMarker() error {
	if !r.manifest.Pieces {
		return nil
	}
	b, err := readAll(r.ctx, r.store, r.manifest.Marker, checkpoint.MaxMarkerBytes)
	if err != nil {
		return err
	}
	m, err := checkpoint.ParseMarker(b)
	if err != nil {
		return forgeyard.E("marker", forgeyard.Corrupt, err)
	}
	r.inPieces = map[string]checkpoint.File{}
	for _, f := range m.Files {
		if f.Size > cas.BlockSize {
			r.inPieces[f.Path] = f
		}
	}
	return nil
}

func (r *restorer) visit(p string, e cas.Entry) error {
	if r.open.holds(p) {
		return r.open.add(p, e)
	}
	r.end()
	name := filepath.FromSlash(p)
	if !filepath.IsLocal(name) {
		return forgeyard.Errorf("payload", forgeyard.Corrupt, "%q cannot be a path on this system", p)
	}
	switch e.Kind {
	case cas.Dir:
		if f, ok := r.inPieces[p]; ok {
			r.open = &joined{path: p, want: f}
			return r.count(f.Size)
		}
		r.dirs = append(r.dirs, name)
		return os.Mkdir(filepath.Join(r.dir, name), 0o700)
	case cas.File:
		if err := r.count(e.Size); err != nil {
			return err
		}
		r.writers.Go(func() error { return r.file(r.writing, e, p) })
		return nil
	}
	return forgeyard.Errorf("payload", forgeyard.Corrupt, "%s %q has no place in a checkpoint", e.Kind, p)
}

func (r *restorer) count(size int64) error {
	if r.files++; r.files > r.manifest.Files {
		return forgeyard.Errorf("payload", forgeyard.Corrupt, "it has more than the %d files that its manifest says", r.manifest.Files)
	}
	r.bytes += size
	return nil
}

// end gives the file away whose pieces are all met, if there is one.
func (r *restorer) end() {
	if j := r.open; j != nil {
		r.open = nil
		r.writers.Go(func() error { return r.join(r.writing, j) })
	}
}

func (r *restorer) create(p string) (*os.File, error) {
	return os.OpenFile(filepath.Join(r.dir, filepath.FromSlash(p)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

func (r *restorer) file(ctx context.Context, e cas.Entry, p string) error {
	f, err := r.create(p)
	if err != nil {
		return err
	}
	n, err := r.copy(ctx, f, e.Digest)
	if err == nil && n != e.Size {
		err = forgeyard.Errorf("payload", forgeyard.Corrupt, "%q has %d bytes, its tree says %d", e.Name, n, e.Size)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return seal(f, e.Exec)
}

// seal makes a file that was written read-only, and durable.
func seal(f *os.File, exec bool) error {
	mode := os.FileMode(0o444)
	if exec {
		mode = 0o555
	}
	return errors.Join(f.Chmod(mode), f.Sync(), f.Close())
}

func (r *restorer) copy(ctx context.Context, w io.Writer, d forgeyard.Digest) (n int64, err error) {
	o, err := r.store.Open(ctx, d)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	return io.Copy(w, &cancelled{ctx, o})
}

// cancelled is a reader that ends with its context.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// readAll reads a small object; the store verifies it.
func readAll(ctx context.Context, store cas.Store, d forgeyard.Digest, limit int64) ([]byte, error) {
	o, err := store.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	if n := o.Ref().Size; n > limit {
		return nil, forgeyard.Errorf("read", forgeyard.Limit, "%s has %d bytes, the bound is %d", d.Short(), n, limit)
	}
	return io.ReadAll(o)
}
