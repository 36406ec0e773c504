package sandbox

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/ptree"
	"github.com/forgeyard/forgeyard-node/node/executor/sitenet"
)

// handle is one sandbox: bubblewrap outside (the tree's process), bubblewrap
// as process 1 inside, and the workload as process 2. PID is the outer one, whose
// end ends the namespace; signals are for the workload.
type handle struct {
	*ptree.Tree
	tap  *tap
	done chan struct{} // closed when exit is known
	born chan struct{} // closed when init is known

	mu       sync.Mutex
	init     int // process 1 of the namespace, as the host numbers it
	main     int // the workload
	birth    uint64
	reported bool // bubblewrap reported the workload's exit code
	exit     executor.Exit
	ended    bool         // exit is set
	net      *sitenet.Net // of a workload on the site's network, else nil
}

// begin reads the status pipe and waits for the end.
func (h *handle) begin(statusR *os.File) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		readStatus(statusR, func(s status) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if s.ChildPID != 0 && h.init == 0 {
				h.init = s.ChildPID
				close(h.born)
			}
			h.reported = h.reported || s.ExitCode != nil
		})
	}()
	go func() {
		exit := h.Tree.Wait()
		<-read
		h.mu.Lock()
		h.exit, h.ended = h.translate(exit), true
		net := h.net
		h.mu.Unlock()
		if net != nil {
			net.Close()
		}
		close(h.done)
	}()
}

// translate undoes bubblewrap's 128+n for signals, which is also what a shell
// reports, so a program that exits with such a code by itself looks the same.
func (h *handle) translate(x executor.Exit) executor.Exit {
	if x.Signal == 0 && h.reported && x.Code > 128 && x.Code <= 128+int(syscall.SIGSYS) {
		x.Signal = syscall.Signal(x.Code - 128)
	}
	return x
}

// awaitStart returns when the workload's program has replaced bubblewrap's, or
// with the reason why it never did; then nothing is left running.
func (h *handle) awaitStart(ctx context.Context) error {
	select {
	case <-h.born: // nobody looks for its child before
	case <-h.done:
	case <-ctx.Done():
	}
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		if h.findMain() {
			return nil
		}
		select {
		case <-h.done:
			h.mu.Lock()
			// The kernel may kill bubblewrap for the memory that the workload took, before anyone
			// looked: that is the workload's end.
			ran := h.reported || h.exit.OOM
			h.mu.Unlock()
			if ran {
				return nil
			}
			return h.startFailed(ctx)
		case <-ctx.Done():
			return errors.Join(forgeyard.E("sandbox", forgeyard.Interrupted, ctx.Err()), h.end(ctx))
		case <-time.After(wait):
		}
	}
}

// startFailed makes an error of what bubblewrap wrote.
func (h *handle) startFailed(ctx context.Context) error {
	err := h.end(ctx)
	text := h.tap.head.String()
	kind := forgeyard.Unavailable
	if strings.HasPrefix(text, "bwrap: execvp ") {
		kind = forgeyard.NotFound
	}
	if text == "" {
		text = "bubblewrap ended before the workload began"
	}
	return errors.Join(forgeyard.E("sandbox", kind, errors.New(text)), err)
}

func (h *handle) end(ctx context.Context) error {
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return h.Tree.Kill(kctx)
}

// findMain looks for process 2 of the namespace once it no longer runs bubblewrap.
func (h *handle) findMain() bool {
	h.mu.Lock()
	init, known := h.init, h.main != 0
	h.mu.Unlock()
	if init == 0 || known {
		return known
	}
	for _, pid := range h.childrenOf(init) {
		p, err := executor.ReadProc(pid)
		if err != nil || p.PPID != init || !secondInside(pid) || sameProgram(pid, h.PID()) {
			continue
		}
		h.mu.Lock()
		h.main, h.birth = pid, p.Birth
		h.mu.Unlock()
		return true
	}
	return false
}

// childrenOf lists a process's children, or more of the tree where this kernel does not tell.
func (h *handle) childrenOf(pid int) []int {
	n := strconv.Itoa(pid)
	b, err := os.ReadFile("/proc/" + n + "/task/" + n + "/children")
	if err != nil {
		pids, _ := h.Tree.Procs() // who asks looks again
		return pids
	}
	var pids []int
	for _, w := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(w); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// secondInside reports whether the process is number 2 of its own namespace.
func secondInside(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(v)
			return len(f) >= 2 && f[len(f)-1] == "2"
		}
	}
	return false
}

// sameProgram reports whether two processes run one executable.
func sameProgram(a, b int) bool {
	var sa, sb unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(a)+"/exe", &sa) != nil || unix.Stat("/proc/"+strconv.Itoa(b)+"/exe", &sb) != nil {
		return true // one is just ending: ask again
	}
	return sa.Dev == sb.Dev && sa.Ino == sb.Ino
}

// Done implements executor.Handle.
func (h *handle) Done() <-chan struct{} { return h.done }

// Wait implements executor.Handle.
func (h *handle) Wait() executor.Exit {
	<-h.done
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.exit
}

// Signal implements executor.Handle.
func (h *handle) Signal(s syscall.Signal) error {
	h.mu.Lock()
	main, birth := h.main, h.birth
	h.mu.Unlock()
	if main == 0 {
		return nil // it ended before it was seen
	}
	_, err := executor.SignalExactly(main, birth, s)
	return err
}

// SignalAll implements executor.Handle. Bubblewrap's own two processes are left
// out: they would end the sandbox under the workload's hands.
func (h *handle) SignalAll(s syscall.Signal) error {
	h.mu.Lock()
	init := h.init
	h.mu.Unlock()
	return h.Tree.SignalAll(s, func(pid int) bool { return pid == h.PID() || pid == init })
}
