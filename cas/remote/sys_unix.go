//go:build unix

package remote

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// noFollow keeps a link that somebody laid at a part's name from being written through.
const noFollow = unix.O_NOFOLLOW

// ours reports whether nobody else can write to f. A part that another user laid there, or
// that has one more name, he could change after it was verified.
func ours(f *os.File) bool {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false
	}
	return st.Mode&unix.S_IFMT == unix.S_IFREG && int(st.Uid) == os.Geteuid() && st.Nlink == 1 && st.Mode&0o022 == 0
}

// place gives f its name at path and closes it. Its lock is held meanwhile, so the old name is
// nobody else's before it is gone.
func place(f *os.File, path string) error {
	if err := os.Rename(f.Name(), path); err != nil {
		return errors.Join(err, drop(f))
	}
	return f.Close()
}

// lend gives f to who reads it by its name. It stays locked until release.
func lend(f *os.File) (name string, release func(), err error) {
	return f.Name(), func() { _ = drop(f) }, nil
}

// drop removes f, and only then its lock.
func drop(f *os.File) error { return errors.Join(os.Remove(f.Name()), f.Close()) }
