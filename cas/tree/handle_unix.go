//go:build unix

package tree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// handle is an open directory. Every step from it takes one name, follows no link and
// waits for nobody. os.Root would not do: its OpenRoot opens without O_DIRECTORY, so a
// workload that puts a pipe where a directory was could hold a capture for ever.
type handle struct{ f *os.File }

type identity struct{ dev, ino uint64 }

func (a identity) same(b identity) bool { return a == b }

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// openHandle opens the directory that a capture begins at. Its own path belongs to
// the caller, so a link is followed here, and only here.
func openHandle(dir string) (handle, error) {
	fd, err := retry(func() (int, error) { return unix.Open(dir, dirFlags&^unix.O_NOFOLLOW, 0) })
	if err != nil {
		return handle{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return handle{os.NewFile(uintptr(fd), dir)}, nil
}

func (h handle) Close() error { return h.f.Close() }

func (h handle) fd() int { return int(h.f.Fd()) }

// readNames gives up to n names; io.EOF at the end.
func (h handle) readNames(n int) ([]string, error) { return h.f.Readdirnames(n) }

// lstat looks at a name without opening it.
func (h handle) lstat(name string) (info, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(h.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return info{}, h.err("lstat", name, err)
	}
	return toInfo(&st), nil
}

// self looks at the directory itself.
func (h handle) self() (info, error) {
	var st unix.Stat_t
	if err := unix.Fstat(h.fd(), &st); err != nil {
		return info{}, h.err("stat", ".", err)
	}
	return toInfo(&st), nil
}

func (h handle) readlink(name string) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(h.fd(), name, b)
	if err != nil {
		return "", h.err("readlink", name, err)
	}
	return string(b[:n]), nil
}

// openFile opens the file that want describes, or nothing.
func (h handle) openFile(name string, want info) (*os.File, error) {
	return h.open(name, want, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY)
}

// openDir opens the directory that want describes, or nothing.
func (h handle) openDir(name string, want info) (handle, error) {
	f, err := h.open(name, want, dirFlags)
	return handle{f}, err
}

func (h handle) open(name string, want info, flags int) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(h.fd(), name, flags, 0) })
	if err != nil {
		return nil, h.err("open", name, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && !toInfo(&st).same(want) {
		err = errSwapped
	}
	if err != nil {
		_ = unix.Close(fd) // it was not even read
		return nil, h.err("open", name, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(h.f.Name(), name)), nil
}

// unlock lets the owner read and change the directory of that name.
func (h handle) unlock(name string) error {
	err := unix.Fchmodat(h.fd(), name, 0o700, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EOPNOTSUPP) { // Linux before 6.6
		err = unix.Fchmodat(h.fd(), name, 0o700, 0)
	}
	return h.err("chmod", name, err)
}

func (h handle) err(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: strings.ToValidUTF8(name, "?"), Err: err}
}

func retry(f func() (int, error)) (n int, err error) {
	for {
		if n, err = f(); err != unix.EINTR {
			return n, err
		}
	}
}

func toInfo(st *unix.Stat_t) info {
	i := info{size: st.Size, uid: int(st.Uid), id: identity{uint64(st.Dev), st.Ino}, mode: fs.FileMode(st.Mode & 0o777)}
	i.stamp = [...]int64{int64(st.Dev), int64(st.Ino), int64(st.Mode), int64(st.Nlink), int64(st.Uid), int64(st.Gid), st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec), int64(st.Ctim.Sec), int64(st.Ctim.Nsec)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		i.mode |= fs.ModeDir
	case unix.S_IFLNK:
		i.mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		i.mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		i.mode |= fs.ModeSocket
	case unix.S_IFBLK, unix.S_IFCHR:
		i.mode |= fs.ModeDevice
	default:
		i.mode |= fs.ModeIrregular
	}
	return i
}
