package uplink

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

type rig struct {
	t    *testing.T
	clk  *clock.Manual
	site *testSite
	far  *fakeCentral
	cfg  Config
	link *Link
}

func newRig(t *testing.T, change func(*Config)) *rig {
	r := &rig{t: t, clk: clock.NewManual(epoch), far: &fakeCentral{terms: testTerms}}
	r.clk.Advance(time.Hour)
	r.site = newTestSite(t, r.clk)
	r.cfg = Config{
		State: r.site.state, Propose: r.site.propose, Clock: r.clk,
		Vouch:  func(context.Context, uint64) []Vouch { return []Vouch{{Known: true, How: reckon.ByBoot}} },
		Client: func(string) forgeyardv1connect.DelegationServiceClient { return r.far },
	}
	if change != nil {
		change(&r.cfg)
	}
	var err error
	if r.link, err = New(r.cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

// start begins a leadership; stop ends it and waits.
func (r *rig) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.link.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		})
	}
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) drive(what string, ok func(*site.State) bool) {
	r.t.Helper()
	r.site.drive(r.clk, 50*time.Millisecond, what, ok)
}

func inState(st lease.UplinkState) func(*site.State) bool {
	return func(s *site.State) bool { return s.Uplink.State == st }
}

// TestSilenceIsCommittedAtEachThreshold: online → grace → offline → exhausted, at
// the figures of the terms and not later than one step.
func TestSilenceIsCommittedAtEachThreshold(t *testing.T) {
	r := newRig(t, nil)
	r.site.connect()
	defer r.start()()
	r.drive("first contact", func(s *site.State) bool { return s.Uplink.Contacts > 1 })
	r.far.set(func(f *fakeCentral) { f.down = true })
	for _, c := range []struct {
		st lease.UplinkState
		at time.Duration
	}{{lease.InGrace, testTerms.SilentAfter}, {lease.Offline, testTerms.SilentAfter + testTerms.Grace}, {lease.Exhausted, testTerms.Allowance}} {
		r.drive(string(c.st), inState(c.st))
		if used := r.site.state().Uplink.Used; used < c.at || used > c.at+2*time.Second {
			t.Errorf("%s was committed at %s, the threshold is %s", c.st, used, c.at)
		}
	}
	if s := r.link.Status(); !strings.Contains(s.LastError, "no route") {
		t.Errorf("%+v", s)
	}
	n := len(r.site.bodies())
	for range 200 {
		r.clk.Advance(time.Second)
	}
	r.far.set(func(f *fakeCentral) { f.down = false })
	r.drive("online again", inState(lease.Online))
	for _, b := range r.site.bodies()[n:] {
		if o, ok := b.(site.UplinkObserve); ok && !o.Contact {
			t.Errorf("an exhausted allowance was committed again: %+v", o)
		}
	}
}

// TestNewLeaderCountsOn: what was committed, and what a voter vouches for, are both counted.
func TestNewLeaderCountsOn(t *testing.T) {
	vouched := 7 * time.Second
	r := newRig(t, func(c *Config) {
		c.Vouch = func(context.Context, uint64) []Vouch {
			return []Vouch{{Known: true, Elapsed: vouched, How: reckon.ByBoot}, {Why: "far away"}}
		}
	})
	r.far.down = true
	r.site.connect()
	r.site.must(site.UplinkObserve{Used: int64(15 * time.Second)})
	if _, known := r.link.Used(); known {
		t.Fatal("nothing is known before the voters were asked")
	}
	stop := r.start()
	r.drive("the sum", func(s *site.State) bool { return s.Uplink.Used >= 22*time.Second })
	if used, known := r.link.Used(); !known || used < 22*time.Second || used > 30*time.Second {
		t.Fatalf("%s %v", used, known)
	}
	stop()
	if _, known := r.link.Used(); known {
		t.Fatal("after leadership nothing is known")
	}
	before := r.site.state().Uplink.Used
	defer r.start()()
	r.drive("counted on again", func(s *site.State) bool { return s.Uplink.Used >= before+vouched })
}

// TestDoubt: with no clock that can say, the allowance is used up, loudly, until a contact.
func TestDoubt(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Vouch = func(context.Context, uint64) []Vouch {
			return []Vouch{{By: "n1", Why: "the wall clock reads earlier than the log"}}
		}
	})
	r.far.down = true
	r.site.connect()
	defer r.start()()
	r.site.await("doubt", func(s *site.State) bool { return s.Uplink.Doubt != "" && s.Uplink.State == lease.Exhausted })
	if used, known := r.link.Used(); known && used < testTerms.Allowance {
		t.Errorf("%s", used)
	}
	r.far.set(func(f *fakeCentral) { f.down = false })
	r.drive("contact", func(s *site.State) bool { return s.Uplink.State == lease.Online && s.Uplink.Doubt == "" })
}

// TestDrillIsACut: nothing is sent while a person cuts the link, what is under way
// is ended, and the silence counts.
func TestDrillIsACut(t *testing.T) {
	r := newRig(t, nil)
	r.site.connect()
	defer r.start()()
	r.drive("contact", func(s *site.State) bool { return s.Uplink.Contacts > 1 })
	hold := make(chan struct{})
	r.far.set(func(f *fakeCentral) { f.block = hold })
	n := r.far.count()
	r.drive("a call under way", func(*site.State) bool { return r.far.count() > n })
	r.site.must(site.Drill{Cut: true})
	r.link.Changed()
	r.drive("grace", inState(lease.InGrace))
	close(hold)
	r.far.set(func(f *fakeCentral) { f.block = nil })
	n = r.far.count()
	r.drive("offline", inState(lease.Offline))
	if got := r.far.count(); got != n {
		t.Errorf("%d calls during the drill", got-n)
	}
	if err := r.link.Sync(context.Background()); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Errorf("%v", err)
	}
	r.site.must(site.Drill{Cut: false})
	r.drive("online", inState(lease.Online))
}

// TestContactCountsFromTheSend: an answer that took 3 s leaves 3 s of silence (decision 1).
func TestContactCountsFromTheSend(t *testing.T) {
	r := newRig(t, nil)
	r.site.connect()
	r.far.before = func() { r.clk.Advance(3 * time.Second) }
	if err := r.link.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if used, known := r.link.Used(); !known || used != 3*time.Second {
		t.Fatalf("%s %v", used, known)
	}
}

// TestCancelComesFirst: E15. What the daemon took back is cancelled before the
// contact that would put waiting work back into the queue, even behind a slow prefetch.
func TestCancelComesFirst(t *testing.T) {
	bring := make(chan struct{})
	r := newRig(t, func(c *Config) {
		c.Prefetch = func(ctx context.Context, d site.Delegation) error {
			select {
			case <-bring:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	r.site.connect()
	r.site.must(site.Delegate{To: 1, Grants: []site.Delegation{delegation(t, 1, "g1", 0)}})
	r.site.must(site.UplinkObserve{Used: int64(time.Minute)})
	slow, cancel := delegation(t, 2, "g2", 1), site.Delegation{Seq: 3, Grant: lease.Grant{ID: "g1", Term: 1}, Cancel: true}
	r.far.set(func(f *fakeCentral) { f.delegations, f.cancelled = []site.Delegation{slow, cancel}, []string{"g1"} })
	n := len(r.site.bodies())
	defer r.start()()
	r.drive("online", inState(lease.Online))
	cancelled := -1
	for i, b := range r.site.bodies()[n:] {
		if _, ok := b.(site.Cancel); ok {
			cancelled = i
		}
		if o, ok := b.(site.UplinkObserve); ok && o.Contact && cancelled < 0 {
			t.Fatal("the contact was committed before the cancel")
		}
	}
	for _, j := range r.site.state().Jobs.All() {
		if j.Status != job.Cancelled {
			t.Errorf("%s", j.Status)
		}
	}
	if c := r.site.state().Cursor; c != 1 {
		t.Errorf("cursor %d: the inputs of g2 are not here yet", c)
	}
	close(bring)
	r.drive("taken in", func(s *site.State) bool { return s.Cursor == 3 && s.Jobs.Len() == 2 })
}

// E15: while a job that was taken back cannot be cancelled, the contact counts for nothing:
// what waits for the link would go on before the cancel is in the log.
func TestNoContactBeforeTheCancels(t *testing.T) {
	r := newRig(t, nil)
	r.site.connect()
	r.site.must(site.Delegate{To: 1, Grants: []site.Delegation{delegation(t, 1, "g1", 0)}})
	r.site.must(site.UplinkObserve{Used: int64(time.Minute)})
	r.site.refuse = func(b site.Body) error {
		if _, ok := b.(site.Cancel); ok {
			return forgeyard.Errorf("propose", forgeyard.Unknown, "no majority answered in time")
		}
		return nil
	}
	r.far.set(func(f *fakeCentral) { f.cancelled = []string{"g1"} })
	if err := r.link.Sync(context.Background()); err == nil {
		t.Fatal("the cancel was refused, and the exchange went well")
	}
	if _, known := r.link.Used(); known || r.site.state().Uplink.State != lease.Exhausted {
		t.Errorf("the contact counts: known %v, %s", known, r.site.state().Uplink.State)
	}
	r.site.refuse = nil
	if err := r.link.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if used, known := r.link.Used(); !known || used != 0 {
		t.Errorf("%s %v", used, known)
	}
}

// A drill that begins while an answer is on its way cuts that answer off too.
func TestDrillCutsTheAnswer(t *testing.T) {
	r := newRig(t, nil)
	r.site.connect()
	r.far.before = func() { r.site.must(site.Drill{Cut: true}) }
	if err := r.link.Sync(context.Background()); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Errorf("%v", err)
	}
	if _, known := r.link.Used(); known {
		t.Error("the contact counts")
	}
}

// TestPrefetch: a delegation is taken in when its inputs are here; what nobody has
// is taken in without; what is out of reach waits and is tried again.
func TestPrefetch(t *testing.T) {
	var mu sync.Mutex
	answers := map[forgeyard.GrantID][]error{
		"away": {forgeyard.Errorf("fetch", forgeyard.Unavailable, "nobody answers"), forgeyard.Errorf("fetch", forgeyard.Unavailable, "nobody answers"), nil},
		"gone": {forgeyard.Errorf("fetch", forgeyard.NotFound, "nobody has it")},
	}
	var asked []string
	r := newRig(t, func(c *Config) {
		c.Prefetch = func(_ context.Context, d site.Delegation) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, string(d.Grant.ID))
			a := answers[d.Grant.ID]
			if len(a) == 0 {
				return errors.New("asked too often")
			}
			answers[d.Grant.ID] = a[1:]
			return a[0]
		}
	})
	r.site.connect()
	r.far.delegations = []site.Delegation{delegation(t, 1, "plain", 0), delegation(t, 2, "away", 1), delegation(t, 3, "gone", 2)}
	defer r.start()()
	r.drive("all", func(s *site.State) bool { return s.Cursor == 3 })
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(asked, " "); got != "away away away gone" {
		t.Errorf("asked: %s", got)
	}
	if n := r.site.state().Jobs.Len(); n != 3 {
		t.Errorf("%d jobs", n)
	}
}

// TestTakenBackBeforeItCame: what was cancelled on its way needs no inputs.
func TestTakenBackBeforeItCame(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Prefetch = func(context.Context, site.Delegation) error {
			t.Error("its inputs were fetched")
			return nil
		}
	})
	r.site.connect()
	r.far.delegations = []site.Delegation{delegation(t, 1, "g1", 1), {Seq: 2, Grant: lease.Grant{ID: "g1", Term: 1}, Cancel: true}}
	defer r.start()()
	r.drive("taken in", func(s *site.State) bool { return s.Cursor == 2 })
	for _, j := range r.site.state().Jobs.All() {
		if j.Status != job.Cancelled {
			t.Errorf("%s", j.Status)
		}
	}
}

// TestOutboxDrains: records go in order and in batches, and leave when they are acknowledged.
func TestOutboxDrains(t *testing.T) {
	r := newRig(t, nil)
	r.site.connect()
	var ds []site.Delegation
	for i := range 20 {
		ds = append(ds, delegation(t, uint64(i+1), "g"+string(rune('a'+i)), 0))
	}
	r.site.must(site.Delegate{To: 20, Grants: ds})
	r.site.must(site.UplinkObserve{Used: int64(40 * time.Second)})
	r.link.batch = 500 // a few records at a time
	defer r.start()()
	r.drive("drained", func(s *site.State) bool { return s.Outbox.Len() == 0 && s.Uplink.State == lease.Online })
	if a := r.site.state().Acked; a != 20 {
		t.Errorf("acked %d", a)
	}
}

// TestBadAnswers: what a broken daemon says changes nothing.
func TestBadAnswers(t *testing.T) {
	r := newRig(t, nil)
	if err := r.link.Sync(context.Background()); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("without a daemon: %v", err)
	}
	r.site.connect()
	n := len(r.site.bodies())
	for name, change := range map[string]func(*fakeCentral){
		"no terms":       func(f *fakeCentral) { f.terms = lease.UplinkTerms{} },
		"acked too much": func(f *fakeCentral) { f.acked = 99 },
		"many cancels":   func(f *fakeCentral) { f.cancelled = make([]string, reckon.MaxCancelled+1) },
	} {
		r.far.set(func(f *fakeCentral) { f.terms, f.acked, f.cancelled = testTerms, 0, nil; change(f) })
		if err := r.link.Sync(context.Background()); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if got := r.site.bodies()[n:]; len(got) != 0 {
		t.Errorf("%v", got)
	}
	if _, known := r.link.Used(); known {
		t.Error("a contact was counted")
	}
}
