package tree

import (
	"io/fs"
	"os"
)

// handle is an open directory. Windows has no pipes in directories, and os.Root does
// not leave the root; what was opened is compared with what was looked at.
type handle struct{ r *os.Root }

func openHandle(dir string) (handle, error) {
	r, err := os.OpenRoot(dir)
	return handle{r}, err
}

func (h handle) Close() error { return h.r.Close() }

// readNames gives all names at once, for the directory is opened anew.
func (h handle) readNames(int) ([]string, error) {
	d, err := h.r.Open(".")
	if err != nil {
		return nil, err
	}
	defer closeQuiet(d)
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	return names, errNoMore
}

func (h handle) lstat(name string) (info, error) {
	st, err := h.r.Lstat(name)
	if err != nil {
		return info{}, err
	}
	return toInfo(st), nil
}

func (h handle) self() (info, error) { return h.lstat(".") }

func (h handle) readlink(name string) (string, error) { return h.r.Readlink(name) }

func (h handle) openFile(name string, want info) (*os.File, error) {
	f, err := h.r.Open(name)
	if err != nil {
		return nil, err
	}
	if err := check(f.Stat())(want); err != nil {
		closeQuiet(f)
		return nil, err
	}
	return f, nil
}

func (h handle) openDir(name string, want info) (handle, error) {
	r, err := h.r.OpenRoot(name)
	if err != nil {
		return handle{}, err
	}
	if err := check(r.Stat("."))(want); err != nil {
		closeQuiet(r)
		return handle{}, err
	}
	return handle{r}, nil
}

func check(st fs.FileInfo, err error) func(info) error {
	return func(want info) error {
		if err == nil && !toInfo(st).same(want) {
			return errSwapped
		}
		return err
	}
}

type identity struct{ st fs.FileInfo }

func (a identity) same(b identity) bool { return os.SameFile(a.st, b.st) }

func toInfo(st fs.FileInfo) info {
	return info{mode: st.Mode(), size: st.Size(), uid: -1, id: identity{st}}
}

// unlock lets the owner change the directory of that name.
func (h handle) unlock(name string) error { return h.r.Chmod(name, 0o700) }
