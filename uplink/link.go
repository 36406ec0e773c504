package uplink

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// What the voters say, as package reckon has it.
type (
	Vouch = reckon.Vouch
	How   = reckon.How
)

// Config binds a Link. State, Propose, Vouch and Client are required.
type Config struct {
	// State gives the current state; it is called often and must be quick.
	State func() *site.State
	// Propose puts a command into the log and returns its reply once applied. Its
	// errors are about the log; the reply's own error is looked at here.
	Propose func(ctx context.Context, b site.Body) (site.Reply, error)
	Clock   clock.Clock
	// Vouch asks this node and every voter in reach (Witness.Elapsed) how long ago the
	// figure of the given log index was committed. It must include this node.
	Vouch func(ctx context.Context, marked uint64) []Vouch
	// Client speaks to the daemon with the peer id. It is called once per daemon.
	Client func(central string) forgeyardv1connect.DelegationServiceClient
	// Prefetch brings the inputs of a delegation durably into the site's store, from
	// the daemon. NotFound, Corrupt and Invalid are final: the job is taken in and fails with a reason.
	// Anything else is tried again, and what follows waits. Nil: nothing is brought.
	Prefetch func(ctx context.Context, d site.Delegation) error
	// Holders names the members that hold results: peer ids, or multiaddrs that end in
	// /p2p/ID where the daemon may have to dial. Nil: nobody is named.
	Holders func() []string
	// Log gets what people need to know. Nil: nothing.
	Log *slog.Logger
	// Interval between exchanges. 0: a fifth of the terms' SilentAfter, at least 200 ms. A
	// value near SilentAfter makes one lost packet end Online.
	Interval time.Duration
}

// Status is what a person is shown.
type Status struct {
	LastError   string    // of the last exchange, or of what followed from it; empty when all is well
	LastContact time.Time // wall time of the last exchange that succeeded; zero: none in this leadership
}

// Link is the uplink of a site as its leader runs it. One Link serves all
// leaderships of a node, one Run at a time. Safe for concurrent use.
//
// Goroutines of one Run: keep (owns what is committed about silence), exchange
// (owns the calls), intake (owns prefetch and delegation). All end with Run.
type Link struct {
	cfg    Config
	wakeup chan struct{} // keep looks again
	fresh  chan struct{} // intake has something new

	syncMu sync.Mutex // one exchange at a time; taken before mu

	mu        sync.Mutex // guards what follows
	count     reckon.Keeper
	status    Status
	off       time.Duration // our wall clock against the daemon's at the last contact
	central   string        // whose client it is
	client    forgeyardv1connect.DelegationServiceClient
	batch     int                // bytes of records to send at most
	timeouts  int                // calls in a row that ended by their deadline
	cut       context.CancelFunc // ends the call under way
	todo      *intakeBatch       // what intake does next
	prefetch  forgeyard.GrantID  // what intake brings now
	stopFetch context.CancelFunc
}

// New checks the configuration. Nothing runs before Run.
func New(cfg Config) (*Link, error) {
	if cfg.State == nil || cfg.Propose == nil || cfg.Vouch == nil || cfg.Client == nil || cfg.Interval < 0 {
		return nil, forgeyard.Errorf("uplink", forgeyard.Invalid, "State, Propose, Vouch and Client are required, and the interval %s must not be negative", cfg.Interval)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Link{cfg: cfg, wakeup: make(chan struct{}, 1), fresh: make(chan struct{}, 1), batch: reckon.MaxBatchBytes / 4}, nil
}

// Used is how long the uplink has been silent, by this leader's own count. It is
// unknown until Run has asked the voters, and before the first daemon: then nothing may
// be started under the daemon's authority.
func (l *Link) Used() (time.Duration, bool) {
	now := l.cfg.Clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count.Used(now)
}

// Daemon is what the daemon's own clock read at the contact from which Used counts, and
// how far our wall clock was ahead of it then; zero: nothing was heard under this leadership.
func (l *Link) Daemon() (read forgeyard.Wall, off time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count.Daemon(), l.off
}

// Status says how the exchanges go.
func (l *Link) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// Changed tells that the state changed in what concerns the uplink (a drill, a
// daemon). Without it that is seen within half a second.
func (l *Link) Changed() { poke(l.wakeup) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run does the leader's part until ctx ends, which is when leadership does, and
// returns when nothing of it runs any more.
func (l *Link) Run(ctx context.Context) error {
	l.reset()
	defer l.reset()
	g, ctx := errgroup.WithContext(ctx)
	ready := make(chan struct{})
	g.Go(func() error { l.keep(ctx, ready); return nil })
	g.Go(func() error { l.exchanges(ctx, ready); return nil })
	g.Go(func() error { l.intake(ctx); return nil })
	return g.Wait()
}

// reset forgets what belongs to one leadership: whoever leads meanwhile counts on.
func (l *Link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count, l.todo = reckon.Keeper{}, nil
	l.status.LastContact = time.Time{}
}

// keep commits the silence. It closes ready once the base was established first.
func (l *Link) keep(ctx context.Context, ready chan struct{}) {
	central := "" // whose silence is counted; empty: nobody's yet
	for ctx.Err() == nil {
		s := l.cfg.State()
		if s.Central.Peer != central {
			central = s.Central.Peer
			l.forget()
			if central != "" && !l.establish(ctx, s) {
				central = "" // ask again
			}
			s = l.cfg.State()
		}
		if central != "" && ready != nil {
			close(ready)
			ready = nil
		}
		if s.Central.Drill || s.Central.Peer == "" {
			l.hangUp()
		}
		wait := pollEvery
		if central != "" {
			wait = l.commit(ctx, s)
		}
		select {
		case <-l.cfg.Clock.After(wait):
		case <-l.wakeup:
		case <-ctx.Done():
		}
	}
}

func (l *Link) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count = reckon.Keeper{}
}

// establish finds the base of the count: what is committed, and what the voters
// say has passed since. False: it could not be committed, try again.
func (l *Link) establish(ctx context.Context, s *site.State) bool {
	from := l.cfg.Clock.Now()
	vctx, cancel := context.WithTimeout(ctx, vouchTimeout)
	vs := l.cfg.Vouch(vctx, s.Uplink.Marked)
	cancel()
	base := reckon.Resume(s.Uplink, vs)
	if base.Doubt != "" {
		l.cfg.Log.Warn("the uplink's allowance counts as used up", "reason", base.Doubt)
		if s.Uplink.Doubt == "" {
			if err := l.propose(ctx, site.UplinkObserve{Doubt: base.Doubt}); err != nil {
				return false
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.Begin(base.Used, from)
	l.cfg.Log.Info("uplink counted on", "committed", s.Uplink.Used, "since", base.Best.Elapsed, "by", string(base.Best.How))
	return true
}

// commit commits the figure if it is time and says when to look again.
func (l *Link) commit(ctx context.Context, s *site.State) time.Duration {
	now := l.cfg.Clock.Now()
	l.mu.Lock()
	c, yes, wait := l.count.Look(now, s.Uplink, s.Outbox.Len())
	l.mu.Unlock()
	if !yes {
		return wait
	}
	if err := l.propose(ctx, c.Body); err != nil {
		return pollEvery
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.Committed(c, now)
	return 0
}

// propose puts a command into the log; an error in its reply is an error too.
func (l *Link) propose(ctx context.Context, b site.Body) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if o, ok := b.(site.UplinkObserve); ok && !l.cfg.State().Allows(site.FormatLeases) {
		o.Daemon = 0 // not every voter reads it yet
		b = o
	}
	r, err := l.cfg.Propose(ctx, b)
	if err == nil {
		err = r.Err()
	}
	if err != nil && ctx.Err() == nil {
		l.cfg.Log.Warn("uplink command not committed", "command", typeName(b), "error", err)
	}
	return err
}

// hangUp ends the call and the prefetch that are under way: the link was cut on purpose.
func (l *Link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		l.cut()
	}
	if l.stopFetch != nil {
		l.stopFetch()
	}
}

// exchanges runs Sync at its interval.
func (l *Link) exchanges(ctx context.Context, ready <-chan struct{}) {
	select {
	case <-ready:
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		s := l.cfg.State()
		wait := pollEvery
		if s.Central.Peer != "" && !s.Central.Drill {
			more, err := l.sync(ctx)
			wait = l.interval(s)
			if more && err == nil {
				continue // a backlog drains at the speed of the link
			}
		}
		select {
		case <-l.cfg.Clock.After(wait):
		case <-ctx.Done():
		}
	}
}

func (l *Link) interval(s *site.State) time.Duration {
	if l.cfg.Interval > 0 {
		return l.cfg.Interval
	}
	return reckon.Interval(s.Uplink.Terms)
}
