package runner

import (
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// diskFree is what an ordinary user may still write, in bytes.
func diskFree(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// inodesFree counts free inodes; a filesystem that has no such bound says 1.
func inodesFree(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Files == 0 {
		return 1
	}
	return int64(st.Ffree)
}

// inodesSpare is how many files a cache may make here and leave enough for others.
func inodesSpare(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Files == 0 {
		return math.MaxInt64
	}
	return int64(st.Ffree) - int64(min(st.Files/16, 1<<16))
}

// unescape undoes what the kernel writes for the bytes that would break its table.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountsBelow lists mount points below dir in this process's namespace. That is the calling
// thread's: a sandbox that was started from the first thread has left that one, of which
// /proc/self speaks, in a namespace of its own for good.
func mountsBelow(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var l []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if at := unescape.Replace(f[4]); at == dir || strings.HasPrefix(at, dir+"/") {
			l = append(l, at)
		}
	}
	return l, nil
}
