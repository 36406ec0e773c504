package tree

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// FixedTime is the modification time of all that is materialised, so that builds
// which look at times see the same each time. 1980: the earliest that zip can say.
var FixedTime = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// Materialisation binds Materialise.
type Materialisation struct {
	Limits
	// ReadOnly takes the write bits from files and directories. Zero: the owner may write.
	ReadOnly bool
	// Chown gives everything to UID and GID. Zero: it belongs to the caller.
	Chown    bool
	UID, GID int
}

// Report tells what Materialise made and how. Each file came in one of three ways.
type Report struct {
	Files  int64 // files, directories and links
	Bytes  int64 // of all files
	Cloned int64 // files that share their blocks with the store until written
	Ranged int64 // files that the kernel copied
	Copied int64 // files that were read and written: small ones, and where nothing else went
	Shared int64 // bytes of the cloned files
}

const opMaterialise = "tree materialise"

// Materialise makes the tree in dst, which must not exist or be empty, and which
// nobody else may write to meanwhile. Everything must be in the store: NotFound
// names what is not. How a file's bytes come is decided file by file, see fill. The
// workload never gets a link to the store's own file, so it cannot change shared
// content (RA-186, RA-188).
//
// Errors are sorted by RA-189: NotFound, Unavailable (InputFetch); Corrupt
// (CorruptInput); NoSpace (DiskInsufficient); Invalid that is ErrPath
// (PathIncompatible). After one dst holds a part; Remove takes it away.
func Materialise(ctx context.Context, s Source, root forgeyard.Digest, dst string, o Materialisation) (Report, error) {
	if err := os.Mkdir(dst, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Report{}, fail(opMaterialise, dst, err)
	}
	if st, err := os.Lstat(dst); err != nil || !st.IsDir() {
		return Report{}, cmp.Or(fail(opMaterialise, dst, err), invalid(opMaterialise, dst, "is not a directory"))
	}
	r, err := os.OpenRoot(dst)
	if err != nil {
		return Report{}, fail(opMaterialise, dst, err)
	}
	defer closeQuiet(r)
	if err := checkEmpty(r, dst); err != nil {
		return Report{}, err
	}
	m := &maker{s: s, root: r, dst: dst, o: o, dirs: []string{"."}}
	m.g, m.ctx = errgroup.WithContext(ctx)
	m.g.SetLimit(min(workers, 8)) // writing is bound by the disk, not by waiting for syncs
	m.many, _ = s.(cas.ManyReader)
	err = Walk(m.ctx, cas.Ref{Digest: root}, FromStore(s), o.Limits, m.visit)
	if err == nil {
		m.together()
	}
	if werr := m.g.Wait(); werr != nil && (err == nil || forgeyard.KindOf(err) == forgeyard.Interrupted) {
		err = werr // the walk only stopped because of it
	}
	if err != nil {
		return Report{}, fail(opMaterialise, dst, err)
	}
	// Only now: a directory without write permission could not be filled, and filling
	// it would change its time.
	for _, d := range slices.Backward(m.dirs) {
		if err := m.finish(d, 0o755); err != nil {
			return Report{}, fail(opMaterialise, filepath.Join(dst, d), err)
		}
	}
	return m.report(), nil
}

// MaterialiseFile makes one file as a tree with it alone would: dst, which must not exist.
func MaterialiseFile(ctx context.Context, s Source, ref cas.Ref, dst string, o Materialisation) (Report, error) {
	dir, name := filepath.Split(dst)
	r, err := os.OpenRoot(filepath.Clean(cmp.Or(dir, ".")))
	if err != nil {
		return Report{}, fail(opMaterialise, dst, err)
	}
	defer closeQuiet(r)
	m := &maker{s: s, root: r, dst: dir, o: o, ctx: ctx}
	if b := newBudget(o.Limits); ref.Size > b.l.MaxBytes {
		return Report{}, b.take(opMaterialise, dst, ref.Size)
	}
	m.files.Add(1)
	err = m.file(name, cas.Entry{Name: name, Kind: cas.File, Size: ref.Size, Digest: ref.Digest}, nil)
	return m.report(), fail(opMaterialise, dst, err)
}

func checkEmpty(r *os.Root, dst string) error {
	d, err := r.Open(".")
	if err != nil {
		return fail(opMaterialise, dst, err)
	}
	defer closeQuiet(d)
	names, err := d.Readdirnames(1)
	if err != nil && err != io.EOF {
		return fail(opMaterialise, dst, err)
	}
	if len(names) > 0 {
		return forgeyard.Errorf(opMaterialise, forgeyard.Conflict, "%q is not empty: it holds %q", dst, names[0])
	}
	return nil
}

// maker fills one directory. The walk makes directories and links; files are made by
// several goroutines, which end with the call.
type maker struct {
	s    Source
	root *os.Root
	dst  string
	o    Materialisation
	dirs []string // in the order made, parents first
	g    *errgroup.Group
	ctx  context.Context

	many     cas.ManyReader // nil: the store has none
	gathered []named        // of the walk: small files that are to be read together

	modes [2]atomic.Int32 // of files and of programs: see finishFile

	files, bytes           atomic.Int64
	cloned, ranged, copied atomic.Int64 // how many files came so
	shared                 atomic.Int64
}

func (m *maker) report() Report {
	return Report{Files: m.files.Load(), Bytes: m.bytes.Load(), Cloned: m.cloned.Load(), Ranged: m.ranged.Load(), Copied: m.copied.Load(), Shared: m.shared.Load()}
}

func (m *maker) visit(p string, e cas.Entry) error {
	name := filepath.FromSlash(p)
	if !filepath.IsLocal(name) {
		return incompatible(p, "cannot be a path on this system")
	}
	m.files.Add(1)
	switch e.Kind {
	case cas.Dir:
		m.dirs = append(m.dirs, name)
		return m.collision(p, m.root.Mkdir(name, 0o700))
	case cas.Symlink:
		err := m.root.Symlink(filepath.FromSlash(e.Target), name)
		if errors.Is(err, fs.ErrPermission) { // this folder is ours: it is links that are not allowed
			return incompatible(p, "is a link (%v)", err)
		}
		if err != nil {
			return m.collision(p, err)
		}
		if m.o.Chown {
			if err := m.root.Lchown(name, m.o.UID, m.o.GID); err != nil {
				return fail(opMaterialise, p, err)
			}
		}
		return fail(opMaterialise, p, setLinkTime(filepath.Join(m.dst, name), FixedTime))
	}
	if m.many != nil && e.Size > 0 && e.Size <= gatherSize {
		if m.gathered = append(m.gathered, named{name, e}); len(m.gathered) == gatherMost {
			m.together()
		}
		return nil
	}
	m.g.Go(func() error { return fail(opMaterialise, p, m.file(name, e, nil)) })
	return nil
}

// named is a file that is to be made.
type named struct {
	name string
	e    cas.Entry
}

// together makes the files that the walk has gathered: in the order in which the store has
// them, so that what is read in one pass lies side by side.
func (m *maker) together() {
	slices.SortFunc(m.gathered, func(a, b named) int { return bytes.Compare(a.e.Digest[:], b.e.Digest[:]) })
	for all := range slices.Chunk(slices.Clone(m.gathered), gatherPass) {
		m.g.Go(func() error { return m.pass(all) })
	}
	m.gathered = m.gathered[:0]
}

// pass makes some files. What the one look does not find is looked for by itself.
func (m *maker) pass(all []named) error {
	var names [gatherPass]forgeyard.Digest
	var found [gatherPass][]byte
	size := int64(0)
	for i, f := range all {
		names[i] = f.e.Digest
		size += f.e.Size
	}
	held := make([]byte, 0, size)
	m.many.ReadMany(m.ctx, names[:len(all)], true, func(i int, b []byte) {
		if int64(len(b)) == all[i].e.Size {
			held = append(held, b...)
			found[i] = held[len(held)-len(b):]
		}
	})
	for i, f := range all {
		if err := m.file(f.name, f.e, found[i]); err != nil {
			return fail(opMaterialise, filepath.ToSlash(f.name), err)
		}
	}
	return nil
}

// ErrPath is in an error whose cause is a name, or a link, that the filesystem below
// the workspace cannot hold, or cannot tell from another one. Elsewhere it may do.
var ErrPath = errors.New("this filesystem cannot hold the path")

func incompatible(p, format string, args ...any) error {
	return forgeyard.Errorf(opMaterialise, forgeyard.Invalid, "%q %s: %w", p, fmt.Sprintf(format, args...), ErrPath).
		WithHint("rename it at its source, or put the workspaces on another filesystem")
}

// collision explains why a name could not be made. Trees have no name twice and a
// directory comes before what is in it: so what is there already is another name that
// the filesystem takes for this one, and what is missing is the filesystem's way to
// refuse a name.
func (m *maker) collision(p string, err error) error {
	switch {
	case errors.Is(err, fs.ErrExist):
		return incompatible(p, "differs from another name only in a way that does not count here, such as case or the form of its letters")
	case err != nil && (errors.Is(err, fs.ErrNotExist) || refusesName(err)):
		return incompatible(p, "cannot be made (%v)", err)
	}
	return fail(opMaterialise, p, err)
}

// file makes one file, whose verified bytes may be known already.
func (m *maker) file(name string, e cas.Entry, b []byte) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	perm, kind := fs.FileMode(0o644), 0
	if e.Exec {
		perm, kind = 0o755, 1
	}
	if m.o.ReadOnly {
		perm &^= 0o222
	}
	f, err := m.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return m.collision(filepath.ToSlash(name), err)
	}
	var n int64
	if b != nil {
		n, err = m.write(f, b, e)
	} else {
		n, err = m.fill(f, e)
	}
	if err == nil && n != e.Size {
		err = forgeyard.Errorf(opMaterialise, forgeyard.Invalid, "the tree says %d bytes, %s has %d", e.Size, e.Digest, n)
	}
	if err == nil {
		err = m.finishFile(f, perm, &m.modes[kind])
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	m.bytes.Add(n)
	return afterClose(m.root, name)
}

// Whether a new file has the mode that it was opened with is for the process's umask and the
// folder's default rules to say, the same for all files of one call. The first is looked at.
const (
	modeUnknown = iota
	modeRight
	modeOther
)

// finishFile is finish by handle, which spares walking the path three times.
func (m *maker) finishFile(f *os.File, perm fs.FileMode, known *atomic.Int32) error {
	if m.o.Chown {
		if err := f.Chown(m.o.UID, m.o.GID); err != nil {
			return err
		}
	}
	mode := known.Load()
	if mode == modeUnknown {
		st, err := f.Stat()
		if err != nil {
			return err
		}
		mode = modeOther
		if st.Mode() == perm {
			mode = modeRight
		}
		known.Store(mode)
	}
	if mode != modeRight {
		if err := f.Chmod(perm); err != nil {
			return err
		}
	}
	return setFileTime(f, FixedTime)
}

// finish sets a directory's owner, permissions and time, in the order in which none
// undoes another.
func (m *maker) finish(name string, perm fs.FileMode) error {
	if m.o.ReadOnly {
		perm &^= 0o222
	}
	if m.o.Chown {
		if err := m.root.Lchown(name, m.o.UID, m.o.GID); err != nil {
			return err
		}
	}
	if err := m.root.Chmod(name, perm); err != nil {
		return err
	}
	return m.root.Chtimes(name, FixedTime, FixedTime)
}

// Remove removes a directory that was materialised, read-only parts and leftovers of
// a workload included. It follows no link and is idempotent.
func Remove(dir string) error {
	st, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && st.IsDir() {
		err = unlock(dir)
	}
	if err != nil {
		return fail("tree remove", dir, err)
	}
	return fail("tree remove", dir, os.RemoveAll(dir))
}

// unlock makes every directory writable for its owner.
func unlock(dir string) error {
	parent, err := openHandle(filepath.Dir(filepath.Clean(dir)))
	if err != nil {
		return err
	}
	defer closeQuiet(parent)
	return unlockBelow(parent, filepath.Base(filepath.Clean(dir)), 0)
}

func unlockBelow(parent handle, name string, depth int) error {
	st, err := parent.lstat(name)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !st.mode.IsDir()) || depth > 4*cas.MaxDepth {
		return nil // deeper than any tree: what stays locked, RemoveAll reports
	}
	if err != nil {
		return err
	}
	if st.mode.Perm()&0o700 != 0o700 {
		if err := parent.unlock(name); err != nil {
			return err
		}
	}
	h, err := parent.openDir(name, st)
	if err != nil {
		return err
	}
	defer closeQuiet(h)
	for {
		names, err := h.readNames(1024)
		for _, n := range names {
			if err := unlockBelow(h, n, depth+1); err != nil {
				return err
			}
		}
		if err == errNoMore {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
