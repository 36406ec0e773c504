//go:build linux

package runner

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// fullStore is a store that takes nothing while it is full.
type fullStore struct {
	cas.Store
	full atomic.Bool
}

func (s *fullStore) Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	if s.full.Load() {
		return cas.Ref{}, forgeyard.Errorf("put", forgeyard.NoSpace, "the store is full")
	}
	return s.Store.Put(ctx, r, o)
}

// crashed leaves what a killed process leaves: a log that is spooled, and the record of its epoch.
func (b *bench) crashed(text string) forgeyard.Authority {
	b.t.Helper()
	authority := task(spec("true")).Authority
	s, err := spool.Open(spool.Config{Dir: filepath.Join(b.dir, "spool", string(authority.Attempt), "1"), Epoch: authority.Fence.Epoch, Clock: clock.System()})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := s.Append(b.t.Context(), spool.Stdout, 1, []byte(text)); err != nil {
		b.t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.t.Fatal(err)
	}
	raw, err := json.Marshal(state{Version: stateVersion, Authority: authority})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "agent", epochName(authority)+stateSuffix), raw, 0o600); err != nil {
		b.t.Fatal(err)
	}
	return authority
}

// unsaved is the text of an epoch's log that was put aside.
func (b *bench) unsaved(a forgeyard.Authority) (text string) {
	t := b.t
	t.Helper()
	for f, err := range b.r.UnsavedLog(a.Attempt, a.Fence.Epoch) {
		if err != nil {
			t.Fatal(err)
		}
		text += string(f.Bytes)
	}
	return text
}

// A log that could not be saved after a crash is saved as soon as the store takes it.
func TestLogIsSavedAgain(t *testing.T) {
	var st *fullStore
	b := newBench(t, func(c *Config) { st = &fullStore{Store: c.Store}; c.Store = st })
	b.crashed("what it said last\n")
	st.full.Store(true)
	got := b.r.Recover(t.Context())
	if len(got) != 1 || got[0].Err == nil || got[0].Alive || !got[0].Unsaved {
		t.Fatalf("%+v", got)
	}
	if err := b.r.SaveAgain(t.Context(), &got[0]); forgeyard.KindOf(err) != forgeyard.NoSpace || !got[0].Unsaved {
		t.Fatalf("%v %+v", err, got[0])
	}
	st.full.Store(false)
	if err := b.r.SaveAgain(t.Context(), &got[0]); err != nil || got[0].Unsaved || len(got[0].Log) != 1 || got[0].LastLogSeq != 1 {
		t.Fatalf("%v %+v", err, got[0])
	}
	if !strings.Contains(b.get(got[0].Log[0].Digest), "what it said last") {
		t.Error("another log was saved")
	}
	if err := b.r.Forget(got[0].Authority); err != nil {
		t.Fatal(err)
	}
	b.tidy(Tidy{Logs: time.Hour})
	b.empty("spool")
	b.empty("agent")
}

// One that is not saved when its epoch is given back stays for people to read: no look at
// leftovers takes it, nor another start, until its time is over.
func TestUnsavedLogStays(t *testing.T) {
	for name, giveBack := range map[string]func(*bench, forgeyard.Authority) error{
		"before the next look": func(b *bench, a forgeyard.Authority) error { return b.r.Forget(a) },
		"after it":             func(*bench, forgeyard.Authority) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			var st *fullStore
			clk := clock.NewManual(time.Now())
			b := newBench(t, func(c *Config) { st = &fullStore{Store: c.Store}; c.Store, c.Clock = st, wallOf{c.Clock, clk} })
			a := b.crashed("what it said last\n")
			st.full.Store(true)
			if got := b.r.Recover(t.Context()); len(got) != 1 || !got[0].Unsaved {
				t.Fatalf("%+v", got)
			}
			if err := giveBack(b, a); err != nil {
				t.Fatal(err)
			}
			b.tidy(Tidy{Logs: time.Hour})
			b.empty("agent")
			st.full.Store(false)
			if again := b.r.Recover(t.Context()); len(again) != 0 {
				t.Errorf("%+v", again)
			}
			b.tidy(Tidy{Logs: time.Hour})
			if got := b.unsaved(a); got != "what it said last\n" {
				t.Errorf("%q", got)
			}
			if l, err := b.r.Unsaved(); err != nil || len(l) != 1 || l[0].What != LeftLog || l[0].Name != string(a.Attempt)+"/1" {
				t.Errorf("%+v %v", l, err)
			}
			clk.Advance(2 * time.Hour)
			b.tidy(Tidy{Logs: time.Hour})
			b.empty("spool")
			if b.r.HasUnsaved(a.Attempt, a.Fence.Epoch) || b.unsaved(a) != "" {
				t.Error("it is still there")
			}
		})
	}
}

// A clock that is behind, or was, removes nothing that is nowhere else: the time counts from the
// putting aside. Who asks for it to go removes it all the same.
func TestUnsavedLogAndClocks(t *testing.T) {
	var st *fullStore
	clk := clock.NewManual(time.Now().Add(1000 * time.Hour)) // the folder was written to long before
	b := newBench(t, func(c *Config) { st = &fullStore{Store: c.Store}; c.Store, c.Clock = st, wallOf{c.Clock, clk} })
	a := b.crashed("what it said last\n")
	st.full.Store(true)
	got := b.r.Recover(t.Context())
	if err := b.r.Forget(a); err != nil || len(got) != 1 {
		t.Fatal(err, got)
	}
	if err := b.r.SaveAgain(t.Context(), &got[0]); err != nil || got[0].Unsaved {
		t.Errorf("it is still to be saved after it was put aside: %v", err)
	}
	for _, step := range []time.Duration{0, 30 * time.Minute, -500 * time.Hour} {
		clk.SetWall(clk.Wall().Add(step))
		b.tidy(Tidy{Logs: time.Hour})
		if b.unsaved(a) != "what it said last\n" {
			t.Fatalf("gone after %v", step)
		}
	}
	b.tidy(Tidy{})
	b.empty("spool")
}

// All logs that were put aside have a bound: the oldest go first, and the newest stays.
func TestUnsavedLogsHaveABound(t *testing.T) {
	b := newBench(t, func(c *Config) { c.SpoolLimit = 4 << 20 })
	a := task(spec("true")).Authority
	aside := func(epoch uint64, size int) {
		t.Helper()
		a.Fence.Epoch = epoch
		s, err := spool.Open(spool.Config{Dir: b.r.logDir(a.Attempt, epoch), Epoch: epoch, Clock: clock.System()})
		if err == nil {
			err = errors.Join(s.Append(t.Context(), spool.Stdout, 1, make([]byte, size)), s.Close(), b.r.putAside(a))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	left := func() string {
		t.Helper()
		b.tidy(Tidy{Logs: time.Hour})
		l, err := b.r.Unsaved()
		var s string
		for _, f := range l {
			s += f.Name[len(f.Name)-2:]
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	aside(3, 400<<10)
	aside(2, 400<<10)
	if got, n := left(), b.r.UnsavedBytes(); got != "/3/2" || n < 800<<10 || n > 900<<10 {
		t.Errorf("%s: %d bytes", got, n)
	}
	aside(1, 400<<10)
	if got := left(); got != "/2/1" {
		t.Errorf("beyond the bound: %s", got)
	}
	aside(4, 3<<20)
	if got := left(); got != "/4" {
		t.Errorf("one is larger than the bound: %s", got)
	}
}

// So does the end of a log that the store did not take when its work ended.
func TestUnsavedEndStays(t *testing.T) {
	var st *fullStore
	b := newBench(t, func(c *Config) { st = &fullStore{Store: c.Store}; c.Store = st })
	st.full.Store(true)
	sp := spec("echo last words")
	sp.Timeouts.Upload = time.Second
	_, _, a := b.run(sp)
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	b.empty("agent")
	b.empty("workspaces")
	if got := b.unsaved(a.task.Authority); !strings.Contains(got, "last words") {
		t.Errorf("%q", got)
	}
}

// RA-303: of an epoch of an earlier boot everything is dead, whatever runs now under the
// numbers that it had: its log is saved, its workspace goes, its completion is kept, and nobody
// is touched.
func TestRecoverAfterReboot(t *testing.T) {
	b := newBench(t)
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	p, err := executor.ReadProc(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	a := b.crashed("before the restart\n")
	dir := filepath.Join(b.dir, "workspaces", epochName(a)+"-abcdef")
	if err := os.MkdirAll(filepath.Join(dir, "build"), 0o700); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(state{
		Version: stateVersion, Authority: a, Workspace: dir, Sandbox: job.SandboxProcess, Completion: []byte("message 1"),
		Orphan: executor.Orphan{ID: epochName(a), PID: p.PID, Birth: p.Birth, Boot: "the one before"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "agent", epochName(a)+stateSuffix), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	got := b.r.Recover(t.Context())
	if len(got) != 1 || got[0].Err != nil || got[0].Alive || !got[0].Rebooted || got[0].Unsaved || len(got[0].Log) != 1 || string(got[0].Completion) != "message 1" {
		t.Fatalf("%+v", got)
	}
	if now, err := executor.ReadProc(p.PID); err != nil || now.Birth != p.Birth || now.State == 'Z' {
		t.Errorf("a stranger was ended: %+v %v", now, err)
	}
	b.empty("workspaces")
	b.empty("spool")
}

// What was saved of an epoch and is not taken by the site any more is put aside, packed or not,
// and as often as it is tried.
func TestKeepParts(t *testing.T) {
	for _, packed := range []bool{false, true} {
		b := newBench(t, func(c *Config) { c.PackLogs = func() bool { return packed } })
		a := b.crashed(strings.Repeat("its last words\n", 100))
		got := b.r.Recover(t.Context())
		if len(got) != 1 || len(got[0].Log) != 1 {
			t.Fatalf("%+v", got)
		}
		b.empty("spool")
		for range 2 {
			if err := b.r.KeepParts(t.Context(), a, got[0].Log); err != nil {
				t.Fatal(err)
			}
			if err := b.r.Forget(a); err != nil {
				t.Fatal(err)
			}
			if text := b.unsaved(a); text != strings.Repeat("its last words\n", 100) {
				t.Errorf("packed %v: %q", packed, text)
			}
		}
		got[0].Log[0].Digest[0] ^= 1
		if err := b.r.KeepParts(t.Context(), a, got[0].Log); forgeyard.KindOf(err) != forgeyard.NotFound {
			t.Errorf("a part that is not there: %v", err)
		}
	}
}
