package controllers

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// silences commits who does not renew what it holds, and who does again: people see trouble
// with a lease before it ends. It is one entry for each silence, not one for each lease.
func (s *stepper) silences() {
	if !s.in.State.Allows(site.FormatLeases) {
		return
	}
	renew := s.in.State.Config.Lease.Renew
	limit := 2*renew + renew/2 // two heartbeats in a row were lost
	for _, m := range s.in.State.Members.All() {
		if m.Removed || m.Session.ID == "" || (m.Silent == 0 && !s.holds[m.Runner]) {
			continue
		}
		heard := s.in.Mem.Elected
		if sign, ok := s.in.Mem.Runner(m.Runner); ok && sign.Session == m.Session.ID {
			heard = max(heard, sign.At)
		}
		silent := s.now.Sub(max(heard, s.in.Mem.sessionSeen(m, s.now)))
		switch {
		case m.Silent == 0 && silent >= limit:
			s.propose("silence/"+string(m.Runner), site.Silence{Runner: m.Runner, Session: m.Session.ID, Silent: true, For: int64(silent)})
		case m.Silent == 0:
			s.at(s.now.Add(limit - silent))
		case silent < limit && s.fresh(m): // by the same bound, or it would come and go
			s.propose("silence/"+string(m.Runner), site.Silence{Runner: m.Runner, Session: m.Session.ID})
		}
	}
}

// sessionSeen is when this leader first saw the current session of a member: a process that
// just registered has had no time to send a heartbeat.
func (m *Memory) sessionSeen(b site.Member, now forgeyard.Instant) forgeyard.Instant {
	if k := m.sessions[b.Runner]; k.id == b.Session.ID {
		return k.seen
	}
	m.sessions[b.Runner] = seenSession{b.Session.ID, now}
	return now
}

type seenSession struct {
	id   forgeyard.SessionID
	seen forgeyard.Instant
}

// disabledPatience is how long a disabled runner may take to give back a job beyond what
// the job's own stop may take.
const disabledPatience = 5 * time.Second

// disabled takes back what a disabled runner was asked for and has not given (07§199),
// whether it can be reached or not.
func (s *stepper) disabled(j *site.Job) {
	a := j.Lease.Authority
	if m := s.members.Find(a.Runner); !j.Lease.Live() || m == nil || !m.Disabled {
		delete(s.in.Mem.disabled, a.Lease)
		return
	}
	s.disabling++
	since, ok := s.in.Mem.disabled[a.Lease]
	if !ok {
		since = s.now
		s.in.Mem.disabled[a.Lease] = since
	}
	if due := since.Add(stopTime(*j) + disabledPatience); due > s.now {
		s.at(due)
		return
	}
	s.propose("revoke/"+string(a.Lease), site.Revoke{Job: j.ID, Lease: a.Lease, Class: site.RevokedDisabled, Reason: fmt.Sprintf("not given back within %s", stopTime(*j)+disabledPatience)})
}

// pastEnd ends delegated work that nobody holds and whose authority has reached its hard
// end: no contact renews that. Under a higher term the daemon may give it anew.
func (s *stepper) pastEnd(j *site.Job, ends []Effect) []Effect {
	if !s.in.Known || j.Grant == nil || j.Grant.End == 0 || j.Lease.Live() || (j.Status == job.Unknown && !j.Certain) {
		return ends
	}
	if u := s.in.uplink(); u.Daemon == 0 || u.DaemonNow(s.in.Used) < j.Grant.End {
		return ends
	}
	b := site.Fail{Job: j.ID, Epoch: j.Epoch, Category: job.AuthorityEnded, Reason: "the central daemon's grant reached its hard end"}
	return append(ends, Propose{Key: "fail/" + string(j.ID), Body: b})
}

// readyEvery bounds how often the site's readiness is written down.
const readyEvery = 5 * time.Second

// readiness commits what keeps the site from going on alone, while it is online and can
// still be mended. Who leads waits until everybody had time to say how it stands.
func (s *stepper) readiness() {
	u := s.in.uplink()
	settled := s.in.Mem.Elected.Add(heardWithin * s.in.State.Config.Lease.Renew)
	if u.State == lease.Standalone || u.State == "" || !s.in.Known || u.Silent(s.in.Used) {
		return
	}
	if s.now < settled {
		s.at(settled)
		return
	}
	facts := s.facts()
	if facts == nil {
		return // nobody says anything: older versions
	}
	p := lease.Promise{
		Allowance: u.Terms.Allowance, Copies: s.in.State.CopiesNeeded(), DriftPPM: int64(s.in.State.Config.Lease.Drift), Doubt: u.Doubt,
		DaemonOff: s.in.DaemonOff, DaemonTold: u.Daemon != 0,
	}
	lacks := lease.Readiness(p, facts)
	if was := s.in.State.Ready; was.Asked && lease.SameWants(was.Lacks, lacks) {
		return
	}
	if again := s.in.Mem.ready.Add(readyEvery); s.in.Mem.ready != 0 && again > s.now {
		s.at(again)
		return
	}
	s.in.Mem.ready = s.now
	s.propose("readiness", site.Readiness{Lacks: lacks})
}

// facts are what the members say of themselves; nil while none says anything.
func (s *stepper) facts() []lease.Facts {
	voter := map[forgeyard.RunnerID]bool{}
	for _, g := range s.in.Group {
		voter[g.Runner] = g.Voter
	}
	var out []lease.Facts
	told := false
	for _, m := range s.in.State.Members.All() {
		if m.Removed {
			continue
		}
		sign, _ := s.in.Mem.Runner(m.Runner)
		f := sign.Facts
		f.Node, f.Voter, f.Heard = m.Name, voter[m.Runner], s.fresh(m)
		told = told || (f.Heard && f.Told)
		out = append(out, f)
	}
	if !told {
		return nil
	}
	return out
}
