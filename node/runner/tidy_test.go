//go:build linux

package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
)

// mountIn mounts something small below a folder until the returned function is called.
func mountIn(t *testing.T, dir string) (unmount func()) {
	t.Helper()
	needs.Root(t, "mount something in a workspace")
	at := filepath.Join(dir, "mnt")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("left", at, "tmpfs", 0, "size=64k"); err != nil {
		needs.Lacking(t, "no tmpfs can be mounted: %v", err)
	}
	off := func() { _ = unix.Unmount(at, unix.MNT_DETACH) }
	t.Cleanup(off)
	return off
}

func (b *bench) tidy(t Tidy) []Leftover {
	b.t.Helper()
	found, err := b.r.Tidy(b.t.Context(), t)
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// RA-283: a clean-up that fails is no matter of the result. It is told, tried again, and what
// the attempt had is nobody else's until it succeeds; a look alone tries nothing.
func TestCleanUpIsTriedAgain(t *testing.T) {
	b := newBench(t)
	res, end, a := b.run(spec("echo done"))
	unmount := mountIn(t, a.root)
	if err := a.Finish(false); err == nil || !strings.Contains(err.Error(), "is mounted in it") {
		t.Fatalf("%v", err)
	}
	if res.Outcome != job.OutcomeDone || end.Kind != EndCompleted {
		t.Errorf("%+v %+v", res, end)
	}
	left := b.r.Undone()
	if len(left) != 1 || left[0].What != LeftAttempt || left[0].Name != a.id || !strings.Contains(left[0].Why, "tried 1 times") {
		t.Fatalf("%+v", left)
	}
	if b.r.promised("") == 0 || a.exec.Users() != nil && a.exec.Users().Lent() == 0 {
		t.Error("its disk or its user are others' already")
	}
	if f := b.tidy(Tidy{}); len(f) != 1 || f[0].Removed || !f[0].Due || f[0].Why == "" {
		t.Fatalf("%+v", f)
	}
	unmount()
	if f := b.tidy(Tidy{Dry: true}); len(f) != 1 || f[0].Removed || len(b.r.Undone()) != 1 {
		t.Fatalf("%+v", f)
	}
	if f := b.tidy(Tidy{}); len(f) != 1 || !f[0].Removed {
		t.Fatalf("%+v", f)
	}
	if len(b.r.Undone()) != 0 || b.r.promised("") != 0 || a.exec.Users() != nil && a.exec.Users().Lent() != 0 || len(b.r.Active()) != 0 {
		t.Errorf("%+v, %d attempts", b.r.Undone(), len(b.r.Active()))
	}
	b.empty("workspaces")
	b.empty("spool")
	b.empty("agent")
}

// A control group that stays behind is a leftover of the attempt like its folder.
func TestGroupThatStays(t *testing.T) {
	needs.Root(t, "make a control group below a job's")
	b := newBench(t)
	s := spec("echo up; exec sleep 1000")
	s.Sandbox = job.SandboxProcess
	a := b.start(task(s))
	b.await(a, "up")
	groups := a.exec.Named(a.id).Cgroups
	if len(groups) == 0 {
		needs.Lacking(t, "there are no control groups")
	}
	below := filepath.Join(groups[0], "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Rmdir(below) })
	a.Cancel("enough", true)
	if res, _ := b.wait(a); res.Outcome != job.OutcomeCancelled {
		t.Errorf("%+v", res)
	}
	if err := a.Finish(false); err == nil || len(b.r.Undone()) != 1 {
		t.Fatalf("%v %+v", err, b.r.Undone())
	}
	if err := unix.Rmdir(below); err != nil {
		t.Fatal(err)
	}
	if f := b.tidy(Tidy{}); len(f) != 1 || !f[0].Removed {
		t.Fatalf("%+v", f)
	}
	for _, g := range groups {
		if _, err := os.Stat(g); err == nil {
			t.Errorf("%s is there", g)
		}
	}
}

// RA-284, RA-285: folders that nobody names go after a grace from when they were first seen;
// those of an attempt at work stay, and one that cannot go is told.
func TestTidyStrays(t *testing.T) {
	clk := clock.NewManual(time.UnixMilli(1_700_000_000_000))
	b := newBench(t, func(c *Config) { c.Clock = clk })
	strays := map[string]bool{"workspaces/01STRAY-1-abcdef": true, "workspaces/forgeyard-probe-1": true, "spool/01STRAY/1": true}
	for s := range strays {
		if err := os.MkdirAll(filepath.Join(b.dir, s), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	unmount := mountIn(t, filepath.Join(b.dir, "workspaces/01STRAY-1-abcdef"))
	grace := Tidy{Stale: time.Hour}
	for _, f := range b.tidy(grace) {
		if f.Due || f.Removed {
			t.Errorf("seen for the first time: %+v", f)
		}
	}
	clk.Advance(time.Hour - time.Second)
	for _, f := range b.tidy(grace) {
		if f.Due {
			t.Errorf("within its grace: %+v", f)
		}
	}
	clk.Advance(time.Second)
	removed := 0
	for _, f := range b.tidy(grace) {
		if f.Removed {
			removed++
		}
	}
	if left := b.r.Undone(); removed != 2 || len(left) != 1 || left[0].What != LeftWorkspace || !strings.Contains(left[0].Why, "mounted") {
		t.Errorf("%d removed, left %+v", removed, left)
	}
	unmount()
	b.tidy(grace)
	if left := b.r.Undone(); len(left) != 0 {
		t.Errorf("%+v", left)
	}
	b.empty("workspaces")
	b.empty("spool")
}

// A look goes on where a log goes between two of its steps, and past a file that is no log.
func TestTidyBesideEndings(t *testing.T) {
	b := newBench(t)
	if err := os.WriteFile(filepath.Join(b.dir, "spool", ".check"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	grace := Tidy{Stale: time.Hour}
	b.tidy(grace)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		dir := filepath.Join(b.dir, "spool", "01ENDING")
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Remove(dir)); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 5000 {
		b.tidy(grace)
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What is in use stays, whatever the grace; so does the folder of a probe that is under way.
func TestTidyLeavesWorkAlone(t *testing.T) {
	b := newBench(t)
	a := b.start(task(spec("echo up; exec sleep 1000")))
	b.await(a, "up")
	if err := os.Mkdir(filepath.Join(b.dir, "workspaces", "forgeyard-probe-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if f := b.tidy(Tidy{}); len(f) != 1 || f[0].Removed || f[0].Due {
		t.Errorf("%+v", f)
	}
	for _, dir := range []string{a.root, filepath.Join(b.dir, "spool", string(attemptID), "1")} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// RA-286, RA-274: the workspace of a failed job stays for a while where that is wanted, for
// nobody but the node's own user; it goes when its time is over or work needs the room, and
// that of a job with secrets goes at once.
func TestKeptWorkspace(t *testing.T) {
	clk := clock.NewManual(time.Now())
	b := newBench(t)
	b.r.cfg.Clock = wallOf{b.r.cfg.Clock, clk}
	fail := func() *Attempt {
		t.Helper()
		res, _, a := b.run(spec("echo look at this > clue; head -c 100000 /dev/zero > more; exit 3"))
		if res.Outcome != job.OutcomeFailed {
			t.Fatalf("%+v", res)
		}
		if err := a.Finish(true); err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := fail()
	clue := filepath.Join(a.root, "build", "clue")
	if text, err := os.ReadFile(clue); err != nil || string(text) != "look at this\n" {
		t.Fatalf("%q %v", text, err)
	}
	if st, err := os.Stat(a.root); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", st, err)
	}
	if b.r.promised("") != 0 || len(b.r.Active()) != 0 || b.r.keptBytes() < 100_000 {
		t.Errorf("%d promised, %d active, %d kept", b.r.promised(""), len(b.r.Active()), b.r.keptBytes())
	}
	day := Tidy{Keep: 24 * time.Hour}
	b.r.Recover(t.Context()) // a restart
	clk.Advance(24*time.Hour - time.Minute)
	if f := b.tidy(day); len(f) != 1 || f[0].What != LeftKept || f[0].Due {
		t.Errorf("%+v", f)
	}
	clk.Advance(2 * time.Minute)
	if f := b.tidy(day); len(f) != 1 || !f[0].Removed {
		t.Errorf("%+v", f)
	}
	b.empty("workspaces")

	fail()
	if freed := b.r.Evict(1); freed < 100_000 {
		t.Errorf("%d bytes came free", freed)
	}
	b.empty("workspaces")

	fail()
	clk.Advance(-48 * time.Hour) // the clock was wrong, and is set
	if f := b.tidy(day); len(f) != 1 || !f[0].Removed {
		t.Errorf("%+v", f)
	}
	_, _, s := b.run(spec("exit 3"))
	s.task.Spec.Secrets = []job.SecretRef{{Name: "PIN", Env: "PIN"}}
	if err := s.Finish(true); err != nil {
		t.Fatal(err)
	}
	b.empty("workspaces")
}

// wallOf has the wall clock of another.
type wallOf struct {
	clock.Clock
	of *clock.Manual
}

func (w wallOf) Wall() time.Time { return w.of.Wall() }

// RA-265: a workspace whose result waits for its answer can go before that, with its share of
// the disk. All the rest waits for Finish.
func TestVacate(t *testing.T) {
	b := newBench(t)
	s := spec("echo made > out")
	s.Outputs = []job.OutputDecl{{Path: "out"}}
	res, _, a := b.run(s)
	if b.r.promised("") == 0 {
		t.Fatal("nothing was promised")
	}
	for range 2 {
		if err := a.Vacate(); err != nil {
			t.Fatal(err)
		}
	}
	b.empty("workspaces")
	if b.r.promised("") != 0 || len(b.r.Active()) != 1 || b.get(res.Outputs[0].Digest) != "made\n" || !strings.Contains(b.text(a), "end") {
		t.Errorf("%d promised, %d active", b.r.promised(""), len(b.r.Active()))
	}
	if err := a.KeepCompletion([]byte("message 1")); err != nil {
		t.Fatal(err)
	}
	if err := a.Finish(true); err != nil {
		t.Fatal(err)
	}
	b.empty("spool")
	b.empty("agent")
}

// What a start could not clean up after a crash is tried again while the node runs, and a
// completion that is answered meanwhile takes nothing of that from the next start.
func TestRecoveryIsTriedAgain(t *testing.T) {
	b := newBench(t)
	dir := filepath.Join(b.dir, "workspaces", string(attemptID)+"-1-abcdef")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	unmount := mountIn(t, dir)
	authority := task(spec("true")).Authority
	raw, err := json.Marshal(state{Version: stateVersion, Authority: authority, Workspace: dir, Completion: []byte("message 1")})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.dir, "agent", epochName(authority)+stateSuffix)
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	got := b.r.Recover(t.Context())
	if len(got) != 1 || got[0].Err == nil || got[0].Alive || len(got[0].Completion) == 0 || len(b.r.Undone()) != 1 {
		t.Fatalf("%+v %+v", got, b.r.Undone())
	}
	if err := b.r.Forget(authority); err != nil {
		t.Fatal(err)
	}
	if s, err := readState(file); err != nil || len(s.Completion) != 0 || s.Workspace != dir {
		t.Errorf("%+v %v", s, err)
	}
	if f := b.tidy(Tidy{}); len(f) != 1 || f[0].Removed {
		t.Errorf("%+v", f)
	}
	unmount()
	if f := b.tidy(Tidy{}); len(f) != 1 || !f[0].Removed {
		t.Errorf("%+v", f)
	}
	b.empty("workspaces")
	b.empty("agent")
	if again := b.r.Recover(t.Context()); len(again) != 0 {
		t.Errorf("%+v", again)
	}
}

// While a large workspace is deleted, what the node asks of the attempt is answered: a node
// that waited there would renew no lease.
func TestVacateHoldsNobody(t *testing.T) {
	const files = 2000
	b := newBench(t)
	_, _, a := b.run(spec("echo done"))
	large := filepath.Join(a.root, "build")
	for i := range files {
		if err := os.WriteFile(filepath.Join(large, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	vacated := make(chan error, 1)
	go func() { vacated <- a.Vacate() }()
	answered := false
	for !answered && !a.vacated.Load() {
		l, err := os.ReadDir(large)
		a.Process()
		answered = (err != nil || len(l) < files) && !a.vacated.Load()
	}
	if err := <-vacated; err != nil || !answered {
		t.Errorf("answered while it was deleted: %v, %v", answered, err)
	}
	if err := a.Finish(false); err != nil {
		t.Error(err)
	}
}
