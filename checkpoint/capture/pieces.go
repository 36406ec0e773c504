package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// A file larger than a block is kept in pieces, cut where its content says, so that the next
// checkpoint of it costs what has changed. In the payload's tree it is a directory of
// directories of pieces, whose names give their order; the marker says that it is a file.
const (
	piecesADir = 1024    // well below what one directory of a tree may hold, for 24 GiB
	pieceBatch = 4 << 20 // bytes that are cut, named and looked up together
	batches    = 3       // of one file in memory: one is read, one hashed, one stored
)

func pieceDir(i int) string  { return fmt.Sprintf("%04d", i/piecesADir) }
func pieceName(i int) string { return fmt.Sprintf("%04d", i%piecesADir) }

// batch is a run of whole pieces.
type batch struct {
	buf   []byte
	sizes []int // of the pieces, in order; what comes after them in buf belongs to the next batch
}

func (b batch) bytes() (n int) {
	for _, s := range b.sizes {
		n += s
	}
	return n
}

// pieces stores a file in pieces and gives its tree, its size and its digest.
func (in *intake) pieces(ctx context.Context, r io.Reader) (tree, whole cas.Ref, err error) {
	g, ctx := errgroup.WithContext(ctx)
	free, toHash, toStore := make(chan []byte, batches), make(chan batch), make(chan batch)
	for range batches {
		free <- make([]byte, pieceBatch+cas.BlockSize)
	}
	g.Go(func() error {
		defer close(toHash)
		return cut(ctx, r, free, toHash)
	})
	h := cas.NewHasher()
	g.Go(func() error {
		defer close(toStore)
		for b := range toHash {
			n := b.bytes()
			_, _ = h.Write(b.buf[:n]) // a Hasher never fails
			whole.Size += int64(n)
			if err := hand(ctx, toStore, b); err != nil {
				return err
			}
		}
		return nil
	})
	var entries []cas.Entry
	g.Go(func() error {
		for b := range toStore {
			es, err := in.storePieces(ctx, b)
			if err != nil {
				return err
			}
			entries = append(entries, es...)
			free <- b.buf // there are as many places as buffers
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return tree, whole, err
	}
	whole.Digest = h.Sum()
	tree, err = in.pieceTree(entries)
	return tree, whole, err
}

func hand[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cut reads to the end and hands on batches of whole pieces.
func cut(ctx context.Context, r io.Reader, free <-chan []byte, to chan<- batch) error {
	var rest []byte
	for ended := false; !ended; {
		var b batch
		select {
		case b.buf = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		n := copy(b.buf, rest)
		m, err := io.ReadFull(r, b.buf[n:])
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			ended = true
		case err != nil:
			return err
		}
		have := b.buf[:n+m]
		for len(have) >= cas.ByContent.Most || ended && len(have) > 0 {
			k := cas.ByContent.Next(have)
			b.sizes, have = append(b.sizes, k), have[k:]
		}
		rest = bytes.Clone(have) // its buffer goes on to others
		if err := hand(ctx, to, b); err != nil {
			return err
		}
	}
	return nil
}

// storePieces keeps those pieces of a batch that the store lacks.
func (in *intake) storePieces(ctx context.Context, b batch) ([]cas.Entry, error) {
	objects := make([]cas.Small, len(b.sizes))
	refs := make([]cas.Ref, len(b.sizes))
	names := make([]forgeyard.Digest, len(b.sizes))
	entries := make([]cas.Entry, len(b.sizes))
	at := 0
	for i, n := range b.sizes {
		p := b.buf[at : at+n]
		at += n
		names[i] = cas.Sum(p)
		objects[i], refs[i] = cas.Small{Digest: names[i], Bytes: p}, cas.Ref{Digest: names[i], Size: int64(n)}
		entries[i] = cas.Entry{Kind: cas.File, Size: int64(n), Digest: names[i]}
	}
	opts := cas.PutOptions{Class: cas.Durable, Owner: in.owner}
	many, ok := in.store.(cas.Many)
	holder, holds := in.store.(cas.Holder)
	if !ok || !holds {
		for i, x := range objects {
			opts.Expect, opts.Size = names[i], refs[i].Size
			if _, err := in.store.Put(ctx, bytes.NewReader(x.Bytes), opts); err != nil {
				return nil, err
			}
		}
		return entries, nil
	}
	if len(names) > 0 { // held before it is looked for: what is here then stays
		if err := holder.Hold(in.owner, names...); err != nil {
			return nil, err
		}
	}
	var lacking []cas.Small
	for _, i := range many.Lacks(ctx, refs) {
		lacking = append(lacking, objects[i])
	}
	many.PutMany(ctx, lacking, opts)
	for _, x := range lacking {
		if x.Err != nil {
			return nil, x.Err
		}
	}
	return entries, ctx.Err()
}

// pieceTree names and stores the directories.
func (in *intake) pieceTree(pieces []cas.Entry) (cas.Ref, error) {
	var top cas.Tree
	for i := 0; i < len(pieces); i += piecesADir {
		dir := cas.Tree{Entries: pieces[i:min(i+piecesADir, len(pieces))]}
		for j := range dir.Entries {
			dir.Entries[j].Name = pieceName(i + j)
		}
		r, err := in.treeOf(dir)
		if err != nil {
			return cas.Ref{}, err
		}
		top.Entries = append(top.Entries, cas.Entry{Name: pieceDir(i), Kind: cas.Dir, Size: r.Size, Digest: r.Digest, Manifest: r.Manifest})
	}
	return in.treeOf(top)
}

func (in *intake) treeOf(t cas.Tree) (cas.Ref, error) {
	b, err := t.Encode()
	if err != nil {
		return cas.Ref{}, err
	}
	return in.bytes(b)
}

// joined is one file that is put together again.
type joined struct {
	path   string // in the tree
	want   checkpoint.File
	size   int64 // of the pieces so far
	pieces []forgeyard.Digest
}

// holds reports whether an entry belongs to the file.
func (j *joined) holds(p string) bool { return j != nil && strings.HasPrefix(p, j.path+"/") }

// add notes one piece.
func (j *joined) add(p string, e cas.Entry) error {
	if e.Kind == cas.Dir {
		return nil
	}
	if j.size += e.Size; e.Kind != cas.File || j.size > j.want.Size {
		return forgeyard.Errorf("payload", forgeyard.Corrupt, "%q is no piece of a file of %d bytes", forgeyard.Clip(p, 80), j.want.Size)
	}
	j.pieces = append(j.pieces, e.Digest)
	return nil
}

// join writes the file: whole, or an error.
func (r *restorer) join(ctx context.Context, j *joined) error {
	f, err := r.create(j.path)
	if err != nil {
		return err
	}
	var w io.Writer = f
	end := func() error { return nil }
	if j.want.Size >= directFrom {
		d := newDirect(f)
		w, end = d, d.end
	}
	h := cas.NewHasher()
	size, err := r.copyPieces(ctx, io.MultiWriter(w, h), j.pieces)
	err = errors.Join(err, end())
	if d := h.Sum(); err == nil && (size != j.want.Size || d != j.want.BLAKE3) {
		err = forgeyard.Errorf("payload", forgeyard.Corrupt, "%q has %d bytes that are %s, its marker says %d that are %s", forgeyard.Clip(j.path, 80), size, d.Short(), j.want.Size, j.want.BLAKE3.Short())
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return seal(f, j.want.Mode.Exec())
}

func (r *restorer) copyPieces(ctx context.Context, w io.Writer, pieces []forgeyard.Digest) (size int64, err error) {
	blocks, ok := r.store.(cas.BlockReader)
	if !ok {
		for _, d := range pieces {
			n, err := r.copy(ctx, w, d)
			if size += n; err != nil {
				return size, err
			}
		}
		return size, nil
	}
	buf := make([]byte, cas.BlockSize)
	for _, d := range pieces {
		b, err := blocks.ReadBlock(ctx, d, buf, true)
		if err != nil {
			return size, err
		}
		size += int64(len(b))
		if _, err := w.Write(b); err != nil {
			return size, err
		}
	}
	return size, nil
}
