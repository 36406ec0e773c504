//go:build unix

package node

import "golang.org/x/sys/unix"

// freeDisk is what an unprivileged writer may still use, in bytes.
func freeDisk(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}
