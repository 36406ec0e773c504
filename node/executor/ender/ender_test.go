package ender

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// hung is a tree that waits for the kernel until it is let go.
type hung struct {
	free  chan struct{}
	early error // answered at once while it hangs, instead of waiting
}

func (h *hung) PID() int { return 42 }

func (h *hung) Kill(ctx context.Context) error {
	select {
	case <-h.free:
		return nil
	default:
	}
	if h.early != nil {
		return h.early
	}
	select {
	case <-h.free:
		return nil
	case <-ctx.Done():
		return forgeyard.E("kill", forgeyard.Unavailable, ctx.Err())
	}
}

// E18: a tree that does not die is told of after one try, is tried for ever, and is held
// until it is dead.
func TestStuckUntilDead(t *testing.T) {
	for name, early := range map[string]error{"hangs": nil, "refused": errors.New("the control group cannot be killed")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := New(clock.System(), slog.New(slog.DiscardHandler))
				h := &hung{free: make(chan struct{}), early: early}
				done := make(chan struct{})
				go func() { e.End("attempt-1", h); close(done) }()
				if early == nil {
					time.Sleep(look - time.Millisecond)
					synctest.Wait()
					if got := e.Stuck(); len(got) != 0 {
						t.Fatalf("within its first try: %+v", got)
					}
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				got := e.Stuck()
				if len(got) != 1 || got[0].ID != "attempt-1" || got[0].PID != 42 || got[0].Why == "" || got[0].Since.IsZero() {
					t.Fatalf("after an hour: %+v", got)
				}
				select {
				case <-done:
					t.Fatal("it is said to be dead, and lives")
				default:
				}
				close(h.free)
				<-done
				if got := e.Stuck(); len(got) != 0 {
					t.Fatalf("it is dead: %+v", got)
				}
			})
		})
	}
}

// What dies when it is told to was never stuck.
func TestDiesAtOnce(t *testing.T) {
	e := New(clock.System(), slog.New(slog.DiscardHandler))
	h := &hung{free: make(chan struct{})}
	close(h.free)
	e.End("attempt-1", h)
	if got := e.Stuck(); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
}
