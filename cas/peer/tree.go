package peer

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Progress tells how far the fetch of a tree is. Totals grow while directories
// are still being found.
type Progress struct {
	Objects, Bytes           int64 // here now, those that were here before included
	TotalObjects, TotalBytes int64
}

// FetchTree brings a tree with all that it names: directories level by level, the
// small files of each in windows, large ones by their manifests. What is here
// already is not asked for, so a second call goes on where the first ended.
func (x *Exchange) FetchTree(ctx context.Context, root forgeyard.Digest, providers []string) error {
	return x.FetchTreeProgress(ctx, root, providers, nil)
}

// FetchTreeProgress is FetchTree that tells its progress, from one goroutine at a
// time; progress must not block.
func (x *Exchange) FetchTreeProgress(ctx context.Context, root forgeyard.Digest, providers []string, progress func(Progress)) error {
	if root.IsZero() {
		return forgeyard.Errorf(opTree, forgeyard.Invalid, "the root has no digest")
	}
	end, err := x.begin()
	if err != nil {
		return err
	}
	defer end()
	s := x.newSession(ctx, opTree, root, providers, x.cfg.Class)
	defer s.close()
	w := walk{s: s, tell: progress}
	return x.counted(w.run(cas.Ref{Digest: root, Size: sizeUnknown(root)}))
}

// walk is the fetch of one tree.
type walk struct {
	s     *session
	limit int64 // bytes, zero for none
	seen  map[node]bool

	mu   sync.Mutex
	now  Progress
	tell func(Progress)
}

// node is one thing that was met. The same bytes may be a directory here and a
// mere file there, and only the directory leads on.
type node struct {
	digest forgeyard.Digest
	dir    bool
}

// first reports whether the thing is met for the first time.
func (w *walk) first(d forgeyard.Digest, dir bool) bool {
	n := node{d, dir}
	if w.seen[n] {
		return false
	}
	if w.seen == nil {
		w.seen = map[node]bool{}
	}
	w.seen[n] = true
	return true
}

func (w *walk) run(root cas.Ref) error {
	w.first(root.Digest, true)
	if err := w.s.blob(root); err != nil {
		return err
	}
	level := []cas.Ref{root}
	for depth := 0; len(level) > 0; depth++ {
		if depth > cas.MaxDepth {
			return forgeyard.Errorf(w.s.op, forgeyard.Limit, "%s nests deeper than %d directories", root.Digest.Short(), cas.MaxDepth)
		}
		dirs, files, err := w.read(level)
		if err != nil {
			return err
		}
		if err := w.bring(dirs); err != nil {
			return err
		}
		if err := w.bring(files); err != nil {
			return err
		}
		level = dirs
	}
	return nil
}

// blobs brings blobs that no tree names. Repetitions are brought once.
func (w *walk) blobs(refs []cas.Ref) error {
	var fresh []cas.Ref
	for _, r := range refs {
		if !w.first(r.Digest, false) {
			continue
		}
		if err := w.found(r.Size); err != nil {
			return err
		}
		fresh = append(fresh, r)
	}
	return w.bring(fresh)
}

// read lists what a level's directories name and was not seen before.
func (w *walk) read(level []cas.Ref) (dirs, files []cas.Ref, err error) {
	for _, ref := range level {
		t, err := w.tree(ref.Digest)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range t.Entries {
			if e.Kind == cas.Symlink || !w.first(e.Digest, e.Kind == cas.Dir) {
				continue
			}
			if err := w.found(e.Size); err != nil {
				return nil, nil, err
			}
			if e.Kind == cas.Dir {
				dirs = append(dirs, e.Ref())
			} else {
				files = append(files, e.Ref())
			}
		}
	}
	return dirs, files, nil
}

// tree reads a directory from the store.
func (w *walk) tree(d forgeyard.Digest) (cas.Tree, error) {
	o, err := w.s.x.cfg.Store.Open(w.s.ctx, d)
	if err != nil {
		return cas.Tree{}, forgeyard.E(w.s.op, forgeyard.Other, err)
	}
	b, err := io.ReadAll(io.LimitReader(o, cas.MaxTreeBytes+1))
	if cerr := o.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return cas.Tree{}, forgeyard.E(w.s.op, forgeyard.Other, err)
	}
	t, err := cas.DecodeTree(b)
	if err != nil {
		return t, forgeyard.E(w.s.op, forgeyard.Other, err).WithHint("%s is not a directory", d.Short())
	}
	return t, nil
}

// bring fetches what is not here: small ones in chunks, then large ones, a few at once.
func (w *walk) bring(refs []cas.Ref) error {
	var small []want
	var large []cas.Ref
	lacks := w.lacks(refs)
	for i, r := range refs {
		switch {
		case !lacks[i]:
			w.arrived(1, r.Size)
		case r.Size <= cas.BlockSize:
			small = append(small, want{digest: r.Digest, size: r.Size})
		default:
			large = append(large, r)
		}
	}
	// In the order in which both stores have their rows: what is asked for in a row lies side
	// by side where it is read, and again where it is written.
	slices.SortFunc(small, func(a, b want) int { return bytes.Compare(a.digest[:], b.digest[:]) })
	for len(small) > 0 {
		n := min(len(small), treeChunk)
		if err := w.bringSmall(small[:n]); err != nil {
			return err
		}
		small = small[n:]
	}
	var g errgroup.Group
	g.SetLimit(largeAtOnce)
	for _, r := range large {
		g.Go(func() error {
			if err := w.s.blob(r); err != nil {
				w.s.cancel() // what the others verified stays
				return err
			}
			w.arrived(1, r.Size)
			return nil
		})
	}
	return g.Wait()
}

// lacks tells of each blob whether it is not here.
func (w *walk) lacks(refs []cas.Ref) []bool {
	out := make([]bool, len(refs))
	if many, ok := w.s.x.cfg.Store.(cas.Many); ok {
		for _, i := range many.Lacks(w.s.ctx, refs) {
			out[i] = true
		}
		return out
	}
	for i, r := range refs {
		out[i] = r.Digest != cas.Empty() && !w.s.x.cfg.Store.Has(w.s.ctx, r.Digest)
	}
	return out
}

func (w *walk) bringSmall(wants []want) error {
	keep := w.s.keep(wants)
	return w.s.fetch(w.s.ctx, wants, func(ctx context.Context, all []came) {
		keep(ctx, all)
		n, size := 0, int64(0)
		for _, c := range all {
			if c.err == nil {
				n, size = n+1, size+wants[c.i].size
			}
		}
		w.arrived(n, size)
	})
}

// found counts an object that the tree names, against the limit.
func (w *walk) found(size int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.TotalObjects++
	w.now.TotalBytes += size
	if w.limit > 0 && w.now.TotalBytes > w.limit {
		return forgeyard.Errorf(w.s.op, forgeyard.Limit, "%s names more than %d bytes", w.s.subject.Short(), w.limit)
	}
	return nil
}

func (w *walk) arrived(n int, size int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.Objects += int64(n)
	w.now.Bytes += size
	if w.tell != nil {
		w.tell(w.now)
	}
}
