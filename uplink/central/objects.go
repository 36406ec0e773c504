package central

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// exchange is what the fetcher needs of cas/peer.
type exchange interface {
	Fetch(ctx context.Context, ref cas.Ref, providers []string) error
	FetchTree(ctx context.Context, root forgeyard.Digest, providers []string) error
}

// fetcher brings what accepted outcomes name into the daemon's own store. Which jobs
// wait is in the daemon's store, so a restart goes on where it was; what was fetched
// of a job is not fetched again.
type fetcher struct {
	store *Store
	cas   cas.Store
	exch  exchange
	clk   clock.Clock
	log   *slog.Logger
	wake  chan struct{}

	mu    sync.Mutex // guards what follows
	tries map[forgeyard.GrantID]attempt
	spoke map[forgeyard.SiteID]spoken
}

// attempt is when a job's objects may be tried again.
type attempt struct {
	site  forgeyard.SiteID
	fails int
	next  forgeyard.Instant
	text  string // what was written down of the last failure
}

// spoken is when a site was last heard, and where it said that its objects are.
type spoken struct {
	at      forgeyard.Instant
	holders []string
}

func newFetcher(s *Store, c cas.Store, x exchange, clk clock.Clock, log *slog.Logger) *fetcher {
	return &fetcher{store: s, cas: c, exch: x, clk: clk, log: log, wake: make(chan struct{}, 1), tries: map[forgeyard.GrantID]attempt{}, spoke: map[forgeyard.SiteID]spoken{}}
}

// poke makes run look again.
func (f *fetcher) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// heard ends the wait for the objects of a site that is back, or that has them
// elsewhere now.
func (f *fetcher) heard(s Site) {
	now := f.clk.Now()
	f.mu.Lock()
	old := f.spoke[s.ID]
	f.spoke[s.ID] = spoken{now, s.Contact.Holders}
	waiting := false
	if now.Sub(old.at) > backAfter || !slices.Equal(old.holders, s.Contact.Holders) {
		for g, a := range f.tries {
			if a.site == s.ID {
				a.next, a.fails, waiting = now, 0, true
				f.tries[g] = a
			}
		}
	}
	f.mu.Unlock()
	if waiting {
		f.poke()
	}
}

// run fetches until ctx ends.
func (f *fetcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait, err := f.round(ctx)
		if err != nil && ctx.Err() == nil {
			f.log.Error("objects of results", "error", err)
		}
		select {
		case <-f.wake:
		case <-f.clk.After(wait):
		case <-ctx.Done():
		}
	}
}

// round tries every job whose time has come, and says when the next one's does.
func (f *fetcher) round(ctx context.Context) (time.Duration, error) {
	jobs, err := f.store.Pending()
	if err != nil {
		return pullRetryMax, err
	}
	var g errgroup.Group
	g.SetLimit(pullsAtOnce)
	for _, j := range jobs {
		f.mu.Lock()
		due := f.clk.Now() >= f.tries[j.Grant].next
		f.mu.Unlock()
		if due && ctx.Err() == nil {
			g.Go(func() error { return f.try(ctx, j) })
		}
	}
	err = g.Wait()
	wait, now := pullRetryMax, f.clk.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.tries {
		wait = min(wait, max(a.next.Sub(now), time.Millisecond))
	}
	return wait, err
}

// try fetches one job's objects once and notes how it went.
func (f *fetcher) try(ctx context.Context, j Job) error {
	err := f.fetch(ctx, j)
	if ctx.Err() != nil {
		return nil
	}
	f.mu.Lock()
	a := f.tries[j.Grant]
	changed := true
	if err == nil {
		delete(f.tries, j.Grant)
	} else {
		changed = a.text != err.Error()
		a.next = f.clk.Now().Add(min(pullRetryMin<<min(a.fails, 16), pullRetryMax))
		a.site, a.fails, a.text = j.Site, a.fails+1, err.Error()
		f.tries[j.Grant] = a
	}
	f.mu.Unlock()
	if !changed {
		return nil
	}
	if err != nil {
		f.log.Warn("objects of a result are not here yet", "grant_id", j.Grant, "error", err)
	} else {
		f.log.Info("objects of a result are here", "grant_id", j.Grant)
	}
	return f.store.Fetched(j.Grant, err)
}

func (f *fetcher) fetch(ctx context.Context, j Job) error {
	site, err := f.store.FindSite(string(j.Site))
	if err != nil {
		return err
	}
	from := site.Contact.Holders
	if p := site.Contact.Peer; p != "" && !slices.Contains(from, p) {
		from = append(slices.Clone(from), p) // last: whoever spoke may have them too
	}
	all := objectsOf(j)
	// Pinned before the first byte, so that no collection takes what has arrived.
	if err := f.cas.Pin(ctx, pinOf(outcomeOwner(j.Grant), all)); err != nil {
		return err
	}
	for _, o := range all {
		if o.tree {
			err = f.exch.FetchTree(ctx, o.digest, from)
		} else {
			err = f.exch.Fetch(ctx, cas.Ref{Digest: o.digest, Size: o.size, Manifest: o.manifest}, from)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lacks lists what a result names and the store does not have. A directory counts
// as here when its root is: the list is a hint.
func (f *fetcher) lacks(ctx context.Context, j Job) (want []string) {
	for _, o := range objectsOf(j) {
		if len(want) < maxWant && o.digest != cas.Empty() && !f.cas.Has(ctx, o.digest) {
			want = append(want, o.digest.String())
		}
	}
	return want
}

func pinOf(owner string, all []object) cas.Pin {
	p := cas.Pin{Owner: owner}
	for _, o := range all {
		if o.tree {
			p.Trees = append(p.Trees, o.digest)
		} else {
			p.Roots = append(p.Roots, o.digest)
		}
	}
	return p
}

// Owners of pins. A delegation keeps its inputs until its outcome is here; an
// outcome keeps its objects for good.
const (
	delegationPrefix = "delegation/"
	outcomePrefix    = "outcome/"
	uploadPrefix     = "upload/"
)

func delegationOwner(g forgeyard.GrantID) string { return delegationPrefix + string(g) }
func outcomeOwner(g forgeyard.GrantID) string    { return outcomePrefix + string(g) }
