package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/node/executor"
)

// Machine is one of a lab.
type Machine struct {
	Name string
	Addr netip.Addr

	lab   *Lab
	index int
	ns    string // its network namespace, by name
	disk  disk

	mu    sync.Mutex
	off   time.Duration // of the wall clock
	walls map[int]wall  // by pid, of what runs
}

// inside runs f on a thread in the machine's namespace. The thread is thrown away.
func (m *Machine) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- errors.Join(m.enter(), f())
	}()
	return <-done
}

func (m *Machine) enter() error {
	f, err := os.Open("/run/netns/" + m.ns)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // the thread is in, or the error says why not
	return os.NewSyscallError("setns", unix.Setns(int(f.Fd()), unix.CLONE_NEWNET))
}

// tool runs a tool in the machine's namespace.
func (m *Machine) tool(stdin, name string, args ...string) error {
	return m.inside(func() error { _, err := fed(stdin, name, args...); return err })
}

// Start starts a process on the machine, with the machine's wall clock. Whoever calls
// waits for its end as ever.
func (m *Machine) Start(c *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never undone: the thread ends with its process
		fd, err := m.startHere(c)
		started <- err
		if err == nil && fd >= 0 {
			stay(fd)
			m.forget(c.Process.Pid)
		}
	}()
	return <-started
}

// startHere starts on the calling thread. The process is held before its first
// instruction until its clock is in place.
func (m *Machine) startHere(c *exec.Cmd) (pidfd int, err error) {
	if err := m.enter(); err != nil {
		return -1, err
	}
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	c.SysProcAttr.Ptrace = WallRefused() == nil
	if err := c.Start(); err != nil {
		return -1, err
	}
	pid := c.Process.Pid
	if c.SysProcAttr.Ptrace {
		if err := m.setClockOf(pid); err != nil {
			_ = c.Process.Kill() // it was held until now
			_ = c.Wait()
			return -1, fmt.Errorf("the wall clock of %s: %w", m.Name, err)
		}
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, nil // it has ended already; nobody has waited for it yet
	}
	return fd, nil
}

func (m *Machine) setClockOf(pid int) error {
	var st unix.WaitStatus
	if _, err := unix.Wait4(pid, &st, unix.WALL, nil); err != nil {
		return os.NewSyscallError("wait4", err)
	}
	if !st.Stopped() {
		return fmt.Errorf("it is not held at its start: status %#x", st)
	}
	w, err := plantWall(pid)
	if err == nil {
		m.mu.Lock()
		if m.walls == nil {
			m.walls = map[int]wall{}
		}
		m.walls[pid] = w
		err = w.set(m.off)
		m.mu.Unlock()
	}
	return errors.Join(err, os.NewSyscallError("ptrace", unix.PtraceDetach(pid)))
}

// stay returns when the process has ended.
func stay(pidfd int) {
	defer func() { _ = unix.Close(pidfd) }() // nothing is written through it
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			return
		}
	}
}

func (m *Machine) forget(pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.walls, pid)
}

// SetWall makes the machine's wall clock wrong by so much, whole seconds; 0 sets it
// right. It holds for what runs and for what will be started.
func (m *Machine) SetWall(off time.Duration) error {
	if err := WallRefused(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.off = off
	var errs []error
	for pid, w := range m.walls {
		if err := w.set(off); err != nil && executorAlive(pid) {
			errs = append(errs, fmt.Errorf("the wall clock of %s: %w", m.Name, err))
		}
	}
	return errors.Join(errs...)
}

func executorAlive(pid int) bool {
	p, err := executor.ReadProc(pid)
	return err == nil && p.Alive()
}

// firewall prepares one-way cuts: what comes from an address in the set is dropped.
func (m *Machine) firewall() error {
	return m.tool(`table inet lab {
 set deaf { type ipv4_addr; }
 set rude { type ipv4_addr; }
 chain in {
  type filter hook input priority 0;
  ip saddr @deaf drop
  ip saddr @rude meta l4proto tcp reject with tcp reset
  ip saddr @rude drop
 }
}
`, "nft", "-f", "-")
}

// Hears says whether what one machine sends reaches this one. The way back is not
// touched.
func (m *Machine) Hears(from *Machine, yes bool) error { return m.element("deaf", from, !yes) }

// Breaks says whether every connection from one machine to this one ends with the next
// packet on it, whatever that carries, and no new one is taken.
func (m *Machine) Breaks(from *Machine, yes bool) error { return m.element("rude", from, yes) }

func (m *Machine) element(set string, from *Machine, in bool) error {
	verb := "add"
	if !in {
		verb = "delete"
	}
	err := m.tool("", "nft", verb, "element", "inet", "lab", set, "{", from.Addr.String(), "}")
	if !in && err != nil && strings.Contains(err.Error(), "No such file") {
		return nil // it was not there
	}
	return err
}

func (m *Machine) hearsAll() error {
	return errors.Join(m.tool("", "nft", "flush", "set", "inet", "lab", "deaf"), m.tool("", "nft", "flush", "set", "inet", "lab", "rude"))
}

// Thin bounds what the machine sends, in kbit/s; 0 takes the bound away. A quarter of
// a second of it waits, more is lost.
func (m *Machine) Thin(kbit int) error {
	if kbit == 0 {
		err := m.tool("", "tc", "qdisc", "del", "dev", cableEnd, "root")
		if err != nil && (strings.Contains(err.Error(), "No such file") || strings.Contains(err.Error(), "zero")) {
			return nil // it was not bounded
		}
		return err
	}
	return m.tool("", "tc", "qdisc", "replace", "dev", cableEnd, "root", "tbf", "rate", fmt.Sprintf("%dkbit", kbit), "burst", "16kb", "latency", "250ms")
}

// Pause stops a process and, when it is the machine that sleeps, all that descends
// from it. The answer wakes them.
func Pause(pid int, machine bool) (wake func(), err error) {
	tree := []executor.Proc{}
	if p, err := executor.ReadProc(pid); err == nil {
		tree = append(tree, p)
	}
	if len(tree) == 0 {
		return nil, fmt.Errorf("process %d does not run", pid)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil { // it first: then it starts no more
		return nil, os.NewSyscallError("kill", err)
	}
	if machine {
		all, err := executor.Processes()
		if err != nil {
			return func() { _ = unix.Kill(pid, unix.SIGCONT) }, err
		}
		tree = append(tree, descendants(all, pid)...)
	}
	for _, p := range tree[1:] {
		_, _ = executor.SignalExactly(p.PID, p.Birth, unix.SIGSTOP) // it ended meanwhile
	}
	return func() {
		for i := len(tree) - 1; i >= 0; i-- {
			_, _ = executor.SignalExactly(tree[i].PID, tree[i].Birth, unix.SIGCONT) // as above
		}
	}, nil
}

// descendants are all that grew from a process, parents before their children.
func descendants(all []executor.Proc, pid int) []executor.Proc {
	children := map[int][]executor.Proc{}
	for _, p := range all {
		children[p.PPID] = append(children[p.PPID], p)
	}
	var out []executor.Proc
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, c := range children[queue[0]] {
			out, queue = append(out, c), append(queue, c.PID)
		}
	}
	return out
}
