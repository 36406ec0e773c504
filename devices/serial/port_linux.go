package serial

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// port is an open console. Its descriptor is non-blocking and watched by the
// runtime, so that Close ends a Read that waits.
type port struct {
	f    *os.File
	clk  clock.Clock
	once sync.Once
}

func (d *Driver) open() (*port, error) {
	want, err := d.identify()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(want.Path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, d.fail("open console", err)
	}
	p := &port{f: os.NewFile(uintptr(fd), want.Path), clk: d.clk}
	if err := d.setUp(p, want); err != nil {
		_ = p.Abort() // the error that matters is already on its way
		return nil, err
	}
	return p, nil
}

// setUp locks, proves that what was opened is what was identified, and sets the line.
func (d *Driver) setUp(p *port, want devices.Identity) error {
	return p.control(func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return d.fail("open console", err)
		}
		if st.Rdev != want.Node {
			return forgeyard.Errorf("open console", forgeyard.Conflict, "identity_changed: %s became another device while it was opened", d.cfg.Path)
		}
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				return forgeyard.Errorf("open console", forgeyard.Conflict, "another program has %s", d.cfg.Path).WithHint("`fuser -v %s` names it", want.Path)
			}
			return d.fail("lock console", err)
		}
		if err := unix.IoctlSetInt(fd, unix.TIOCEXCL, 0); err != nil && !noModem(err) {
			return d.fail("lock console", err)
		}
		if err := setRaw(fd, d.cfg.Baud); err != nil {
			return d.fail(fmt.Sprintf("set console to %d baud", d.cfg.Baud), err)
		}
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCMBIS, unix.TIOCM_DTR|unix.TIOCM_RTS); err != nil && !noModem(err) {
			return d.fail("raise DTR", err)
		}
		return nil
	})
}

// noModem tells that there are no such lines, as on a pty.
func noModem(err error) bool { return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) }

// setRaw makes a line pass bytes as they are, at any speed.
func setRaw(fd, baud int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS2)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON | unix.IXOFF
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag &^= unix.CSIZE | unix.PARENB | unix.CSTOPB | unix.CRTSCTS | unix.HUPCL | unix.CBAUD | unix.CIBAUD
	t.Cflag |= unix.CS8 | unix.CREAD | unix.CLOCAL | unix.BOTHER
	t.Ispeed, t.Ospeed = uint32(baud), uint32(baud)
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(fd, unix.TCSETS2, t)
}

func (d *Driver) fail(op string, err error) error {
	kind := forgeyard.Unavailable
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		kind = forgeyard.NotFound
	case errors.Is(err, fs.ErrPermission):
		kind = forgeyard.Denied
	case errors.Is(err, unix.EBUSY):
		kind = forgeyard.Conflict
	case errors.Is(err, unix.ENOTTY):
		return forgeyard.Errorf(op, forgeyard.Invalid, "%s is not a terminal", d.cfg.Path)
	}
	return forgeyard.E(op, kind, fmt.Errorf("%s: %w", d.cfg.Path, err))
}

// control runs f with the descriptor. os.File.Fd is not used: it would make the
// descriptor blocking, and Close would no longer end a Read.
func (p *port) control(f func(fd int) error) error {
	c, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// Read implements io.Reader. A console that is gone, also by its far end closing,
// is Unavailable.
func (p *port) Read(b []byte) (int, error) {
	n, err := p.f.Read(b)
	return n, gone(err)
}

// Write implements io.Writer.
func (p *port) Write(b []byte) (int, error) {
	n, err := p.f.Write(b)
	return n, gone(err)
}

func gone(err error) error {
	if err == nil || errors.Is(err, os.ErrClosed) {
		return err
	}
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.ENXIO) || errors.Is(err, io.EOF) {
		return forgeyard.Errorf("console", forgeyard.Unavailable, "the device is gone")
	}
	return err
}

// flush drops what is buffered in both directions.
func (p *port) flush() error {
	return p.control(func(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIOFLUSH) })
}

// drainFor bounds how long Close waits until what was written has left: at 1200
// baud that is a line and a half.
const drainFor = time.Second

// Close implements io.Closer. What was written is still sent, for a bounded time.
func (p *port) Close() error {
	p.once.Do(func() {
		if !p.drained() {
			_ = p.flush()
		}
		_ = p.f.Close()
	})
	return nil
}

// drained waits until the output queue is empty, in a way that a wait can be
// bounded: tcdrain cannot. It reports whether it is.
func (p *port) drained() bool {
	for waited := time.Duration(0); waited < drainFor; waited += drainStep {
		queued := 0
		err := p.control(func(fd int) (err error) { queued, err = unix.IoctlGetInt(fd, unix.TIOCOUTQ); return err })
		if err != nil || queued == 0 {
			return err == nil
		}
		<-p.clk.After(drainStep)
	}
	return false
}

const drainStep = 10 * time.Millisecond

// Abort is Close without the wait: what was not sent yet is dropped.
func (p *port) Abort() error {
	p.once.Do(func() {
		// After the flush the kernel's own wait in close, up to 30 s, has nothing to wait for.
		_ = p.flush()
		_ = p.f.Close()
	})
	return nil
}

func (d *Driver) identify() (devices.Identity, error) {
	real, err := filepath.EvalSymlinks(d.cfg.Path)
	if err != nil {
		return devices.Identity{}, d.fail("console", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(real, &st); err != nil {
		return devices.Identity{}, d.fail("console", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return devices.Identity{}, forgeyard.Errorf("console", forgeyard.Invalid, "%s is not a character device", d.cfg.Path)
	}
	id := devices.Identity{Path: real, Node: st.Rdev, Serial: d.usbSerial(st.Rdev)}
	if d.cfg.Serial != "" && id.Serial != "" && id.Serial != d.cfg.Serial {
		return id, forgeyard.Errorf("console", forgeyard.Conflict, "identity_changed: %s has serial %q, %q is configured", d.cfg.Path, id.Serial, d.cfg.Serial).
			WithHint("put the right device back, or change `serial` in node.yaml")
	}
	return id, nil
}

// usbSerial is what the USB device behind a tty says, or "". The tty hangs a few
// directories below its USB device in sysfs, which is the first one above it with an
// idVendor.
func (d *Driver) usbSerial(rdev uint64) string {
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("%s/dev/char/%d:%d", d.sys, unix.Major(rdev), unix.Minor(rdev)))
	if err != nil {
		return ""
	}
	for range 8 {
		dir = filepath.Dir(dir)
		if _, err := os.Stat(filepath.Join(dir, "idVendor")); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, "serial"))
		if err != nil {
			return ""
		}
		return strings.ToValidUTF8(strings.TrimSpace(string(b)), "\uFFFD")
	}
	return ""
}
