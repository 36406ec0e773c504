package checkpoint

import (
	"slices"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/job"
)

// FYCP/1 §6, CK-153: window = clamp(contract, 0, deadline − now − grace − upload reserve), and
// below two seconds the checkpoint is skipped. No part of it takes more than is left.
func TestBudget(t *testing.T) {
	for _, c := range []struct{ contract, grace, left, window, end time.Duration }{
		{time.Minute, 30 * time.Second, 0, time.Minute, 30 * time.Second}, // no deadline
		{time.Minute, 30 * time.Second, -time.Second, time.Minute, 30 * time.Second},
		{time.Minute, 30 * time.Second, time.Hour, time.Minute, 30 * time.Second},
		{time.Minute, 30 * time.Second, 2 * time.Minute, time.Minute, 30 * time.Second},
		{5 * time.Minute, 30 * time.Second, 2 * time.Minute, 85 * time.Second, 30 * time.Second},
		{time.Minute, 30 * time.Second, 30 * time.Second, 18750 * time.Millisecond, 7500 * time.Millisecond},
		{time.Minute, 30 * time.Second, 3 * time.Second, 0, 750 * time.Millisecond}, // 1.875 s: not worth it
		{time.Minute, 30 * time.Second, 4 * time.Second, 2500 * time.Millisecond, time.Second},
	} {
		window, end := Budget(c.contract, c.grace, c.left)
		if window != c.window || end != c.end {
			t.Errorf("%s of %s and %s: %s, %s, want %s, %s", c.left, c.contract, c.grace, window, end, c.window, c.end)
		}
		if c.left > 0 && window+end > c.left {
			t.Errorf("%s and %s are more than the %s that are left", window, end, c.left)
		}
	}
}

// CK-131: a checkpoint on cancel only if the contract allows it, the reason does, and there is
// time.
func TestSavesOnCancel(t *testing.T) {
	for _, r := range job.CancelReasons {
		want := r != job.CancelSuperseded && r != job.CancelIncident && r != job.CancelSecurity
		if got := SavesOnCancel(true, r, MinWindow); got != want {
			t.Errorf("%s: %v", r, got)
		}
		if SavesOnCancel(false, r, time.Minute) || SavesOnCancel(true, r, MinWindow-1) {
			t.Errorf("%s: saved without a word of the contract, or without time", r)
		}
	}
}

// CK-102, CK-154, CK-155: what is asked first is what costs most to do again for each second
// of writing, by the job's priority; what has nothing to save is last.
func TestByWorth(t *testing.T) {
	hour := Work{ID: "hour", Resumable: true, Unsaved: time.Hour, MilliCPU: 1000, Write: 10 * time.Second}
	with := func(id string, f func(*Work)) Work { w := hour; w.ID = id; f(&w); return w }
	all := []Work{
		with("plain", func(w *Work) { w.Resumable = false; w.Unsaved = 100 * time.Hour; w.Priority = job.PriorityCritical }),
		with("low", func(w *Work) { w.Priority = job.PriorityLow }),
		hour,
		with("saved", func(w *Work) { w.Unsaved = time.Minute }),
		with("slow", func(w *Work) { w.Write = time.Minute }),
		with("unmeasured", func(w *Work) { w.Write = 0; w.Unsaved = 59 * time.Minute }),
		with("costly", func(w *Work) { w.MilliCPU = 4000 }),
		with("high", func(w *Work) { w.Priority = job.PriorityHigh }),
		with("critical", func(w *Work) { w.Priority = job.PriorityCritical }),
	}
	want := []string{"critical", "high", "costly", "hour", "unmeasured", "slow", "low", "saved", "plain"}
	for range 20 {
		var got []string
		for _, w := range ByWorth(all) {
			got = append(got, w.ID)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v\nwant %v", got, want)
		}
		all = append(all[1:], all[0])
	}
}
