package serial

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
)

// openPty makes a raw pty. Both ends are non-blocking and watched by the runtime,
// which github.com/creack/pty's are not: closing one must end a Read of it.
func openPty() (master, slave *os.File, path string, err error) {
	fail := func(what string, err error) (*os.File, *os.File, string, error) {
		if master != nil {
			_ = master.Close() // the error that matters is already on its way
		}
		return nil, nil, "", forgeyard.E("pty", forgeyard.Unavailable, fmt.Errorf("%s: %w", what, err))
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_NONBLOCK | unix.O_CLOEXEC
	m, err := unix.Open("/dev/ptmx", flags, 0)
	if err != nil {
		return fail("/dev/ptmx", err)
	}
	master = os.NewFile(uintptr(m), "/dev/ptmx")
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		return fail("unlock", err)
	}
	n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
	if err != nil {
		return fail("number", err)
	}
	path = fmt.Sprintf("/dev/pts/%d", n)
	// By the master, not by the path: what stands at the path may be another devpts.
	s, err := peer(m, flags)
	if err != nil {
		return fail("peer", err)
	}
	slave = os.NewFile(uintptr(s), path)
	if err := setRaw(s, defaultBaud); err != nil {
		_ = slave.Close()
		return fail("raw mode", err)
	}
	return master, slave, path, nil
}

// peer opens the slave of a master.
func peer(master, flags int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, uintptr(flags))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// hungUp reads the error that a master gives when no slave is open as the end of
// file that it is.
func hungUp(err error) error {
	if errors.Is(err, unix.EIO) {
		return nil
	}
	return err
}
