package runner

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// copyTree copies directories and regular files of one root over another: a payload
// holds nothing else. Files that are there are replaced.
func copyTree(from, to *os.Root, u users.User) error {
	return fs.WalkDir(from.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		name := filepath.FromSlash(p)
		if d.IsDir() {
			err := to.Mkdir(name, 0o755)
			if errors.Is(err, fs.ErrExist) {
				return nil
			}
			return errors.Join(err, own(to, name, u))
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if err := copyFile(from, to, name, 0o644|st.Mode().Perm()&0o111); err != nil {
			return err
		}
		return own(to, name, u)
	})
}

func own(r *os.Root, name string, u users.User) error {
	if !u.Lent() {
		return nil
	}
	return r.Lchown(name, u.UID, u.GID)
}

func copyFile(from, to *os.Root, name string, mode fs.FileMode) (err error) {
	in, err := from.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if err := to.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
