package leading

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// bubbleClock reads the bubble's time.
type bubbleClock struct{}

func (bubbleClock) Now() forgeyard.Instant                 { return forgeyard.Instant(time.Now().UnixNano()) }
func (bubbleClock) Wall() time.Time                        { return time.Now().UTC() }
func (bubbleClock) BootID() string                         { return "bubble" }
func (bubbleClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// slowLook is a site whose state is a while in coming the first time, as on a machine that
// stands still in between: a lease was accepted meanwhile.
type slowLook struct {
	calls
	looks    atomic.Int64
	accepted atomic.Int64 // when, on the leader's clock
	expired  chan expiry
	state    *site.State
}

type expiry struct {
	at   forgeyard.Instant
	body site.Expire
}

func (s *slowLook) State() *site.State {
	if s.looks.Add(1) == 1 {
		time.Sleep(3 * time.Second)
		s.accepted.Store(int64(bubbleClock{}.Now()))
	}
	return s.state
}

func (s *slowLook) ProposeAs(ctx context.Context, _ string, b site.Body) (site.Reply, error) {
	if x, ok := b.(site.Expire); ok {
		select {
		case s.expired <- expiry{bubbleClock{}.Now(), x}:
		case <-ctx.Done():
		}
	}
	return site.Reply{}, nil
}

// A lease is counted from no earlier than its holder counts, however long the leader needs
// for a look: by an earlier count another would get the work while the first may still act.
func TestALookIsCountedFromItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lease.Lease{
			Authority: forgeyard.Authority{Job: "J", Lease: "L", Runner: "R1"}, State: lease.Accepted, Protected: true,
			Policy: lease.Policy{Policy: job.Continuous}, Terms: lease.Terms{TTL: 3 * time.Second},
		}
		st := &site.State{Site: "S", Config: sitecfg.DefaultSite()}
		st.Jobs = st.Jobs.Put("J", site.Job{ID: "J", Status: job.Running, Lease: l})
		st.Open = st.Open.Put("J", 1)
		s := &slowLook{state: st, expired: make(chan expiry)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			New(Config{Self: "R0", Term: 3, Group: s, Replica: s, Proposer: s, Clock: bubbleClock{}, Log: slog.New(slog.DiscardHandler),
				Used: func() (time.Duration, bool) { return 0, true }}).Run(ctx)
		}()
		certain := expiry{}
		for !certain.body.Certain {
			certain = <-s.expired
		}
		if sent := forgeyard.Instant(s.accepted.Load()); certain.at < lease.CertainAt(l, sent) {
			t.Errorf("the holder that sent at %v may act until %v, and at %v it is certain that it does not", sent, lease.CertainAt(l, sent), certain.at)
		}
		cancel()
		<-ended
	})
}

// dearLook is a site of which each look takes a millisecond.
type dearLook struct {
	calls
	state   *site.State
	looks   chan forgeyard.Instant // each look's end
	changed chan struct{}
}

func (s *dearLook) State() *site.State {
	time.Sleep(time.Millisecond)
	s.looks <- bubbleClock{}.Now()
	return s.state
}

func (s *dearLook) Changed() <-chan struct{} { return s.changed }

// A leader rests after a look, not before the next: what comes once it has rested is looked
// at at once, and what comes before waits for no more than is left.
func TestARestBeginsWithTheEndOfALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &dearLook{state: &site.State{Site: "S", Config: sitecfg.DefaultSite()}, looks: make(chan forgeyard.Instant), changed: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			New(Config{Self: "R0", Term: 3, Group: s, Replica: s, Proposer: s, Clock: bubbleClock{}, Log: slog.New(slog.DiscardHandler),
				Used: func() (time.Duration, bool) { return 0, true }}).Run(ctx)
		}()
		last := <-s.looks
		for i := range len(looks{}) { // until it knows what they cost
			time.Sleep(100 * time.Millisecond)
			s.changed <- struct{}{}
			next := <-s.looks
			if took := next.Sub(last); took != 101*time.Millisecond {
				t.Errorf("look %d came %s after the one before, and should have come at once", i, took)
			}
			last = next
		}
		time.Sleep(20 * time.Millisecond)
		s.changed <- struct{}{}
		if took := (<-s.looks).Sub(last); took != 50*time.Millisecond {
			t.Errorf("a change in the rest was looked at %s after the last look", took)
		}
		cancel()
		<-ended
	})
}
