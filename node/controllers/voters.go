package controllers

import (
	"cmp"
	"fmt"
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
	for _, m := range byEnrolment(s.in.State) {
		g, ok := in[m.Runner]
		switch {
		case m.Removed && ok:
			s.effects = append(s.effects, SetVoter{m.Runner, m.Peer, Gone})
			return
		case m.Removed:
		case !ok && s.fresh(m):
			s.effects = append(s.effects, SetVoter{m.Runner, m.Peer, NonVoter})
			return
		case ok && !g.Voter && m.MayVote && g.Behind <= caughtUp && s.fit(m) && !m.Draining:
			ready = append(ready, m)
		}
	}
	want := s.in.State.Config.Voters
	odd := voting%2 == 1
	if voting < want && (len(ready) >= 2 || (len(ready) == 1 && !odd)) {
		s.effects = append(s.effects, SetVoter{ready[0].Runner, ready[0].Peer, Voter})
	}
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

func byEnrolment(st *site.State) []site.Member {
	var out []site.Member
	for _, m := range st.Members.All() {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b site.Member) int { return cmp.Compare(a.Order, b.Order) })
	return out
}
