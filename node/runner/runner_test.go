//go:build linux

package runner

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/ender"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// A whole job: inputs by digest (RA-016), two steps in the build folder (RA-183), declared outputs
// only (RA-184, RA-515, RA-559), each by the name of what the store has of it (RA-023, RA-024,
// RA-262, RA-492), log, phases (RA-022, RA-234, RA-491), replicas. What it does to its copy of an input leaves the store as it was (RA-553), and
// nothing of it is left in the end (RA-439): no process and no group of its sandbox (RA-279), no
// workspace (RA-280), no share of the disk (RA-281), no spool (RA-282). Its phases are told as
// they come: preparing first of all (RA-225), uploading when the work has exited (RA-227).
func TestJob(t *testing.T) {
	for _, kind := range []job.Sandbox{job.SandboxStrict, job.SandboxProcess} {
		t.Run(string(kind), func(t *testing.T) { testJob(t, kind) })
	}
}

func testJob(t *testing.T, kind job.Sandbox) {
	b := newBench(t)
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "main.txt"), []byte("source"), 0o644); err != nil {
		t.Fatal(err)
	}
	ref, err := tree.Capture(t.Context(), b.store, src, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	blob := b.put("blob")
	s := spec(
		`cat $FORGEYARD_SOURCE_DIR/main.txt in/blob.txt; echo x >> in/blob.txt; mkdir out; cp in/blob.txt out/copied; echo undeclared > other; echo warn >&2`,
		`cat out/copied; (echo no > $FORGEYARD_SOURCE_DIR/y) && echo WROTE; echo "$A-$B-$FORGEYARD_EPOCH-$FORGEYARD_FENCE"; ls in`,
	)
	s.Sandbox = kind
	s.Env, s.Steps[1].Env = map[string]string{"A": "1", "B": "1"}, map[string]string{"B": "2"}
	s.Inputs = []job.Input{{Path: "build/in/blob.txt", Digest: blob.Digest, Size: blob.Size}, {Path: "source", Tree: true, Digest: ref.Digest}}
	s.Outputs = []job.OutputDecl{{Path: "out"}, {Path: "in/blob.txt"}, {Path: "never", Optional: true}}
	res, end, a := b.run(s)
	if end.Kind != EndCompleted || res.Outcome != job.OutcomeDone || len(res.Steps) != 2 || len(res.Outputs) != 2 || len(res.Replicas) != 2 || res.Short {
		t.Fatalf("%+v %+v\n%s", res, end, b.text(a))
	}
	if !res.Outputs[0].Tree || b.get(res.Outputs[1].Digest) != "blobx\n" || b.get(blob.Digest) != "blob" {
		t.Errorf("%+v", res.Outputs)
	}
	if want := "sourceblobblobx\n1-2-1-site." + string(attemptID) + ".1\nblob.txt\n"; b.stdout(a) != want { // not WROTE
		t.Errorf("stdout %q", b.stdout(a))
	}
	if !strings.Contains(b.text(a), "warn\n") {
		t.Error("stderr is missing")
	}
	checkLog(t, b, res, []string{"epoch", "step_start", "step_end", "step_start", "step_end", "end"})
	if want := []job.Phase{job.PhasePreparing, job.PhaseRunning, job.PhaseUploading}; !slices.Equal(b.hooks.phases, want) {
		t.Errorf("phases %v", b.hooks.phases)
	}
	pins, err := b.store.Pins(t.Context())
	if err != nil || len(pins) != 1 || pins[0].Owner != PinOwner(attemptID) || len(pins[0].Trees) != 1 || len(pins[0].Roots) != 1+len(res.Log) {
		t.Errorf("pins %+v %v", pins, err)
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	if err := a.Finish(false); err != nil { // idempotent
		t.Fatal(err)
	}
	b.empty("workspaces")
	b.empty("spool")
	b.empty("agent")
	for _, g := range a.exec.Named(a.id).Cgroups {
		if _, err := os.Stat(g); err == nil {
			t.Errorf("%s is left", g)
		}
	}
	if n := b.r.promised(""); n != 0 {
		t.Errorf("%d bytes of the disk are promised still", n)
	}
}

// checkLog reads the flushed chunks: no gap, and the events in order (RA-239, RA-241).
func checkLog(t *testing.T, b *bench, res job.Result, events []string) {
	t.Helper()
	seq := uint64(1)
	var got []string
	for _, c := range res.Log {
		for f, err := range spool.DecodeFrames(strings.NewReader(b.get(c.Digest))) {
			if err != nil || f.Seq != seq {
				t.Fatalf("frame %d is %d: %v", seq, f.Seq, err)
			}
			seq++
			if f.Stream != spool.Structured {
				continue
			}
			var e struct{ Event string }
			if err := json.Unmarshal(f.Bytes, &e); err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Event)
		}
	}
	if !slices.Equal(got, events) {
		t.Errorf("events %v", got)
	}
}

// Every way to fail has its own word (decision 24). Input bytes are held against their
// digest (RA-505), and what does not match keeps the work from starting (RA-017, RA-476, RA-506,
// RA-535); a sandbox that cannot be set up is no failure of the work (RA-479).
// Nothing is said to run that was never started (RA-226).
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		spec func(*bench) job.Spec
		want job.FailureCategory
		code int
	}{
		"exit code": {func(*bench) job.Spec { return spec("exit 3", "echo never") }, job.WorkloadFailed, 3},
		"signal":    {func(*bench) job.Spec { return spec("kill -SEGV $$") }, job.WorkloadFailed, 139},
		"no program": {func(*bench) job.Spec {
			s := spec("x")
			s.Steps[0].Sh, s.Steps[0].Run = "", []string{"no-such"}
			return s
		}, job.WorkloadFailed, 127},
		"memory RA-136": {func(*bench) job.Spec { return spec("head -c 800m /dev/zero | tail -c 700m >/dev/null") }, job.OutOfMemory, -1},
		"run time":      {func(*bench) job.Spec { s := spec("exec sleep 1000"); s.Timeouts.Run = 300 * time.Millisecond; return s }, job.TimedOut, 143},
		"no output":     {func(*bench) job.Spec { s := spec("true"); s.Outputs = []job.OutputDecl{{Path: "out"}}; return s }, job.OutputInvalid, 0},
		"output leads out": {func(*bench) job.Spec {
			s := spec("ln -s /etc/passwd out")
			s.Outputs = []job.OutputDecl{{Path: "out"}}
			return s
		}, job.OutputInvalid, 0},
		"missing input RA-192": {func(*bench) job.Spec {
			s := spec("true")
			s.Inputs = []job.Input{{Path: "source/x", Digest: cas.Sum([]byte("nobody has it")), Size: 13}}
			return s
		}, job.InputFetch, 0},
		"corrupt input RA-190 C01": {func(b *bench) job.Spec {
			s := spec("echo ran")
			ref := b.put(strings.Repeat("good", 5000))
			spoil(b.t, filepath.Join(b.dir, "cas"), "goodgood")
			s.Inputs = []job.Input{{Path: "source/x", Digest: ref.Digest, Size: ref.Size}}
			return s
		}, job.CorruptInput, 0},
		"input outside": {func(b *bench) job.Spec {
			s := spec("true")
			s.Inputs = []job.Input{{Path: "../x", Digest: b.put("x").Digest, Size: 1}}
			return s
		}, job.PreparationFailed, 0},
		// RA-141: whatever was said when the offer was taken, both are looked at again.
		"sandbox not offered": {func(*bench) job.Spec { s := spec("true"); s.Sandbox = "vault"; return s }, job.PreparationFailed, 0},
		"network":             {func(*bench) job.Spec { s := spec("true"); s.Network = job.NetworkSite; return s }, job.SandboxSetup, 0},
		"disk promised":       {func(*bench) job.Spec { s := spec("true"); s.Resources.Disk = 1 << 60; return s }, job.DiskFull, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			res, end, a := b.run(c.spec(b))
			if end.Kind != EndCompleted || res.Outcome != job.OutcomeFailed || res.Category != c.want || (c.code >= 0 && res.ExitCode != c.code) || res.Message == "" {
				t.Errorf("%+v %+v\n%s", res, end, b.text(a))
			}
			switch b.hooks.mu.Lock(); c.want {
			case job.InputFetch, job.CorruptInput, job.PreparationFailed, job.SandboxSetup:
				if slices.Contains(b.hooks.phases, job.PhaseRunning) {
					t.Errorf("phases %v", b.hooks.phases)
				}
			}
			b.hooks.mu.Unlock()
			if strings.Contains(b.text(a), "ran\n") || strings.Contains(b.text(a), "never\n") {
				t.Error("work went on")
			}
			if err := a.Finish(false); err != nil {
				t.Error(err)
			}
			b.empty("workspaces")
		})
	}
}

// spoil flips a byte of the stored file that begins with text.
func spoil(t *testing.T, dir, text string) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil || !strings.HasPrefix(string(b), text) {
			return err
		}
		n++
		b[len(b)/2] ^= 1
		return errorsJoin(os.Chmod(p, 0o644), os.WriteFile(p, b, 0o644))
	})
	if err != nil || n == 0 {
		t.Fatalf("%d files spoilt, %v", n, err)
	}
}

func errorsJoin(errs ...error) error {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}

// RA-475: a workload that fills the disk.
func TestDiskFull(t *testing.T) {
	needs.Root(t, "mount a small tmpfs")
	small, err := os.MkdirTemp("/tmp", "fysmall-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(small) })
	if err := unix.Mount("small", small, "tmpfs", 0, "size=8m,mode=711"); err != nil {
		needs.Lacking(t, "no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	b := newBench(t, func(c *Config) { c.Workspaces = filepath.Join(small, "w") })
	s := spec("head -c 20m /dev/zero > big")
	s.Resources.Disk = 4 << 20
	res, _, a := b.run(s)
	if res.Category != job.DiskFull || len(res.Steps) != 1 || res.Steps[0].ExitCode == 0 {
		t.Errorf("%+v", res)
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	if res, _, _ := b.run(func() job.Spec { s := spec("echo ok"); s.Resources.Disk = 1 << 20; return s }()); res.Outcome != job.OutcomeDone {
		t.Errorf("the node does not go on: %+v", res)
	}
}

// E30: the upload fails, and what the work was stays what it was. RA-264, RA-448: it is
// uploaded again until that goes well, and the work is not run again.
func TestDeliveryIsAnotherFact(t *testing.T) {
	s := spec("echo run >> log; cat log")
	s.Outputs = []job.OutputDecl{{Path: "log"}}
	t.Run("late", func(t *testing.T) {
		b := newBench(t)
		b.hooks.replicate = func(try int) (Replicas, error) {
			if try < 3 {
				return Replicas{}, forgeyard.Errorf("replicate", forgeyard.Unavailable, "no peer")
			}
			return Replicas{Nodes: []forgeyard.RunnerID{"other"}}, nil
		}
		res, end, _ := b.run(s)
		if res.Outcome != job.OutcomeDone || end.Undelivered != "" || len(res.Replicas) != 1 || b.hooks.tries != 3 || b.get(res.Outputs[0].Digest) != "run\n" {
			t.Errorf("%+v %+v after %d tries", res, end, b.hooks.tries)
		}
	})
	t.Run("never", func(t *testing.T) {
		b := newBench(t)
		b.hooks.replicate = func(int) (Replicas, error) {
			return Replicas{}, forgeyard.Errorf("replicate", forgeyard.Unavailable, "no peer")
		}
		s := s
		s.Timeouts.Upload = 300 * time.Millisecond
		res, end, _ := b.run(s)
		if res.Outcome != job.OutcomeDone || res.ExitCode != 0 || !strings.Contains(end.Undelivered, "no peer") || !res.Short || len(res.Outputs) != 1 {
			t.Errorf("%+v %+v", res, end)
		}
	})
}

// unpinned is a store whose pins cannot be written.
type unpinned struct{ cas.Store }

func (unpinned) Pin(context.Context, cas.Pin) error {
	return forgeyard.Errorf("cas pin", forgeyard.NoSpace, "no space for a pin")
}

// A result whose outputs no pin on the disk keeps is not one that passed: after a restart they
// would be collected.
func TestOutputsThatCannotBeKept(t *testing.T) {
	var st cas.Store
	b := newBench(t, func(c *Config) { st = unpinned{c.Store}; c.Store = st })
	b.hooks.replicate = func(int) (Replicas, error) { return Replicas{}, st.Pin(t.Context(), cas.Pin{}) }
	s := spec("echo run > log")
	s.Outputs, s.Timeouts.Upload = []job.OutputDecl{{Path: "log"}}, 300*time.Millisecond
	res, _, a := b.run(s)
	if res.Outcome != job.OutcomeFailed || res.Category != job.DiskFull || !strings.Contains(res.Message, "no space for a pin") || len(res.Steps) != 1 {
		t.Errorf("%+v", res)
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	s.Outputs = nil
	if res, end, _ := b.run(s); res.Outcome != job.OutcomeDone || end.Undelivered == "" {
		t.Errorf("work without outputs: %+v %+v", res, end)
	}
}

// E18: what one step leaves behind neither lives on nor writes later.
func TestDaemonsEndWithTheirStep(t *testing.T) {
	b := newBench(t)
	s := spec(`setsid sh -c 'echo up; while :; do echo x >> ghost; sleep 0.01; done' & while [ ! -s ghost ]; do sleep 0.01; done`,
		`a=$(wc -c < ghost); sleep 0.3; b=$(wc -c < ghost); [ "$a" = "$b" ] && echo quiet`)
	res, _, a := b.run(s)
	if res.Outcome != job.OutcomeDone || !strings.Contains(b.text(a), "quiet\n") {
		t.Errorf("%+v %s", res, b.text(a))
	}
}

// CK-124: a stop is a signal, the grace that the job was given (CK-129), and the end by force.
// CK-130: a matter of security waits for no grace (CK-338), nor does a person who presses harder
// (CK-337). So it ends gracefully where it can (CK-004), and for certain (CK-005, CK-336).
// RA-216, RA-217: what was asked of the attempt reaches its tree, softly first.
func TestCancel(t *testing.T) {
	soft := `trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done`
	deaf := `trap '' TERM; echo up; while :; do sleep 0.05; done`
	for name, c := range map[string]struct {
		script string
		grace  time.Duration
		cancel func(*Attempt)
		code   int
	}{
		"soft":       {soft, patience, func(a *Attempt) { a.Cancel("enough", false); a.Cancel("again", false) }, 9},
		"grace ends": {deaf, 200 * time.Millisecond, func(a *Attempt) { a.Cancel("enough", false) }, 137},
		"force":      {deaf, patience, func(a *Attempt) { a.Cancel("enough", true) }, 137},
		"soft, then force": {deaf, patience, func(a *Attempt) {
			a.Cancel("enough", false)
			a.Cancel("now", true)
		}, 137},
		"K07 cancel wins over a reclaim": {soft, patience, func(a *Attempt) {
			a.Stop(checkpoint.StopPreempt, "reclaim")
			a.Cancel("enough", false)
			a.Stop(checkpoint.StopDrain, "drain")
		}, 9},
		"security": {deaf, patience, func(a *Attempt) { a.Stop(checkpoint.StopSecurity, "revoked") }, 137},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := spec(c.script, "echo never")
			s.Stop.Grace = c.grace
			a := b.start(task(s))
			b.await(a, "up")
			c.cancel(a)
			res, end := b.wait(a)
			if end.Kind != EndCompleted || res.Outcome != job.OutcomeCancelled || res.ExitCode != c.code || len(res.Outputs) != 0 {
				t.Errorf("%+v %+v", res, end)
			}
		})
	}
}

// What is given back before its program was started leaves nothing to be done again.
func TestGivenBackWhilePreparing(t *testing.T) {
	b := newBench(t)
	fetching := make(chan struct{})
	b.fetch = func(ctx context.Context, _ cas.Ref) error {
		close(fetching)
		<-ctx.Done()
		return forgeyard.E("fetch", forgeyard.Interrupted, ctx.Err())
	}
	s := spec("echo ran")
	s.Inputs = []job.Input{{Path: "source/x", Digest: cas.Sum([]byte("x")), Size: 1}}
	a := b.start(task(s))
	<-fetching
	a.Stop(checkpoint.StopDrain, "maintenance")
	if _, end := b.wait(a); end.Kind != EndYielded || !end.Clean {
		t.Errorf("%+v", end)
	}
}

// RA-215: preparing has a bound of its own; that of the run is in TestFailures, that of the upload
// in TestDeliveryIsAnotherFact.
func TestCancelWhilePreparing(t *testing.T) {
	b := newBench(t)
	fetching := make(chan struct{})
	b.fetch = func(ctx context.Context, _ cas.Ref) error {
		close(fetching)
		<-ctx.Done()
		return forgeyard.E("fetch", forgeyard.Interrupted, ctx.Err())
	}
	s := spec("echo ran")
	s.Inputs = []job.Input{{Path: "source/x", Digest: cas.Sum([]byte("x")), Size: 1}}
	a := b.start(task(s))
	<-fetching
	a.Cancel("enough", false)
	if res, end := b.wait(a); res.Outcome != job.OutcomeCancelled || end.Kind != EndCompleted {
		t.Errorf("%+v %+v", res, end)
	}
	b.fetch = func(ctx context.Context, _ cas.Ref) error {
		<-ctx.Done()
		return forgeyard.E("fetch", forgeyard.Interrupted, ctx.Err())
	}
	s.Timeouts.Prepare = 200 * time.Millisecond
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	if res, _, _ := b.run(s); res.Category != job.TimedOut || !strings.Contains(res.Message, "preparing") {
		t.Errorf("%+v", res)
	}
}

// The right to act ends: the tree dies at once and nothing is proposed.
func TestLeaseEnded(t *testing.T) {
	b := newBench(t)
	a := b.start(task(spec(`trap '' TERM; echo up; while :; do sleep 0.05; done`)))
	b.await(a, "up")
	a.LeaseEnded()
	a.LeaseEnded()
	res, end := b.wait(a)
	if end.Kind != EndLease || len(res.Outputs) != 0 || len(res.Replicas) != 0 || b.hooks.tries != 0 {
		t.Errorf("%+v %+v", res, end)
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	b.empty("workspaces")
	// A node that hears Stale ends the epoch in the same way.
	b.hooks.phase = func(p job.Phase) error {
		if p == job.PhaseRunning {
			return forgeyard.Errorf("phase", forgeyard.Stale, "epoch 2 is current")
		}
		return nil
	}
	if _, end, _ := b.run(spec("exec sleep 1000")); end.Kind != EndLease {
		t.Errorf("%+v", end)
	}
}

// CK-135, CK-136: a job that knows no checkpoints refuses a suspend and goes on; it is given
// back by an ordinary stop.
func TestPreemptAndRefusedSuspend(t *testing.T) {
	b := newBench(t)
	a := b.start(task(spec(`trap 'exit 4' TERM; echo up; while :; do sleep 0.05; done`)))
	b.await(a, "up")
	a.Stop(checkpoint.StopSuspend, "later")
	for {
		b.hooks.mu.Lock()
		n := len(b.hooks.refused)
		b.hooks.mu.Unlock()
		if n > 0 {
			break
		}
		select {
		case <-a.Done():
			t.Fatal("a suspend without checkpoints ended the job")
		case <-time.After(time.Millisecond):
		}
	}
	a.Stop(checkpoint.StopPreempt, "reclaim")
	if res, end := b.wait(a); end.Kind != EndYielded || end.Stop != "preempt" || end.Clean || res.ExitCode != 4 {
		t.Errorf("%+v %+v", res, end)
	}
}

func TestOneEpochAtATime(t *testing.T) {
	b := newBench(t)
	a := b.start(task(spec("echo up; exec sleep 1000")))
	b.await(a, "up")
	if _, err := b.r.Start(t.Context(), task(spec("true")), b.hooks); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("%v", err)
	}
	if l := b.r.Active(); len(l) != 1 || l[0] != a {
		t.Errorf("%v", b.r.Active())
	}
}

// A leased console is the workload's for the epoch, and nobody else's afterwards.
func TestDevice(t *testing.T) {
	b := newBench(t)
	ptmx, tty, err := pty.Open()
	if err != nil {
		needs.Lacking(t, "no pty: %v", err)
	}
	t.Cleanup(func() { ptmx.Close(); tty.Close() })
	before, err := os.Stat(tty.Name())
	if err != nil {
		t.Fatal(err)
	}
	tk := task(spec(`echo "hello $FORGEYARD_DEVICE_DUT_1" > $FORGEYARD_DEVICE_DUT_1`))
	tk.Devices = []DeviceBinding{{As: "dut-1", HostPath: tty.Name()}}
	a := b.start(tk)
	if res, end := b.wait(a); res.Outcome != job.OutcomeDone {
		t.Fatalf("%+v %+v %s", res, end, b.text(a))
	}
	buf := make([]byte, 100)
	n, err := ptmx.Read(buf)
	if err != nil || !strings.Contains(string(buf[:n]), "hello /work/devices/dut-1") {
		t.Errorf("%q %v", buf[:n], err)
	}
	if owner(t, tty.Name()) != ownerOf(before) {
		t.Error("the device stays with the workload's user")
	}
}

func ownerOf(st os.FileInfo) uint32 { return st.Sys().(*syscall.Stat_t).Uid }

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return ownerOf(st)
}

// stubborn starts trees that do not die when they are told to.
type stubborn struct {
	executor.Executor
	tries chan int
	dies  chan struct{}
}

func (s stubborn) Start(ctx context.Context, r executor.Request) (executor.Handle, error) {
	h, err := s.Executor.Start(ctx, r)
	return &stubbornTree{Handle: h, of: s}, err
}

type stubbornTree struct {
	executor.Handle
	of  stubborn
	try int
}

func (h *stubbornTree) Kill(ctx context.Context) error {
	h.try++
	h.of.tries <- h.try
	select {
	case <-h.of.dies:
		return h.Handle.Kill(ctx)
	default:
		return forgeyard.Errorf("kill", forgeyard.Other, "it waits for the kernel")
	}
}

// E18: an attempt whose tree does not die is held, and named, until it is dead. Then it ends
// as it would have.
func TestTreeThatDoesNotDie(t *testing.T) {
	s := stubborn{executors(t)[job.SandboxProcess], make(chan int), make(chan struct{})}
	e := ender.New(clock.System(), slog.New(slog.DiscardHandler))
	b := newBench(t, func(c *Config) {
		c.Ender, c.Executors = e, map[job.Sandbox]executor.Executor{job.SandboxProcess: s}
	})
	sp := spec("echo done")
	sp.Sandbox = job.SandboxProcess
	a := b.start(task(sp))
	for range 2 { // with the second, the first was in vain
		select {
		case <-s.tries:
		case <-a.Done():
			t.Fatalf("it ended before it was killed: %s", b.text(a))
		}
	}
	stuck := e.Stuck()
	pid, _ := a.Process()
	if len(stuck) != 1 || stuck[0].ID != epochName(a.Authority()) || stuck[0].PID != pid || !strings.Contains(stuck[0].Why, "waits for the kernel") {
		t.Errorf("%+v, process %d", stuck, pid)
	}
	select {
	case <-a.Done():
		t.Error("it has ended, and its tree lives")
	default:
	}
	close(s.dies)
	go func() {
		for range s.tries {
		}
	}()
	if res, end := b.wait(a); end.Kind != EndCompleted || res.Outcome != job.OutcomeDone || b.stdout(a) != "done\n" {
		t.Errorf("%+v %+v", res, end)
	}
	if stuck := e.Stuck(); len(stuck) != 0 {
		t.Errorf("it is dead: %+v", stuck)
	}
	close(s.tries)
}
