//go:build unix

package disk

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// syncPath makes the bytes of a file, or the names in a directory, survive a power cut.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// diskFree tells what the filesystem of dir has left for us and in all. A
// filesystem without an inode table reports none in all.
func diskFree(dir string) (d diskState, err error) {
	var st unix.Statfs_t
	for {
		err = unix.Statfs(dir, &st)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return d, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	bs := int64(st.Bsize)
	return diskState{free: int64(st.Bavail) * bs, total: int64(st.Blocks) * bs, inodesFree: int64(st.Ffree), inodes: int64(st.Files)}, nil
}

// print is what a filesystem changes when somebody writes to a file, renames it or gives
// it other rights. The time of the last change cannot be set back.
type print struct {
	dev, ino, size     uint64
	written, writtenNs int64
	changed, changedNs int64
}

func printOf(f *os.File) (print, bool) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return print{}, false
	}
	return print{
		dev: uint64(st.Dev), ino: st.Ino, size: uint64(st.Size),
		written: int64(st.Mtim.Sec), writtenNs: int64(st.Mtim.Nsec), changed: int64(st.Ctim.Sec), changedNs: int64(st.Ctim.Nsec),
	}, true
}

// allocated is what a file takes of the disk: a partial one has holes.
func allocated(st os.FileInfo) int64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return min(st.Size(), int64(sys.Blocks)*512)
	}
	return st.Size()
}
