//go:build linux

package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/process"
	"github.com/forgeyard/forgeyard-node/node/executor/sandbox"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// withUsers makes both executors over one pool.
func withUsers(t *testing.T, cfg users.Config, binds ...executor.Bind) map[job.Sandbox]executor.Executor {
	t.Helper()
	cfg.Seat = os.Getpid() * (users.DefaultCount / 3) // two runs of these tests do not lend one user at one moment
	p, err := users.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pr, err := process.New(process.Config{Users: p})
	if err != nil {
		t.Fatal(err)
	}
	s, err := sandbox.New(sandbox.Config{Users: p, ReadOnly: binds})
	if err != nil {
		needs.Lacking(t, "no sandbox on this machine: %v", err)
	}
	return map[job.Sandbox]executor.Executor{job.SandboxProcess: pr, job.SandboxStrict: s}
}

// robber reads what it can of every process and of a workspace, and signals and traces them.
const robber = `set +e
for p in /proc/[0-9]*; do
  tr '\0' '\n' < $p/environ; cat $p/root/work/build/loot $p/cwd/loot; kill -0 ${p#/proc/} && [ $p != /proc/$$ ] && echo "may signal ${p#/proc/}"
done 2>/dev/null
cat %s/build/loot 2>/dev/null; echo x >> %s/build/loot; ls %s; echo robbed`

// processOf waits until the runner has written down who it started.
func processOf(a *Attempt) int {
	for {
		if pid, _ := a.Process(); pid != 0 {
			return pid
		}
		select {
		case <-a.Done():
			return 0
		case <-time.After(time.Millisecond):
		}
	}
}

// rob starts a job that has something, and one that is after it; what the second printed.
func rob(t *testing.T, cfg users.Config, victim, thief job.Sandbox) (out string, victimPID int) {
	t.Helper()
	b := newBench(t, func(c *Config) { c.Executors = withUsers(t, cfg) })
	s := spec("echo TREASURE > loot; echo ready; exec sleep 1000")
	s.Sandbox, s.Env = victim, map[string]string{"HOARD": "JEWELS"}
	tk := task(s)
	tk.Authority.Attempt = victimID
	a := b.start(tk)
	b.await(a, "ready")
	pid := processOf(a)
	s = spec(fmt.Sprintf(robber, a.root, a.root, filepath.Dir(a.root)))
	s.Sandbox = thief
	z := b.start(task(s))
	b.wait(z)
	out = b.text(z)
	if !strings.Contains(out, "robbed") {
		t.Fatalf("the thief did not run: %s", out)
	}
	if thief, victim := z.user, a.user; cfg.Count != 1 && (thief == victim || !thief.Lent() || !victim.Lent()) {
		t.Errorf("users %s and %s", thief, victim)
	}
	a.Cancel("enough", true)
	b.wait(a)
	return out, pid
}

// RA-367, RA-454: no job reads another's environment, memory or files, whichever executors
// they have.
func TestJobsCannotReadEachOther(t *testing.T) {
	needs.Root(t, "run as other users")
	for _, c := range [][2]job.Sandbox{{job.SandboxStrict, job.SandboxProcess}, {job.SandboxProcess, job.SandboxProcess}, {job.SandboxProcess, job.SandboxStrict}} {
		t.Run(string(c[0])+" robbed by "+string(c[1]), func(t *testing.T) {
			out, pid := rob(t, users.Config{}, c[0], c[1])
			for _, never := range []string{"JEWELS", "TREASURE", fmt.Sprintf("may signal %d\n", pid)} {
				if strings.Contains(out, never) {
					t.Errorf("%s came out: %s", never, out)
				}
			}
		})
	}
	// The same thief gets it where both have one user: the wall is the user.
	t.Run("one user", func(t *testing.T) {
		out, _ := rob(t, users.Config{First: 69_200, Count: 1}, job.SandboxStrict, job.SandboxProcess)
		if !strings.Contains(out, "JEWELS") || !strings.Contains(out, "TREASURE") {
			t.Errorf("this thief takes nothing: the test shows nothing: %s", out)
		}
	})
}
