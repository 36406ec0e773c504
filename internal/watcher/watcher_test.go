package watcher

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// The watcher is late while the process commits and no longer, and not while it does much
// else; an idle process has no timer.
func TestLateWhileItCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, turns, now := 0, 0, usual
		w := newWatcher(func(d time.Duration) error { now = d; return nil }, func() int { turns++; return calls }, 4)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		commit := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
				w.Committed()
			}
			synctest.Wait()
		}
		is := func(want time.Duration, when string) {
			t.Helper()
			if now != want {
				t.Errorf("%s: %s, want %s", when, now, want)
			}
		}
		time.Sleep(time.Minute)
		is(usual, "idle")
		if turns != 1 {
			t.Errorf("%d turns in an idle minute", turns)
		}
		commit(2 * every)
		is(late, "it commits")
		time.Sleep(2*every + 1)
		is(usual, "it has stopped")
		turns = 0
		time.Sleep(time.Minute)
		if turns != 0 {
			t.Errorf("%d turns in an idle minute after commits", turns)
		}
		commit(every)
		calls = 5
		commit(2 * every)
		is(usual, "it commits, and transfers")
		calls = 4
		commit(every * calm / 2)
		is(usual, "a moment after the transfer")
		commit(every * calm)
		is(late, "long after the transfer")
		cancel()
		<-done
		is(usual, "it has ended")
	})
}

func TestEndsWhereItMayNot(t *testing.T) {
	w := newWatcher(func(time.Duration) error { return errors.New("no") }, func() int { return 0 }, 4)
	w.Committed()
	w.Run(t.Context()) // it returns
	(*Watcher)(nil).Committed()
}

func TestInCalls(t *testing.T) {
	if n := inCalls(); n < 0 || n > 1000 {
		t.Errorf("%d goroutines in system calls", n)
	}
}
