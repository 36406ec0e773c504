package tree

import (
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setFileTime sets the time of an open file. The kernel before 5.8 takes no empty name: there
// the file is found by its number.
func setFileTime(f *os.File, at time.Time) error {
	ts := unix.NsecToTimespec(at.UnixNano())
	err := unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
	if err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	tv := unix.NsecToTimeval(at.UnixNano())
	return unix.Futimes(int(f.Fd()), []unix.Timeval{tv, tv})
}

// clone makes dst share src's blocks, until one of them is written.
func clone(dst, src *os.File) error { return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) }

// copyRange lets the kernel copy up to n bytes that stand at the same place in both.
func copyRange(dst, src *os.File, at, n int64) (int64, error) {
	in, out := at, at
	for {
		k, err := unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(n), 0)
		if err != unix.EINTR {
			return int64(max(k, 0)), err
		}
	}
}

// sparse reports whether fewer bytes are on the disk than the file is long.
func sparse(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Blocks*512 < st.Size()
}

// nextData finds the first run of data at or after at. Where the filesystem cannot tell,
// all is data.
func nextData(f *os.File, at, size int64) (from, to int64) {
	from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	if err == unix.ENXIO {
		return size, size // nothing but a hole
	}
	if err != nil || from >= size {
		return at, size
	}
	to, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	if err != nil || to > size {
		to = size
	}
	return from, to
}
