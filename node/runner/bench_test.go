//go:build linux

package runner

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/process"
	"github.com/forgeyard/forgeyard-node/node/executor/sandbox"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// patience bounds every wait for an event.
const patience = 60 * time.Second

// attemptID is that of all attempts here. Control groups have their names from it and are
// the machine's: two runs of these tests must not have the same one, but the child of
// TestRecover has its parent's.
var attemptID = forgeyard.AttemptID(cmp.Or(os.Getenv(envAttempt), forgeyard.DeriveULID(time.Now(), uint64(os.Getpid()), 0)))

// victimID is that of the neighbour which others are after, and as much this run's alone.
var victimID = "victim-" + attemptID

const envAttempt = "FORGEYARD_TEST_ATTEMPT"

// bench is a runner over real executors and a real store. It builds workspaces, as the rig
// of node/controllers builds capabilities and leases (RA-433).
type bench struct {
	t     *testing.T
	r     *Runner
	store *disk.Store
	dir   string
	hooks *hooks
	fetch func(context.Context, cas.Ref) error
	tree  func(context.Context, forgeyard.Digest) error
}

func newBench(t *testing.T, change ...func(*Config)) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fyrun-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	s, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "cas"), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	b := &bench{t: t, store: s, dir: dir, hooks: &hooks{}}
	cfg := Config{
		Site: "site", Workspaces: filepath.Join(dir, "workspaces"), Spool: filepath.Join(dir, "spool"), StateDir: filepath.Join(dir, "agent"),
		Store: s, Executors: executors(t), Clock: clock.System(), Log: slog.New(slog.DiscardHandler),
		Fetch: func(ctx context.Context, ref cas.Ref) error {
			if b.fetch != nil {
				return b.fetch(ctx, ref)
			}
			return castest.Direct{To: s}.Fetch(ctx, ref, nil)
		},
		FetchTree: func(ctx context.Context, d forgeyard.Digest) error {
			if b.tree != nil {
				return b.tree(ctx, d)
			}
			return castest.Direct{To: s}.Fetch(ctx, cas.Ref{Digest: d}, nil)
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	if b.r, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return b
}

func executors(t *testing.T) map[job.Sandbox]executor.Executor {
	t.Helper()
	m := map[job.Sandbox]executor.Executor{}
	p, err := process.New(process.Config{SameUser: true})
	if err != nil {
		t.Fatal(err)
	}
	m[job.SandboxProcess] = p
	s, err := sandbox.New(sandbox.Config{})
	if err != nil {
		t.Logf("no sandbox on this machine: %v", err)
		m[job.SandboxStrict] = p
		return m
	}
	m[job.SandboxStrict] = s
	return m
}

// hooks records what an attempt tells.
type hooks struct {
	mu        sync.Mutex
	phases    []job.Phase
	chunks    []job.LogChunk
	told      []job.Told
	refused   []string
	stopping  []bool
	tries     int
	sent      []Delivery
	phase     func(job.Phase) error
	replicate func(try int) (Replicas, error)
}

func (h *hooks) Phase(_ context.Context, p job.Phase) error {
	h.mu.Lock()
	h.phases = append(h.phases, p)
	f := h.phase
	h.mu.Unlock()
	if f != nil {
		return f(p)
	}
	return nil
}

func (h *hooks) Logged(_ context.Context, c []job.LogChunk) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.chunks = append(h.chunks, c...)
}

func (h *hooks) Report(_ context.Context, t job.Told) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told = append(h.told, t)
	return nil
}

func (h *hooks) Stopping(_ context.Context, force bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = append(h.stopping, force)
}

func (h *hooks) StopRefused(_ context.Context, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = append(h.refused, why)
}

func (h *hooks) Replicate(_ context.Context, d Delivery) (Replicas, error) {
	h.mu.Lock()
	h.sent = append(h.sent, d)
	h.tries++
	n, f := h.tries, h.replicate
	h.mu.Unlock()
	if f != nil {
		return f(n)
	}
	return Replicas{Nodes: []forgeyard.RunnerID{"me", "other"}}, nil
}

// spec is a small strict job of shell steps.
func spec(steps ...string) job.Spec {
	s := job.Spec{
		Resources: job.Resources{MilliCPU: 2000, Memory: 256 << 20, Disk: 64 << 20, Pids: 64},
		Timeouts:  job.Timeouts{Prepare: patience, Run: patience, Upload: patience},
		Stop:      job.Stop{Grace: patience},
	}
	for _, sh := range steps {
		s.Steps = append(s.Steps, job.Step{Sh: sh})
	}
	return s.Defaulted()
}

func task(s job.Spec) Task {
	return Task{Spec: s, Authority: forgeyard.Authority{
		Job: "job", Attempt: attemptID, Lease: "lease", Runner: "me", Session: "session", Spec: cas.Sum(s.Canonical()), Fence: forgeyard.Fence{Incarnation: 1, Epoch: 1},
	}}
}

func (b *bench) start(t Task) *Attempt {
	b.t.Helper()
	a, err := b.r.Start(context.Background(), t, b.hooks)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		a.LeaseEnded()
		<-a.Done()
	})
	return a
}

func (b *bench) wait(a *Attempt) (job.Result, Ended) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, e, err := a.Wait(ctx)
	if err != nil {
		b.t.Fatalf("%v; log: %s", err, b.text(a))
	}
	return r, e
}

func (b *bench) run(s job.Spec) (job.Result, Ended, *Attempt) {
	b.t.Helper()
	a := b.start(task(s))
	r, e := b.wait(a)
	return r, e, a
}

// text is what an attempt's log holds, all streams.
func (b *bench) text(a *Attempt) string {
	if a.Log() == nil {
		return ""
	}
	var sb strings.Builder
	for f, err := range a.Log().Tail(context.Background(), 0, false) {
		if err != nil {
			return sb.String() + err.Error()
		}
		sb.Write(f.Bytes)
		if f.Stream == spool.Structured {
			sb.WriteByte('\n')
		}
	}
	return sb.String()
}

// await follows the log until a program wrote text.
func (b *bench) await(a *Attempt, text string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for a.Log() == nil && ctx.Err() == nil {
		select {
		case <-a.Done():
			b.t.Fatal("ended before it had a log")
		case <-time.After(time.Millisecond):
		}
	}
	var got bytes.Buffer
	for f, err := range a.Log().Tail(ctx, 0, true) {
		if err != nil {
			b.t.Fatal(err)
		}
		if f.Stream == spool.Stdout {
			got.Write(f.Bytes)
			if bytes.Contains(got.Bytes(), []byte(text)) {
				return
			}
		}
	}
	b.t.Fatalf("no %q in %s", text, b.text(a))
}

// stdout is what the steps wrote there.
func (b *bench) stdout(a *Attempt) string {
	b.t.Helper()
	var sb strings.Builder
	for f, err := range a.Log().Tail(context.Background(), 0, false) {
		if err != nil {
			b.t.Fatal(err)
		}
		if f.Stream == spool.Stdout {
			sb.Write(f.Bytes)
		}
	}
	return sb.String()
}

func (b *bench) put(text string) cas.Ref {
	b.t.Helper()
	ref, err := b.store.Put(b.t.Context(), strings.NewReader(text), cas.PutOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return ref
}

func (b *bench) get(d forgeyard.Digest) string {
	b.t.Helper()
	o, err := b.store.Open(b.t.Context(), d)
	if err != nil {
		b.t.Fatal(err)
	}
	defer o.Close()
	t, err := io.ReadAll(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(t)
}

// empty fails when a folder holds anything.
func (b *bench) empty(name string) {
	b.t.Helper()
	l, err := os.ReadDir(filepath.Join(b.dir, name))
	if err != nil || len(l) > 0 {
		b.t.Errorf("%s holds %v (%v)", name, l, err)
	}
}
