package capture

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
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
// renamed into place, read-only. On any error dst is absent. The content must be in the
// local store; fetching is the caller's. Errors: Corrupt (quarantine this checkpoint, go
// on with the one before), NotFound (a piece is not here), Conflict (dst exists), and
// what the disk says.
func Restore(ctx context.Context, store cas.Store, m checkpoint.Manifest, dst string) (err error) {
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		return forgeyard.Errorf("restore", forgeyard.Conflict, "%s exists; a payload is never mixed with what was there", dst)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dst), "."+filepath.Base(dst)+".restore-")
	if err != nil {
		return forgeyard.E("restore", forgeyard.Other, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, RemoveRestored(tmp))
		}
	}()
	r := restorer{ctx: ctx, store: store, limit: m}
	if err := r.tree(m.Payload, tmp, 0); err != nil {
		return forgeyard.E("restore", forgeyard.Other, err)
	}
	if r.bytes != m.Bytes || r.files != m.Files {
		return forgeyard.Errorf("restore", forgeyard.Corrupt, "the payload has %d bytes in %d files, its manifest says %d in %d", r.bytes, r.files, m.Bytes, m.Files)
	}
	if err := os.Rename(tmp, dst); err != nil {
		return forgeyard.E("restore", forgeyard.Other, err)
	}
	if err := syncDir(filepath.Dir(dst)); err != nil {
		return errors.Join(forgeyard.E("restore", forgeyard.Other, err), RemoveRestored(dst))
	}
	return nil
}

// RemoveRestored removes a restored payload, whose directories are read-only. What is
// not there is no error.
func RemoveRestored(dir string) error {
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			return os.Chmod(p, 0o700)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}

type restorer struct {
	ctx   context.Context
	store cas.Store
	limit checkpoint.Manifest
	bytes int64
	files int
	dirs  int
}

func (r *restorer) tree(d forgeyard.Digest, dir string, depth int) error {
	if r.dirs++; depth > checkpoint.MaxDepth || r.dirs > maxEntries {
		return forgeyard.Errorf("restore", forgeyard.Corrupt, "the payload nests deeper than %d or has more than %d directories", checkpoint.MaxDepth, maxEntries)
	}
	b, err := readAll(r.ctx, r.store, d, cas.MaxTreeBytes)
	if err != nil {
		return err
	}
	t, err := cas.DecodeTree(b)
	if err != nil {
		return forgeyard.E("restore", forgeyard.Corrupt, err)
	}
	for _, e := range t.Entries {
		p := filepath.Join(dir, e.Name)
		switch e.Kind {
		case cas.File:
			err = r.file(e, p)
		case cas.Dir:
			if err = os.Mkdir(p, 0o700); err == nil {
				err = r.tree(e.Digest, p, depth+1)
			}
		default:
			err = forgeyard.Errorf("restore", forgeyard.Corrupt, "%s %q has no place in a checkpoint", e.Kind, e.Name)
		}
		if err != nil {
			return err
		}
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		return err
	}
	return syncDir(dir)
}

func (r *restorer) file(e cas.Entry, p string) error {
	r.files++
	r.bytes += e.Size
	if r.files > r.limit.Files || r.bytes > r.limit.Bytes {
		return forgeyard.Errorf("restore", forgeyard.Corrupt, "the payload is larger than its manifest says: %d bytes in %d files", r.limit.Bytes, r.limit.Files)
	}
	mode := os.FileMode(0o444)
	if e.Exec {
		mode = 0o555
	}
	f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	o, err := r.store.Open(r.ctx, e.Digest)
	if err != nil {
		return err
	}
	defer o.Close()
	n, err := io.Copy(f, &cancelled{r.ctx, o})
	if err == nil && n != e.Size {
		err = forgeyard.Errorf("restore", forgeyard.Corrupt, "%q has %d bytes, its tree says %d", e.Name, n, e.Size)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Sync(), f.Close())
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
