//go:build linux

package exectest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// patience bounds every wait for an event. It is generous: a machine under load
// must not fail a test.
const patience = 60 * time.Second

// Bench is one executor with a workspace.
type Bench struct {
	T    *testing.T
	Exec executor.Executor
	Root string // workspace on the host
	User users.User
	View string // where the workload sees it
	n    int
}

// New makes a bench, over whatever keeps the contract of executor.Executor and
// executor.Handle (RA-207, RA-208), with a fresh workspace that the workload's user can reach.
func New(t *testing.T, e executor.Executor) *Bench {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "fyexec-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	u, err := e.Users().Lend(filepath.Base(root))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Users().Return(filepath.Base(root)) })
	if err := executor.Layout(u, root); err != nil {
		t.Fatal(err)
	}
	return &Bench{T: t, Exec: e, Root: root, User: u, View: e.View(root)}
}

// Output collects what a workload writes, and lets a test wait for a text.
type Output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	news chan struct{}
}

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.news != nil {
		close(o.news)
		o.news = nil
	}
	return o.buf.Write(b)
}

func (o *Output) String() string { o.mu.Lock(); defer o.mu.Unlock(); return o.buf.String() }

// Await waits until the output holds text.
func (o *Output) Await(t *testing.T, text string) {
	t.Helper()
	end := time.After(patience)
	for {
		o.mu.Lock()
		if strings.Contains(o.buf.String(), text) {
			o.mu.Unlock()
			return
		}
		if o.news == nil {
			o.news = make(chan struct{})
		}
		news := o.news
		o.mu.Unlock()
		select {
		case <-news:
		case <-end:
			t.Fatalf("no %q in %q", text, o.String())
		}
	}
}

// Run is a started request with its output.
type Run struct {
	executor.Handle
	Out, Err *Output
}

// Start runs a shell script; the tree is killed when the test ends.
func (b *Bench) Start(script string, change ...func(*executor.Request)) (*Run, error) {
	b.T.Helper()
	b.n++
	run := &Run{Out: &Output{}, Err: &Output{}}
	r := executor.Request{
		ID: fmt.Sprintf("%s-%d", filepath.Base(b.Root), b.n), Root: b.Root, User: b.User,
		Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"},
		Network: job.NetworkNone, Stdout: run.Out, Stderr: run.Err,
	}
	for _, c := range change {
		c(&r)
	}
	h, err := b.Exec.Start(b.T.Context(), r)
	if err != nil {
		return nil, err
	}
	run.Handle = h
	b.T.Cleanup(func() { b.Kill(run) })
	return run, nil
}

// MustStart is Start without an error.
func (b *Bench) MustStart(script string, change ...func(*executor.Request)) *Run {
	b.T.Helper()
	r, err := b.Start(script, change...)
	if err != nil {
		b.T.Fatal(err)
	}
	return r
}

// Kill ends a run for certain.
func (b *Bench) Kill(r *Run) {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.Handle.Kill(ctx); err != nil {
		b.T.Fatal(err)
	}
}

// Finish waits for the end, kills the rest and returns how it ended.
func (b *Bench) Finish(r *Run) executor.Exit {
	b.T.Helper()
	select {
	case <-r.Done():
	case <-time.After(patience):
		b.T.Fatalf("still runs; stdout %q stderr %q", r.Out, r.Err)
	}
	b.Kill(r)
	return r.Wait()
}

// Alive lists processes whose command line holds the mark.
func Alive(t *testing.T, mark string) []int {
	t.Helper()
	var pids []int
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(b), mark) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Test runs the suite.
func Test(t *testing.T, fresh func(t *testing.T) executor.Executor) {
	for name, f := range map[string]func(*testing.T, *Bench){
		"probe": probe, "exit codes": exitCodes, "signal end": signalEnd, "environment is the request's RA-210": environment,
		"output and folders": output, "E18 daemons die": daemons, "respawning tree": respawn, "signals": signals,
		"no such program": noProgram, "bad requests": badRequests, "limits RA-020": limits, "limit of processors RA-020": cpuLimit, "reap": reap,
		"blocked writer": blockedWriter, "use": use, "one run per id E18": sameID,
	} {
		t.Run(name, func(t *testing.T) { f(t, New(t, fresh(t))) })
	}
}

func probe(t *testing.T, b *Bench) {
	c, err := b.Exec.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.Kind != b.Exec.Kind() {
		t.Fatalf("kind %q", c.Kind)
	}
	t.Logf("%+v", c)
}

func exitCodes(t *testing.T, b *Bench) {
	for _, code := range []int{0, 1, 85, 86, 127} {
		if x := b.Finish(b.MustStart(fmt.Sprintf("exit %d", code))); x.Code != code || x.Signal != 0 || x.OOM {
			t.Errorf("exit %d gave %+v", code, x)
		}
	}
}

func signalEnd(t *testing.T, b *Bench) {
	if x := b.Finish(b.MustStart("kill -SEGV $$")); x.Signal != syscall.SIGSEGV || x.Code != 128+int(syscall.SIGSEGV) {
		t.Errorf("%+v", x)
	}
	r := b.MustStart("echo up; exec sleep 1000")
	r.Out.Await(t, "up")
	b.Kill(r)
	if x := r.Wait(); x.Signal != syscall.SIGKILL {
		t.Errorf("after Kill: %+v", x)
	}
}

// use: what a tree took is known at its end, however short it was, with that of its children. Zero is
// the answer of who cannot tell, for want of control groups.
func use(t *testing.T, b *Bench) {
	x := b.Finish(b.MustStart("sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; exit 3"))
	if c, err := b.Exec.Probe(t.Context()); err == nil && x.CPU == 0 && !slices.Contains(c.Limits, "cpu") {
		return
	}
	if x.Code != 3 || x.CPU < 20*time.Millisecond || x.CPU > patience {
		t.Errorf("300,000 rounds of a child took %+v", x)
	}
}

func environment(t *testing.T, b *Bench) {
	t.Setenv("SSH_AUTH_SOCK", "/nowhere") // RA-212, RA-456, RA-509, RA-556: nothing of the host's comes in
	t.Setenv("AWS_SECRET_ACCESS_KEY", "x")
	r := b.MustStart("env", func(r *executor.Request) {
		r.Argv = []string{"/usr/bin/env"}
		r.Env = []string{"PATH=/usr/bin:/bin", "A=1", "B=two words"}
	})
	if x := b.Finish(r); x.Code != 0 {
		t.Fatalf("%+v %s", x, r.Err)
	}
	got := strings.Split(strings.TrimSpace(r.Out.String()), "\n")
	slices.Sort(got)
	got = slices.DeleteFunc(got, func(e string) bool {
		return strings.HasPrefix(e, "PWD=") || strings.HasPrefix(e, "FORGEYARD_EXECUTION=")
	})
	if want := []string{"A=1", "B=two words", "PATH=/usr/bin:/bin"}; !slices.Equal(got, want) {
		t.Errorf("environment %q", got)
	}
}

func output(t *testing.T, b *Bench) {
	if err := os.WriteFile(filepath.Join(b.Root, "source", "in"), []byte("input"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := b.MustStart(fmt.Sprintf(`pwd; cat %s/source/in; echo bad >&2; cat; echo made > made; : > %s/ckpt/c; : > %s/ctl/critical; : > %s/ctl/outbox/1; : > %s/tmp/t; umask`,
		b.View, b.View, b.View, b.View, b.View))
	if x := b.Finish(r); x.Code != 0 {
		t.Fatalf("%+v %s", x, r.Err)
	}
	if want := b.View + "/build\ninput0022\n"; r.Out.String() != want || r.Err.String() != "bad\n" {
		t.Errorf("stdout %q stderr %q", r.Out, r.Err)
	}
	if got, err := os.ReadFile(filepath.Join(b.Root, "build", "made")); err != nil || string(got) != "made\n" {
		t.Errorf("%q %v", got, err)
	}
	for _, bad := range []string{"source/x", "restore/x", "devices/x", "bin/x", "ctl/inbox/x"} {
		if x := b.Finish(b.MustStart(": > " + b.View + "/" + bad)); x.Code == 0 {
			t.Errorf("the workload wrote %s", bad)
		}
	}
}

// daemons: a process that left its parent, its session and its process group
// dies with the tree (RA-218, RA-219, RS-069, RS-071, CK-408, CK-421), and Kill returns when it is dead and
// not before (RS-070, RS-072, RS-090).
func daemons(t *testing.T, b *Bench) {
	mark := filepath.Base(b.Root) + "-daemon"
	r := b.MustStart(fmt.Sprintf(`(setsid sh -c 'echo born; while :; do sleep 1; done; : %s' </dev/null & ) & wait; sleep 0.1; exit 0`, mark))
	r.Out.Await(t, "born")
	if x := b.Finish(r); x.Code != 0 {
		t.Errorf("%+v", x)
	}
	if left := Alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %v", left)
	}
}

// respawn: children that fork faster than a list is read: a tree is frozen before it is
// killed (RS-068).
func respawn(t *testing.T, b *Bench) {
	mark := filepath.Base(b.Root) + "-respawn"
	script := fmt.Sprintf(`f() { trap '' TERM; while :; do (setsid sh -c 'sleep 0.01; : %s' &) ; done; }; f & f & echo going; wait`, mark)
	r := b.MustStart(script)
	r.Out.Await(t, "going")
	b.Kill(r)
	if left := Alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %v", left)
	}
}

func signals(t *testing.T, b *Bench) {
	r := b.MustStart(`trap 'echo main-usr1' USR1; trap 'echo main-term; wait $child; exit 3' TERM
sh -c 'trap "echo child-usr1" USR1; trap "echo child-term; exit" TERM; echo child-up; while :; do sleep 0.05; done' & child=$!
echo main-up; while :; do sleep 0.05; done`)
	r.Out.Await(t, "child-up")
	r.Out.Await(t, "main-up")
	if err := r.Signal(syscall.SIGUSR1); err != nil { // K05: the nudge reaches the parent only
		t.Fatal(err)
	}
	r.Out.Await(t, "main-usr1")
	if err := r.SignalAll(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.Out.Await(t, "child-term")
	if x := b.Finish(r); x.Code != 3 {
		t.Errorf("%+v", x)
	}
	if strings.Contains(r.Out.String(), "child-usr1") {
		t.Error("the child got the signal for the main program")
	}
	if err := r.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal after the end: %v", err)
	}
}

func noProgram(t *testing.T, b *Bench) {
	for _, argv := range [][]string{{"no-such-program"}, {"/no/such/program"}} {
		_, err := b.Start("", func(r *executor.Request) { r.Argv = argv })
		if forgeyard.KindOf(err) != forgeyard.NotFound {
			t.Errorf("%v gave %v", argv, err)
		}
	}
}

func badRequests(t *testing.T, b *Bench) {
	for name, f := range map[string]func(*executor.Request){
		"no argv":      func(r *executor.Request) { r.Argv = nil },
		"id is a path": func(r *executor.Request) { r.ID = "../x" },
		"relative dir": func(r *executor.Request) { r.Dir = "x" },
		"env":          func(r *executor.Request) { r.Env = []string{"nothing"} },
		"site network": func(r *executor.Request) { r.Network = job.NetworkSite },
		"negative":     func(r *executor.Request) { r.Limits.Memory = -1 },
		"as root":      func(r *executor.Request) { r.User = users.User{} },
	} {
		if name == "as root" && b.Exec.Users() == nil {
			continue // everything runs as the runner's own user there, who is not root
		}
		if _, err := b.Start("exit 0", f); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s gave %v", name, err)
		}
	}
}

func limits(t *testing.T, b *Bench) {
	c, err := b.Exec.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(c.Limits, "memory") || !slices.Contains(c.Limits, "pids") {
		if _, err := b.Start("exit 0", func(r *executor.Request) { r.Limits.Memory = 64 << 20 }); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("a limit that does not hold was taken: %v", err)
		}
		t.Logf("memory and pids are not enforced here: %s", c.Version)
		return
	}
	all := func(r *executor.Request) { r.Limits = executor.Limits{Memory: 48 << 20, Pids: 24, MilliCPU: 900} }
	if x := b.Finish(b.MustStart("head -c 200m /dev/zero | tail -c 190m >/dev/null; exit 9", all)); !x.OOM {
		t.Errorf("200 MiB in a group of 48 gave %+v", x)
	}
	r := b.MustStart("i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; echo done", all)
	if x := b.Finish(r); x.Code == 0 {
		t.Errorf("40 processes in a group of 24 gave %+v: %q", x, r.Out)
	}
}

// cpuLimit: a tree that would take a whole core gets the tenth of one that it asked for. Load of
// others makes its time on the clock longer only.
func cpuLimit(t *testing.T, b *Bench) {
	c, err := b.Exec.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(c.Limits, "cpu") {
		if _, err := b.Start("exit 0", func(r *executor.Request) { r.Limits.MilliCPU = 100 }); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("a limit that does not hold was taken: %v", err)
		}
		if os.Geteuid() == 0 && !strings.Contains(c.Version, "switched off") {
			needs.Lacking(t, "processor time is not bounded here: %s", c.Version)
		}
		t.Logf("processor time is not bounded here: %s", c.Version)
		return
	}
	began := time.Now()
	x := b.Finish(b.MustStart("i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done", func(r *executor.Request) { r.Limits.MilliCPU = 100 }))
	took := time.Since(began)
	if x.Code != 0 || x.CPU < 20*time.Millisecond || took < 5*x.CPU {
		t.Errorf("a tenth of a core gave %v of its time in %v: %+v", x.CPU, took, x)
	}
}

// reap: what a runner finds again after its own restart is ended, by number and birth, and
// nothing else is (RA-301, RS-067).
func reap(t *testing.T, b *Bench) {
	mark := filepath.Base(b.Root) + "-orphan"
	r := b.MustStart(fmt.Sprintf(`(setsid sh -c 'echo born; while :; do sleep 1; done; : %s' &); exec sleep 1000`, mark))
	r.Out.Await(t, "born")
	o := r.Orphan()
	for _, wrong := range []executor.Orphan{
		{ID: "other", PID: o.PID, Birth: o.Birth + 1, Boot: o.Boot},
		{ID: o.ID, PID: o.PID, Birth: o.Birth, Boot: "another boot", Cgroups: o.Cgroups},
	} {
		if err := b.Exec.Reap(t.Context(), wrong); err != nil {
			t.Fatal(err)
		}
		if len(Alive(t, mark)) == 0 {
			t.Fatalf("%+v shot a process that is not it", wrong)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Exec.Reap(ctx, o); err != nil {
		t.Fatal(err)
	}
	if left := Alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %v", left)
	}
	if err := b.Exec.Reap(ctx, o); err != nil {
		t.Errorf("reap is not idempotent: %v", err)
	}
}

type stuck struct{ once, until chan struct{} }

func (s stuck) Write(b []byte) (int, error) {
	select {
	case s.once <- struct{}{}:
	default:
	}
	<-s.until
	return len(b), nil
}

// blockedWriter: a reader that stalls never delays a kill (RA-410, RA-411).
func blockedWriter(t *testing.T, b *Bench) {
	w := stuck{make(chan struct{}, 1), make(chan struct{})}
	t.Cleanup(func() { close(w.until) })
	r := b.MustStart("exec cat /dev/zero", func(r *executor.Request) { r.Stdout = w })
	select {
	case <-w.once:
	case <-time.After(patience):
		t.Fatal("no output")
	}
	b.Kill(r)
}

func sameID(t *testing.T, b *Bench) {
	id := func(r *executor.Request) { r.ID = "same-" + filepath.Base(b.Root) }
	r := b.MustStart("echo up; exec sleep 1000", id)
	r.Out.Await(t, "up")
	if len(r.Orphan().Cgroups) == 0 {
		t.Log("without control groups nothing names a tree, so nothing can collide")
		return
	}
	if _, err := b.Start("exit 0", id); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("a second tree under one id: %v", err)
	}
}
