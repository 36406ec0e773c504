package serial

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices/supervisor"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Driver is what the supervisor asks for.
var _ supervisor.Driver = (*Driver)(nil)

// board is a real pty whose master end plays the hardware.
type board struct {
	*os.File
	path  string
	slave *os.File
}

func newBoard(t *testing.T) *board {
	t.Helper()
	m, s, path, err := openPty()
	if err != nil {
		t.Fatal(err)
	}
	b := &board{m, path, s}
	t.Cleanup(b.unplug)
	return b
}

// unplug ends the board; whoever has its console sees the device go.
func (b *board) unplug() {
	_ = b.Close()
	_ = b.slave.Close()
}

// boot answers each `reset` line with a boot log and a prompt.
func (b *board) boot() {
	r := bufio.NewReader(b)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if strings.TrimSpace(line) == "reset" {
			fmt.Fprint(b, "U-Boot 2026.01\r\n"+strings.Repeat("boot\r\n", 50)+"rev4 login: ")
		}
	}
}

func (b *board) driver(cfg Config) *Driver {
	cfg.Path = b.path
	return New(cfg, clock.System())
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func read(t *testing.T, r io.Reader, n int) string {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatalf("%v after %q", err, b)
	}
	return string(b)
}

// TestConsoleIsRaw: every byte passes as it is, both ways, and nothing is echoed.
func TestConsoleIsRaw(t *testing.T) {
	b := newBoard(t)
	p, err := b.driver(Config{Baud: 74880}).Open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	if _, err := p.Write(all); err != nil {
		t.Fatal(err)
	}
	if got := read(t, b, 256); got != string(all) {
		t.Fatalf("%q", got)
	}
	if _, err := b.Write(all); err != nil {
		t.Fatal(err)
	}
	if got := read(t, p, 256); got != string(all) {
		t.Fatalf("%q", got)
	}
	if _, err := p.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, b, 4); got != "last" {
		t.Fatalf("what was written before an orderly end is sent, and nothing was echoed: %q", got)
	}
}

// TestOneProgramAtATime: root bypasses TIOCEXCL, so the lock is our own.
func TestOneProgramAtATime(t *testing.T) {
	b := newBoard(t)
	d := b.driver(Config{})
	p, err := d.Open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open(within(t)); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Fatal(err)
	}
	if _, err := d.Reset(within(t)); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p, err = d.Open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
}

func TestCloseEndsAReadThatWaits(t *testing.T) {
	b := newBoard(t)
	p, err := b.driver(Config{}).Open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	res := make(chan error, 1)
	go func() {
		_, err := p.Read(make([]byte, 1))
		res <- err
	}()
	if err := p.(*port).Abort(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-res:
		if !errors.Is(err, os.ErrClosed) {
			t.Fatal(err)
		}
	case <-within(t).Done():
		t.Fatal("the read waits for ever")
	}
}

// TestUnplugged: the far end goes away under an open console (RA-396).
func TestUnplugged(t *testing.T) {
	b := newBoard(t)
	d := b.driver(Config{})
	p, err := d.Open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	b.unplug()
	if _, err := p.Read(make([]byte, 1)); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Fatal(err)
	}
	_ = p.Close()
	if _, err := d.Open(within(t)); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Fatal(err)
	}
}

func TestWhatIsNoConsole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]forgeyard.Kind{filepath.Join(t.TempDir(), "none"): forgeyard.NotFound, file: forgeyard.Invalid, "/dev/null": forgeyard.Invalid} {
		if _, err := New(Config{Path: path}, clock.System()).Open(within(t)); forgeyard.KindOf(err) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestReset: sent, expected, seen, with evidence.
func TestReset(t *testing.T) {
	b := newBoard(t)
	go b.boot()
	steps, err := b.driver(Config{Send: "reset\n", Expect: "login:"}).Reset(within(t))
	if err != nil || len(steps) != 4 {
		t.Fatalf("%v %+v", err, steps)
	}
	for i, name := range []string{"open", "flush", "send", "expect"} {
		if steps[i].Name != name || !steps[i].OK {
			t.Errorf("%+v", steps[i])
		}
	}
	if !strings.Contains(steps[3].Detail, "rev4 login:") {
		t.Error(steps[3].Detail)
	}
}

// TestResetOfADeadBoard ends with its context, and says what was heard.
func TestResetOfADeadBoard(t *testing.T) {
	b := newBoard(t)
	ctx, cancel := context.WithCancelCause(within(t))
	d := b.driver(Config{Send: "reset\n", Expect: "login:"})
	go func() {
		if got, err := bufio.NewReader(b).ReadString('\n'); err != nil || got != "reset\n" {
			t.Errorf("%q %v", got, err)
		}
		cancel(errors.New("30s are over"))
	}()
	steps, err := d.Reset(ctx)
	if forgeyard.KindOf(err) != forgeyard.Unavailable || !strings.Contains(err.Error(), `"login:" was not seen`) || !strings.Contains(err.Error(), "30s are over") {
		t.Fatal(err)
	}
	if last := steps[len(steps)-1]; last.Name != "expect" || last.OK {
		t.Fatalf("%+v", steps)
	}
	p, err := d.Open(within(t))
	if err != nil {
		t.Fatalf("a reset that failed keeps the console: %v", err)
	}
	_ = p.Close()
}

// TestResetThatIsNotConfigured drops what is buffered, and its evidence is honest.
func TestResetThatIsNotConfigured(t *testing.T) {
	b := newBoard(t)
	if _, err := b.Write([]byte("the last holder's secret")); err != nil {
		t.Fatal(err)
	}
	d := b.driver(Config{})
	steps, err := d.Reset(within(t))
	if err != nil || len(steps) != 3 || !strings.Contains(steps[2].Detail, "no reset is configured") {
		t.Fatalf("%v %+v", err, steps)
	}
	p, err := d.Open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := b.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, p, 3); got != "new" {
		t.Fatalf("%q", got)
	}
}

// TestIdentityFromSysfs reads the serial number of the USB device above a tty, in a
// tree laid out as the kernel does (D10, D11).
func TestIdentityFromSysfs(t *testing.T) {
	b := newBoard(t)
	var st unix.Stat_t
	if err := unix.Stat(b.path, &st); err != nil {
		t.Fatal(err)
	}
	sys := t.TempDir()
	usb := filepath.Join(sys, "devices/pci0/usb1/1-1")
	tty := filepath.Join(usb, "1-1:1.0/ttyUSB0/tty/ttyUSB0")
	char := filepath.Join(sys, "dev/char")
	for _, dir := range []string{tty, char} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(usb, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("idVendor", "0403\n")
	write("serial", "A1B2\n")
	if err := os.Symlink(tty, filepath.Join(char, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))); err != nil {
		t.Fatal(err)
	}
	d := b.driver(Config{Serial: "A1B2"})
	d.sys = sys
	if id, err := d.Identify(within(t)); err != nil || id.Serial != "A1B2" || id.Path != b.path {
		t.Fatalf("%+v %v", id, err)
	}
	write("serial", "OTHER\n")
	if _, err := d.Open(within(t)); forgeyard.KindOf(err) != forgeyard.Conflict || !strings.Contains(err.Error(), "identity_changed") {
		t.Fatal(err)
	}
	if _, err := d.Reset(within(t)); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Fatal(err)
	}
}

// supervised puts the real supervisor in front of a real pty.
func supervised(t *testing.T, path string, cfg Config) *supervisor.Supervisor {
	t.Helper()
	s, err := supervisor.Open(t.TempDir(), clock.System(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Path = path
	if err := s.Host(supervisor.Hosted{ID: "dut", Driver: New(cfg, clock.System())}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestSwappedConsoleGetsNoByte: D10 with two real ptys behind one link.
func TestSwappedConsoleGetsNoByte(t *testing.T) {
	right, wrong := newBoard(t), newBoard(t)
	link := filepath.Join(t.TempDir(), "dut")
	if err := os.Symlink(right.path, link); err != nil {
		t.Fatal(err)
	}
	s := supervised(t, link, Config{Send: "erase\n"})
	if e, err := s.Check(within(t), "dut"); err != nil || !e.OK {
		t.Fatalf("%+v %v", e, err)
	}
	if err := errors.Join(os.Remove(link), os.Symlink(wrong.path, link)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(within(t), "dut", 5); forgeyard.KindOf(err) != forgeyard.Conflict || !strings.Contains(err.Error(), "identity_changed") {
		t.Fatal(err)
	}
	if e, err := s.Reset(within(t), "dut", 5); err != nil || e.OK || !strings.Contains(e.Error, "identity_changed") {
		t.Fatalf("%+v %v", e, err)
	}
	waiting, err := wrong.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := -1
	if err := waiting.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil || n != 0 {
		t.Fatalf("%d bytes were written to the wrong device, %v", n, err)
	}
}

// TestKickOnARealConsole: D06, E19. The workload's pty ends within a second, what it
// still writes reaches nobody, and the next holder has the console.
func TestKickOnARealConsole(t *testing.T) {
	b := newBoard(t)
	s := supervised(t, b.path, Config{})
	first, err := s.Open(within(t), "dut", 5)
	if err != nil {
		t.Fatal(err)
	}
	pty, err := Bridge(within(t), first, "")
	if err != nil {
		t.Fatal(err)
	}
	work := workload(t, pty.Path())
	if _, err := work.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	if got := read(t, b, 5); got != "hello" {
		t.Fatalf("%q", got)
	}
	begin := time.Now()
	if err := s.Revoke("dut", 5); err != nil {
		t.Fatal(err)
	}
	if _, err := work.Read(make([]byte, 1)); err == nil {
		t.Fatal("the kicked holder still reads")
	}
	if took := time.Since(begin); took > time.Second {
		t.Fatalf("cut after %v; a second is promised", took)
	}
	<-pty.Done()
	if forgeyard.KindOf(pty.Err()) != forgeyard.Stale {
		t.Fatal(pty.Err())
	}
	if _, err := work.WriteString("evil"); err == nil {
		t.Fatal("the kicked holder still writes")
	}
	next, err := s.Open(within(t), "dut", 6)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.Write([]byte("good")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, b, 4); got != "good" {
		t.Fatalf("%q", got)
	}
}

// workload opens a pty as another process would.
func workload(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	return f
}
