package controllers

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
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
	// claimKept is how many renewal intervals after its last question a claim is forgotten.
	claimKept = 15
)

// Contest says why a registration is not taken now, and with first that it is the first time
// that this process is refused; nil: it is for the log to judge. It is asked by the leader.
func (m *Memory) Contest(now forgeyard.Instant, s *site.State, b site.Register) (first bool, err error) {
	member, ok := s.Members.Get(b.Runner)
	cur := member.Session
	if !ok || cur.ID == "" || cur.ID == b.Session || cur.Place.IsZero() || b.Place.IsZero() || cur.Place == b.Place || member.Disabled {
		return false, nil
	}
	renew := s.Config.Lease.Renew
	c := m.claims[b.Runner]
	if c.session != b.Session || now.Sub(c.last) > claimKept*renew {
		c = claim{session: b.Session, first: now}
	}
	if c.last = now; len(b.Addrs) > 0 {
		c.addr = b.Addrs[0]
	}
	sign, heard := m.runners[b.Runner]
	heard = heard && sign.Session == cur.ID
	if since := max(sign.At, m.Elected); !heard && now.Sub(m.Elected) >= silentAfter*renew || heard && now.Sub(since) >= silentAfter*renew {
		delete(m.claims, b.Runner)
		return false, nil
	}
	first = heard && sign.At > c.first && !c.refused
	c.refused = c.refused || first
	m.claims[b.Runner] = c
	if !c.refused {
		return false, forgeyard.Errorf("register", forgeyard.Conflict, "session %s of %s was heard lately, elsewhere", forgeyard.Short(cur.ID), member.Name).
			WithHint("if that process has ended, this one is let in within %s by itself", silentAfter*renew)
	}
	return first, forgeyard.Errorf("register", forgeyard.Conflict, "another process is %s: session %s, which is heard; this is session %s, with the same key", member.Name, forgeyard.Short(cur.ID), forgeyard.Short(b.Session)).
		WithHint("a data dir belongs to one machine: stop one of the two; this one is let in when the other is silent for %s", silentAfter*renew)
}

// Contested tells of the process that asks to be a runner and is refused; empty: there is none.
func (m *Memory) Contested(now forgeyard.Instant, s *site.State, r forgeyard.RunnerID) string {
	c, ok := m.claims[r]
	if renew := s.Config.Lease.Renew; !ok || !c.refused || now.Sub(c.last) > claimKept*renew {
		return ""
	}
	return fmt.Sprintf("session %s at %s has the same key and asks to be this runner; it is refused", forgeyard.Short(c.session), c.addr)
}
