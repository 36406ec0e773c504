package leading

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
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
		19 * time.Microsecond:  0,
		20 * time.Microsecond:  980 * time.Microsecond,
		2 * time.Millisecond:   98 * time.Millisecond,
		200 * time.Millisecond: 500 * time.Millisecond,
	} {
		if got := rest(took); got != want {
			t.Errorf("after a look of %s it rests for %s, want %s", took, got, want)
		}
	}
}

// A look that was cut in two by other work of the machine says nothing of what looks cost.
func TestALookThatWasInterrupted(t *testing.T) {
	const short, long = 50 * time.Microsecond, 40 * time.Millisecond
	var l looks
	for i, c := range []struct{ took, want time.Duration }{
		{short, 0}, {short, 0}, {short, 0}, {short, short}, {long, short}, {long, short}, {long, short}, {long, long}, {short, short},
	} {
		if got := l.cost(c.took); got != c.want {
			t.Errorf("look %d of %s: the cost is %s, want %s", i, c.took, got, c.want)
		}
	}
}

// lapsed is a site with one lease that nobody renews, and a log whose answers are lost.
type lapsed struct {
	calls
	state *site.State
	asked atomic.Int64 // expiries
	stop  func()       // called at the hundredth; nil: nothing
}

func (s *lapsed) State() *site.State { return s.state }

func (s *lapsed) ProposeAs(_ context.Context, _ string, b site.Body) (site.Reply, error) {
	if _, ok := b.(site.Expire); ok && s.asked.Add(1) == 100 && s.stop != nil {
		s.stop()
	}
	return site.Reply{}, forgeyard.Errorf("propose", forgeyard.Limit, "the log takes nothing")
}

func lapsedSite() (*lapsed, forgeyard.Authority) {
	l := lease.Lease{
		Authority: forgeyard.Authority{Job: "J", Lease: "L", Runner: "R1"}, State: lease.Accepted,
		Policy: lease.Policy{Policy: job.Continuous}, Terms: lease.Terms{TTL: 3 * time.Second},
	}
	st := &site.State{Site: "S", Config: sitecfg.DefaultSite()}
	st.Jobs, st.Open = st.Jobs.Put("J", site.Job{ID: "J", Status: job.Running, Lease: l}), st.Open.Put("J", 1)
	return &lapsed{state: st}, l.Authority
}

func (s *lapsed) leadership() *Leadership {
	return New(Config{Self: "R0", Term: 3, Group: s, Replica: s, Proposer: s, Clock: bubbleClock{}, Log: slog.New(slog.DiscardHandler),
		Used: func() (time.Duration, bool) { return 0, true }})
}

// A lease whose expiry may or may not be in the log is not renewed any more by this
// leadership: its holder would go on with what the log gives away later.
func TestUnknownExpiryStaysRefused(t *testing.T) {
	s, a := lapsedSite()
	l := s.leadership()
	l.mem.Observe(1, s.state)
	l.mem.Expiring(a.Lease)
	for _, known := range []bool{false, true} {
		l.done(controllers.Propose{Key: "expire/L", Body: site.Expire{Job: a.Job, Lease: a.Lease}}, known)
		want := lease.Stale
		if known {
			want = lease.Continue
		}
		out, err := l.Renew(t.Context(), a.Runner, controllers.Sign{}, []controllers.Renewal{{Authority: a}})
		if err != nil || out[0].Answer != want {
			t.Errorf("outcome known=%v: %+v %v, want %s", known, out, err, want)
		}
	}
}

// A log that takes a proposal at no try is not asked at every turn of the processor.
func TestAFailedProposalIsNotMadeAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := lapsedSite()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s.stop = cancel
		s.leadership().Run(ctx)
		synctest.Wait()
		if n := s.asked.Load(); n < 2 || n > int64(10*time.Second/refusedPause) {
			t.Errorf("%d times in 10 s", n)
		}
	})
}
