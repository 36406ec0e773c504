//go:build linux

package runner

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor/exectest"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// crashHere makes this test binary a runner that is about to be killed.
const crashHere = "FORGEYARD_TEST_CRASH"

// TestCrashing is the child of TestRecover.
func TestCrashing(t *testing.T) {
	kind := os.Getenv(crashHere)
	if kind == "" {
		t.Skip("the child of TestRecover")
	}
	b := newBench(t, func(c *Config) {
		dir := os.Getenv(crashHere + "_DIR")
		c.Workspaces, c.Spool, c.StateDir = filepath.Join(dir, "workspaces"), filepath.Join(dir, "spool"), filepath.Join(dir, "agent")
	})
	s := spec(`(setsid sh -c 'trap "" TERM; echo born; while :; do sleep 1; done; : fy-recover-` + kind + `' &); while :; do sleep 1; done`)
	s.Sandbox = job.Sandbox(kind)
	a := b.start(task(s))
	b.await(a, "born")
	// The step's first words may be there before the runner has written down who it is.
	for known := false; !known; {
		select {
		case <-a.Done():
			t.Fatal("ended by itself")
		case <-time.After(time.Millisecond):
		}
		a.mu.Lock()
		known = a.state.Orphan.PID != 0
		a.mu.Unlock()
	}
	if err := a.KeepCompletion([]byte("message 1")); err != nil {
		t.Fatal(err)
	}
	fmt.Println("CRASH-ME", b.dir)
	select {} // until SIGKILL
}

// A runner that was killed: its successor ends what it left, saves the log, and keeps the
// completion that was under way. It finds all three where they were written while the work
// ran, in the folder agent and in the spool (RA-029, RA-172, RA-175, RA-246); no process of before is left
// (RA-301, RA-302), nor a folder that nobody names (RA-450, RA-542): the folders are compared with
// the records, and since a data dir has one holder there is nobody to wait for (RA-300). Of
// each epoch it says whose it was, how far it had come, and what is left of it (RA-297); none of
// them goes on (CK-402).
func TestRecover(t *testing.T) {
	for _, kind := range []job.Sandbox{job.SandboxStrict, job.SandboxProcess} {
		t.Run(string(kind), func(t *testing.T) { testRecover(t, kind) })
	}
}

func testRecover(t *testing.T, kind job.Sandbox) {
	b := newBench(t)
	c := exec.Command(os.Args[0], "-test.run", "^TestCrashing$", "-test.v")
	c.Env = append(os.Environ(), crashHere+"="+string(kind), crashHere+"_DIR="+b.dir, envAttempt+"="+string(attemptID))
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ready := false
	for sc := bufio.NewScanner(out); !ready && sc.Scan(); {
		dir, ok := strings.CutPrefix(sc.Text(), "CRASH-ME ")
		if ready = ok; ok {
			t.Cleanup(func() { os.RemoveAll(dir) })
		}
	}
	if err := c.Process.Kill(); err != nil || !ready {
		t.Fatalf("ready %v, %v", ready, err)
	}
	_ = c.Wait() // it was killed
	mark := "fy-recover-" + string(kind)
	if kind == job.SandboxProcess && len(exectest.Alive(t, mark)) == 0 {
		t.Error("the daemon died with the runner, so this test shows nothing")
	}
	// A folder that no state names is a leftover too.
	if err := os.Mkdir(filepath.Join(b.dir, "workspaces", "stray"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := b.r.Recover(ctx)
	if len(got) != 1 || got[0].Err != nil || got[0].Authority.Attempt != attemptID || got[0].Phase != job.PhaseRunning || string(got[0].Completion) != "message 1" {
		t.Fatalf("%+v", got)
	}
	if left := exectest.Alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %v", left)
	}
	b.empty("workspaces")
	b.empty("spool")
	text := ""
	for _, chunk := range got[0].Log {
		for f, err := range spool.DecodeFrames(strings.NewReader(b.get(chunk.Digest))) {
			if err != nil {
				t.Fatal(err)
			}
			text += string(f.Bytes)
		}
	}
	if !strings.Contains(text, "born\n") || got[0].LastLogSeq == 0 {
		t.Errorf("the log was not saved: %q", text)
	}
	// The completion stays until it is answered.
	if again := b.r.Recover(ctx); len(again) != 1 || string(again[0].Completion) != "message 1" {
		t.Errorf("%+v", again)
	}
	if err := b.r.Forget(got[0].Authority); err != nil {
		t.Fatal(err)
	}
	if again := b.r.Recover(ctx); len(again) != 0 {
		t.Errorf("%+v", again)
	}
}

// Damaged or foreign state is put aside and told, and touches nothing outside: what stands
// on the disk is no authority (RA-171, RA-572).
func TestRecoverDistrustsItsState(t *testing.T) {
	b := newBench(t)
	victim := filepath.Join(b.dir, "victim")
	if err := os.Mkdir(victim, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"a.json": "{not json",
		"b.json": `{"version":99}`,
		"c.json": fmt.Sprintf(`{"version":1,"workspace":%q}`, victim),
		"d.json": fmt.Sprintf(`{"version":1,"workspace":%q}`, filepath.Join(b.dir, "workspaces")+"/../victim"),
	} {
		if err := os.WriteFile(filepath.Join(b.dir, "agent", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := b.r.Recover(t.Context())
	kinds := map[forgeyard.Kind]int{}
	for _, r := range got {
		kinds[forgeyard.KindOf(r.Err)]++
	}
	if len(got) != 4 || kinds[forgeyard.Corrupt] != 1 || kinds[forgeyard.Invalid] != 3 {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error("a folder outside was removed")
	}
}
