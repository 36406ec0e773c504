package mesh

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/forgeyard/forgeyard-node"
)

// writeDurably puts data at path with mode 0600: temp, fsync, rename, fsync of
// the directory. With excl it fails with fs.ErrExist if path is there: the link
// is what makes two racing creators agree.
func writeDurably(path string, data []byte, excl bool) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".tmp-*") // CreateTemp gives mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if excl {
		err = os.Link(f.Name(), path)
		if err != nil && !errors.Is(err, os.ErrExist) { // a file system without hard links
			err = renameNew(f.Name(), path)
		}
	} else {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

func renameNew(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return os.ErrExist
	}
	return os.Rename(from, to)
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // a directory cannot be synced there; NTFS journals the rename
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// readSecretFile refuses a file that others may read, as ssh does.
func readSecretFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if m := st.Mode().Perm(); runtime.GOOS != "windows" && m&0o077 != 0 {
		return nil, forgeyard.Errorf("read "+path, forgeyard.Denied, "its mode is %04o, others may read it", m).WithHint("chmod 600 %s", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(b) > maxFileBytes {
		err = forgeyard.Errorf("read "+path, forgeyard.Corrupt, "it is larger than %d bytes", maxFileBytes)
	}
	return b, err
}

func diskError(op string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return forgeyard.E(op, forgeyard.NoSpace, err).WithHint("free space or inodes and try again; nothing was changed")
	case errors.Is(err, os.ErrPermission):
		return forgeyard.E(op, forgeyard.Denied, err)
	}
	return forgeyard.E(op, forgeyard.Other, err)
}
