package capability

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// maxWord is more than the kernel writes in one word.
const maxWord = 16 << 10

// Changes tells that hardware came, went or became another, until ctx ends. Nil where the
// kernel tells nobody, as in most containers: then only a look shows it.
func Changes(ctx context.Context) <-chan struct{} {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		_ = unix.Close(fd) // it was never used
		return nil
	}
	words := os.NewFile(uintptr(fd), "uevents")
	context.AfterFunc(ctx, func() { _ = words.Close() }) // ends the reading
	changes := make(chan struct{}, 1)
	go func() {
		buf := make([]byte, maxWord)
		for {
			k, err := words.Read(buf)
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			if err == nil && !tellsOfHardware(string(buf[:k])) {
				continue
			}
			select { // after words were lost too: nobody knows what they said
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	return changes
}
