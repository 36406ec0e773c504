// Package garden reads what a node's store keeps and says whether it is whole: after a
// put, and for the scrub of a garden run. Reads of a store verify each byte, and a copy
// that is wrong is put aside by the store as it is found; what is wanting is asked for
// from elsewhere.
//
// It deletes nothing, so that it can be ended at any moment.
package garden

import (
	"context"
	"io"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
)

// maxTrouble bounds the lines about what is wrong: who wants all of them looks at the store.
const maxTrouble = 16

// Read is what was read back.
type Read struct {
	Objects, Bytes int64
}

// Store is what is read.
type Store interface {
	tree.Source
	Pins(ctx context.Context) ([]cas.Pin, error)
}

// Whole reads a blob, or a tree with all that it names, back from the store. What does not
// match its name gives Corrupt, what is not there NotFound.
func Whole(ctx context.Context, s Store, root forgeyard.Digest, isTree bool) (Read, error) {
	r := reader{ctx: ctx, s: s, seen: map[forgeyard.Digest]bool{}}
	err := r.root(root, isTree)
	return r.Read, err
}

type reader struct {
	Read
	ctx  context.Context
	s    Store
	seen map[forgeyard.Digest]bool // each object is read once
}

func (r *reader) root(d forgeyard.Digest, isTree bool) error {
	if !isTree {
		return r.blob(d)
	}
	trees, files, err := tree.Closure(r.ctx, cas.Ref{Digest: d}, tree.FromStore(r.s), tree.Limits{MaxBytes: 1 << 50})
	if err != nil {
		return err
	}
	for _, t := range append(trees, files...) {
		if err := r.blob(t.Digest); err != nil {
			return err
		}
	}
	return nil
}

// blob reads one object. A store that answers from memory is no proof: each read of its
// interface verifies what it hands out.
func (r *reader) blob(d forgeyard.Digest) error {
	if r.seen[d] {
		return nil
	}
	o, err := r.s.Open(r.ctx, d)
	if err != nil {
		return err
	}
	defer func() { _ = o.Close() }() // it was only read
	n, err := io.Copy(io.Discard, &ending{r.ctx, o})
	r.Bytes += n
	if err != nil {
		return err
	}
	r.seen[d] = true
	r.Objects++
	return nil
}

// ending is a reader that ends with its context: an object may have gigabytes.
type ending struct {
	ctx context.Context
	r   io.Reader
}

func (e *ending) Read(b []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, forgeyard.E("read back", forgeyard.Interrupted, err)
	}
	return e.r.Read(b)
}

// Scrubbed is what a scrub found.
type Scrubbed struct {
	Read
	Mended  int64    // roots that were wrong or wanting and are whole now
	Trouble []string // roots that are not, at most maxTrouble
}

// Scrub reads what the pins of work, names and people keep. heal brings a root that is wrong
// or wanting from elsewhere; nil: nothing can. Only the end of the context ends it early.
func Scrub(ctx context.Context, s Store, heal func(ctx context.Context, root forgeyard.Digest, isTree bool) error) (Scrubbed, error) {
	var out Scrubbed
	pins, err := s.Pins(ctx)
	if err != nil {
		return out, err
	}
	r := reader{ctx: ctx, s: s, seen: map[forgeyard.Digest]bool{}}
	for _, p := range pins {
		if !settled(p.Owner) {
			continue
		}
		for _, isTree := range []bool{false, true} {
			roots := p.Roots
			if isTree {
				roots = p.Trees
			}
			for _, d := range roots {
				err := r.root(d, isTree)
				if err != nil && ctx.Err() == nil && heal != nil {
					if err = heal(ctx, d, isTree); err == nil {
						err = r.root(d, isTree)
					}
					if err == nil {
						out.Mended++
					}
				}
				if ctx.Err() != nil {
					out.Read = r.Read
					return out, forgeyard.E("scrub", forgeyard.Interrupted, ctx.Err())
				}
				if err != nil && len(out.Trouble) < maxTrouble {
					out.Trouble = append(out.Trouble, p.Owner+" needs "+d.Short()+": "+err.Error())
				}
			}
		}
	}
	out.Read = r.Read
	return out, nil
}

// settled reports whether what an owner keeps should be here: work in flight pins what is
// on its way.
func settled(owner string) bool {
	kind, _, _ := strings.Cut(owner, "/")
	return kind == "job" || kind == "name" || kind == "person"
}
