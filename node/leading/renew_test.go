package leading

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// calls counts what a leadership asks of its group and of the log.
type calls struct {
	confirms, stats, proposals atomic.Int64
	refuse                     error
}

func (c *calls) Confirm(context.Context) (uint64, error) {
	c.confirms.Add(1)
	return 1, c.refuse
}
func (c *calls) Members() []consensus.Member { return nil }
func (c *calls) Stats() consensus.Stats {
	c.stats.Add(1)
	return consensus.Stats{}
}
func (c *calls) AddNonvoter(context.Context, string, string) error { return nil }
func (c *calls) Promote(context.Context, string) error             { return nil }
func (c *calls) Demote(context.Context, string) error              { return nil }
func (c *calls) Remove(context.Context, string) error              { return nil }
func (c *calls) State() *site.State                                { return &site.State{} }
func (c *calls) Changed() <-chan struct{}                          { return nil }
func (c *calls) ProposeAs(context.Context, string, site.Body) (site.Reply, error) {
	c.proposals.Add(1)
	return site.Reply{}, nil
}

func leadershipOver(c *calls) *Leadership {
	return New(Config{Self: "R0", Term: 3, Group: c, Replica: c, Proposer: c, Clock: clock.System(), Log: slog.New(slog.DiscardHandler),
		Used: func() (time.Duration, bool) { return 0, true }})
}

// RA-146, decision 3: a heartbeat with many leases costs one confirmation, which other heartbeats
// share (consensus), and no entry of the log; and it does not look at the whole group.
func TestRenewalsAreNoEntries(t *testing.T) {
	c := &calls{}
	l := leadershipOver(c)
	batch := make([]controllers.Renewal, 200)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			out, err := l.Renew(t.Context(), forgeyard.RunnerID(fmt.Sprint("R", i)), controllers.Sign{}, batch)
			if err != nil || len(out) != len(batch) {
				t.Errorf("%d answers: %v", len(out), err)
			}
		})
	}
	wg.Wait()
	if c.confirms.Load() != 20 || c.proposals.Load() != 0 || c.stats.Load() != 0 {
		t.Errorf("%d confirmations, %d proposals, %d looks at the group", c.confirms.Load(), c.proposals.Load(), c.stats.Load())
	}
}

// What was not confirmed counts for nothing: the runner is not even heard.
func TestUnconfirmedRenewalsCountForNothing(t *testing.T) {
	c := &calls{refuse: forgeyard.Errorf("confirm", forgeyard.Unavailable, "deposed")}
	l := leadershipOver(c)
	if _, err := l.Renew(t.Context(), "R1", controllers.Sign{}, nil); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Errorf("%v", err)
	}
	if _, heard := l.mem.Runner("R1"); heard {
		t.Error("it was heard")
	}
}

// A leader with hundreds of open jobs must not look at all of them at each commit, and one
// with few must not wait.
func TestALeaderRestsAfterALongLook(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0:                      0,
		99 * time.Microsecond:  0,
		100 * time.Microsecond: 1900 * time.Microsecond,
		10 * time.Millisecond:  190 * time.Millisecond,
		200 * time.Millisecond: 500 * time.Millisecond,
	} {
		if got := rest(took); got != want {
			t.Errorf("after a look of %s it rests for %s, want %s", took, got, want)
		}
	}
}
