package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// How long a daemon may take on two busy cores.
const (
	readyWithin = 60 * time.Second
	stopWithin  = 60 * time.Second
)

type worldKey struct{}

// world is what one archive has started. Commands of a script run one at a time.
type world struct {
	work     string
	procs    map[string]*proc
	undo     []func()
	passages map[string]*passage
	cables   map[string]func() // by the link of their device
	boots    map[string]bool   // whose daemons run in a boot of their own
}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

// end kills what runs, by pid, and takes the rest down in reverse order.
func (w *world) end() {
	for _, p := range w.procs {
		p.kill()
	}
	for i := len(w.undo) - 1; i >= 0; i-- {
		w.undo[i]()
	}
}

// proc is a daemon.
type proc struct {
	program string
	cmd     *exec.Cmd
	out     *lockedBuffer // of a command that is watched
	err     *lockedBuffer
	ready   chan string // its ready line, or closed without
	done    chan error
}

// lockedBuffer collects what a daemon says while the script reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) tail() string {
	s := l.String()
	return s[max(0, len(s)-6000):]
}

func (p *proc) kill() {
	if p.cmd == nil || p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended in between
	<-p.done
}

var httpRE = regexp.MustCompile(`http (127\.[0-9.:]+)`)

func daemon(ts *testscript.TestScript, neg bool, args []string) {
	start(ts, neg, "forgeyard-node", args, "--listen", "127.0.0.1:0", "--gossip", "127.0.0.1:0", "--http", "127.0.0.1:0")
}

func centralDaemon(ts *testscript.TestScript, neg bool, args []string) {
	start(ts, neg, "forgeyard-central", args, "--listen", "127.0.0.1:0")
}

func start(ts *testscript.TestScript, neg bool, program string, args []string, more ...string) {
	if len(args) < 1 || neg {
		ts.Fatalf("usage: daemon|central NAME args…")
	}
	w, name := worldOf(ts), args[0]
	if p := w.procs[name]; p != nil && p.cmd.ProcessState == nil {
		ts.Fatalf("%s runs already", name)
	}
	path, err := exec.LookPath(filepath.Join(os.Getenv("FORGEYARD_BIN"), program))
	ts.Check(err)
	all := append([]string{"up", "--data-dir", filepath.Join(w.work, name)}, more...)
	cmd, err := w.booted(name, exec.Command(path, append(all, args[1:]...)...))
	ts.Check(err)
	p, err := launch(program, cmd, w.work)
	ts.Check(err)
	w.procs[name] = p
	select {
	case line, ok := <-p.ready:
		if !ok {
			ts.Fatalf("%s ended before it was ready: %v\n%s", name, <-p.done, p.err.tail())
		}
		ts.Logf("%s", line)
		ts.Setenv(name+"_pid", strconv.Itoa(p.cmd.Process.Pid))
		if m := httpRE.FindStringSubmatch(line); m != nil {
			ts.Setenv(name+"_http", m[1])
		}
	case <-time.After(readyWithin):
		p.kill()
		ts.Fatalf("%s is not ready after %s\n%s", name, readyWithin, p.err.tail())
	}
}

// launch starts a daemon on a thread of its own, which lives as long as the daemon:
// the kernel ends the daemon with that thread, so none outlives a test that is killed.
func launch(program string, cmd *exec.Cmd, dir string) (*proc, error) {
	p := &proc{program: program, cmd: cmd, err: &lockedBuffer{}, ready: make(chan string, 1), done: make(chan error, 1)}
	cmd.Dir, cmd.Stderr = dir, p.err
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // a Ctrl-C at the tests is not one at the daemons
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.follow(out)
		}
	}()
	return p, <-started
}

// follow reads what a daemon prints until it ends.
func (p *proc) follow(out io.Reader) {
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); err == nil && strings.HasPrefix(line, "ready: ") {
		p.ready <- strings.TrimSpace(line)
	} else {
		_, _ = p.err.Write([]byte(line))
		close(p.ready)
	}
	_, _ = io.Copy(p.err, r) // it ended; Wait says how
	p.done <- p.cmd.Wait()
}

func running(ts *testscript.TestScript, args []string) *proc {
	if len(args) != 1 {
		ts.Fatalf("one NAME is expected")
	}
	p := worldOf(ts).procs[args[0]]
	if p == nil || p.cmd.ProcessState != nil {
		ts.Fatalf("%s does not run", args[0])
	}
	return p
}

func kill9(ts *testscript.TestScript, _ bool, args []string) { running(ts, args).kill() }

// pause stops a daemon where it stands, as a debugger or a frozen machine would; resume
// lets it go on.
func pause(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(running(ts, args).cmd.Process.Signal(syscall.SIGSTOP))
}

func resume(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(running(ts, args).cmd.Process.Signal(syscall.SIGCONT))
}

// metric looks for a line among the metrics of a daemon.
func metric(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: metric NAME REGEXP")
	}
	re, err := regexp.Compile("(?m)^" + args[1] + "$")
	ts.Check(err)
	if b := metricsOf(ts, args[0]); re.Match(b) == neg {
		ts.Fatalf("%s: %v in\n%s", args[1], !neg, b)
	}
}

func metricsOf(ts *testscript.TestScript, name string) []byte {
	r, err := http.Get("http://" + ts.Getenv(name+"_http") + "/metrics")
	ts.Check(err)
	b, err := io.ReadAll(r.Body)
	ts.Check(errors.Join(err, r.Body.Close()))
	return b
}

// waitMetric asks until there is such a line.
func waitMetric(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: wait-metric DURATION NAME REGEXP")
	}
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	re, err := regexp.Compile("(?m)^" + args[2] + "$")
	ts.Check(err)
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		b := metricsOf(ts, args[1])
		if re.Match(b) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("no %s after %s in\n%s", args[2], limit, b)
		}
	}
}

// goneWithin bounds how long a process may live on that is to end by itself.
const goneWithin = 30 * time.Second

// gone waits until a process is no more, and says how long it took.
func gone(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: gone PID")
	}
	pid, err := strconv.Atoi(args[0])
	ts.Check(err)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if !lives(pid) {
			ts.Logf("process %d was gone after %s", pid, time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(began) > goneWithin {
			ts.Fatalf("process %d still runs after %s", pid, goneWithin)
		}
	}
}

// lives says that a process runs: one that is dead and not waited for does not.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

func processLives(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: lives PID")
	}
	pid, err := strconv.Atoi(args[0])
	ts.Check(err)
	if lives(pid) == neg {
		ts.Fatalf("process %d runs: %v", pid, neg)
	}
}

func stopd(ts *testscript.TestScript, _ bool, args []string) {
	p := running(ts, args)
	ts.Check(p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-p.done:
		if err != nil {
			ts.Fatalf("%s stopped with %v\n%s", args[0], err, p.err.tail())
		}
	case <-time.After(stopWithin):
		p.kill()
		ts.Fatalf("%s does not stop within %s\n%s", args[0], stopWithin, p.err.tail())
	}
}

// logSays waits until a daemon has said something.
func logSays(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: log NAME REGEXP")
	}
	p := worldOf(ts).procs[args[0]]
	if p == nil {
		ts.Fatalf("%s was not started", args[0])
	}
	re, err := regexp.Compile(args[1])
	ts.Check(err)
	if said := re.MatchString(p.err.String()); said == neg {
		ts.Fatalf("%s said it: %v\n%s", args[0], said, p.err.tail())
	}
}

// mountTmpfs makes a small disk, which is unmounted at the end.
func mountTmpfs(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: tmpfs DIR SIZE")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+args[1]); err != nil {
		ts.Fatalf("mount: %v", err)
	}
	w := worldOf(ts)
	w.undo = append(w.undo, func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// fill makes a file whose blocks are all different, so that no store keeps it in one.
func fill(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: fill FILE BYTES")
	}
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	f, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	w := bufio.NewWriter(f)
	for i := int64(0); i < n; i += 16 {
		_, err := fmt.Fprintf(w, "%015d\n", i)
		ts.Check(err)
	}
	ts.Check(errors.Join(w.Flush(), f.Truncate(n), f.Close()))
}

// died waits until a daemon has ended by itself.
func died(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: died NAME CODE REGEXP")
	}
	p := worldOf(ts).procs[args[0]]
	if p == nil {
		ts.Fatalf("%s was not started", args[0])
	}
	select {
	case <-p.done:
	case <-time.After(stopWithin):
		p.kill()
		ts.Fatalf("%s goes on after %s\n%s", args[0], stopWithin, p.err.tail())
	}
	if code := strconv.Itoa(p.cmd.ProcessState.ExitCode()); code != args[1] || !regexp.MustCompile(args[2]).MatchString(p.err.String()) {
		ts.Fatalf("%s ended with %s\n%s", args[0], code, p.err.tail())
	}
}

// damage copies a file and changes one byte of it, in its middle or where it is told.
func damage(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 && len(args) != 3 {
		ts.Fatalf("usage: damage FILE TO [BYTE]")
	}
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	at := len(b) / 2
	if len(args) == 3 {
		at, err = strconv.Atoi(args[2])
		ts.Check(err)
	}
	b[at] ^= 1
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b, 0o600))
}

// cut copies the first bytes of a file.
func cut(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: cut FILE TO BYTES")
	}
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b[:n], 0o600))
}
