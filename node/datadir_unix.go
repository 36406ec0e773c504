//go:build unix

package node

import (
	"net"

	"golang.org/x/sys/unix"
)

// listenPrivate makes a socket that only this account may open, from its first moment.
func listenPrivate(path string) (net.Listener, error) {
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.Listen("unix", path)
}
