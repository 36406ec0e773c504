//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
)

// The scripts in docs/examples are what docs/checkpoints.md shows. They run here as real
// processes, are interrupted, and must come to the result of an undisturbed run.

// What comes of it is what comes of an undisturbed run (CK-029).
func TestExampleExit85(t *testing.T) {
	s := newSite(t, job.Resume{Mode: job.ResumeApplication, Checkpoint: job.CheckpointDecl{Files: []string{"state/"}}})
	const total = 1000
	for {
		code, _ := s.run("/bin/sh", example(t, "exit85.sh"), "1000", "300")
		if code == 0 {
			break
		}
		if code != s.contract.ExitCode {
			t.Fatalf("exit %d", code)
		}
		s.exited()
		if n := len(s.history); n > 1 && checkpoint.NoProgress(s.history[n-2], s.history[n-1]) {
			t.Fatal("it goes round without moving")
		}
	}
	if got := s.result(); got != sum(total) || s.epochs != 4 || len(s.history) != 3 {
		t.Fatalf("result %q, want %q; %d epochs, checkpoints %v", got, sum(total), s.epochs, slots(s.history))
	}
}

func sealedSite(t *testing.T) *site {
	return newSite(t, job.Resume{Mode: job.ResumeApplication, FormatName: "count", FormatVersion: 1})
}

// TestExampleSealed kills the program -9 after its second checkpoint, then again at the
// first of the next epoch, and lets the third epoch end: what the program saved itself is enough
// to go on from (CK-178).
func TestExampleSealed(t *testing.T) {
	s := sealedSite(t)
	s.killAfter = 2
	if code, _ := s.run("/bin/sh", example(t, "sealed.sh"), "1000", "200"); code != -1 {
		t.Fatalf("exit %d, it was to be killed", code)
	}
	s.killAfter = 1
	if code, _ := s.run("/bin/sh", example(t, "sealed.sh"), "1000", "200"); code != -1 {
		t.Fatalf("exit %d, it was to be killed", code)
	}
	s.killAfter = 0
	if code, _ := s.run("/bin/sh", example(t, "sealed.sh"), "1000", "200"); code != 0 || s.result() != sum(1000) {
		t.Fatalf("exit %d, result %q, want %q", code, s.result(), sum(1000))
	}
	// Slots go on from the restored one, and nothing was done twice.
	if got := strings.Join(slots(s.history), " "); got != "1.1 1.2 2.3 3.4 3.5" {
		t.Errorf("checkpoints %s", got)
	}
	if p := s.history[3].Progress; p.Done != 800 || p.Total != 1000 {
		t.Errorf("progress %+v", p)
	}
	if len(s.messages) != 2 || s.messages[1].Kind != checkpoint.MessageRestoreOK {
		t.Errorf("messages %+v", s.messages)
	}
}

// TestExampleSealedDrain asks for a checkpoint and an exit in the middle.
func TestExampleSealedDrain(t *testing.T) {
	s := sealedSite(t)
	s.committed = func(n int) {
		if n == 1 {
			check(t, capture.WriteRequest(s.path("ctl"), checkpoint.Request{Seq: 1, Kind: checkpoint.StopDrain, Reason: "maintenance", WantCheckpoint: true, WantExit: true}))
		}
	}
	code, _ := s.run("/bin/sh", example(t, "sealed.sh"), "1000000", "100")
	if code != checkpoint.DefaultExitCode || len(s.history) != 1 {
		t.Fatalf("exit %d, checkpoints %v", code, slots(s.history))
	}
}

// TestExampleSealedRejectsBadState: a program that cannot read what it is given says so,
// and the checkpoint is out of use at once.
func TestExampleSealedRejectsBadState(t *testing.T) {
	s := sealedSite(t)
	code, _ := s.run("/bin/sh", "-euc", `d=$(fyjob ckpt begin); : >"$d/sum"; fyjob ckpt commit "$d"`)
	if code != 0 || len(s.history) != 1 {
		t.Fatalf("exit %d", code)
	}
	code, _ = s.run("/bin/sh", example(t, "sealed.sh"), "1000")
	if code != s.contract.RejectCode || len(s.messages) != 1 || s.messages[0].Kind != checkpoint.MessageRestoreReject {
		t.Fatalf("exit %d, messages %+v", code, s.messages)
	}
	h, quarantined, err := checkpoint.ResumeFailed(s.history, s.history[0].Manifest, s.contract, true)
	check(t, err)
	if _, ok, _ := checkpoint.Select(h); ok || !quarantined {
		t.Fatal("a rejected checkpoint is still in use")
	}
}

// TestExamplesWithoutForgeyard: both run by themselves.
func TestExamplesWithoutForgeyard(t *testing.T) {
	s := sealedSite(t)
	s.grant()
	cmd := s.command(nil, "/bin/sh", example(t, "sealed.sh"), "500", "100")
	if out, err := cmd.CombinedOutput(); err != nil || s.result() != sum(500) {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd = s.command(nil, "/bin/sh", example(t, "exit85.sh"), "500", "500")
	if out, err := cmd.CombinedOutput(); err != nil || s.result() != sum(500) {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestK16SecretIsRejected runs the whole way: the value is in no answer and in no file
// of the store.
func TestK16SecretIsRejected(t *testing.T) {
	const secret = "hunter2-correct-horse" // of no system: only looked for
	s := sealedSite(t)
	s.secrets = [][]byte{[]byte(secret)}
	code, stderr := s.run("/bin/sh", "-euc", `d=$(fyjob ckpt begin); echo "token `+secret+`" >"$d/conf"; fyjob ckpt commit "$d"`)
	if code != exitRejected || !strings.Contains(stderr, "secret-material") || strings.Contains(stderr, secret) {
		t.Fatalf("exit %d, %q", code, stderr)
	}
	err := filepath.WalkDir(filepath.Dir(s.bin), func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if strings.Contains(string(b), secret) {
			t.Errorf("%s holds the secret", p)
		}
		return err
	})
	check(t, err)
}

// TestExamplesOfOtherLanguages kills the Python and the Go program after their first
// checkpoint; the next epoch ends with the result of an undisturbed run.
func TestExamplesOfOtherLanguages(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "count")
	if out, err := exec.Command("go", "build", "-o", binary, example(t, "sealed.go")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, argv := range map[string][]string{"python": {"/usr/bin/python3", example(t, "sealed.py")}, "go": {binary}} {
		if _, err := os.Stat(argv[0]); err != nil {
			t.Errorf("%s is not here: %v", name, err)
			continue
		}
		argv = append(argv, "1000", "250")
		s := sealedSite(t)
		s.killAfter = 1
		if code, _ := s.run(argv...); code != -1 {
			t.Fatalf("%s: exit %d, it was to be killed", name, code)
		}
		s.killAfter = 0
		if code, _ := s.run(argv...); code != 0 || s.result() != sum(1000) {
			t.Fatalf("%s: exit %d, result %q", name, code, s.result())
		}
		if got := strings.Join(slots(s.history), " "); got != "1.1 2.2 2.3 2.4" {
			t.Errorf("%s: checkpoints %s", name, got)
		}
	}
}

// A self-checkpointing program of HTCondor runs unchanged, without a word of Forgeyard in
// its environment but what every job has: its file is where it left it (FYCP/1 §9).
func TestExampleOfHTCondor(t *testing.T) {
	text, err := os.ReadFile(example(t, "condor.py"))
	check(t, err)
	_, program, _ := strings.Cut(string(text), "import os")
	if strings.Contains(strings.ToLower(program), "forgeyard") {
		t.Error("the program knows where it runs")
	}
	s := newSite(t, job.Resume{Mode: job.ResumeApplication, Profile: job.ProfileHTCondor, Checkpoint: job.CheckpointDecl{Files: []string{"sum.checkpoint"}}})
	for range 5 {
		env := s.grant()
		if _, told := env[checkpoint.EnvRestoreDir]; told {
			t.Fatal("it is told of a restore")
		}
		if b, err := os.ReadFile(s.path("restore/sum.checkpoint")); err == nil { // what node/runner does, see TestProfileHTCondor
			check(t, os.WriteFile(s.path("build/sum.checkpoint"), b, 0o644))
		}
		cmd := s.command(env, "/usr/bin/python3", example(t, "condor.py"), "1000", "300")
		out, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		if cmd.ProcessState.ExitCode() != checkpoint.DefaultExitCode {
			t.Fatalf("%v\n%s", err, out)
		}
		s.exited()
	}
	if s.result() != sum(1000) || s.epochs != 4 {
		t.Errorf("result %q after %d epochs", s.result(), s.epochs)
	}
}
