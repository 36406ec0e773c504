package bundle

import (
	"bytes"
	"context"
	"io"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Progress is told of bytes of the data that are done, also of those that were there.
type Progress func(bytes int64)

func (p Progress) add(n int64) {
	if p != nil {
		p(n)
	}
}

// reader reads pieces of a file and believes none that does not match its name.
type reader struct {
	h      Head
	r      io.ReaderAt
	starts map[forgeyard.Digest]piece // objects that may be manifests
	buf    []byte
	fresh  int64 // bytes that Import brought
}

func newReader(h Head, r io.ReaderAt) *reader {
	s := &reader{h: h, r: r, starts: map[forgeyard.Digest]piece{}, buf: make([]byte, cas.BlockSize)}
	wanted := map[forgeyard.Digest]bool{}
	for _, o := range h.Index.Objects {
		wanted[o.Manifest] = true
	}
	var at int64
	for _, o := range h.Index.Objects {
		if wanted[o.Digest] {
			s.starts[o.Digest] = whole(o, at)
		}
		at += o.Size
	}
	return s
}

// read returns the verified bytes of a piece, which are good until the next call.
func (s *reader) read(p piece) ([]byte, error) {
	b := s.buf[:p.size]
	at := s.h.DataAt() + p.at
	if n, err := s.r.ReadAt(b, at); int64(n) < p.size {
		if err == io.EOF {
			return nil, forgeyard.Errorf("bundle", forgeyard.Corrupt, "the file ends at byte %d, its index promises %d", at+int64(n), s.h.Size()).WithHint("it was not copied whole: copy it again, what was read is kept")
		}
		return nil, forgeyard.E("bundle", forgeyard.Other, err)
	}
	if got := cas.Sum(b); got != p.digest {
		return nil, forgeyard.Errorf("bundle", forgeyard.Corrupt, "block %d of object %s, %d bytes at byte %d of the file, reads as %s", p.block, p.object.Digest.Short(), p.size, at, got.Short()).
			WithHint("the file is damaged: copy it again, what was verified is kept")
	}
	return b, nil
}

func (s *reader) manifest(o Object) (cas.Manifest, error) {
	b, err := s.read(s.starts[o.Manifest])
	if err != nil {
		return cas.Manifest{}, err
	}
	return decodeManifest(o, b)
}

// Verify reads the data that is there and returns how many bytes of it are right, from
// the beginning. If all are, the error is nil.
func Verify(ctx context.Context, h Head, r io.ReaderAt, done Progress) (good int64, err error) {
	s := newReader(h, r)
	for p, err := range h.Index.pieces(s.manifest) {
		if err == nil {
			err = ended(ctx)
		}
		if err == nil {
			_, err = s.read(p)
		}
		if err != nil {
			return good, err
		}
		good += p.size
		done.add(p.size)
	}
	return good, nil
}

// Import brings what the store lacks. What it has is not read, and what a cut-off import
// left is gone on with. The caller has judged the signature, and pins the objects before,
// so that a collection meanwhile takes none of them. fresh is how many bytes it brought.
func Import(ctx context.Context, h Head, r io.ReaderAt, store cas.Store, done Progress) (fresh int64, err error) {
	s := newReader(h, r)
	var at int64
	for _, o := range h.Index.Objects {
		err := ended(ctx)
		switch {
		case err != nil:
		case store.Has(ctx, o.Digest):
			done.add(o.Size)
		case o.Manifest.IsZero():
			err = s.small(ctx, store, whole(o, at))
			done.add(o.Size)
		default:
			err = s.large(ctx, store, o, at, done)
		}
		if err != nil {
			return s.fresh, err
		}
		at += o.Size
	}
	return s.fresh, nil
}

func (s *reader) small(ctx context.Context, store cas.Store, p piece) error {
	b, err := s.read(p)
	if err == nil {
		_, err = store.Put(ctx, bytes.NewReader(b), cas.PutOptions{Expect: p.digest, Size: p.size})
	}
	if err == nil {
		s.fresh += p.size
	}
	return err
}

func (s *reader) large(ctx context.Context, store cas.Store, o Object, at int64, done Progress) error {
	m, err := s.manifest(o)
	if err != nil {
		return err
	}
	part, err := store.Partial(ctx, m)
	if err != nil {
		return err
	}
	defer part.Close() // what was verified stays, whatever it says
	offsets, there := m.Offsets(), o.Size
	for _, k := range part.Missing() {
		b := m.Blocks[k]
		there -= b.Size
		if err := ended(ctx); err != nil {
			return err
		}
		raw, err := s.read(piece{object: o, block: k, digest: b.Digest, size: b.Size, at: at + offsets[k]})
		if err == nil {
			err = part.PutBlock(k, raw)
		}
		if err != nil {
			return err
		}
		s.fresh += b.Size
		done.add(b.Size)
	}
	done.add(there)
	_, err = part.Commit(ctx, cas.Durable)
	return err
}

func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return forgeyard.E("bundle", forgeyard.Interrupted, context.Cause(ctx)).WithHint("the same command goes on where this one ended")
}
