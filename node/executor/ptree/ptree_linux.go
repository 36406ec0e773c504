package ptree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/cgroup"
	"github.com/forgeyard/forgeyard-node/node/executor/seccomp"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// drainGrace is how long Kill waits for the writers to take what the dead tree
// left in its pipes: at most two pipe buffers. A writer that is held back
// longer must not delay a cancel.
const drainGrace = 2 * time.Second

// workloadNice is the priority of workloads, below that of the daemon.
const workloadNice = 10

// Spec says what to start and how.
type Spec struct {
	ID      string
	Program string // path of the executable
	Argv    []string
	Dir     string
	Env     []string
	Stdout  io.Writer
	Stderr  io.Writer
	Extra   []*os.File // descriptors 3, 4, … of the program; Start closes them
	User    users.User
	Limits  executor.Limits
	Cgroups *cgroup.Hierarchy // nil: none
	// Forsakes says that the program collects none of what it starts: its own use tells nothing of
	// the tree's.
	Forsakes bool
	// NoNewPrivs keeps set-uid programs from giving anything.
	NoNewPrivs bool
	// Filter of system calls, in force from before the program begins. It needs NoNewPrivs, and
	// must let through what forks into a control group.
	Filter []seccomp.Instruction
	// OwnNetwork gives it a network namespace with a loopback device only.
	OwnNetwork bool
	// Prepare, when set, runs as the runner in a mount namespace of the new program's
	// own. Its error comes back from Start.
	Prepare func() error
}

// Tree is a started program and its descendants. Methods may run concurrently.
type Tree struct {
	pid   int
	birth uint64
	id    string
	group *cgroup.Group // nil: found by scanning
	scan  *scanner      // set when group is nil

	done    chan struct{}
	exit    executor.Exit // valid after done
	drained chan struct{}
	pipes   []*os.File // read ends

	killMu sync.Mutex // one Kill at a time; guards gone
	gone   bool
}

// Start starts the program. Errors are of the kinds that executor.Executor names.
func Start(s Spec) (*Tree, error) {
	defer func() {
		for _, f := range s.Extra {
			f.Close()
		}
	}()
	if err := noCores(); err != nil {
		return nil, err
	}
	t := &Tree{id: s.ID, done: make(chan struct{}), drained: make(chan struct{})}
	if s.Cgroups != nil {
		g, err := s.Cgroups.Create(s.ID, s.Limits)
		if err != nil {
			return nil, err
		}
		t.group = g
	} else if err := adoptOrphans(); err != nil {
		return nil, err
	}
	io, err := t.openPipes(s)
	if err != nil {
		return nil, errors.Join(err, t.discard())
	}
	started := make(chan error, 1)
	go t.run(s, io, started)
	err = <-started
	for _, f := range io {
		f.Close()
	}
	if err != nil {
		for _, f := range t.pipes {
			f.Close()
		}
		return nil, errors.Join(err, t.discard())
	}
	t.copyOutput(s.Stdout, s.Stderr)
	return t, nil
}

// discard removes what Start made for a program that did not start.
func (t *Tree) discard() error {
	if t.group == nil {
		return nil
	}
	return t.group.Remove()
}

// openPipes returns the program's descriptors 0, 1 and 2.
func (t *Tree) openPipes(s Spec) ([]*os.File, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, forgeyard.E("execute", forgeyard.Unavailable, err)
	}
	files := []*os.File{null}
	for range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			for _, f := range append(files, t.pipes...) {
				f.Close()
			}
			return nil, forgeyard.E("execute", forgeyard.Unavailable, err)
		}
		files, t.pipes = append(files, w), append(t.pipes, r)
	}
	return files, nil
}

func (t *Tree) copyOutput(stdout, stderr io.Writer) {
	var wg sync.WaitGroup
	for i, w := range []io.Writer{stdout, stderr} {
		r := t.pipes[i]
		if w == nil {
			w = io.Discard
		}
		wg.Go(func() {
			defer r.Close()
			// A writer that fails must not turn into a broken pipe in the workload.
			if _, err := io.Copy(w, r); err != nil {
				_, _ = io.Copy(io.Discard, r)
			}
		})
	}
	go func() { wg.Wait(); close(t.drained) }()
}

// run starts the program on a thread of its own and waits for it there.
func (t *Tree) run(s Spec, io []*os.File, started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	p, err := t.startHere(s, io)
	if err != nil {
		started <- err
		return
	}
	t.pid = p.Pid
	// Until p.Wait reaps it, the process keeps its number, even as a zombie.
	if st, err := executor.ReadProc(p.Pid); err == nil {
		t.birth = st.Birth
	}
	restrict(p.Pid)
	if t.group == nil {
		t.scan = newScanner(t.id, t.pid, t.birth)
	}
	started <- nil
	st, err := p.Wait()
	t.exit = exitOf(st, err)
	if t.group != nil {
		t.exit.OOM = t.group.OOMKills() > 0
		t.exit.CPU = t.group.CPU()
	}
	if t.exit.CPU == 0 && err == nil && !s.Forsakes {
		t.exit.CPU = st.UserTime() + st.SystemTime() // with those that it collected
	}
	close(t.done)
}

func exitOf(st *os.ProcessState, err error) executor.Exit {
	if err != nil {
		// Only if somebody else reaped our child; the outcome is lost then.
		return executor.Exit{Code: 255}
	}
	ws, ok := st.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return executor.Exit{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}
	}
	return executor.Exit{Code: st.ExitCode()}
}

// startHere sets up the calling thread and forks from it.
func (t *Tree) startHere(s Spec, io []*os.File) (*os.Process, error) {
	if err := setupThread(s); err != nil {
		return nil, err
	}
	attr := &os.ProcAttr{Dir: s.Dir, Env: s.Env, Files: append(io, s.Extra...)}
	attr.Sys = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if s.User.Lent() {
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(s.User.UID), Gid: uint32(s.User.GID)}
	}
	if t.group == nil {
		attr.Env = append(attr.Env[:len(attr.Env):len(attr.Env)], markOf(s.ID))
		return fork(s, attr)
	}
	v2, err := t.group.OpenV2()
	if err != nil {
		return nil, forgeyard.E("execute", forgeyard.Unavailable, err)
	}
	if v2 != nil {
		defer v2.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(v2.Fd())
	}
	if err := t.group.Enter(); err != nil {
		return nil, err
	}
	p, err := fork(s, attr)
	if lerr := t.group.Leave(); lerr != nil && err == nil {
		_ = p.Kill()
		_, _ = p.Wait()
		return nil, forgeyard.E("execute", forgeyard.Unavailable, lerr)
	}
	return p, err
}

func fork(s Spec, attr *os.ProcAttr) (*os.Process, error) {
	p, err := os.StartProcess(s.Program, s.Argv, attr)
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOEXEC) || errors.Is(err, os.ErrPermission):
		return nil, forgeyard.E("execute", forgeyard.NotFound, err)
	}
	return nil, forgeyard.E("execute", forgeyard.Unavailable, err)
}

// setupThread gives the calling thread what its child is to inherit.
func setupThread(s Spec) error {
	fail := func(what string, err error) error {
		return forgeyard.E("execute", forgeyard.Unavailable, fmt.Errorf("%s: %w", what, err))
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fail("own umask", err)
	}
	unix.Umask(0o022)
	// Where no control group weighs them, the daemon's renewals come before a workload that
	// takes all processors. The thread ends with its program.
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), workloadNice); err != nil {
		return fail("own priority", err)
	}
	if s.Prepare != nil {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fail("own mounts", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fail("own mounts", err)
		}
		if err := s.Prepare(); err != nil {
			return err
		}
	}
	if s.OwnNetwork {
		if err := ownNetwork(); err != nil {
			return fail("own network", err)
		}
	}
	if s.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fail("no new privileges", err)
		}
	}
	if len(s.Filter) > 0 {
		if err := loadFilter(s.Filter); err != nil {
			return fail("filter of system calls", err)
		}
	}
	return nil
}

// loadFilter puts the calling thread, and what it forks, under a filter for good.
func loadFilter(p []seccomp.Instruction) error {
	code := make([]unix.SockFilter, len(p))
	for i, in := range p {
		code[i] = unix.SockFilter{Code: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return errno
	}
	return nil
}

// ownNetwork enters a new network namespace and brings its loopback up.
func ownNetwork() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// noCores takes core dumps from this process for good, and so from all that it starts, from
// their first moment (07§179). The daemon's own core would have its keys in it.
func noCores() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return forgeyard.E("execute", forgeyard.Unavailable, fmt.Errorf("no core dumps: %w", err))
	}
	return nil
}

// restrict sets what needs the pid: the kernel takes the workload before the daemon when memory
// is short. It cannot be refused to a parent of the process; if it is already dead there is
// nothing to restrict.
func restrict(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("500"), 0o644)
}

// PID is the started process.
func (t *Tree) PID() int { return t.pid }

// Birth is its start time.
func (t *Tree) Birth() uint64 { return t.birth }

// Orphan names the tree for a later process of the runner.
func (t *Tree) Orphan() executor.Orphan {
	o := executor.Orphan{ID: t.id, PID: t.pid, Birth: t.birth, Boot: executor.BootID()}
	if t.group != nil {
		o.Cgroups = t.group.Dirs()
	}
	return o
}

// Done is closed when the program has ended.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Wait returns how it ended.
func (t *Tree) Wait() executor.Exit { <-t.done; return t.exit }

// Signal signals the started process alone.
func (t *Tree) Signal(s syscall.Signal) error {
	_, err := executor.SignalExactly(t.pid, t.birth, s)
	return err
}

// Procs lists the tree.
func (t *Tree) Procs() ([]int, error) {
	if t.group != nil {
		return t.group.Procs()
	}
	return t.scan.procs()
}

// SignalAll signals all of the tree but those to skip.
func (t *Tree) SignalAll(s syscall.Signal, skip func(pid int) bool) error {
	if t.group != nil {
		return t.group.SignalAll(s, skip)
	}
	return t.scan.signalAll(s, skip)
}

// Kill ends the tree; see executor.Handle.
func (t *Tree) Kill(ctx context.Context) error {
	t.killMu.Lock()
	defer t.killMu.Unlock()
	if t.gone {
		return nil
	}
	var err error
	if t.group != nil {
		err = t.group.Kill(ctx)
	} else {
		err = t.scan.kill(ctx)
	}
	if err != nil {
		return err
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		return forgeyard.Errorf("kill", forgeyard.Unavailable, "process %d was not reaped", t.pid)
	}
	t.drain(ctx)
	if t.group != nil {
		// An empty group that stays harms nobody, and a later start takes it over; the
		// tree is gone, which is all that Kill promises.
		_ = t.group.Remove()
	}
	t.gone = true
	return nil
}

// drain lets the writers take the rest. A pipe can be held open by a process
// outside the tree that was handed it, so the wait has an end.
func (t *Tree) drain(ctx context.Context) {
	select {
	case <-t.drained:
	case <-ctx.Done():
	case <-time.After(drainGrace):
	}
	for _, f := range t.pipes {
		f.Close()
	}
}

// Named is what Reap needs to end a tree of that id which may not have been started yet.
func Named(h *cgroup.Hierarchy, id string) executor.Orphan {
	o := executor.Orphan{ID: id, Boot: executor.BootID()}
	if h != nil {
		o.Cgroups = h.Dirs(id)
	}
	return o
}

// Reap ends a tree that an earlier process of this runner started. An orphan that was
// written down before its start has a name only; h says where its group would be.
func Reap(ctx context.Context, h *cgroup.Hierarchy, o executor.Orphan) error {
	if o.Boot != executor.BootID() {
		return nil // nothing of another boot runs
	}
	if len(o.Cgroups) == 0 && h != nil {
		o.Cgroups = h.Dirs(o.ID)
	}
	if len(o.Cgroups) > 0 {
		g, err := cgroup.Open(o.Cgroups)
		if err != nil {
			return err
		}
		if err := g.Kill(ctx); err != nil {
			return err
		}
		if err := g.Remove(); err != nil {
			return forgeyard.E("reap", forgeyard.Unavailable, err)
		}
		return killMain(ctx, o)
	}
	if err := killMain(ctx, o); err != nil {
		return err
	}
	return newScanner(o.ID, 0, 0).kill(ctx)
}

func killMain(ctx context.Context, o executor.Orphan) error {
	if o.PID == 0 {
		return nil
	}
	return executor.KillOrphan(ctx, o.PID, o.Birth)
}
