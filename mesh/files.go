package mesh

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// writeDurably puts data at path with mode 0600. With excl it fails with fs.ErrExist if
// path is there: the link is what makes two racing creators agree.
func writeDurably(path string, data []byte, excl bool) error {
	if !excl {
		return durable.WriteFile(path, data, 0o600)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // a name of our own
	if err != nil {
		return err
	}
	first := f.Name()
	defer os.Remove(first)
	if err := errors.Join(f.Close(), durable.WriteFile(first, data, 0o600)); err != nil {
		return err
	}
	err = os.Link(first, path)
	if err != nil && !errors.Is(err, os.ErrExist) { // a file system without hard links
		err = renameNew(first, path)
	}
	if err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

func renameNew(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return os.ErrExist
	}
	return os.Rename(from, to)
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
	case durable.Full(err):
		return forgeyard.E(op, forgeyard.NoSpace, err).WithHint("free space or inodes and try again; nothing was changed")
	case errors.Is(err, os.ErrPermission):
		return forgeyard.E(op, forgeyard.Denied, err)
	}
	return forgeyard.E(op, forgeyard.Other, err)
}
