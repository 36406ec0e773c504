package tree

import (
	"bytes"
	"cmp"
	"context"
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

// Putter is what captures write to.
type Putter interface {
	Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error)
}

// Options bind a capture.
type Options struct {
	Limits
	// Owner keeps every object of the capture until the owner pins the root or unpins
	// (see cas.PutOptions). Empty: a collection may take pieces before the caller pins.
	Owner string
	// Class says when each object counts as stored. Zero: Durable.
	Class cas.Class
	// UID is the user whose every captured file is: who may name a file of another's can link
	// it to where it is captured with the rights of whoever captures. Zero: anybody's.
	UID int
}

const opCapture = "tree capture"

// capturer stores what it finds. The walk is one goroutine; files are stored by
// several, which end with the call.
//
//	walk ──open file──▶ workers: Put ──▶ entry filled in ──all done──▶ trees, deepest first
type capturer struct {
	store  Putter
	o      Options
	budget *budget
	levels [][]*node // by depth
	caller context.Context
	g      *errgroup.Group
	ctx    context.Context // of g: ends with the first error, and with Wait
}

// node is one directory being captured.
type node struct {
	path    string
	entries []cas.Entry
	subs    map[int]*node      // by index in entries
	files   map[int]*cas.Entry // the same, for files whose entries stand elsewhere
	ref     cas.Ref
}

func newCapturer(ctx context.Context, s Putter, o Options) *capturer {
	c := &capturer{store: s, o: o, budget: newBudget(o.Limits), caller: ctx}
	c.g, c.ctx = errgroup.WithContext(ctx)
	c.g.SetLimit(workers)
	return c
}

// Capture stores a directory and all below it. Links must stay within it; what
// else it finds than files, directories and links it refuses as Invalid, naming the
// path. A file that changes meanwhile gives Conflict.
func Capture(ctx context.Context, s Putter, dir string, o Options) (Ref, error) {
	root, err := openRoot(dir)
	if err != nil {
		return Ref{}, err
	}
	defer closeQuiet(root)
	c := newCapturer(ctx, s, o)
	n, err := c.scan(root, "", "", 0)
	if err := c.finish(err); err != nil {
		return Ref{}, err
	}
	return Ref{Ref: n.ref, Files: c.budget.files, Bytes: c.budget.bytes}, nil
}

func openRoot(dir string) (handle, error) {
	st, err := os.Lstat(dir)
	if err != nil {
		return handle{}, fail(opCapture, dir, err)
	}
	if !st.IsDir() {
		return handle{}, invalid(opCapture, dir, "is not a directory")
	}
	h, err := openHandle(dir)
	return h, fail(opCapture, dir, err)
}

// CaptureFile stores one file. It is not followed when it is a link.
func CaptureFile(ctx context.Context, s Putter, file string, o Options) (cas.Entry, error) {
	dir, name := filepath.Split(file)
	if cas.ValidateName(name) != nil {
		return cas.Entry{}, invalid(opCapture, file, "does not end in a file's name")
	}
	root, err := openHandle(filepath.Clean(cmp.Or(dir, ".")))
	if err != nil {
		return cas.Entry{}, fail(opCapture, file, err)
	}
	defer closeQuiet(root)
	st, err := root.lstat(name)
	if err != nil {
		return cas.Entry{}, fail(opCapture, file, err)
	}
	if !st.mode.IsRegular() {
		return cas.Entry{}, invalid(opCapture, file, "is %s; only a file can be captured here", describe(st.mode))
	}
	c := newCapturer(ctx, s, o)
	e := cas.Entry{Name: name}
	err = c.file(root, name, st, file, &e)
	return e, c.finish(err)
}

// finish waits for the files and then stores the trees, deepest first.
func (c *capturer) finish(err error) error {
	werr := c.g.Wait()
	if werr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = werr // the walk only stopped because of it
	}
	if err != nil {
		return fail(opCapture, ".", err)
	}
	for _, level := range slices.Backward(c.levels) {
		g, ctx := errgroup.WithContext(c.caller)
		g.SetLimit(workers)
		for _, n := range level {
			g.Go(func() error { return c.storeTree(ctx, n) })
		}
		if err := g.Wait(); err != nil {
			return fail(opCapture, ".", err)
		}
	}
	return nil
}

func (c *capturer) storeTree(ctx context.Context, n *node) error {
	for i, sub := range n.subs {
		e := &n.entries[i]
		e.Size, e.Digest, e.Manifest = sub.ref.Size, sub.ref.Digest, sub.ref.Manifest
	}
	for i, f := range n.files {
		n.entries[i] = *f
	}
	t := cas.Tree{Entries: n.entries}
	t.Sort()
	enc, err := t.Encode()
	if err != nil {
		return fail(opCapture, n.path, err)
	}
	n.ref, err = c.store.Put(ctx, bytes.NewReader(enc), c.put(int64(len(enc))))
	return fail(opCapture, n.path, err)
}

func (c *capturer) put(size int64) cas.PutOptions {
	return cas.PutOptions{Class: c.o.Class, Owner: c.o.Owner, Size: size}
}

// scan reads one directory. at is its path for people; inside is its path below the
// root that links may not leave.
func (c *capturer) scan(root handle, at, inside string, depth int) (*node, error) {
	if depth > cas.MaxDepth {
		return nil, forgeyard.Errorf(opCapture, forgeyard.Limit, "directories nest deeper than %d at %q", cas.MaxDepth, forgeyard.Clip(at, 200))
	}
	names, err := c.names(root, at)
	if err != nil {
		return nil, err
	}
	n := &node{path: at, entries: make([]cas.Entry, len(names)), subs: map[int]*node{}}
	c.level(depth, n)
	for i, name := range names {
		if err := c.ctx.Err(); err != nil {
			return nil, err
		}
		if err := c.entry(root, n, i, name, inside, depth); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// names lists a directory, within what is left of the budget.
func (c *capturer) names(root handle, at string) ([]string, error) {
	var out []string
	for {
		some, err := root.readNames(1024)
		out = append(out, some...)
		if int64(len(out)) > c.budget.l.MaxFiles-c.budget.files {
			return nil, forgeyard.Errorf(opCapture, forgeyard.Limit, "at %q there are more than %d files, directories and links", at, c.budget.l.MaxFiles)
		}
		if len(out) > cas.MaxTreeEntries {
			return nil, forgeyard.Errorf(opCapture, forgeyard.Limit, "directory %q has more than %d entries", at, cas.MaxTreeEntries)
		}
		if err == errNoMore {
			break
		}
		if err != nil {
			return nil, fail(opCapture, at, err)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (c *capturer) entry(root handle, n *node, i int, name, inside string, depth int) error {
	p := path.Join(n.path, name)
	if err := cas.ValidateName(name); err != nil {
		return fail(opCapture, p, err)
	}
	st, err := root.lstat(name)
	if err != nil {
		return changed(p, err)
	}
	e := &n.entries[i]
	e.Name = name
	switch mode := st.mode; {
	case mode.IsRegular():
		return c.file(root, name, st, p, e)
	case mode.IsDir():
		if err := c.budget.take(opCapture, p, 0); err != nil {
			return err
		}
		sub, err := root.openDir(name, st)
		if err != nil {
			return changed(p, err)
		}
		defer closeQuiet(sub)
		e.Kind = cas.Dir
		child, err := c.scan(sub, p, path.Join(inside, name), depth+1)
		n.subs[i] = child
		return err
	case mode&fs.ModeSymlink != 0:
		if err := c.budget.take(opCapture, p, 0); err != nil {
			return err
		}
		target, err := root.readlink(name)
		if err != nil {
			return changed(p, err)
		}
		e.Kind, e.Target = cas.Symlink, filepath.ToSlash(target)
		return fail(opCapture, p, cas.ValidateTarget(inside, e.Target))
	default:
		return invalid(opCapture, p, "is %s; only files, directories and links can be captured", describe(mode))
	}
}

// file opens a regular file and hands it to a worker.
func (c *capturer) file(root handle, name string, st info, p string, e *cas.Entry) error {
	size := st.size
	if c.o.UID != 0 && st.uid != c.o.UID {
		return invalid(opCapture, p, "is of user %d, a hard link to what was not made here; what is captured here is of user %d", st.uid, c.o.UID)
	}
	if size > cas.MaxBlobSize {
		return forgeyard.Errorf(opCapture, forgeyard.Limit, "%q has %d bytes, the bound for one file is %d", p, size, cas.MaxBlobSize)
	}
	if err := c.budget.take(opCapture, p, size); err != nil {
		return err
	}
	f, err := root.openFile(name, st)
	if err != nil {
		return changed(p, err)
	}
	e.Kind, e.Exec = cas.File, st.mode&0o111 != 0
	c.g.Go(func() error {
		defer closeQuiet(f)
		// One byte more than was seen, so that a file which grows for ever is noticed.
		// A store at the end of a line may look at the file more than once (io.ReaderAt).
		ref, err := c.store.Put(c.ctx, io.NewSectionReader(f, 0, size+1), c.put(size))
		if err != nil {
			return fail(opCapture, p, err)
		}
		if ref.Size != size {
			return changed(p, errors.New("its size is not what it was"))
		}
		e.Size, e.Digest, e.Manifest = ref.Size, ref.Digest, ref.Manifest
		return nil
	})
	return nil
}

// changed says that somebody works on what is being captured.
func changed(p string, err error) error {
	if isNoSpace(err) || errors.Is(err, fs.ErrPermission) || forgeyard.KindOf(err) != forgeyard.Other {
		return fail(opCapture, p, err)
	}
	return forgeyard.Errorf(opCapture, forgeyard.Conflict, "%q changed while it was captured: %w", p, err).WithHint("let the workload end before its files are captured")
}

func describe(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a file"
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symlink"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "of an unknown type"
}

func closeQuiet(c io.Closer) { _ = c.Close() } // it was only read
