//go:build linux

package runner

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// The job helper is there under one name for every workload. In a sandbox it is the host's own
// file, which nobody inside can change; who could not run that, or sees the host's files, has
// a copy.
func TestHelper(t *testing.T) {
	const text = "#!/bin/sh\necho helped\n"
	for _, c := range []struct {
		name    string
		mode    os.FileMode
		sandbox job.Sandbox
		copied  bool
	}{
		{"shown", 0o755, job.SandboxStrict, false},
		{"not for everybody", 0o750, job.SandboxStrict, true},
		{"with the host's files", 0o755, job.SandboxProcess, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			helper := filepath.Join(t.TempDir(), "helper")
			if err := errorsJoin(os.WriteFile(helper, []byte(text), 0o600), os.Chmod(helper, c.mode)); err != nil {
				t.Fatal(err)
			}
			b := newBench(t, func(cfg *Config) { cfg.HelperPath = helper })
			if c.sandbox == job.SandboxStrict && !b.strict() {
				needs.Lacking(t, "no sandbox on this machine: nothing can be shown in one")
			}
			s := spec(`fyjob; ( echo spoilt > "$(command -v fyjob)" ) 2>/dev/null || echo refused`)
			s.Sandbox = c.sandbox
			res, _, a := b.run(s)
			said := b.stdout(a)
			if res.Outcome != job.OutcomeDone || !strings.HasPrefix(said, "helped\n") || c.sandbox == job.SandboxStrict && !strings.Contains(said, "refused") {
				t.Errorf("%+v %q", res, said)
			}
			if now, err := os.ReadFile(helper); err != nil || string(now) != text {
				t.Errorf("the host's helper is %q now: %v", now, err)
			}
			st, err := os.Stat(filepath.Join(a.root, executor.BinDir, helperName))
			if err != nil || (st.Size() > 0) != c.copied {
				t.Errorf("%v %v", st.Size(), err)
			}
		})
	}
}

// named is an executor that looks, at each start, whether the tree can be found by a process
// that comes after this one.
type named struct {
	executor.Executor
	seen func(id string)
}

func (n named) Start(ctx context.Context, r executor.Request) (executor.Handle, error) {
	n.seen(r.ID)
	return n.Executor.Start(ctx, r)
}

// RA-170, RA-171: however long the disk takes for it, the name of a tree is written down
// before anything of the tree exists, and at the end of the work its number stands there too.
func TestTreeIsNamedBeforeItStarts(t *testing.T) {
	var b *bench
	var starts atomic.Int32
	state := func(id string) (state, error) { return readState(filepath.Join(b.dir, "agent", id+stateSuffix)) }
	b = newBench(t, func(c *Config) {
		c.Executors = map[job.Sandbox]executor.Executor{job.SandboxProcess: named{executors(t)[job.SandboxProcess], func(id string) {
			starts.Add(1)
			if s, err := state(id); err != nil || s.Orphan.ID != id || s.Orphan.Boot == "" || s.Workspace == "" {
				t.Errorf("it starts, and what is written down is %+v: %v", s, err)
			}
		}}}
		c.Prepare = func(u users.User, root string) error {
			a := b.r.Active()[0]
			a.saving.Lock() // the disk is slow
			time.AfterFunc(200*time.Millisecond, a.saving.Unlock)
			return executor.Layout(u, root)
		}
	})
	s := spec("true")
	s.Sandbox = job.SandboxProcess
	res, _, a := b.run(s)
	was, err := state(a.id)
	if res.Outcome != job.OutcomeDone || starts.Load() != 1 || err != nil || was.Orphan.PID == 0 || was.Orphan.Birth == 0 {
		t.Errorf("%+v, %d starts, %+v %v", res, starts.Load(), was, err)
	}
}

// slow is a node whose log takes its time, and that proposes nothing when it is not waited for.
type slow struct {
	*hooks
	ran atomic.Bool
}

func (h *slow) Phase(ctx context.Context, p job.Phase) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(50 * time.Millisecond):
	}
	if p == job.PhaseRunning {
		h.ran.Store(true)
	}
	return nil
}

// A program that is quicker than the site's log has run all the same: the node has told so
// before the end.
func TestQuickWorkHasRun(t *testing.T) {
	b := newBench(t)
	h := &slow{hooks: b.hooks}
	s := spec("true")
	s.Sandbox = job.SandboxProcess
	a, err := b.r.Start(t.Context(), task(s), h)
	if err != nil {
		t.Fatal(err)
	}
	if res, _ := b.wait(a); res.Outcome != job.OutcomeDone || !h.ran.Load() {
		t.Errorf("%+v, told that it ran: %v", res, h.ran.Load())
	}
}
