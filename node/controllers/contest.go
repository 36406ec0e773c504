package controllers

import (
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// Two processes may have the key of one runner: a data dir was copied. A process that comes
// after another one looks the same, until the first is heard again:
//
//	registration of another place ─▶ the present session is silent since two renewals ─▶ let in
//	                              ─▶ it was heard since this one first asked          ─▶ refused, both are told
//	                              ─▶ neither                                          ─▶ asked to come again
//
// So a machine that moved, or began anew, waits two renewal intervals at most, and one of the
// same place not at all: there the lock of the data dir says that the first has ended (E09).
// Once the two are known to live, a short silence of the first is most likely the network's:
// it keeps its place for as long as the site is patient with it, and with the work it has. That
// holds for whoever else has the key: a data dir that was copied once may be copied again.

// claim is a process that asks to be a runner while another one is.
type claim struct {
	session forgeyard.SessionID
	addr    string
	first   forgeyard.Instant // when it asked
	last    forgeyard.Instant
	refused bool // the other was heard in between
}

const (
	// silentAfter is how many renewal intervals without a heartbeat let another one in.
	silentAfter = 2
	// claimRenewals is how many renewal intervals after its last question a claim is forgotten,
	// but not before claimKept: who is not let in asks every half a minute, by default.
	claimRenewals = 15
	claimKept     = 5 * time.Minute
	// maxClaims are those of one runner; of more the latest are known.
	maxClaims = 8
)

// claimsOn are what is left of the claims on a runner, in the order of their last questions.
func (m *Memory) claimsOn(now forgeyard.Instant, r forgeyard.RunnerID, renew time.Duration) []claim {
	left := slices.DeleteFunc(slices.Clone(m.claims[r]), func(c claim) bool { return c.over(now, renew) })
	return left[max(0, len(left)-maxClaims):]
}

// keepClaims writes them down, without the one that is no more.
func (m *Memory) keepClaims(r forgeyard.RunnerID, all []claim) {
	if m.claims[r] = all; len(all) == 0 {
		delete(m.claims, r)
	}
}

func wasRefused(c claim) bool { return c.refused }

// over tells whether nothing is left of the claim.
func (c claim) over(now forgeyard.Instant, renew time.Duration) bool {
	return now.Sub(c.last) > max(claimRenewals*renew, claimKept)
}

// freeAt is when a claim that was refused is let in, if the present session is not heard again.
func freeAt(s *site.State, cur forgeyard.SessionID, heard forgeyard.Instant) forgeyard.Instant {
	l := s.Config.Lease
	at := heard.Add(max(silentAfter*l.Renew, l.TTL+l.Grace))
	for id := range s.Open.All() {
		if j, _ := s.Jobs.Get(id); j.Lease.Live() && j.Lease.Authority.Session == cur {
			at = max(at, lease.UnknownAt(j.Lease, heard))
		}
	}
	return at
}

// Contest says why a registration is not taken now, and with first that it is the first time
// that this process is refused; nil: it is for the log to judge. It is asked by the leader.
func (m *Memory) Contest(now forgeyard.Instant, s *site.State, b site.Register) (first bool, err error) {
	member, ok := s.Members.Get(b.Runner)
	cur := member.Session
	if !ok || cur.ID == "" || cur.ID == b.Session || cur.Place.IsZero() || b.Place.IsZero() || cur.Place == b.Place || member.Disabled {
		return false, nil
	}
	renew := s.Config.Lease.Renew
	c, others := claim{session: b.Session, first: now}, m.claimsOn(now, b.Runner, renew)
	if i := slices.IndexFunc(others, func(o claim) bool { return o.session == b.Session }); i >= 0 {
		c = others[i]
		others = slices.Delete(others, i, i+1)
	}
	if c.last = now; len(b.Addrs) > 0 {
		c.addr = b.Addrs[0]
	}
	sign, heard := m.runners[b.Runner]
	heard = heard && sign.Session == cur.ID
	since := m.Elected
	if heard {
		since = max(sign.At, since)
	}
	first = heard && sign.At > c.first && !c.refused
	c.refused = c.refused || first
	free := since.Add(silentAfter * renew)
	if c.refused || slices.ContainsFunc(others, wasRefused) {
		free = freeAt(s, cur.ID, since)
	}
	if now >= free {
		m.keepClaims(b.Runner, others)
		return false, nil
	}
	m.keepClaims(b.Runner, append(others, c))
	if !c.refused {
		return false, forgeyard.Errorf("register", forgeyard.Conflict, "session %s of %s was heard lately, elsewhere", forgeyard.Short(cur.ID), member.Name).
			WithHint("if that process has ended, this one is let in by itself when it asks again after %s of its silence", free.Sub(since))
	}
	return first, forgeyard.Errorf("register", forgeyard.Conflict, "another process is %s: session %s, which is heard; this is session %s, with the same key", member.Name, forgeyard.Short(cur.ID), forgeyard.Short(b.Session)).
		WithHint("a data dir belongs to one machine: stop one of the two; this one is let in when the other is silent for %s", free.Sub(since))
}

// Contested tells of the process that asks to be a runner and is refused; empty: there is none.
func (m *Memory) Contested(now forgeyard.Instant, s *site.State, r forgeyard.RunnerID) string {
	all := m.claimsOn(now, r, s.Config.Lease.Renew)
	all = slices.DeleteFunc(all, func(c claim) bool { return !c.refused })
	if len(all) == 0 {
		return ""
	}
	c, more := all[len(all)-1], ""
	if n := len(all) - 1; n > 0 {
		more = fmt.Sprintf(", as are %d more", n)
	}
	return fmt.Sprintf("session %s at %s has the same key and asks to be this runner; it is refused%s", forgeyard.Short(c.session), c.addr, more)
}
