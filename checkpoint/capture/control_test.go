//go:build unix

package capture_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

type desk struct {
	t         *testing.T
	ckpt, ctl string
	w         *capture.Watcher
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, ckpt: t.TempDir(), ctl: t.TempDir()}
	must(t, capture.Prepare(d.ctl))
	d.w = capture.NewWatcher(d.ckpt, d.ctl, attempt, 2)
	return d
}

func (d *desk) say(n int, m checkpoint.Message) {
	if m.Attempt == "" {
		m.Attempt, m.Epoch = attempt, 2
	}
	m.N = n
	must(d.t, os.WriteFile(filepath.Join(d.ctl, "outbox", checkpoint.MessageName(n)), m.Encode(), 0o644))
}

func (d *desk) answer(n int) string {
	b, err := os.ReadFile(filepath.Join(d.ctl, "inbox", checkpoint.MessageName(n)))
	if err != nil {
		return "none"
	}
	a, err := checkpoint.ParseAnswer(b)
	must(d.t, err)
	return string(a.Status)
}

func (d *desk) poll(sealed ...int) capture.Found {
	d.t.Helper()
	f, err := d.w.Poll()
	must(d.t, err)
	if !slices.Equal(f.Sealed, sealed) {
		d.t.Fatalf("sealed %v, want %v", f.Sealed, sealed)
	}
	return f
}

func TestWatcher(t *testing.T) {
	d := newDesk(t)
	commit := func(seq int) checkpoint.Message {
		return checkpoint.Message{Kind: checkpoint.MessageCommit, Seq: seq}
	}
	d.poll()
	// K05: what isn't sealed is not a checkpoint, however high its number.
	must(t, os.Mkdir(filepath.Join(d.ckpt, "000099.tmp"), 0o755))
	d.poll()
	must(t, os.Mkdir(filepath.Join(d.ckpt, "000007"), 0o755))
	d.poll(7) // Its message is not here yet, and need never come.
	d.say(1, commit(7))
	d.poll(7)
	if got := d.answer(1); got != "none" {
		t.Fatalf("answered %s before it was settled", got)
	}
	must(t, d.w.Settle(checkpoint.Answer{Seq: 7, Status: checkpoint.StatusStaged}))
	if got := d.answer(1); got != "staged" {
		t.Fatalf("answer %s", got)
	}
	d.poll()
	// Settled anew; a helper that asks again is told at once, even after the slot is gone.
	must(t, d.w.Settle(checkpoint.Answer{Seq: 7, Status: checkpoint.StatusCommitted}))
	must(t, capture.RemoveSlot(d.ckpt, 7))
	d.say(2, commit(7))
	d.poll()
	if got := d.answer(2); got != "committed" {
		t.Fatalf("answer %s", got)
	}
	d.say(3, commit(8))
	stale := commit(7)
	stale.Attempt, stale.Epoch = attempt, 1
	d.say(4, stale)
	d.say(5, checkpoint.Message{Kind: checkpoint.MessageRestoreReject, Reason: "cannot read v2"})
	must(t, os.WriteFile(filepath.Join(d.ctl, "outbox/000006.json"), []byte("{"), 0o644))
	f := d.poll()
	if len(f.Messages) != 1 || f.Messages[0].Kind != checkpoint.MessageRestoreReject || f.Messages[0].Reason != "cannot read v2" {
		t.Fatalf("%+v", f.Messages)
	}
	if got := []string{d.answer(3), d.answer(4), d.answer(6)}; !slices.Equal(got, []string{"rejected", "stale", "rejected"}) {
		t.Fatalf("answers %v", got)
	}
	if left, _ := os.ReadDir(filepath.Join(d.ctl, "outbox")); len(left) != 0 {
		t.Fatalf("left in the outbox: %v", left)
	}
	if len(d.poll().Messages) != 0 {
		t.Fatal("a message came twice")
	}
}

func TestWatcherNext(t *testing.T) {
	d, c := newDesk(t), clock.NewManual(time.Unix(1e9, 0))
	got := make(chan capture.Found)
	go func() {
		f, err := d.w.Next(t.Context(), c, time.Second)
		if err != nil {
			t.Error(err)
		}
		got <- f
	}()
	must(t, os.Mkdir(filepath.Join(d.ckpt, "000001"), 0o755))
	for {
		c.Advance(time.Second)
		select {
		case f := <-got:
			if !slices.Equal(f.Sealed, []int{1}) {
				t.Fatalf("%+v", f)
			}
			return
		case <-time.After(time.Millisecond): // The goroutine may not wait yet; tick again.
		}
	}
}

// TestControlIsNotLedOutside: the workload owns these directories and may put links and
// pipes anywhere in them.
func TestControlIsNotLedOutside(t *testing.T) {
	d, outside := newDesk(t), t.TempDir()
	must(t, os.RemoveAll(filepath.Join(d.ctl, "inbox")))
	must(t, os.Symlink(outside, filepath.Join(d.ctl, "inbox")))
	if err := capture.WriteAnswer(d.ctl, 1, checkpoint.Answer{Seq: 1, Status: checkpoint.StatusCommitted}); err == nil {
		t.Error("an answer went through a link")
	}
	must(t, os.Remove(filepath.Join(d.ctl, "request.json")))
	must(t, os.Symlink(filepath.Join(outside, "request"), filepath.Join(d.ctl, ".request.json.tmp")))
	must(t, capture.WriteRequest(d.ctl, checkpoint.Request{Kind: checkpoint.StopPreempt}))
	must(t, syscall.Mkfifo(filepath.Join(d.ctl, "outbox/000001.json"), 0o644))
	must(t, os.WriteFile(filepath.Join(outside, "m"), checkpoint.Message{N: 2, Kind: checkpoint.MessageRestoreOK, Attempt: attempt, Epoch: 2}.Encode(), 0o644))
	must(t, os.Symlink(filepath.Join(outside, "m"), filepath.Join(d.ctl, "outbox/000002.json")))
	must(t, os.WriteFile(filepath.Join(d.ctl, "outbox/000003.json"), []byte(strings.Repeat(" ", checkpoint.MaxControlBytes+1)), 0o644))
	got, err := capture.ReadOutbox(d.ctl)
	must(t, err)
	for i, x := range got {
		if x.Err == nil {
			t.Errorf("message %d was believed", i+1)
		}
	}
	must(t, os.Symlink(filepath.Join(outside, "m"), filepath.Join(d.ckpt, "000003")))
	must(t, capture.RemoveSlot(d.ckpt, 3))
	if names, _ := os.ReadDir(outside); len(names) != 1 {
		t.Errorf("something was written or removed outside: %v", names)
	}
	must(t, syscall.Mkfifo(filepath.Join(d.ctl, "critical"), 0o644))
	if _, ok, err := capture.ReadCritical(d.ctl); ok || err == nil {
		t.Error("a pipe was read as a critical section")
	}
}

func TestHeartbeatAndCritical(t *testing.T) {
	d := newDesk(t)
	if _, ok, err := capture.ReadHeartbeat(d.ctl); ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	must(t, os.WriteFile(filepath.Join(d.ctl, "progress.json"), checkpoint.Heartbeat{Beat: 2, Progress: checkpoint.Progress{Done: 420, Total: 1000}}.Encode(), 0o644))
	if h, ok, err := capture.ReadHeartbeat(d.ctl); !ok || err != nil || h.Progress.Done != 420 {
		t.Fatalf("%+v, %v, %v", h, ok, err)
	}
	must(t, os.WriteFile(filepath.Join(d.ctl, "critical"), checkpoint.CriticalSection{PID: 2, MaxMillis: 1 << 60}.Encode(), 0o644))
	if _, ok, err := capture.ReadCritical(d.ctl); ok || forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatalf("a critical section without end: %v, %v", ok, err)
	}
}

// A program that still writes into a slot does not keep it: what it put in between the
// look and the removal goes as well.
func TestRemoveSlotUnderAWriter(t *testing.T) {
	dir := t.TempDir()
	for seq := 1; seq <= 200; seq++ {
		slot := filepath.Join(dir, checkpoint.SlotName(seq))
		must(t, os.Mkdir(slot, 0o755))
		began, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for i := range 50 {
				if os.WriteFile(filepath.Join(slot, strconv.Itoa(i)), nil, 0o600) != nil {
					return // it is gone
				}
				if i == 0 {
					close(began)
				}
			}
		}()
		<-began
		err := capture.RemoveSlot(dir, seq)
		<-ended
		must(t, err)
		if _, err := os.Stat(slot); !os.IsNotExist(err) {
			t.Fatalf("slot %d is still there: %v", seq, err)
		}
	}
}
