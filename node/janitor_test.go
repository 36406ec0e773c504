package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// RA-283: a clean-up that failed is a matter of health, with what to do about it.
func TestFailedCleanUpIsAHealthIssue(t *testing.T) {
	if c := judgeWorkspaces(nil, nil, "", 0, nil); c.Status != checkOK || c.Fix != "" {
		t.Errorf("%+v", c)
	}
	if c := judgeWorkspaces(nil, nil, "", 3, nil); c.Status != checkOK || !strings.Contains(c.Detail, "3 of failed jobs") {
		t.Errorf("%+v", c)
	}
	c := judgeWorkspaces([]runner.Leftover{{Name: "01A-1", Age: time.Hour, Why: "/w/x is mounted in it"}, {Name: "01B-1"}}, nil, "", 0, nil)
	if c.Status != checkWarn || !strings.Contains(c.Detail, "2 clean-ups failed") || !strings.Contains(c.Detail, "01A-1") || !strings.Contains(c.Fix, "forgeyard-node cleanup") {
		t.Errorf("%+v", c)
	}
}

// A log that is on this node only is told, with how to read it.
func TestUnsavedLogIsTold(t *testing.T) {
	c := judgeWorkspaces(nil, []runner.Leftover{{Name: "01A/2"}}, "01JOB", 0, nil)
	if c.Status != checkWarn || !strings.Contains(c.Detail, "01A/2") || !strings.Contains(c.Fix, "forgeyard-node job log 01JOB,") {
		t.Errorf("%+v", c)
	}
	c = judgeWorkspaces(nil, []runner.Leftover{{Name: "01A/2"}}, "", 0, nil)
	if c.Status != checkWarn || strings.Contains(c.Fix, "job log") || !strings.Contains(c.Fix, "spool/01A/2.unsaved") {
		t.Errorf("of a job that nobody knows: %+v", c)
	}
}

// What was put aside for people takes nothing of what the next logs may have.
func TestUnsavedLogsTakeNoSpool(t *testing.T) {
	p := makeSite(t, 1)[0]
	before := p.node.lookAtFacts(t.Context()).SpoolFree
	put := func(epoch string) {
		t.Helper()
		dir := filepath.Join(p.dir, dirSpool, "01A", epoch)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "00000000000000000001.log"), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("2.unsaved")
	if now := p.node.lookAtFacts(t.Context()).SpoolFree; before == 0 || now != before {
		t.Errorf("%d bytes are free, before %d", now, before)
	}
	put("3")
	if now := p.node.lookAtFacts(t.Context()).SpoolFree; now != before-1<<20 {
		t.Errorf("%d bytes are free, before %d", now, before)
	}
}

// RA-286: only the workspace of work that failed is kept, and only where that is asked for.
func TestWhoseWorkspaceIsKept(t *testing.T) {
	n := &Node{cfg: Config{Settings: sitecfg.DefaultNode()}}
	failed, ended := job.Result{Outcome: job.OutcomeFailed}, runner.Ended{Kind: runner.EndCompleted}
	if n.keeps(failed, ended) {
		t.Error("kept by default")
	}
	n.cfg.Settings.Retention.DebugFailed = time.Hour
	if !n.keeps(failed, ended) {
		t.Error("not kept where it is asked for")
	}
	if n.keeps(job.Result{Outcome: job.OutcomeDone}, ended) || n.keeps(job.Result{Outcome: job.OutcomeCancelled}, ended) || n.keeps(failed, runner.Ended{Kind: runner.EndLease}) {
		t.Error("kept though it did not fail")
	}
}

// RA-300: by default leftovers are looked for once a minute, and a folder that no work names goes
// after its hour, no look earlier and none later.
func TestLeftoversAreLookedForEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, c := t.TempDir(), bubbleClock{time.Now()}
		quiet := slog.New(slog.DiscardHandler)
		store, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "cas"), NoSync: true, Reserve: -1, ReserveInodes: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		r, err := runner.New(runner.Config{
			Site: "site", Workspaces: filepath.Join(dir, dirWorkspaces), Spool: filepath.Join(dir, dirSpool), StateDir: filepath.Join(dir, "agent"),
			Store: store, Clock: c, Log: quiet,
			Fetch:     func(context.Context, cas.Ref) error { return nil },
			FetchTree: func(context.Context, forgeyard.Digest) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		n := &Node{clock: c, log: quiet, runner: r, cfg: Config{Settings: sitecfg.DefaultNode()}}
		n.metrics = newMetrics(n)
		stray := filepath.Join(dir, dirWorkspaces, "01ARZ3NDEKTSV4RRFFQ69G5FAV-1")
		there := func() bool { _, err := os.Stat(stray); return err == nil }
		if err := os.Mkdir(stray, 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.janitorLoop(ctx) }()
		at := func(after time.Duration) { // since the start; the loop stands still then
			time.Sleep(time.Until(c.since.Add(after)))
			synctest.Wait()
		}
		at(61*time.Minute - time.Second) // the first look, which saw it, was after one
		if !there() {
			t.Error("it went before its hour was over")
		}
		at(61 * time.Minute)
		if there() {
			t.Error("it is there after the look that was due")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
