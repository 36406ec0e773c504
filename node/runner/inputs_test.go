//go:build linux

package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// file is an input of one blob in the build folder.
func file(path string, ref cas.Ref) job.Input {
	return job.Input{Path: path, Digest: ref.Digest, Size: ref.Size}
}

// RA-196, RA-197, RA-489, CK-406: a collection while the work runs takes nothing that the attempt needs, and
// all that nobody keeps. Its inputs are kept from before the first byte comes until nothing
// of it runs any more; then what it made is kept in their place.
func TestInputsStayWhileTheyAreNeeded(t *testing.T) {
	b := newBench(t)
	in, loose := b.put("input"), b.put("nobody needs it")
	s := spec(`echo up; while [ ! -e go ]; do sleep 0.02; done; cp in out`)
	s.Inputs, s.Outputs = []job.Input{file("build/in", in)}, []job.OutputDecl{{Path: "out"}}
	gc := func(when string) {
		t.Helper()
		if r, err := b.store.GC(t.Context(), false); err != nil || r.Removed == 0 {
			t.Errorf("%s: %+v %v", when, r, err)
		}
	}
	a := b.start(task(s))
	b.await(a, "up")
	gc("while it runs")
	if !b.store.Has(t.Context(), in.Digest) || b.store.Has(t.Context(), loose.Digest) {
		t.Error("what is needed went, or what is not stays")
	}
	if err := os.WriteFile(filepath.Join(a.root, "build", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	res, _ := b.wait(a)
	if res.Outcome != job.OutcomeDone || len(res.Outputs) != 1 || res.Outputs[0].Digest != in.Digest {
		t.Fatalf("%+v", res)
	}
	b.put("loose again")
	gc("after the end")
	if b.get(res.Outputs[0].Digest) != "input" || b.get(res.Log[0].Digest) == "" {
		t.Error("a result went before the site had it")
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	if err := b.store.Unpin(t.Context(), PinOwner(attemptID)); err != nil {
		t.Fatal(err)
	}
	gc("when nobody keeps it")
	if b.store.Has(t.Context(), in.Digest) {
		t.Error("it is kept for ever")
	}
}

// RA-193, RA-179: the life of a workspace. Inputs come before anything is executed, into a
// folder made for this attempt (RA-018, RA-178, RA-489, RA-536, CK-405); the work runs in its build folder
// (RA-183); what it made is captured while the folder is there, which it is until the result
// was taken and no longer (RA-265).
func TestLifeOfAWorkspace(t *testing.T) {
	r := &asked{Executor: executors(t)[job.SandboxProcess]}
	b := newBench(t, func(c *Config) { c.Executors = map[job.Sandbox]executor.Executor{job.SandboxProcess: r} })
	begun := func() int { r.mu.Lock(); defer r.mu.Unlock(); return len(r.reqs) }
	var order []string
	b.fetch = func(context.Context, cas.Ref) error {
		if begun() > 0 {
			t.Error("something ran before the inputs were here")
		}
		order = append(order, "fetched")
		b.put("from afar")
		return nil
	}
	var a *Attempt
	started := make(chan struct{})
	b.hooks.replicate = func(int) (Replicas, error) {
		<-started
		if _, err := os.Stat(filepath.Join(a.root, executor.BuildDir, "out")); err != nil || begun() != 1 {
			t.Errorf("when outputs are delivered: %v, %d steps", err, begun())
		}
		order = append(order, "delivered")
		return Replicas{}, nil
	}
	s := spec(`pwd; cat in; echo made > out`)
	s.Sandbox = job.SandboxProcess
	s.Inputs = []job.Input{{Path: "build/in", Digest: cas.Sum([]byte("from afar")), Size: 9}}
	s.Outputs = []job.OutputDecl{{Path: "out"}}
	a = b.start(task(s))
	close(started)
	res, _ := b.wait(a)
	if res.Outcome != job.OutcomeDone || strings.Join(order, " ") != "fetched delivered" || b.stdout(a) != filepath.Join(a.root, executor.BuildDir)+"\nfrom afar" {
		t.Fatalf("%v %+v %q", order, res, b.stdout(a))
	}
	if name, ok := strings.CutPrefix(filepath.Base(a.root), string(attemptID)+"-1-"); !ok || len(name) != 12 {
		t.Errorf("workspace %s is not named by its attempt and by chance", a.root)
	}
	if _, err := os.Stat(a.root); err != nil {
		t.Errorf("it went before the result was taken: %v", err)
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	b.empty("workspaces")
}

// RA-200, RA-203: a retry asks nobody again for what the attempt before had fetched: it
// finds it in the store, and nothing else of it.
func TestRetryFindsItsInputs(t *testing.T) {
	b := newBench(t)
	fetched := 0
	b.fetch = func(context.Context, cas.Ref) error { fetched++; b.put("from afar"); return nil }
	s := spec(`ls; cat in; echo changed > in; touch left; exit 3`)
	s.Inputs = []job.Input{{Path: "build/in", Digest: cas.Sum([]byte("from afar")), Size: 9}}
	for i := range 2 {
		a := b.start(epoch(s, i+1, 1))
		if res, _ := b.wait(a); res.ExitCode != 3 || b.stdout(a) != "in\nfrom afar" || fetched != 1 {
			t.Errorf("try %d: %+v %q, fetched %d times", i+1, res, b.stdout(a), fetched)
		}
		if err := a.Finish(false); err != nil {
			t.Error(err)
		}
	}
}

// RA-254: work that failed has no outputs, though what it was to make lies there.
func TestFailedWorkHasNoOutputs(t *testing.T) {
	b := newBench(t)
	s := spec(`echo half > out; exit 3`)
	s.Outputs = []job.OutputDecl{{Path: "out"}}
	res, _, _ := b.run(s)
	if res.Outcome != job.OutcomeFailed || len(res.Outputs) != 0 || b.store.Has(t.Context(), cas.Sum([]byte("half\n"))) {
		t.Errorf("%+v", res)
	}
}

// logLines is the node's own log.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// RA-237, RA-238, RA-240, RA-243: what the work writes to stdout and to stderr, what the
// runner has to say of it, and what happened, each in a stream of its own. RA-242: a frame
// has its number, stream, time and bounded bytes; whose it is, its spool says, and its epoch
// stands in it. RA-251, RA-252: the node's own log has no word of the work's, and each line
// of it says which attempt, lease and phase it is about.
func TestLogStreams(t *testing.T) {
	var own logLines
	b := newBench(t, func(c *Config) { c.Log = slog.New(slog.NewJSONHandler(&own, nil)) })
	ref := b.put(strings.Repeat("good", 5000))
	spoil(t, filepath.Join(b.dir, "cas"), "goodgood")
	b.fetch = func(context.Context, cas.Ref) error { b.put(strings.Repeat("good", 5000)); return nil }
	s := spec(`echo to-stdout; echo to-stderr >&2`)
	s.Inputs = []job.Input{file("build/in", ref)}
	res, _, a := b.run(s)
	if res.Outcome != job.OutcomeDone {
		t.Fatalf("%+v", res)
	}
	streams, seq := map[spool.Stream]string{}, uint64(0)
	for f, err := range a.Log().Tail(t.Context(), 0, false) {
		if seq++; err != nil || f.Seq != seq || f.At == 0 || f.Epoch != 1 || len(f.Bytes) == 0 || len(f.Bytes) > spool.MaxFrameBytes {
			t.Fatalf("frame %d: %+v %v", seq, f, err)
		}
		streams[f.Stream] += string(f.Bytes)
	}
	if len(streams) != 4 || streams[spool.Stdout] != "to-stdout\n" || streams[spool.Stderr] != "to-stderr\n" ||
		!strings.Contains(streams[spool.Agent], "is damaged in this node's store") || !strings.Contains(streams[spool.Structured], "step_start") {
		t.Errorf("%q", streams)
	}
	lines := strings.Split(strings.TrimSpace(own.b.String()), "\n")
	events, about := []string{}, ""
	for _, l := range lines {
		var has struct {
			Msg, Attempt, Lease, Phase, Event string
			Epoch                             uint64
		}
		if err := json.Unmarshal([]byte(l), &has); err != nil || forgeyard.AttemptID(has.Attempt) != attemptID || has.Lease != "lease" || has.Phase == "" || has.Epoch != 1 {
			t.Errorf("%s: %v", l, err)
		}
		if has.Event != "" {
			events = append(events, has.Event)
		} else {
			about += has.Phase + ": " + has.Msg
		}
	}
	if text := own.b.String(); len(lines) != len(events)+1 || !strings.HasPrefix(about, "preparing: ") || !strings.Contains(about, "damaged") || strings.Contains(text, "to-std") {
		t.Errorf("the node's own log: %s", text)
	}
	if strings.Join(events, " ") != "workspace_prepared executor_started upload_completed" {
		t.Errorf("events in the node's own log: %q", events)
	}
}
