//go:build unix

package node

import (
	"net"

	"golang.org/x/sys/unix"
)

// Free implements Platform: what an unprivileged writer may still use.
func (native) Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// ListenPrivate implements Platform: the socket is private from its first moment.
func (native) ListenPrivate(path string) (net.Listener, error) {
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.Listen("unix", path)
}
