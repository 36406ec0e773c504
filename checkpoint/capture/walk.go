package capture

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// seen is one entry as it was listed. info tells later whether what was opened is
// still the same file.
type seen struct {
	checkpoint.Entry
	info os.FileInfo
}

// list walks what is below sub in root, "." for all, and follows nothing. It stops at
// the bounds with a finding.
func list(root *os.Root, sub string) ([]seen, error) {
	w := walk{root: root}
	info, err := root.Lstat(sub)
	if err != nil {
		return nil, err
	}
	if sub != "." {
		w.add(sub, info)
	}
	if info.IsDir() {
		err = w.dir(sub, 1)
	}
	return w.out, err
}

type walk struct {
	root *os.Root
	out  []seen
}

func (w *walk) add(p string, info os.FileInfo) {
	e := checkpoint.Entry{Path: p}
	switch m := info.Mode(); {
	case m.IsRegular():
		e.Kind, e.Size, e.Links = checkpoint.Regular, info.Size(), links(info)
	case m.IsDir():
		e.Kind = checkpoint.Directory
	case m&fs.ModeSymlink != 0:
		e.Kind = checkpoint.Link
	}
	w.out = append(w.out, seen{e, info})
}

func (w *walk) dir(p string, depth int) error {
	if depth > checkpoint.MaxDepth {
		return refuse(checkpoint.Incompatible, checkpoint.CodeIrregular, "a directory nests deeper than 64")
	}
	f, err := w.root.OpenFile(p, os.O_RDONLY|noFollow|nonBlock, 0)
	if err != nil {
		return changed(p, err)
	}
	defer f.Close()
	var dirs []string
	for {
		entries, err := f.ReadDir(dirChunk)
		for _, e := range entries {
			if len(w.out) >= maxEntries {
				return refuse(checkpoint.Incompatible, checkpoint.CodeFiles, "more files than any contract allows")
			}
			child := path.Join(p, e.Name())
			info, err := w.root.Lstat(child)
			if err != nil {
				return changed(child, err)
			}
			w.add(child, info)
			if info.IsDir() {
				dirs = append(dirs, child)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return changed(p, err)
		}
	}
	for _, d := range dirs {
		if err := w.dir(d, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// open opens a listed file and makes sure that it is the one that was listed: a pipe or
// a link that took its place is not waited for and not followed.
func open(root *os.Root, s seen) (*os.File, error) {
	f, err := root.OpenFile(s.Path, os.O_RDONLY|noFollow|nonBlock, 0)
	if err != nil {
		return nil, changed(s.Path, err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, changed(s.Path, err)
	}
	if !info.Mode().IsRegular() || !os.SameFile(info, s.info) {
		f.Close()
		return nil, changed(s.Path, nil)
	}
	return f, nil
}

// changed is the finding for what was there a moment ago and isn't now, or cannot be
// read. Trouble of our own (no descriptors, a broken disk) stays an error without one.
func changed(p string, err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		switch errno {
		case syscall.ENOENT, syscall.ELOOP, syscall.ENOTDIR, syscall.EACCES, syscall.EPERM, syscall.ENXIO:
		default:
			return forgeyard.E("capture", forgeyard.Other, err)
		}
	}
	return refuse(checkpoint.Corrupt, checkpoint.CodeChanged, "\""+forgeyard.Clip(p, 80)+"\" changed while it was read, or cannot be read")
}

func refuse(v checkpoint.Verdict, c checkpoint.Code, detail string) error {
	return checkpoint.Finding{Verdict: v, Code: c, Detail: detail}.Err("capture")
}

// readBounded reads a regular file of at most limit bytes; a longer one is cut at
// limit+1, which every parser refuses.
func readBounded(root *os.Root, p string, limit int) ([]byte, error) {
	info, err := root.Lstat(p)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, refuse(checkpoint.Incompatible, checkpoint.CodeIrregular, "\""+p+"\" is no regular file")
	}
	f, err := open(root, seen{checkpoint.Entry{Path: p}, info})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(limit)+1))
}
