package node

import (
	"net"

	"golang.org/x/sys/windows"
)

// Free implements Platform.
func (native) Free(dir string) (int64, error) {
	p, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free uint64
	err = windows.GetDiskFreeSpaceEx(p, &free, nil, nil)
	return int64(free), err
}

// ListenPrivate implements Platform: the data dir's own access rules protect the socket.
func (native) ListenPrivate(path string) (net.Listener, error) { return net.Listen("unix", path) }
