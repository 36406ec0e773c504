package reckon

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// Keeper is one leader's count of the silence of one daemon. The zero Keeper knows
// nothing yet. Whoever owns it sees to it that one at a time uses it.
type Keeper struct {
	count   count
	contact *contact          // the newest success that is not committed yet
	last    forgeyard.Instant // of our last commit; zero: none yet
}

type contact struct {
	terms  lease.UplinkTerms
	daemon forgeyard.Wall
}

// count is the silence: base at the instant from, and all that passed since.
type count struct {
	known bool
	base  time.Duration
	from  forgeyard.Instant
	// daemon is what the daemon's clock read at the contact from which this counts, or a
	// little later; zero: the committed reading is the one that belongs to the count.
	daemon forgeyard.Wall
}

func (c count) at(now forgeyard.Instant) time.Duration { return c.base + max(0, now.Sub(c.from)) }

// Used is the figure now. It is unknown before Begin and Heard: then nothing may be
// started under the daemon's authority.
func (k *Keeper) Used(now forgeyard.Instant) (used time.Duration, known bool) {
	return k.count.at(now), k.count.known
}

// Daemon is what the daemon's clock read at the contact from which Used counts; zero: none
// came under this leadership, or the daemon does not tell.
func (k *Keeper) Daemon() forgeyard.Wall { return k.count.daemon }

// Begin counts on from what Resume found. from is the instant before the voters were
// asked: the way of the question is counted twice rather than not at all.
func (k *Keeper) Begin(used time.Duration, from forgeyard.Instant) {
	if k.contact == nil { // else the exchange was quicker, and knows better
		k.count = count{known: true, base: used, from: from}
	}
}

// Heard counts from the send of an exchange that succeeded. daemon is what the daemon's
// clock read when it answered: counted from the send it is a little ahead, so that a hard
// end comes early rather than late.
func (k *Keeper) Heard(sent forgeyard.Instant, terms lease.UplinkTerms, daemon forgeyard.Wall) {
	k.count = count{known: true, from: sent, daemon: daemon}
	k.contact = &contact{terms, daemon}
}

// Commit is a figure on its way into the log.
type Commit struct {
	Body    site.UplinkObserve
	contact *contact
}

// Look says what to commit now; if nothing, after how long to look again at the latest.
func (k *Keeper) Look(now forgeyard.Instant, u lease.Uplink, pending int) (c Commit, yes bool, wait time.Duration) {
	v := sight{uplink: u, pending: pending, used: k.count.at(now), fresh: k.contact != nil, since: now.Sub(k.last), first: k.last == 0}
	if k.contact != nil {
		v.terms, v.daemon = &k.contact.terms, k.contact.daemon
	}
	if o, yes := wish(v); yes {
		return Commit{o, k.contact}, true, 0
	}
	wait = pollEvery
	if d, ok := untilThreshold(u.Terms, v.used); ok {
		wait = min(wait, d)
	}
	if d := commitEvery - v.since; k.last != 0 && d > 0 {
		wait = min(wait, d)
	}
	return Commit{}, false, wait
}

// Committed is told that a figure of Look is in the log; at is when Look was asked. A
// contact that came meanwhile is still to be committed.
func (k *Keeper) Committed(c Commit, at forgeyard.Instant) {
	k.last = at
	if k.contact == c.contact {
		k.contact = nil
	}
}

// sight is what wish looks at.
type sight struct {
	uplink  lease.Uplink
	pending int                // records in the outbox
	used    time.Duration      // our figure, now
	fresh   bool               // an exchange succeeded since the last contact that was committed
	terms   *lease.UplinkTerms // what the daemon said then
	daemon  forgeyard.Wall     // and what its clock read
	since   time.Duration      // since our last commit
	first   bool               // nothing was committed under this leadership yet
}

// wish says what to commit now, if anything.
func wish(s sight) (site.UplinkObserve, bool) {
	o := site.UplinkObserve{Used: int64(s.used), Contact: s.fresh, Daemon: s.daemon}
	if s.fresh && s.terms != nil && *s.terms != s.uplink.Terms {
		o.Terms = s.terms
	}
	tick := s.since >= commitEvery || s.first
	switch {
	case s.fresh && (o.Terms != nil || s.uplink.Doubt != "" || returns(s.uplink.State, s.pending)):
		return o, true
	case s.fresh && tick:
		return o, true
	case worsens(s.uplink, s.used, s.pending):
		return o, true
	}
	// Once the allowance is used up, only a contact changes anything.
	return o, !s.fresh && tick && s.uplink.State != lease.Exhausted && s.used > s.uplink.Used
}

// returns says that a contact changes the state.
func returns(st lease.UplinkState, pending int) bool {
	return st != lease.Online && (st != lease.Reconciling || pending == 0)
}

// worsens says that a threshold was crossed since the last commit.
func worsens(u lease.Uplink, used time.Duration, pending int) bool {
	return u.Observe(u.MarkedAt, u.Marked, used, false, pending).State != u.State
}

// untilThreshold is how long until the figure crosses the next threshold; false
// when it has crossed all.
func untilThreshold(t lease.UplinkTerms, used time.Duration) (time.Duration, bool) {
	next, found := time.Duration(0), false
	for _, at := range []time.Duration{t.SilentAfter, t.SilentAfter + t.Grace, t.Allowance} {
		if at > used && (!found || at-used < next) {
			next, found = at-used, true
		}
	}
	return next, found
}
