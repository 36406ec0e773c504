package tree

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Output is one declared output that was captured.
type Output struct {
	Path  string // as declared, cleaned
	Kind  cas.Kind
	Ref   cas.Ref // the file's, or the directory's tree
	Exec  bool
	Files int64 // 1 for a file
	Bytes int64
}

// Outputs is what CaptureOutputs stored.
type Outputs struct {
	// Root is one tree that holds every output at its declared path, so that one
	// digest names and pins them all.
	Root  Ref
	Items []Output // in the order declared
}

// CaptureOutputs stores the declared outputs below root, and nothing else. A path is
// relative and stays inside; no component of it may be a link, whoever made it. A
// directory's links must stay in that directory. What was declared and is not there
// gives NotFound. Limits hold for all outputs together.
func CaptureOutputs(ctx context.Context, s Putter, root string, paths []string, o Options) (Outputs, error) {
	clean, err := checkOutputs(paths)
	if err != nil {
		return Outputs{}, err
	}
	r, err := openRoot(root)
	if err != nil {
		return Outputs{}, err
	}
	defer closeQuiet(r)
	c := newCapturer(ctx, s, o)
	var (
		items = make([]Output, len(clean))
		slots = make([]slot, len(clean))
	)
	for i, p := range clean {
		files, bytes := c.budget.files, c.budget.bytes
		if slots[i], err = c.output(r, p); err != nil {
			break
		}
		items[i] = Output{Path: p, Files: max(1, c.budget.files-files), Bytes: c.budget.bytes - bytes}
	}
	top, merr := c.merge(clean, slots)
	if err == nil {
		err = merr
	}
	if err := c.finish(err); err != nil {
		return Outputs{}, err
	}
	for i, sl := range slots {
		if sl.dir != nil {
			items[i].Kind, items[i].Ref = cas.Dir, sl.dir.ref
		} else {
			items[i].Kind, items[i].Ref, items[i].Exec = cas.File, sl.file.Ref(), sl.file.Exec
		}
	}
	return Outputs{Root: Ref{Ref: top.ref, Files: c.budget.files, Bytes: c.budget.bytes}, Items: items}, nil
}

// slot is where one output is being captured to.
type slot struct {
	file *cas.Entry
	dir  *node
}

// checkOutputs judges the paths before anything is opened.
func checkOutputs(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		c, err := CheckOutputPath(p)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	sorted := slices.Sorted(slices.Values(out))
	for i := 1; i < len(sorted); i++ {
		for _, a := range sorted[:i] {
			if a == sorted[i] || a == "." || strings.HasPrefix(sorted[i], a+"/") {
				return nil, invalid(opCapture, sorted[i], "is declared twice: output %q holds it already", a)
			}
		}
	}
	return out, nil
}

// CheckOutputPath says whether a declared output path is acceptable, and cleans it.
// It looks at the text only.
func CheckOutputPath(p string) (string, error) {
	switch {
	case p == "":
		return "", invalid(opCapture, p, "is no output path")
	case strings.HasPrefix(p, "/"):
		return "", invalid(opCapture, p, "is absolute; output paths are relative to the workspace")
	}
	for c := range strings.SplitSeq(p, "/") {
		if c == ".." {
			return "", invalid(opCapture, p, "leaves the workspace")
		}
		if c == "" || c == "." {
			continue
		}
		if err := cas.ValidateName(c); err != nil {
			return "", fail(opCapture, p, err)
		}
	}
	clean := path.Clean(p)
	if strings.Count(clean, "/") >= cas.MaxDepth {
		return "", forgeyard.Errorf(opCapture, forgeyard.Limit, "output path %q is deeper than %d", forgeyard.Clip(p, 200), cas.MaxDepth)
	}
	return clean, nil
}

// output walks to one output by handles and captures it.
func (c *capturer) output(root handle, p string) (slot, error) {
	depth := strings.Count(p, "/") + 1
	if p == "." {
		n, err := c.scan(root, "", "", 0)
		return slot{dir: n}, err
	}
	parts := strings.Split(p, "/")
	dir := root
	for i, name := range parts {
		at := path.Join(parts[:i+1]...)
		st, err := dir.lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return slot{}, forgeyard.Errorf(opCapture, forgeyard.NotFound, "declared output %q was not produced: there is no %q", p, at)
		}
		if err != nil {
			return slot{}, fail(opCapture, at, err)
		}
		last := i == len(parts)-1
		switch mode := st.mode; {
		case mode&fs.ModeSymlink != 0:
			return slot{}, c.linkOutput(dir, name, p, at)
		case mode.IsDir():
			sub, err := dir.openDir(name, st)
			if err != nil {
				return slot{}, changed(at, err)
			}
			defer closeQuiet(sub)
			if last {
				if err := c.budget.take(opCapture, p, 0); err != nil {
					return slot{}, err
				}
				n, err := c.scan(sub, p, "", depth)
				return slot{dir: n}, err
			}
			dir = sub
		case last && mode.IsRegular():
			e := &cas.Entry{Name: name}
			return slot{file: e}, c.file(dir, name, st, p, e)
		default:
			return slot{}, invalid(opCapture, at, "is %s; an output is a file or a directory", describe(mode))
		}
	}
	return slot{}, nil // not reached: the last part returns
}

// linkOutput refuses an output that is, or is reached through, a link.
func (c *capturer) linkOutput(dir handle, name, p, at string) error {
	target, err := dir.readlink(name)
	if err != nil {
		return changed(at, err)
	}
	where := "inside"
	if cas.ValidateTarget(path.Dir(at), target) != nil {
		where = "out of"
	}
	if at == p {
		return invalid(opCapture, p, "is a link %s the workspace (to %q); declare the file itself", where, forgeyard.Clip(target, 200))
	}
	return invalid(opCapture, p, "goes through the link %q %s the workspace (to %q); links are not followed", at, where, forgeyard.Clip(target, 200))
}

// merge makes the directories that lead to the outputs.
func (c *capturer) merge(paths []string, slots []slot) (*node, error) {
	if len(paths) == 1 && paths[0] == "." {
		return slots[0].dir, nil
	}
	top := &node{subs: map[int]*node{}}
	c.level(0, top)
	made := map[string]*node{"": top}
	for i, p := range paths {
		parts := strings.Split(p, "/")
		dir := top
		for k := range parts[:len(parts)-1] {
			at := strings.Join(parts[:k+1], "/")
			sub := made[at]
			if sub == nil {
				if err := c.budget.take(opCapture, at, 0); err != nil {
					return top, err
				}
				sub = &node{path: at, subs: map[int]*node{}}
				made[at] = sub
				c.level(k+1, sub)
				dir.add(parts[k], slot{dir: sub})
			}
			dir = sub
		}
		dir.add(parts[len(parts)-1], slots[i])
	}
	return top, nil
}

func (c *capturer) level(depth int, n *node) {
	for len(c.levels) <= depth {
		c.levels = append(c.levels, nil)
	}
	c.levels[depth] = append(c.levels[depth], n)
}

// add puts an entry into a directory that is made here. A file's entry is filled in
// by its worker, so it is only pointed to until the tree is stored.
func (n *node) add(name string, s slot) {
	if s.dir != nil {
		n.subs[len(n.entries)] = s.dir
		n.entries = append(n.entries, cas.Entry{Name: name, Kind: cas.Dir})
		return
	}
	if n.files == nil {
		n.files = map[int]*cas.Entry{}
	}
	n.files[len(n.entries)] = s.file
	n.entries = append(n.entries, cas.Entry{Name: name, Kind: cas.File})
}
