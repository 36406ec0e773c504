//go:build linux

package runner

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/capability"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/exectest"
)

// epoch is a task of an attempt of its own.
func epoch(s job.Spec, attempt int, n uint64) Task {
	t := task(s)
	t.Authority.Attempt = forgeyard.AttemptID(fmt.Sprintf("%s-%d", attemptID, attempt))
	t.Authority.Fence.Epoch = n
	return t
}

// Each attempt has a workspace of its own (RA-438, RA-507, RA-554), and what runs again, as a
// new attempt or in its next epoch, finds nothing of what ran before, though that was kept
// for a person to look at (RA-555, RA-203).
func TestWorkspaceIsFresh(t *testing.T) {
	b := newBench(t)
	s := spec(`ls -A; echo mine > left; cat left`)
	seen := map[string]bool{}
	for _, tk := range []Task{epoch(s, 1, 1), epoch(s, 2, 2), epoch(s, 2, 3)} {
		a := b.start(tk)
		if res, end := b.wait(a); res.Outcome != job.OutcomeDone || b.stdout(a) != "mine\n" {
			t.Errorf("%+v %+v: %q", res, end, b.stdout(a))
		}
		if st, err := os.Stat(a.root); err != nil || !st.IsDir() || !strings.HasPrefix(a.root, b.r.cfg.Workspaces+"/") || seen[a.root] {
			t.Errorf("%q after %v: %v", a.root, slices.Collect(maps.Keys(seen)), err)
		}
		seen[a.root] = true
		if err := a.Finish(true); err != nil {
			t.Error(err)
		}
	}
}

// asked notes what an executor is asked to run.
type asked struct {
	executor.Executor
	mu   sync.Mutex
	reqs []executor.Request
}

func (r *asked) Start(ctx context.Context, q executor.Request) (executor.Handle, error) {
	r.mu.Lock()
	r.reqs = append(r.reqs, q)
	r.mu.Unlock()
	return r.Executor.Start(ctx, q)
}

// RA-510: the executor is asked for what the spec says, each step in its order, and for
// nothing else: no text from elsewhere is run (RA-003). Whatever runs, an executor was asked
// for (RA-490, RA-537), with the reservation that the spec names (RA-129). A request has whose it
// is, where, what, within which bounds and with which environment (RA-204, RA-205).
func TestExecutorGetsTheSpec(t *testing.T) {
	r := &asked{Executor: executors(t)[job.SandboxProcess]}
	b := newBench(t, func(c *Config) { c.Executors = map[job.Sandbox]executor.Executor{job.SandboxProcess: r} })
	s := spec("true", "x")
	s.Sandbox = job.SandboxProcess
	s.Env = map[string]string{"A": "1"}
	s.Steps[1] = job.Step{Name: "second", Run: []string{"/bin/echo", "a b", "$HOME"}, Env: map[string]string{"A": "2", "C": "3"}}
	s.Resources = job.Resources{MilliCPU: 1500, Memory: 99 << 20, Disk: 1 << 20, Pids: 17}
	res, _, a := b.run(s)
	if res.Outcome != job.OutcomeDone || b.stdout(a) != "a b $HOME\n" || len(r.reqs) != 2 {
		t.Fatalf("%+v %q, %d requests", res, b.stdout(a), len(r.reqs))
	}
	for i, q := range r.reqs {
		if want := s.Steps[i].Argv(); !slices.Equal(q.Argv, want) {
			t.Errorf("step %d: %q, the spec says %q", i+1, q.Argv, want)
		}
		want := executor.Limits{MilliCPU: 1500, Memory: 99 << 20, Pids: 17}
		if !reflect.DeepEqual(q.Limits, want) || q.Network != s.Network || q.ID != epochName(a.Authority()) || q.Root != a.root || len(q.Devices) != 0 {
			t.Errorf("step %d: %+v", i+1, q)
		}
		var own []string
		for _, e := range q.Env {
			if name, _, _ := strings.Cut(e, "="); len(name) == 1 {
				own = append(own, e)
			}
		}
		if want := [][]string{{"A=1"}, {"A=2", "C=3"}}[i]; !slices.Equal(own, want) {
			t.Errorf("step %d: environment %q, the spec says %q", i+1, own, want)
		}
	}
}

// A step runs where it says, and one that says nothing in the build folder.
func TestStepsHaveTheirDirectory(t *testing.T) {
	for kind, e := range executors(t) {
		b := newBench(t, func(c *Config) { c.Executors = map[job.Sandbox]executor.Executor{kind: e} })
		s := spec("mkdir -p sub/dir; pwd", "pwd")
		s.Sandbox, s.Steps[1].Dir = kind, "build/sub/dir"
		res, _, a := b.run(s)
		where := strings.Fields(b.stdout(a))
		if res.Outcome != job.OutcomeDone || len(where) != 2 || where[1] != where[0]+"/sub/dir" {
			t.Errorf("%s: %+v %q", kind, res, where)
		}
	}
}

// RA-209: what a program's environment is made of: what the node says of every job, the spec's
// words, and the paths of this attempt. Nothing of the daemon's own is in it: neither its HOME
// (RA-211) nor its PATH (RA-214), nor its credentials (RA-213).
func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{"HOME": "/home/dev", "PATH": "/home/dev/bin:" + os.Getenv("PATH"), "AWS_SECRET_ACCESS_KEY": "AKIA", "XDG_RUNTIME_DIR": "/run/user/1"} {
		t.Setenv(name, value)
	}
	b := newBench(t)
	s := spec("env")
	s.Sandbox = job.SandboxProcess
	s.Env = map[string]string{"BOARD": "rev4"}
	res, _, a := b.run(s)
	if res.Outcome != job.OutcomeDone {
		t.Fatalf("%+v", res)
	}
	got := map[string]string{}
	for line := range strings.Lines(b.stdout(a)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = value
	}
	build := filepath.Join(a.root, executor.BuildDir)
	for name, want := range map[string]string{
		"BOARD": "rev4", "HOME": build, "FORGEYARD_BUILD_DIR": build, "FORGEYARD_SOURCE_DIR": filepath.Join(a.root, executor.SourceDir), "FORGEYARD_EPOCH": "1",
		"PATH": filepath.Join(a.root, executor.BinDir) + ":" + capability.DefaultPath,
	} {
		if got[name] != want {
			t.Errorf("%s is %q, not %q", name, got[name], want)
		}
	}
	for name, value := range got {
		own := slices.Contains([]string{"BOARD", "HOME", "PATH", "TMPDIR", "LANG", "USER", "LOGNAME", "SHELL", "PWD", "SHLVL", "_", "OLDPWD"}, name)
		if !own && !strings.HasPrefix(name, "FORGEYARD_") || strings.Contains(value, "/home/dev") {
			t.Errorf("%s=%s is nobody's", name, value)
		}
	}
}

// RA-478: what executes the work is killed under it. The attempt ends as failed, and nothing
// that it had started lives on.
func TestExecutorCrash(t *testing.T) {
	for kind := range executors(t) {
		t.Run(string(kind), func(t *testing.T) {
			b := newBench(t)
			mark := fmt.Sprintf("fy-crash-%s-%d", kind, os.Getpid())
			s := spec(`(setsid sh -c 'while :; do sleep 1; done; : ` + mark + `' &); echo up; while :; do sleep 1; done`)
			s.Sandbox = kind
			a := b.start(task(s))
			b.await(a, "up")
			for pid := 0; pid == 0; pid, _ = a.Process() {
				select {
				case <-a.Done():
					t.Fatalf("it ended by itself: %s", b.text(a))
				case <-time.After(time.Millisecond):
				}
			}
			pid, _ := a.Process()
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if res, end := b.wait(a); end.Kind != EndCompleted || res.Outcome != job.OutcomeFailed || res.Category != job.WorkloadFailed || res.ExitCode != 137 {
				t.Errorf("%+v %+v", res, end)
			}
			if pids := exectest.Alive(t, mark); len(pids) != 0 {
				t.Errorf("processes %v live on", pids)
			}
		})
	}
}

// RA-467: many small jobs at once. After 1000 attempts, some of which fail and some of which
// leave a process behind, there is no workspace (RA-468), no process (RA-469) and no promise
// of disk (RA-470) of theirs.
func TestNothingIsLeftOfAThousand(t *testing.T) {
	b := newBench(t)
	const all, atOnce = 1000, 16
	mark := fmt.Sprintf("fy-thousand-%d", os.Getpid())
	left := make(chan int, all)
	for i := range all {
		left <- i
	}
	close(left)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := range left {
				if err := b.oneOfMany(i, mark); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.empty("workspaces")
	b.empty("spool")
	b.empty("agent")
	if pids := exectest.Alive(t, mark); len(pids) != 0 {
		t.Errorf("processes %v are left", pids)
	}
	if l := b.r.Active(); len(l) != 0 {
		t.Errorf("%d attempts still hold what they were promised", len(l))
	}
}

func (b *bench) oneOfMany(i int, mark string) error {
	s := spec([]string{"exit 0", "exit 3", "(setsid sh -c 'sleep 1000; : " + mark + "' &); exit 0"}[i%3])
	s.Sandbox, s.Resources.Disk = job.SandboxProcess, 1<<10
	a, err := b.r.Start(context.Background(), epoch(s, i, 1), b.hooks)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, _, err := a.Wait(ctx)
	if err != nil {
		return err
	}
	if want := []job.Outcome{job.OutcomeDone, job.OutcomeFailed, job.OutcomeDone}[i%3]; r.Outcome != want {
		return forgeyard.Errorf("attempt", forgeyard.Other, "%d: %+v", i, r)
	}
	if err := b.store.Unpin(ctx, PinOwner(a.Authority().Attempt)); err != nil {
		return err
	}
	return a.Finish(false)
}
