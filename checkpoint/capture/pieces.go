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
	pieceBatch = 4 << 20 // bytes that are read, hashed and cut together
	batches    = 3       // of one file in memory: one is read, one hashed, one stored
	// pieceRoom is before what is read: for what is left of the batch before, which has no
	// cut yet, or waits until all of it is marked.
	pieceRoom = cas.BlockSize + 64<<10
)

func pieceDir(i int) string  { return fmt.Sprintf("%04d", i/piecesADir) }
func pieceName(i int) string { return fmt.Sprintf("%04d", i%piecesADir) }

// batch is what was read at once, behind pieceRoom bytes.
type batch struct {
	buf   []byte
	n     int
	marks []cas.Mark // of what is hashed by now
	last  bool
}

func (b batch) bytes() []byte { return b.buf[pieceRoom : pieceRoom+b.n] }

// pieces stores a file in pieces and gives its tree, its size and its digest.
func (in *intake) pieces(ctx context.Context, r io.Reader, c *cutter) (tree, whole cas.Ref, err error) {
	g, ctx := errgroup.WithContext(ctx)
	free, toHash, toCut := make(chan []byte, batches), make(chan batch), make(chan batch)
	for range batches {
		free <- make([]byte, pieceRoom+pieceBatch)
	}
	g.Go(func() error {
		defer close(toHash)
		return readBatches(ctx, r, free, toHash)
	})
	g.Go(func() error {
		defer close(toCut)
		var marks []cas.Mark
		h := cas.NewMarkingHasher(func(m cas.Mark) { marks = append(marks, m) })
		for b := range toHash {
			_, _ = h.Write(b.bytes()) // a Hasher never fails
			whole.Size += int64(b.n)
			b.marks, marks = marks, nil
			if err := hand(ctx, toCut, b); err != nil {
				return err
			}
		}
		whole.Digest = h.Sum()
		return nil
	})
	var entries []cas.Entry
	g.Go(func() error {
		var rest []byte // in the buffer of the batch before, until it is moved
		var before []byte
		for b := range toCut {
			have := b.buf[pieceRoom-len(rest) : pieceRoom+b.n]
			copy(have, rest)
			if before != nil {
				free <- before // there are as many places as buffers
			}
			ps := c.cut(have, b.marks, b.last)
			es, err := in.storePieces(ctx, have, ps)
			if err != nil {
				return err
			}
			entries = append(entries, es...)
			rest, before = have[total(ps):], b.buf
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return tree, whole, err
	}
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

// readBatches reads to the end. All batches but the last are full, so that those of two
// readings begin at the same places.
func readBatches(ctx context.Context, r io.Reader, free <-chan []byte, to chan<- batch) error {
	for {
		var b batch
		select {
		case b.buf = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		n, err := io.ReadFull(r, b.buf[pieceRoom:])
		b.n, b.last = n, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !b.last {
			return err
		}
		if err := hand(ctx, to, b); err != nil || b.last {
			return err
		}
	}
}

// storePieces keeps those pieces of b that the store lacks.
func (in *intake) storePieces(ctx context.Context, b []byte, ps []piece) ([]cas.Entry, error) {
	objects := make([]cas.Small, len(ps))
	refs := make([]cas.Ref, len(ps))
	names := make([]forgeyard.Digest, len(ps))
	entries := make([]cas.Entry, len(ps))
	for i, p := range ps {
		names[i] = p.name
		objects[i], refs[i] = cas.Small{Digest: p.name, Bytes: b[:p.size]}, cas.Ref{Digest: p.name, Size: int64(p.size)}
		entries[i] = cas.Entry{Kind: cas.File, Size: int64(p.size), Digest: p.name}
		b = b[p.size:]
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
	top, err := in.numbered(pieces)
	if err != nil {
		return cas.Ref{}, err
	}
	return in.treeOf(top)
}

// numbered names the entries by their order and stores the directories that hold them.
func (in *intake) numbered(pieces []cas.Entry) (top cas.Tree, err error) {
	for i := 0; i < len(pieces); i += piecesADir {
		dir := cas.Tree{Entries: pieces[i:min(i+piecesADir, len(pieces))]}
		for j := range dir.Entries {
			dir.Entries[j].Name = pieceName(i + j)
		}
		r, err := in.treeOf(dir)
		if err != nil {
			return top, err
		}
		top.Entries = append(top.Entries, cas.Entry{Name: pieceDir(i), Kind: cas.Dir, Size: r.Size, Digest: r.Digest, Manifest: r.Manifest})
	}
	return top, nil
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
		b, err := zeros().bytes[:zeros().cut], ctx.Err()
		if d != zeros().name {
			b, err = blocks.ReadBlock(ctx, d, buf, true)
		}
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
