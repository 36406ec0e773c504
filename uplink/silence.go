package uplink

import (
	"fmt"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// This file only decides: no I/O, no clock, no goroutine.

// How names the clock by which an elapsed time was measured. It travels.
type How string

// The clocks, the trustworthy one first.
const (
	ByBoot How = "boot clock"
	ByWall How = "wall clock"
)

// Vouch is what one voter says about the time since a figure was committed.
type Vouch struct {
	By      string // its name, for people
	Known   bool
	Elapsed time.Duration // since the figure was committed; only when Known
	How     How
	Why     string // why it cannot say, when it cannot
}

// resume says how much silence passed since the committed figure: the largest that
// anybody vouches for, since each may have seen less than there was and none can
// have seen more, unless its wall clock runs ahead, which costs time and not safety.
// With nobody able to say, doubt tells why.
func resume(vs []Vouch) (best Vouch, doubt string) {
	var whys []string
	for _, v := range vs {
		switch {
		case v.Known && (!best.Known || v.Elapsed > best.Elapsed):
			best = v
		case !v.Known && v.Why != "":
			whys = append(whys, strings.TrimPrefix(v.By+": "+v.Why, ": "))
		}
	}
	if best.Known {
		best.Elapsed = max(0, best.Elapsed)
		return best, ""
	}
	if len(whys) == 0 {
		whys = []string{"no voter answered"}
	}
	return best, "no clock can say how long the uplink was silent: " + strings.Join(whys, "; ")
}

// count is the silence: base at the instant from, and all that passed since.
type count struct {
	known bool
	base  time.Duration
	from  forgeyard.Instant
}

func (c count) at(now forgeyard.Instant) time.Duration { return c.base + max(0, now.Sub(c.from)) }

// sight is what wish looks at.
type sight struct {
	uplink  lease.Uplink
	pending int                // records in the outbox
	used    time.Duration      // our figure, now
	fresh   bool               // an exchange succeeded since the last contact that was committed
	terms   *lease.UplinkTerms // what the daemon said then
	since   time.Duration      // since our last commit
	first   bool               // nothing was committed under this leadership yet
}

// wish says what to commit now, if anything.
func wish(s sight) (site.UplinkObserve, bool) {
	o := site.UplinkObserve{Used: int64(s.used), Contact: s.fresh}
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

// intervalFor is how often to exchange under the terms.
func intervalFor(t lease.UplinkTerms) time.Duration {
	return max(minInterval, t.SilentAfter/intervalsPerSilence)
}

// CheckTerms says why terms cannot be given, or nil. The daemon checks what it
// hands out, the site what it is handed.
func CheckTerms(t lease.UplinkTerms) error {
	bad := func(what string, v time.Duration, bound string) error {
		return forgeyard.E("terms", forgeyard.Invalid, fmt.Errorf("%s %s is not in %s", what, v, bound))
	}
	switch {
	case t.SilentAfter < MinSilentAfter || t.SilentAfter > MaxSilentAfter:
		return bad("silent_after", t.SilentAfter, fmt.Sprintf("[%s, %s]", MinSilentAfter, MaxSilentAfter))
	case t.Grace < 0 || t.Grace > MaxAllowance:
		return bad("grace", t.Grace, fmt.Sprintf("[0s, %s]", MaxAllowance))
	case t.Allowance < t.SilentAfter || t.Allowance > MaxAllowance:
		return bad("allowance", t.Allowance, fmt.Sprintf("[silent_after %s, %s]", t.SilentAfter, MaxAllowance))
	}
	return nil
}

// What terms may be. Below a second, one lost packet would end Online; 90 days is
// what a job may ask for offline.
const (
	MinSilentAfter = time.Second
	MaxSilentAfter = 10 * time.Minute
	MaxAllowance   = 90 * 24 * time.Hour
)
