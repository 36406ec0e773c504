package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// syncPath makes the bytes of a file survive a power cut. Windows has no sync of a
// directory; NTFS journals renames.
func syncPath(path string) error {
	st, err := os.Stat(path)
	if err != nil || st.IsDir() {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func isNoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}

func diskFree(dir string) (d diskState, err error) {
	p, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return d, err
	}
	var free, total, all uint64
	if err := windows.GetDiskFreeSpaceEx(p, &free, &total, &all); err != nil {
		return d, &os.PathError{Op: "disk free", Path: dir, Err: err}
	}
	return diskState{free: int64(free), total: int64(total)}, nil
}

// print would tell that somebody wrote to a file; times can be set back here, so there is
// none, and every blob is hashed each time.
type print struct{}

func printOf(*os.File) (print, bool) { return print{}, false }

// allocated is what a file takes of the disk, at most.
func allocated(st os.FileInfo) int64 { return st.Size() }
