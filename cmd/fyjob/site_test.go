//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
)

// TestMain lets this binary be fyjob itself: a link of that name is on the PATH of the
// workloads below, so that they run it as a real process.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "fyjob" {
		main()
	}
	os.Exit(m.Run())
}

const (
	testJob     = forgeyard.JobID("01J0000000000000000000000J")
	testAttempt = forgeyard.AttemptID("01J0000000000000000000000A")
)

// site is a runner and a log of one attempt, on a real store. It does what node/runner
// does around the calls of package capture, and nothing of leases.
type site struct {
	t        *testing.T
	store    *disk.Store
	contract checkpoint.Contract
	history  []checkpoint.Commit
	epochs   uint64
	bin      string // with fyjob in it
	dir      string // of the current epoch
	secrets  [][]byte

	// verdict replaces the log's answer to a good checkpoint; nil commits it.
	verdict func(seq int) checkpoint.Answer
	// killAfter kills the program when its so many-th checkpoint is committed, before it
	// is told.
	killAfter int
	// committed is told of each commit, while the program waits for its answer.
	committed func(n int)
	messages  []checkpoint.Message
}

func newSite(t *testing.T, r job.Resume) *site {
	c, err := checkpoint.NewContract(r, checkpoint.Limits{})
	check(t, err)
	store, err := disk.Open(disk.Config{Dir: filepath.Join(t.TempDir(), "cas"), NoSync: true})
	check(t, err)
	t.Cleanup(func() { check(t, store.Close()) })
	s := &site{t: t, store: store, contract: c, bin: t.TempDir()}
	self, err := os.Executable()
	check(t, err)
	check(t, os.Symlink(self, filepath.Join(s.bin, "fyjob")))
	return s
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *site) path(p string) string { return filepath.Join(s.dir, p) }

// grant opens the next epoch: fresh directories, and the newest usable checkpoint.
func (s *site) grant() map[string]string {
	s.epochs++
	s.dir = s.t.TempDir()
	for _, d := range []string{"ckpt", "ctl", "build"} {
		check(s.t, os.Mkdir(s.path(d), 0o755))
	}
	check(s.t, capture.Prepare(s.path("ctl")))
	e := checkpoint.Epoch{Site: "01J0000000000000000000000S", Attempt: testAttempt, Epoch: s.epochs, CkptDir: s.path("ckpt"), CtlDir: s.path("ctl"), StopGrace: time.Second}
	if best, ok, _ := checkpoint.Select(s.history); ok {
		m, err := capture.LoadManifest(s.t.Context(), s.store, best.Manifest)
		check(s.t, err)
		target := checkpoint.Target{Job: testJob, Attempt: testAttempt, Spec: cas.Sum([]byte("spec")), Contract: s.contract, OS: runtime.GOOS, Arch: runtime.GOARCH}
		check(s.t, checkpoint.Usable(m, target).Err("resume"))
		e.RestoreDir, e.Restore, e.RestoreFormat = s.path("restore"), &best, m.Format
		check(s.t, capture.Restore(s.t.Context(), s.store, m, e.RestoreDir))
		restored := e.RestoreDir
		s.t.Cleanup(func() { check(s.t, tree.Remove(restored)) })
		if s.contract.Mode == checkpoint.ModeFramework {
			b, err := capture.RestoredBinding(e.RestoreDir)
			check(s.t, err)
			e.List = b.List.String()
		}
	}
	return s.contract.Env(e)
}

func (s *site) expect() capture.Expect {
	last := 0
	for _, c := range s.history {
		if c.Epoch == s.epochs {
			last = c.Seq
		}
	}
	return capture.Expect{
		Authority: forgeyard.Authority{Job: testJob, Attempt: testAttempt, Spec: cas.Sum([]byte("spec")), Runner: "01J0000000000000000000000R", Fence: forgeyard.Fence{Incarnation: 1, Epoch: s.epochs}},
		Contract:  s.contract, LastSeq: last, Secrets: s.secrets,
	}
}

// command prepares a program of the current epoch.
func (s *site) command(env map[string]string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.t.Context(), argv[0], argv[1:]...)
	cmd.Dir = s.path("build")
	cmd.Env = []string{"PATH=" + s.bin + ":/usr/bin:/bin"}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// run grants an epoch, runs a program in it and serves its checkpoints until it ends.
func (s *site) run(argv ...string) (code int, stderr string) {
	env := s.grant()
	cmd := s.command(env, argv...)
	var out strings.Builder
	cmd.Stderr = &out
	check(s.t, cmd.Start())
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // gone already is as good
	code = s.serve(cmd.Wait, kill)
	s.t.Logf("epoch %d: exit %d\n%s", s.epochs, code, out.String())
	return code, out.String()
}

// serve answers until wait returns, then takes what was sealed and not yet seen.
func (s *site) serve(wait func() error, kill func()) int {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- wait(); cancel() }()
	w := capture.NewWatcher(s.path("ckpt"), s.path("ctl"), testAttempt, s.epochs)
	n := 0
	for {
		found, err := w.Next(ctx, clock.System(), 2*time.Millisecond)
		if forgeyard.KindOf(err) == forgeyard.Interrupted {
			found, err = w.Poll()
			check(s.t, err)
			if len(found.Sealed)+len(found.Messages) == 0 {
				break
			}
		}
		check(s.t, err)
		s.messages = append(s.messages, found.Messages...)
		for _, seq := range found.Sealed {
			a := s.ingest(seq)
			if a.Status == checkpoint.StatusCommitted {
				if n++; n == s.killAfter {
					kill()
				}
				if s.committed != nil {
					s.committed(n)
				}
			}
			check(s.t, w.Settle(a))
			check(s.t, capture.RemoveSlot(s.path("ckpt"), seq))
		}
	}
	err := <-done
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	check(s.t, err)
	return 0
}

func (s *site) ingest(seq int) checkpoint.Answer {
	g, err := capture.IngestSealed(s.t.Context(), s.store, filepath.Join(s.path("ckpt"), checkpoint.SlotName(seq)), s.expect())
	if f, ok := checkpoint.FindingOf(err); !ok {
		s.t.Fatal(err)
	} else if !f.OK() {
		return checkpoint.AnswerOf(seq, f)
	}
	if s.verdict != nil {
		return s.verdict(seq)
	}
	s.commit(g)
	return checkpoint.Answer{Seq: seq, Status: checkpoint.StatusCommitted}
}

func (s *site) commit(g capture.Ingested) {
	var err error
	s.history, err = checkpoint.Record(s.history, g.Commit(1, nil))
	check(s.t, err)
}

// exited takes an exit-driven checkpoint.
func (s *site) exited() {
	g, err := capture.IngestExit(s.t.Context(), s.store, s.path("build"), s.expect())
	check(s.t, err)
	s.commit(g)
}

// sum is what the examples compute.
func sum(total int) string {
	x := 0
	for i := 1; i <= total; i++ {
		x = (x*31 + i) % 1000003
	}
	return fmt.Sprintln(x)
}

func (s *site) result() string {
	b, err := os.ReadFile(s.path("build/result"))
	check(s.t, err)
	return string(b)
}

func example(t *testing.T, name string) string {
	p, err := filepath.Abs(filepath.Join("../../docs/examples", name))
	check(t, err)
	return p
}

func slots(h []checkpoint.Commit) (out []string) {
	for _, c := range h {
		out = append(out, fmt.Sprintf("%d.%d", c.Epoch, c.Seq))
	}
	return slices.Clip(out)
}
