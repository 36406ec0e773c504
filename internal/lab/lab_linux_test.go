package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// The test binary itself plays a machine's program: it tells both clocks for each line
// that it reads.
func TestMain(m *testing.M) {
	if os.Getenv("LAB_TEST_CLOCKS") != "" {
		tellClocks()
		return
	}
	os.Exit(m.Run())
}

func tellClocks() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			os.Exit(1)
		}
		fmt.Println(time.Now().Unix(), ts.Sec)
	}
}

// newLab is a lab, or no test: in CI a machine that refuses one is a failure.
func newLab(t *testing.T, seed uint64) *Lab {
	t.Helper()
	if err := Refused(); err != nil {
		needs.Lacking(t, "no lab here: %v", err)
	}
	l, err := New(Config{Dir: t.TempDir(), Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func machines(t *testing.T, l *Lab, n int) []*Machine {
	t.Helper()
	var out []*Machine
	for i := range n {
		m, err := l.Machine(fmt.Sprint("m", i+1))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// socket is a datagram socket on a machine.
func socket(t *testing.T, m *Machine) net.PacketConn {
	t.Helper()
	var c net.PacketConn
	must(t, m.inside(func() (err error) {
		c, err = (&net.ListenConfig{}).ListenPacket(context.Background(), "udp4", m.Addr.String()+":7000")
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// arrives sends until the word is there or the bound has passed.
func arrives(t *testing.T, from, to net.PacketConn, word string, bound time.Duration) bool {
	t.Helper()
	end := time.Now().Add(bound)
	buf := make([]byte, 100)
	for time.Now().Before(end) {
		_, err := from.WriteTo([]byte(word), to.LocalAddr())
		must(t, err)
		must(t, to.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		n, _, err := to.ReadFrom(buf)
		if err == nil && string(buf[:n]) == word {
			return true
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	return false
}

const (
	surely = 10 * time.Second       // for what comes
	never  = 600 * time.Millisecond // for what does not
)

func TestCutsOneWayAndBack(t *testing.T) {
	l := newLab(t, 1)
	ms := machines(t, l, 3)
	a, b, c := socket(t, ms[0]), socket(t, ms[1]), socket(t, ms[2])
	if !arrives(t, a, b, "whole", surely) || !arrives(t, b, a, "whole", surely) {
		t.Fatal("the cable does not carry")
	}
	must(t, ms[1].Hears(ms[0], false))
	if arrives(t, a, b, "cut", never) {
		t.Error("b hears a across the cut")
	}
	if !arrives(t, b, a, "back", surely) || !arrives(t, c, b, "side", surely) {
		t.Error("a one-way cut took more than its way")
	}
	must(t, ms[1].Hears(ms[0], true))
	must(t, ms[1].Hears(ms[0], true)) // twice is once
	if !arrives(t, a, b, "healed", surely) {
		t.Error("b does not hear a after the cut was healed")
	}
	l.Weather(ms[0], ms[1], Weather{Down: true})
	if arrives(t, a, b, "down", never) || !arrives(t, b, a, "up", surely) {
		t.Error("the cable is not down in one direction alone")
	}
	must(t, ms[1].Hears(ms[2], false))
	must(t, ms[0].Thin(64))
	must(t, l.Heal())
	if !arrives(t, a, b, "all", surely) || !arrives(t, c, b, "all of it", surely) {
		t.Error("Heal left something")
	}
}

// A break ends a connection that is open, at once and with a reset.
func TestBreaksConnections(t *testing.T) {
	l := newLab(t, 7)
	ms := machines(t, l, 2)
	var listener net.Listener
	must(t, ms[1].inside(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp4", ms[1].Addr.String()+":7000")
		return err
	}))
	defer listener.Close()
	dial := func() (c net.Conn, err error) {
		err = ms[0].inside(func() (err error) { c, err = net.DialTimeout("tcp4", listener.Addr().String(), surely); return err })
		return c, err
	}
	c, err := dial()
	must(t, err)
	defer c.Close()
	must(t, ms[1].Breaks(ms[0], true))
	_, err = c.Write([]byte("in flight"))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(surely)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection ended with %v", err)
	}
	if _, err := dial(); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
	must(t, ms[1].Breaks(ms[0], false))
	again, err := dial()
	must(t, err)
	must(t, again.Close())
}

func TestDelay(t *testing.T) {
	l := newLab(t, 2)
	ms := machines(t, l, 2)
	a, b := socket(t, ms[0]), socket(t, ms[1])
	if !arrives(t, a, b, "first", surely) { // the address is known from here
		t.Fatal("the cable does not carry")
	}
	l.Weather(ms[0], ms[1], Weather{Delay: 300 * time.Millisecond, Jitter: 50 * time.Millisecond})
	began := time.Now()
	_, err := a.WriteTo([]byte("slow"), b.LocalAddr())
	must(t, err)
	must(t, b.SetReadDeadline(time.Now().Add(surely)))
	buf := make([]byte, 100)
	for {
		n, _, err := b.ReadFrom(buf)
		must(t, err)
		if string(buf[:n]) == "slow" {
			break
		}
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("it took %s", took)
	}
}

func TestThinLink(t *testing.T) {
	l := newLab(t, 3)
	ms := machines(t, l, 2)
	a, b := socket(t, ms[0]), socket(t, ms[1])
	if !arrives(t, a, b, "first", surely) {
		t.Fatal("the cable does not carry")
	}
	must(t, ms[0].Thin(256)) // 32 kB a second, 16 kB at once
	for range 32 {
		_, err := a.WriteTo(make([]byte, 1400), b.LocalAddr())
		must(t, err)
	}
	got := 0
	buf := make([]byte, 2000)
	for {
		must(t, b.SetReadDeadline(time.Now().Add(never)))
		n, _, err := b.ReadFrom(buf)
		if err != nil {
			break
		}
		if n == 1400 {
			got++
		}
	}
	if got == 0 || got == 32 {
		t.Errorf("%d of 32 datagrams came through a thin link", got)
	}
}

func TestWallClock(t *testing.T) {
	if err := WallRefused(); err != nil {
		needs.Lacking(t, "no wall clock of one's own: %v", err)
	}
	l := newLab(t, 4)
	m := machines(t, l, 1)[0]
	must(t, m.SetWall(-48*time.Hour)) // before it starts
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), "LAB_TEST_CLOCKS=1")
	in, err := c.StdinPipe()
	must(t, err)
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, m.Start(c))
	said := bufio.NewScanner(out)
	off := func() (wall, boot time.Duration) {
		_, err := fmt.Fprintln(in)
		must(t, err)
		if !said.Scan() {
			t.Fatalf("it said nothing: %v", said.Err())
		}
		f := strings.Fields(said.Text())
		w, err1 := strconv.ParseInt(f[0], 10, 64)
		b, err2 := strconv.ParseInt(f[1], 10, 64)
		must(t, errors.Join(err1, err2))
		var ts unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts))
		return time.Until(time.Unix(w, 0)).Round(time.Hour), time.Duration(b-ts.Sec) * time.Second
	}
	for _, want := range []time.Duration{-48 * time.Hour, 0, 24 * time.Hour} {
		must(t, m.SetWall(want))
		if w, b := off(); w != want || b < -2*time.Second || b > 2*time.Second {
			t.Errorf("the wall clock is off by %s, not %s; the boot clock by %s", w, want, b)
		}
	}
	must(t, in.Close())
	must(t, c.Wait())
}

func TestPowerCutTakesWhatWasNotSynced(t *testing.T) {
	l := newLab(t, 5)
	m := machines(t, l, 1)[0]
	at := filepath.Join(l.cfg.Dir, "disk")
	must(t, m.Mount(at, 16<<20))
	synced, err := os.Create(filepath.Join(at, "synced"))
	must(t, err)
	_, err = synced.WriteString("kept")
	must(t, errors.Join(err, synced.Sync(), synced.Close()))
	must(t, os.WriteFile(filepath.Join(at, "unsynced"), []byte("lost"), 0o600))
	must(t, m.PowerCut())
	if b, err := os.ReadFile(filepath.Join(at, "synced")); err != nil || string(b) != "kept" {
		t.Errorf("what was synced is %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(at, "unsynced")); err == nil && len(b) > 0 {
		t.Errorf("what was not synced is there: %q", b)
	}

	must(t, m.Fill(64<<10))
	if err := os.WriteFile(filepath.Join(at, "big"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the disk is not full: %v", err)
	}
	must(t, m.Empty())
	must(t, m.FillInodes())
	if err := os.WriteFile(filepath.Join(at, "new"), nil, 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("there is room for another file: %v", err)
	}
	must(t, m.Empty())
	must(t, os.WriteFile(filepath.Join(at, "big"), make([]byte, 1<<20), 0o600))
}

func TestPauseStopsAllThatDescends(t *testing.T) {
	c := exec.Command("/bin/sh", "-c", "tail -f /dev/null & echo up; wait")
	c.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	t.Cleanup(func() { _ = unix.Kill(-c.Process.Pid, unix.SIGKILL); _ = c.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	wake, err := Pause(c.Process.Pid, true)
	must(t, err)
	states(t, c.Process.Pid, true)
	wake()
	states(t, c.Process.Pid, false)
}

// states waits until a process and its child are stopped, or not.
func states(t *testing.T, pid int, stopped bool) {
	t.Helper()
	for end := time.Now().Add(surely); ; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		must(t, err)
		ok := strings.TrimSpace(string(b)) != ""
		for _, p := range append(strings.Fields(string(b)), fmt.Sprint(pid)) {
			st, err := os.ReadFile("/proc/" + p + "/stat")
			must(t, err)
			ok = ok && strings.Contains(string(st), ") T ") == stopped
		}
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("stopped is not %v", stopped)
		}
	}
}

// What a lab of a process that is gone has left goes when the next is made; one whose
// process lives is left alone.
func TestLeftovers(t *testing.T) {
	l := newLab(t, 6)
	m := machines(t, l, 1)[0]
	at := filepath.Join(l.cfg.Dir, "disk")
	must(t, m.Mount(at, 16<<20))
	sleeper := exec.Command("/bin/sh", "-c", "read x")
	_, err := sleeper.StdinPipe()
	must(t, err)
	must(t, m.Start(sleeper))
	must(t, sweep())
	if _, err := os.Stat("/run/netns/" + m.ns); err != nil {
		t.Fatalf("a lab that lives was swept away: %v", err)
	}
	dead := l.record
	dead.Birth++ // the pid is another process's now
	if dead.live() {
		t.Fatal("another process counts as the one that made the lab")
	}
	must(t, dead.remove())
	if _, err := os.Stat("/run/netns/" + m.ns); err == nil {
		t.Error("the namespace is still there")
	}
	if err := unix.Unmount(at, 0); err == nil {
		t.Error("the disk was still mounted")
	}
	if err := sleeper.Wait(); err == nil {
		t.Error("the process ended by itself")
	}
	if _, err := os.Stat(dead.path()); err == nil {
		t.Error("the record is still there")
	}
}
