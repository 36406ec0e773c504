package controllers

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// caughtUp is how many entries a node may lack and still be promoted.
const caughtUp = 100

// voters brings members into the Raft group, as non-voters first, and promotes
// them in the order of their enrolment. The number of voters stays odd between
// changes: with two nodes, a second voter would only add a second way to lose
// the quorum, so both of a pair are promoted when both are ready.
func (s *stepper) voters() {
	in := map[forgeyard.RunnerID]GroupMember{}
	voting := 0
	for _, g := range s.in.Group {
		in[g.Runner] = g
		if g.Voter {
			voting++
		}
	}
	if len(in) == 0 {
		return
	}
	var ready []site.Member
	for m := range byEnrolment(s.in.State) {
		g, ok := in[m.Runner]
		switch {
		case m.Removed && ok && (!g.Voter || s.dispensable(in, m)):
			s.effects = append(s.effects, SetVoter{m.Runner, m.Peer, Gone})
			return
		case m.Removed: // while the rest could not go on without its vote, it is heard
		case !ok && s.fresh(m):
			s.effects = append(s.effects, SetVoter{m.Runner, m.Peer, NonVoter})
			return
		case ok && g.Voter && m.Spare && s.dispensable(in, m):
			s.effects = append(s.effects, SetVoter{m.Runner, m.Peer, Spare})
			return
		case ok && !g.Voter && m.MayLead() && !m.Spare && g.Behind <= caughtUp && s.fit(m) && s.steady(m) && !m.Draining:
			ready = append(ready, m)
		}
	}
	if len(ready) > 0 && s.replaceDead(in, voting) {
		return
	}
	want := s.in.State.Config.Voters
	odd := voting%2 == 1
	if voting < want && (len(ready) >= 2 || (len(ready) == 1 && !odd)) {
		s.effects = append(s.effects, SetVoter{ready[0].Runner, ready[0].Peer, Voter})
	}
}

// dispensable reports whether the other voters could go on without one that gives up its vote:
// those of them that are heard are a majority. A change that they cannot commit takes the
// vote all the same, since Raft counts by the newest configuration in the log.
func (s *stepper) dispensable(in map[forgeyard.RunnerID]GroupMember, leaves site.Member) bool {
	rest, alive := 0, 0
	for id, g := range in {
		if !g.Voter || id == leaves.Runner {
			continue
		}
		rest++
		if m, ok := s.in.State.Members.Get(id); ok && s.fresh(m) {
			alive++
		}
	}
	return 2*alive > rest
}

// replaceDead takes the vote of one that was silent for long, where a steady spare is there
// to get it: never so that the voters that are alive would be no majority of the rest.
func (s *stepper) replaceDead(in map[forgeyard.RunnerID]GroupMember, voting int) bool {
	alive := 0
	var dead []site.Member
	for m := range byEnrolment(s.in.State) {
		switch {
		case !in[m.Runner].Voter:
		case s.fresh(m):
			alive++
		case s.dead(m):
			dead = append(dead, m)
		}
	}
	if len(dead) == 0 || 2*alive <= voting-1 {
		return false
	}
	s.effects = append(s.effects, SetVoter{dead[0].Runner, dead[0].Peer, Spare})
	return true
}

// Lengths of silence and of steadiness, in renewal intervals.
const (
	deadAfter   = 12 // a voter that was silent for so long may be replaced
	steadyAfter = 6  // who was lost once must be heard for so long before it gets a vote
	mostReturns = 4  // each further loss makes it four times as long, up to here
)

func (s *stepper) dead(m site.Member) bool {
	sign, _ := s.in.Mem.Runner(m.Runner)
	return s.now.Sub(max(sign.At, s.in.Mem.Elected)) > deadAfter*s.in.State.Config.Lease.Renew
}

// steady reports whether a member was heard without a break for long enough, if this
// leader ever lost it: one that comes and goes is not given a vote.
func (s *stepper) steady(m site.Member) bool {
	b := s.in.Mem.returns[m.Runner]
	if b.times == 0 {
		return true
	}
	need := steadyAfter * s.in.State.Config.Lease.Renew << (2 * (min(b.times, mostReturns) - 1))
	return s.now.Sub(b.since) >= need
}

// format moves the log's format up by one when every voter reads the next (07§206). The
// group must stand still meanwhile: a voter that comes in unseen might not read it.
func (s *stepper) format() {
	next := s.in.State.LogFormat() + 1
	if next > site.FormatNow || s.in.Reshaping || slices.ContainsFunc(s.effects, func(e Effect) bool { _, ok := e.(SetVoter); return ok }) {
		return
	}
	var voters []forgeyard.RunnerID
	for _, g := range s.in.Group {
		if !g.Voter {
			continue
		}
		m, ok := s.in.State.Members.Get(g.Runner)
		if !ok || !m.Session.Formats.Reads(next) {
			return
		}
		voters = append(voters, g.Runner)
	}
	if len(voters) > 0 {
		s.propose(fmt.Sprintf("format/%d", next), site.FormatRaise{To: next, Voters: voters})
	}
}

// fit reports whether a member can carry a vote: it is heard, and has room for the log.
func (s *stepper) fit(m site.Member) bool {
	sign, _ := s.in.Mem.Runner(m.Runner)
	return s.fresh(m) && m.Session.Formats.Reads(s.in.State.LogFormat()) && (sign.Pressure == "" || sign.Pressure == "normal")
}

func (s *stepper) fresh(m site.Member) bool {
	sign, ok := s.in.Mem.Runner(m.Runner)
	return ok && s.now.Sub(sign.At) <= heardWithin*s.in.State.Config.Lease.Renew && sign.Session == m.Session.ID
}

// byEnrolment yields the members in the order in which they came. It sorts their names: a
// member is large, and this is asked at every step.
func byEnrolment(st *site.State) iter.Seq[site.Member] {
	type place struct {
		order  uint64
		runner forgeyard.RunnerID
	}
	return func(yield func(site.Member) bool) {
		order := make([]place, 0, st.Members.Len())
		for id, m := range st.Members.All() {
			order = append(order, place{m.Order, id})
		}
		slices.SortFunc(order, func(a, b place) int { return cmp.Compare(a.order, b.order) })
		for _, p := range order {
			if m, _ := st.Members.Get(p.runner); !yield(m) {
				return
			}
		}
	}
}
