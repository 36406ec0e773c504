package quota

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// block is the unit of st_blocks, whatever the file system's own is.
const block = 512

// dirFlags open a folder and nothing else, and follow no link.
const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// Sum is bytes and files of one folder.
type Sum struct{ Bytes, Files int64 }

// inode tells files of several names apart.
type inode struct{ dev, ino uint64 }

// Counter counts one workspace. It is for one goroutine.
type Counter struct {
	Deep bool // there were folders below the depth that is counted
	dev  uint64
	seen map[inode]bool
}

// Count counts the folders of a workspace below root, by name. Errors: that of opening root.
func Count(root string) (folders map[string]Sum, c *Counter, err error) {
	fd, err := unix.Open(root, dirFlags, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	f := os.NewFile(uintptr(fd), root)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, &os.PathError{Op: "stat", Path: root, Err: err}
	}
	c = &Counter{dev: st.Dev, seen: map[inode]bool{}}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, nil, err
	}
	folders = map[string]Sum{}
	for _, n := range names {
		var s Sum
		c.entry(fd, n, 1, &s)
		folders[n] = s
	}
	return folders, c, nil
}

// entry counts a name of a folder and what is below it. What cannot be looked at any more is
// gone, or on another disk.
func (c *Counter) entry(dir int, name string, depth int, s *Sum) {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != c.dev {
		return
	}
	if !c.add(&st, s) || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	if depth > maxDepth {
		c.Deep = true
		return
	}
	fd, err := unix.Openat(dir, name, dirFlags, 0)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			c.entry(fd, n, depth+1, s)
		}
		if err != nil || len(names) == 0 {
			return
		}
	}
}

// add counts a file once.
func (c *Counter) add(st *unix.Stat_t, s *Sum) bool {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		id := inode{st.Dev, st.Ino}
		if c.seen[id] {
			return false
		}
		c.seen[id] = true
	}
	s.Bytes += st.Blocks * block
	s.Files++
	return true
}

// Deleted counts files of the same disk that have no name any more and are open in one of
// the processes.
func (c *Counter) Deleted(pids []int) (s Sum) {
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd"
		l, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, e := range l {
			var st unix.Stat_t
			if unix.Stat(dir+"/"+e.Name(), &st) != nil || st.Nlink != 0 || st.Dev != c.dev || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			if id := (inode{st.Dev, st.Ino}); !c.seen[id] {
				c.seen[id] = true
				s.Bytes += st.Blocks * block
				s.Files++
			}
		}
	}
	return s
}

// FreeOf is what the file system of a folder has left. One that has no bound of files says so
// by never losing one.
func FreeOf(dir string) (Free, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Free{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		return Free{Bytes: int64(st.Bfree) * st.Bsize, Files: int64(st.Ffree)}, nil
	}
}
