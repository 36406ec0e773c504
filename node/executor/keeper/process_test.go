//go:build linux

package keeper_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/cgroup"
	"github.com/forgeyard/forgeyard-node/node/executor/keeper"
	"github.com/forgeyard/forgeyard-node/node/executor/process"
	"github.com/forgeyard/forgeyard-node/node/executor/sandbox"
)

// patience bounds waits for events on a busy machine.
const patience = 60 * time.Second

// playDaemon in the environment makes the test binary a daemon with one tree.
const playDaemon = "FORGEYARD_TEST_DAEMON"

// TestMain lets the test binary be the keeper, and the daemon that uses one.
func TestMain(m *testing.M) {
	switch {
	case keeper.Asked(os.Args):
		os.Exit(keeper.Main())
	case os.Getenv(playDaemon) == starting:
		if err := startForEver(); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	case os.Getenv(playDaemon) == entering:
		if err := enterPastTheDeadline(); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getenv(playDaemon) != "":
		if err := daemon(); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// lease is how long the daemon's one tree may run.
const leaseTime = 2 * time.Second

// daemon holds a tree for leaseTime, starts it, and says who is in it and until when; then
// it waits for its own end. FORGEYARD_TEST_DAEMON says how it is to end.
func daemon() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	clk := clock.System()
	k, err := keeper.Start(keeper.Config{Program: self, Clock: clk, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	e, err := process.New(process.Config{SameUser: true, NoCgroups: os.Getenv(playDaemon) == "no cgroups"})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/tmp", "fykeep-")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	user, err := e.Users().Lend(dir)
	if err != nil {
		return err
	}
	if err := executor.Layout(user, dir); err != nil {
		return err
	}
	id := fmt.Sprintf("keep-%d-1", os.Getpid())
	until := clk.Now().Add(leaseTime)
	if err := k.Hold(context.Background(), e.Named(id), until); err != nil {
		return err
	}
	out := &lines{}
	// One that leaves its session and its parent, and one that ignores all it can.
	h, err := e.Start(context.Background(), executor.Request{
		ID: id, Root: dir, User: user, Network: job.NetworkHost, Env: []string{"PATH=/usr/bin:/bin"}, Stdout: out,
		Argv: []string{"/bin/sh", "-c", `trap "" TERM INT HUP; (setsid sleep 1000 & echo $!); sleep 1000 & echo $!; wait`},
	})
	if err != nil {
		return err
	}
	pids := strconv.Itoa(h.PID())
	for len(strings.Fields(out.text())) < 2 {
		time.Sleep(time.Millisecond) // the shell says who it started
	}
	fmt.Printf("%d %s %s %s\n", int64(until), dir, pids, strings.Join(strings.Fields(out.text()), " "))
	<-h.Done()
	over, err := k.Struck(context.Background(), id)
	fmt.Println("struck:", over, err)
	return h.Kill(context.Background())
}

// born is a process by number and birth.
type born struct {
	pid   int
	birth uint64
}

func (b born) alive() bool {
	p, err := executor.ReadProc(b.pid)
	return err == nil && p.Birth == b.birth && p.Alive()
}

// The tree ends at its deadline although the daemon is stopped, and at once when the daemon
// is killed: with control groups and without, background processes included (RA-310,
// RA-302; the hard deadline of the holder-stops-first rule).
func TestDeadlineHoldsWithoutTheDaemon(t *testing.T) {
	for _, groups := range []string{"cgroups", "no cgroups"} {
		for _, c := range []struct {
			name string
			sig  syscall.Signal
			// early allows an end before the deadline: the daemon's death is one.
			early bool
		}{{"stopped", syscall.SIGSTOP, false}, {"killed", syscall.SIGKILL, true}} {
			t.Run(groups+"/"+c.name, func(t *testing.T) {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), playDaemon+"="+groups)
				cmd.Stderr = os.Stderr
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
				r := bufio.NewReader(out)
				until, tree := readTree(t, r)
				if err := cmd.Process.Signal(c.sig); err != nil {
					t.Fatal(err)
				}
				ended := awaitEnd(t, tree)
				if !c.early && ended < until {
					t.Errorf("the tree ended %s before its deadline", time.Duration(until-ended))
				}
				if late := time.Duration(ended - until); late > 2*time.Second {
					t.Errorf("the tree ended %s after its deadline, the granter allows 2s", late)
				}
				if c.early {
					return
				}
				if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				if line, err := r.ReadString('\n'); err != nil || line != "struck: true <nil>\n" {
					t.Errorf("the daemon that wakes is told %q, %v", line, err)
				}
			})
		}
	}
}

func readTree(t *testing.T, r *bufio.Reader) (int64, []born) {
	t.Helper()
	line, err := r.ReadString('\n')
	f := strings.Fields(line)
	if err != nil || len(f) < 5 {
		t.Fatalf("the daemon says %q, %v", line, err)
	}
	until, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(f[1]) == "/tmp" {
		t.Cleanup(func() { _ = os.RemoveAll(f[1]) })
	}
	var tree []born
	for _, w := range f[2:] {
		pid, err := strconv.Atoi(w)
		if err != nil {
			t.Fatal(err)
		}
		p, err := executor.ReadProc(pid)
		if err != nil {
			t.Fatalf("%d is not in the tree: %v", pid, err)
		}
		tree = append(tree, born{pid, p.Birth})
	}
	return until, tree
}

// awaitEnd returns when no process of the tree is left, by the clock of the deadline.
func awaitEnd(t *testing.T, tree []born) int64 {
	t.Helper()
	clk := clock.System()
	for began := clk.Now(); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, b := range tree {
			if b.alive() {
				left++
			}
		}
		if left == 0 {
			return int64(clk.Now())
		}
		if clk.Now().Sub(began) > patience {
			t.Fatalf("%d of %d processes still run", left, len(tree))
		}
	}
}

// A keeper that was killed is started again and holds what was held: the deadline is kept
// by the second one.
func TestKeeperIsReplaced(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	k, err := keeper.Start(keeper.Config{Program: self, Clock: clock.System(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := executor.Orphan{ID: fmt.Sprintf("replaced-%d-1", os.Getpid()), Boot: executor.BootID()}
	if err := k.Hold(ctx, o, clock.System().Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	first := k.Health(ctx)
	if first.PID == 0 || first.Err != nil || first.Held != 1 {
		t.Fatalf("%+v", first)
	}
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next := first
	for next = k.Health(ctx); next.PID == 0 || next.PID == first.PID || next.Err != nil; next = k.Health(ctx) {
		if ctx.Err() != nil {
			t.Fatalf("no other keeper: %+v", next)
		}
	}
	k.Move(o.ID, clock.System().Now().Add(-time.Second))
	for over := false; !over; {
		if over, err = k.Struck(ctx, o.ID); ctx.Err() != nil {
			t.Fatalf("the second keeper does not hold what the first held: %v", err)
		}
	}
	k.Release(o.ID)
	if h := k.Health(ctx); h.Held != 0 || h.Restarts != 1 {
		t.Errorf("%+v", h)
	}
}

// A keeper that has no time for a while, as on a machine in heavy use, is not taken for gone.
func TestHealthWaitsForABusyKeeper(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	k, err := keeper.Start(keeper.Config{Program: self, Clock: clock.System(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	pid := k.Health(t.Context()).PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(1300*time.Millisecond, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	if h := k.Health(t.Context()); h.Err != nil || h.PID != pid {
		t.Errorf("%+v", h)
	}
}

// starting makes the daemon start one sandbox after the other, for ever.
const starting = "starting"

func startForEver() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	k, err := keeper.Start(keeper.Config{Program: self, Clock: clock.System(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	e, err := sandbox.New(sandbox.Config{})
	if err != nil {
		return err
	}
	dir := os.Getenv("TMPDIR")
	user, err := e.Users().Lend(dir)
	if err != nil {
		return err
	}
	if err := executor.Layout(user, dir); err != nil {
		return err
	}
	o := e.Named(fmt.Sprintf("starting-%d-1", os.Getpid()))
	if err := k.Hold(context.Background(), o, clock.System().Now().Add(time.Hour)); err != nil {
		return err
	}
	fmt.Println(strings.Join(o.Cgroups, " "))
	for {
		h, err := e.Start(context.Background(), executor.Request{ID: o.ID, Root: dir, User: user, Argv: []string{"/bin/true"}, Network: job.NetworkNone, Env: []string{"PATH=/usr/bin:/bin"}})
		if err != nil {
			return err
		}
		if err := h.Kill(context.Background()); err != nil {
			return err
		}
	}
}

// A daemon that is killed in the middle of starting a sandbox leaves nothing of it, at
// whatever moment: the parent-death signal alone is lost where a sandbox changes its user.
func TestKilledWhileStarting(t *testing.T) {
	if _, err := sandbox.New(sandbox.Config{}); err != nil {
		needs.Lacking(t, "no sandbox here: %v", err)
	}
	for k := range 12 {
		dir, err := os.MkdirTemp("/tmp", "fykeep-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), playDaemon+"="+starting, "TMPDIR="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		groups := strings.Fields(line)
		if err != nil || strings.HasPrefix(line, "failed") {
			t.Fatalf("the daemon says %q, %v", line, err)
		}
		if len(groups) == 0 {
			needs.Lacking(t, "no control groups here, so nobody but the keeper can say what is left")
		}
		<-time.After(time.Duration(k) * 1700 * time.Microsecond) // another moment of the start each time
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			left := members(groups)
			if len(left) == 0 {
				break
			}
			if time.Since(began) > patience {
				t.Fatalf("killed after %d steps: %v are left", k, left)
			}
		}
	}
}

// members are the processes in any of the groups.
func members(groups []string) []string {
	var all []string
	for _, g := range groups {
		if b, err := os.ReadFile(filepath.Join(g, "cgroup.procs")); err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	return all
}

// entering is a daemon that is about to fork into a tree whose deadline is over.
const entering = "entering"

func enterPastTheDeadline() error {
	h, err := cgroup.Detect(cgroup.Options{})
	if err != nil {
		fmt.Println("lacking:", err)
		return nil
	}
	id := fmt.Sprintf("keep-%d-1", os.Getpid())
	g, err := h.Create(id, executor.Limits{})
	if err != nil {
		return err
	}
	clk := clock.System()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	k, err := keeper.Start(keeper.Config{Program: self, Clock: clk, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := g.Enter(); err != nil {
		return err
	}
	o := executor.Orphan{ID: id, Boot: executor.BootID(), Cgroups: g.Dirs()}
	if err := k.Hold(context.Background(), o, clk.Now()); err != nil {
		return err
	}
	for over := false; !over; {
		if over, err = k.Struck(context.Background(), id); err != nil {
			return err
		}
	}
	tree := exec.Command("/bin/sleep", "1000")
	tree.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := tree.Start(); err != nil { // born in the group, from this thread
		return err
	}
	err = tree.Wait() // a sweep ends it, and nothing else does
	if lerr := g.Leave(); lerr != nil {
		return lerr
	}
	fmt.Println("the daemon lives:", err)
	return nil
}

// The kernel lists a daemon in a group of version 1 while one of its threads forks into it.
// The keeper that ends that group then ends what is born there, and not the daemon.
func TestDeadlineWhileTheDaemonForks(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), playDaemon+"="+entering)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if strings.HasPrefix(string(out), "lacking:") {
		needs.Lacking(t, "%s", out)
	}
	if err != nil || !strings.Contains(string(out), "the daemon lives: signal: killed") {
		t.Errorf("%v: %s", err, out)
	}
}
