package tree

import (
	"context"
	"path"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Walk visits every entry below root, a directory before what is in it, names in
// order. path is relative to the root, with slashes. Link targets have been checked.
// A subtree that occurs twice is visited twice, so limits bound the walk: a few
// small trees can name 2¹²⁸ paths.
func Walk(ctx context.Context, root cas.Ref, get Getter, l Limits, visit func(path string, e cas.Entry) error) error {
	w := &walker{ctx: ctx, get: get, budget: newBudget(l), visit: visit, seen: map[forgeyard.Digest]cas.Tree{}}
	return w.dir(root, "", 0)
}

type walker struct {
	ctx    context.Context
	get    Getter
	budget *budget
	visit  func(string, cas.Entry) error
	seen   map[forgeyard.Digest]cas.Tree // trees met before; bounded by what the budget lets us meet
}

const opWalk = "tree walk"

func (w *walker) dir(ref cas.Ref, at string, depth int) error {
	if depth > cas.MaxDepth {
		return forgeyard.Errorf(opWalk, forgeyard.Limit, "directories nest deeper than %d at %q", cas.MaxDepth, forgeyard.Clip(at, 200))
	}
	if err := w.ctx.Err(); err != nil {
		return fail(opWalk, at, err)
	}
	t, ok := w.seen[ref.Digest]
	if !ok {
		var err error
		if t, err = load(w.ctx, opWalk, w.get, ref); err != nil {
			return err
		}
		w.seen[ref.Digest] = t
	}
	for _, e := range t.Entries {
		p := path.Join(at, e.Name)
		size := int64(0)
		switch e.Kind {
		case cas.File:
			size = e.Size
		case cas.Symlink:
			if err := cas.ValidateTarget(at, e.Target); err != nil {
				return fail(opWalk, p, err)
			}
		}
		if err := w.budget.take(opWalk, p, size); err != nil {
			return err
		}
		if err := w.visit(p, e); err != nil {
			return err
		}
		if e.Kind == cas.Dir {
			if err := w.dir(e.Ref(), p, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// Children lists what one tree names, each once: subtrees and files. The empty file
// is left out, for it is everywhere.
func Children(t cas.Tree) (trees, files []cas.Ref) {
	seen := map[forgeyard.Digest]bool{}
	for _, e := range t.Entries {
		if e.Kind == cas.Symlink || e.Size == 0 || seen[e.Digest] {
			continue
		}
		seen[e.Digest] = true
		if e.Kind == cas.Dir {
			trees = append(trees, e.Ref())
		} else {
			files = append(files, e.Ref())
		}
	}
	return trees, files
}

// Closure lists every object that root needs, each once: root and all trees first,
// in the order of their depth, then files. get is called once for each tree, several
// at a time; it may fetch the tree, so a closure can be listed before it is here.
func Closure(ctx context.Context, root cas.Ref, get Getter, l Limits) (trees, files []cas.Ref, err error) {
	const op = "tree closure"
	b := newBudget(l)
	seenTree := map[forgeyard.Digest]bool{root.Digest: true}
	seenFile := map[forgeyard.Digest]bool{}
	for level, depth := []cas.Ref{root}, 0; len(level) > 0; depth++ {
		if depth > cas.MaxDepth {
			return nil, nil, forgeyard.Errorf(op, forgeyard.Limit, "directories nest deeper than %d", cas.MaxDepth)
		}
		loaded, err := loadAll(ctx, op, get, level)
		if err != nil {
			return nil, nil, err
		}
		trees = append(trees, level...)
		level = nil
		for _, t := range loaded {
			subs, fs := Children(t)
			for _, r := range subs {
				if !seenTree[r.Digest] {
					seenTree[r.Digest] = true
					level = append(level, r)
				}
			}
			for _, r := range fs {
				if seenFile[r.Digest] {
					continue
				}
				seenFile[r.Digest] = true
				if err := b.take(op, r.Digest.Short(), r.Size); err != nil {
					return nil, nil, err
				}
				files = append(files, r)
			}
		}
		b.files += int64(len(level))
		if b.files > b.l.MaxFiles {
			return nil, nil, forgeyard.Errorf(op, forgeyard.Limit, "%s names more than %d objects", root.Digest.Short(), b.l.MaxFiles)
		}
	}
	return trees, files, nil
}

func loadAll(ctx context.Context, op string, get Getter, refs []cas.Ref) ([]cas.Tree, error) {
	out := make([]cas.Tree, len(refs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i, r := range refs {
		g.Go(func() error {
			t, err := load(ctx, op, get, r)
			out[i] = t
			return err
		})
	}
	return out, g.Wait()
}
