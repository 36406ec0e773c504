package tree

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

const opPrint = "tree print"

// Print names what a directory looks like from outside: names, sizes, owners, rights, and
// the times that the system sets itself. No byte of a file is read. Two prints are equal
// when nobody touched anything between them; a write that was hidden by setting times
// back changes the print all the same. Unavailable where the system has no such times.
func Print(dir string) (forgeyard.Digest, error) {
	h, err := openHandle(dir)
	if err != nil {
		return forgeyard.Digest{}, fail(opPrint, dir, err)
	}
	defer closeQuiet(h)
	p := &printer{h: cas.NewHasher()}
	if err := p.dir(h, ".", 0); err != nil {
		return forgeyard.Digest{}, fail(opPrint, dir, err)
	}
	return p.h.Sum(), nil
}

type printer struct {
	h   *cas.Hasher
	buf []byte
}

func (p *printer) dir(h handle, at string, depth int) error {
	if depth > cas.MaxDepth {
		return forgeyard.Errorf(opPrint, forgeyard.Limit, "directories nest deeper than %d at %q", cas.MaxDepth, forgeyard.Clip(at, 200))
	}
	self, err := h.self()
	if err != nil {
		return err
	}
	if self.stamp == (info{}).stamp {
		return forgeyard.Errorf(opPrint, forgeyard.Unavailable, "this system does not tell whether a file was touched")
	}
	p.line(at, self)
	names, err := allNames(h)
	if err != nil {
		return err
	}
	for _, n := range names {
		st, err := h.lstat(n)
		if err != nil {
			return err
		}
		if !st.mode.IsDir() {
			p.line(n, st)
			continue
		}
		sub, err := h.openDir(n, st)
		if err != nil {
			return err
		}
		err = p.dir(sub, path.Join(at, n), depth+1)
		closeQuiet(sub)
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) line(name string, st info) {
	p.buf = append(append(p.buf[:0], name...), 0)
	for _, v := range st.stamp {
		p.buf = binary.LittleEndian.AppendUint64(p.buf, uint64(v))
	}
	_, _ = p.h.Write(p.buf) // a hasher never fails
}

func allNames(h handle) ([]string, error) {
	var out []string
	for {
		some, err := h.readNames(1024)
		out = append(out, some...)
		if err == errNoMore {
			slices.Sort(out)
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

const opCheck = "tree check"

// Check holds a directory against the tree that was materialised there: every name and
// every byte, and nothing else. Corrupt names the first path that differs. The trees, not
// the files, must be in the store.
func Check(ctx context.Context, s Source, root forgeyard.Digest, dir string, l Limits) error {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return fail(opCheck, dir, err)
	}
	defer closeQuiet(r)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	want := map[string]int{".": 0} // names in each directory
	err = Walk(ctx, cas.Ref{Digest: root}, FromStore(s), l, func(p string, e cas.Entry) error {
		want[path.Dir(p)]++
		switch e.Kind {
		case cas.Dir:
			want[p] += 0
		case cas.Symlink:
			if got, err := r.Readlink(filepath.FromSlash(p)); err != nil || filepath.ToSlash(got) != e.Target {
				return differs(p)
			}
		default:
			g.Go(func() error { return checkFile(ctx, r, p, e) })
		}
		return nil
	})
	if werr := g.Wait(); werr != nil && (err == nil || forgeyard.KindOf(err) == forgeyard.Interrupted) {
		err = werr
	}
	if err != nil {
		return fail(opCheck, dir, err)
	}
	for p, n := range want {
		d, err := r.Open(filepath.FromSlash(p))
		if err != nil {
			return differs(p)
		}
		names, err := d.Readdirnames(n + 1)
		closeQuiet(d)
		if (err != nil && err != io.EOF) || len(names) != n {
			return differs(p)
		}
	}
	return nil
}

func differs(p string) error {
	return forgeyard.Errorf(opCheck, forgeyard.Corrupt, "%q is not what it was made as", p)
}

func checkFile(ctx context.Context, r *os.Root, p string, e cas.Entry) error {
	name := filepath.FromSlash(p)
	st, err := r.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && (!st.Mode().IsRegular() || st.Size() != e.Size || (st.Mode()&0o111 != 0) != e.Exec)) {
		return differs(p)
	}
	if err != nil {
		return fail(opCheck, p, err)
	}
	f, err := r.Open(name)
	if err != nil {
		return fail(opCheck, p, err)
	}
	defer closeQuiet(f)
	h := cas.NewHasher()
	for buf := make([]byte, min(copyStep, e.Size+1)); err == nil; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var n int
		n, err = f.Read(buf)
		_, _ = h.Write(buf[:n]) // a hasher never fails
	}
	if err != io.EOF {
		return fail(opCheck, p, err)
	}
	if h.Sum() != e.Digest {
		return differs(p)
	}
	return nil
}

// CheckStored looks at every byte that a tree needs in the store, so that what is damaged
// is set aside, all of it at once; it reports how much was. What is missing is no matter.
func CheckStored(ctx context.Context, s Source, root forgeyard.Digest, l Limits) (damaged int, err error) {
	seen := map[forgeyard.Digest]bool{}
	err = Walk(ctx, cas.Ref{Digest: root}, FromStore(s), l, func(_ string, e cas.Entry) error {
		if e.Kind != cas.File || e.Size == 0 || seen[e.Digest] {
			return nil
		}
		seen[e.Digest] = true
		err := look(ctx, s, e)
		switch forgeyard.KindOf(err) {
		case forgeyard.Corrupt:
			damaged++
			return nil
		case forgeyard.NotFound:
			return nil
		}
		return err
	})
	if k := forgeyard.KindOf(err); k == forgeyard.Corrupt || k == forgeyard.NotFound {
		return damaged, nil // a tree itself: what is below it is looked at when it is here again
	}
	return damaged, err
}

func look(ctx context.Context, s Source, e cas.Entry) error {
	if e.Size <= smallFile {
		_, err := s.Block(ctx, e.Digest)
		return err
	}
	_, release, err := s.Path(ctx, e.Digest)
	if err == nil {
		release()
	}
	return err
}
