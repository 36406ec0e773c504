package bundle

import (
	"context"
	"io"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Closure lists everything that the pins name and that a reader needs, in an order in
// which it can be verified: a directory before what it names, a manifest before its blob.
// All of it must be in the store.
func Closure(ctx context.Context, store cas.Store, pins []cas.Pin) ([]Object, error) {
	c := closure{ctx: ctx, store: store, seen: map[forgeyard.Digest]bool{}, dirs: map[forgeyard.Digest]bool{}}
	for _, p := range pins {
		for _, d := range p.Trees {
			if err := c.tree(d, 0); err != nil {
				return nil, err
			}
		}
		for _, d := range p.Roots {
			if err := c.root(d); err != nil {
				return nil, err
			}
		}
	}
	return c.objects, nil
}

type closure struct {
	ctx     context.Context
	store   cas.Store
	seen    map[forgeyard.Digest]bool
	dirs    map[forgeyard.Digest]bool
	objects []Object
}

// blob adds one blob, and its manifest before it.
func (c *closure) blob(ref cas.Ref) error {
	if err := ended(c.ctx); err != nil {
		return err
	}
	if c.seen[ref.Digest] {
		return nil
	}
	if ref.Digest != cas.Empty() && !c.store.Has(c.ctx, ref.Digest) {
		return forgeyard.Errorf("bundle", forgeyard.NotFound, "%s is not in this node's store", ref.Digest).WithHint("fetch it first: `forgeyard-node cas get`")
	}
	if !ref.Manifest.IsZero() && !c.seen[ref.Manifest] {
		size, err := c.store.BlockSize(c.ctx, ref.Manifest)
		if err != nil {
			return err
		}
		if err := c.add(Object{Digest: ref.Manifest, Size: size}); err != nil {
			return err
		}
	}
	return c.add(Object{Digest: ref.Digest, Size: ref.Size, Manifest: ref.Manifest})
}

func (c *closure) add(o Object) error {
	if len(c.objects) == MaxObjects {
		return tooMany(len(c.objects) + 1)
	}
	c.seen[o.Digest] = true
	c.objects = append(c.objects, o)
	return nil
}

// root adds what a pin keeps as bytes: a blob, or by its manifest one.
func (c *closure) root(d forgeyard.Digest) error {
	info, err := c.store.Stat(c.ctx, d)
	if err != nil {
		return err
	}
	return c.blob(info.Ref)
}

func (c *closure) tree(d forgeyard.Digest, depth int) error {
	switch {
	case c.dirs[d]:
		return nil
	case depth > cas.MaxDepth:
		return forgeyard.Errorf("bundle", forgeyard.Limit, "directories nest deeper than %d", cas.MaxDepth)
	}
	c.dirs[d] = true
	if err := c.root(d); err != nil {
		return err
	}
	t, err := c.directory(d)
	if err != nil {
		return err
	}
	for _, e := range t.Entries {
		switch e.Kind {
		case cas.Dir:
			err = c.tree(e.Digest, depth+1)
		case cas.File:
			err = c.blob(e.Ref())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *closure) directory(d forgeyard.Digest) (cas.Tree, error) {
	o, err := c.store.Open(c.ctx, d)
	if err != nil {
		return cas.Tree{}, err
	}
	defer o.Close() // nothing was written
	b, err := io.ReadAll(io.LimitReader(o, cas.MaxTreeBytes+1))
	if err != nil {
		return cas.Tree{}, err
	}
	t, err := cas.DecodeTree(b)
	if err != nil {
		return t, forgeyard.E("bundle", forgeyard.Invalid, err).WithHint("%s is not a directory", d.Short())
	}
	return t, nil
}

// Data writes the data from a byte of it on, which must be one that Verify returned. The
// caller pins the objects while this runs.
func Data(ctx context.Context, h Head, store cas.Store, from int64, w io.Writer) error {
	manifest := func(o Object) (cas.Manifest, error) {
		b, err := store.Block(ctx, o.Manifest)
		if err != nil {
			return cas.Manifest{}, err
		}
		return decodeManifest(o, b)
	}
	for p, err := range h.Index.pieces(manifest) {
		switch {
		case err != nil:
			return err
		case p.at+p.size <= from:
			continue
		case p.at < from:
			return forgeyard.Errorf("bundle", forgeyard.Invalid, "byte %d of the data is within a block, which begins at %d", from, p.at)
		case p.size == 0:
			continue
		}
		if err := ended(ctx); err != nil {
			return err
		}
		b, err := store.Block(ctx, p.digest)
		if err == nil && int64(len(b)) != p.size {
			err = forgeyard.Errorf("bundle", forgeyard.Corrupt, "%s has %d bytes, the index says %d", p.digest.Short(), len(b), p.size)
		}
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
