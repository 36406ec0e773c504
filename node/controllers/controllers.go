// Package controllers decides what the leader of a site does next: whom to
// offer a job, when a silence has lasted too long, who votes, when delegated work
// must stop.
//
//	Step(now, Input) → []Effect
//
// Doing a step twice is harmless: what it proposes is refused by Apply if it no
// longer holds. A controller owns no state that would be lost with it; Memory is
// what a leader heard since it was elected, and a new leader starts with an empty
// one, which costs time and never safety (architecture §4).
//
// Invariants: a renewal is counted only when the shell has confirmed, after the
// request arrived, that its term is still current; once an expiry is proposed for a
// lease, its renewals are refused until the outcome is known.
//
// The package is pure. It does not execute (node/agent) and changes no state (site).
package controllers

import (
	"cmp"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// Effect is a wish of the controllers; the shell carries it out.
type Effect interface{ effect() }

// Propose asks for a command to be proposed. While one with the same key is under
// way, the shell does not propose another.
type Propose struct {
	Key  string
	Body site.Body
}

// SetVoter asks for a change of the Raft group, one at a time.
type SetVoter struct {
	Runner forgeyard.RunnerID
	Peer   string
	Role   VoterRole
}

// VoterRole is a member's place in the Raft group.
type VoterRole string

// Voter roles.
const (
	Voter    VoterRole = "voter"
	NonVoter VoterRole = "nonvoter"
	Spare    VoterRole = "spare" // a voter that keeps the log and loses its vote
	Gone     VoterRole = "gone"
)

func (Propose) effect()  {}
func (SetVoter) effect() {}

// Input is what the leader knows now.
type Input struct {
	State *site.State
	Mem   *Memory
	// Used is the leader's figure of uplink silence; Known is false until it has
	// asked the voters what they can vouch for, and nothing delegated starts before.
	Used  time.Duration
	Known bool
	// Daemon is what the central daemon's clock read at the contact from which Used counts,
	// where that is fresher than the committed one; zero: it is not.
	Daemon forgeyard.Wall
	// DaemonOff is this node's wall clock against the central daemon's at that contact.
	DaemonOff time.Duration
	Group     []GroupMember // the Raft configuration
	// Reshaping is set while a change of the group is under way.
	Reshaping bool
	// Term is that of this leadership. An expiry is good only in the log of the term in
	// which the silence was counted: a leader that was stopped and wakes up deposed must
	// not end, through its successor, a lease that the successor has renewed.
	Term uint64
	// Wall is for preferences, and for nothing that anybody may or may not do.
	Wall forgeyard.Wall
}

// uplink is the committed record with the leader's own, fresher reading of the daemon's clock.
func (in Input) uplink() lease.Uplink {
	u := in.State.Uplink
	if in.Daemon != 0 {
		u.Daemon = in.Daemon
	}
	return u
}

// GroupMember is a member of the Raft group and how well it follows.
type GroupMember struct {
	Runner forgeyard.RunnerID
	Voter  bool
	Behind uint64 // entries that it lacks; meaningless for one not heard lately
}

// Sign is what a runner's heartbeat said.
type Sign struct {
	Session  forgeyard.SessionID
	At       forgeyard.Instant
	Pressure string   // normal, or what is scarce
	Refusing []string // reasons for not taking work
	Facts    lease.Facts
	State    string           // of the node as a whole
	Caps     forgeyard.Digest // of what it is now; zero: not said
	Sent     forgeyard.Wall   // by its own clock: for people, never compared (RA-147)
	Taken    Taken
	Attempts []Attempt // of the leases that it renews, in the order of its request
}

// Taken is what a runner's leases take of it, and what its disk has free.
type Taken struct {
	Jobs     int
	MilliCPU int64
	Memory   int64
	Disk     int64
	DiskFree int64
	// Withheld are thousandths of a core that its machine needs for others: no new work gets
	// them, and what runs keeps its own.
	Withheld int64
}

// Attempt is how far the execution under a lease has come, by its holder's word.
type Attempt struct {
	Authority forgeyard.Authority
	Phase     job.Phase
	LastLog   uint64 // number of the last frame of its log on the runner's disk
}

// Memory is what this leader heard since its election. One goroutine owns it.
type Memory struct {
	Elected forgeyard.Instant
	leases  map[forgeyard.LeaseID]holder
	runners map[forgeyard.RunnerID]Sign
	returns map[forgeyard.RunnerID]back
	gap     time.Duration // a longer silence is a loss; set by Step
	avoided map[avoidKey]refusals
	devices map[forgeyard.DeviceLeaseID]forgeyard.Instant // first seen here

	sessions map[forgeyard.RunnerID]seenSession
	claims   map[forgeyard.RunnerID][]claim          // see contest
	disabled map[forgeyard.LeaseID]forgeyard.Instant // of disabled runners, first seen so
	ready    forgeyard.Instant                       // of the last word about the site's readiness
}

type holder struct {
	heard    forgeyard.Instant // last sign, never earlier than the apply of the grant here
	state    lease.State
	expiring bool
}

type avoidKey struct {
	job    forgeyard.JobID
	runner forgeyard.RunnerID
}

// refusals are those of one runner for one job. The job's record has room for a few runners
// only: what it forgets for others is remembered here until the job ends, or a runner would
// be asked again at once, and among many that refuse one would be asked all the time.
type refusals struct {
	last  site.Avoidance
	since forgeyard.Instant // seen here first
	times int               // seen in this leadership
}

// NewMemory starts the memory of a leader elected now: every lease counts anew.
func NewMemory(now forgeyard.Instant) *Memory {
	return &Memory{
		Elected: now, leases: map[forgeyard.LeaseID]holder{}, runners: map[forgeyard.RunnerID]Sign{}, avoided: map[avoidKey]refusals{},
		devices: map[forgeyard.DeviceLeaseID]forgeyard.Instant{}, sessions: map[forgeyard.RunnerID]seenSession{}, disabled: map[forgeyard.LeaseID]forgeyard.Instant{},
		returns: map[forgeyard.RunnerID]back{}, claims: map[forgeyard.RunnerID][]claim{},
	}
}

// Observe takes note of leases that are new to this leader, or were accepted, and
// forgets those of jobs that ended.
func (m *Memory) Observe(now forgeyard.Instant, s *site.State) {
	leased, jobs := 0, s.Jobs.Reader()
	for id := range s.Open.All() {
		leased += m.observe(now, jobs.Find(id))
	}
	m.forget(s, leased)
}

// observe takes note of one open job, and returns 1 if it has a lease.
func (m *Memory) observe(now forgeyard.Instant, j *site.Job) int {
	for _, a := range j.Avoid {
		k := avoidKey{j.ID, a.Runner}
		if r := m.avoided[k]; r.times == 0 || r.last.Index < a.Index {
			m.avoided[k] = refusals{last: a, since: now, times: r.times + 1}
		}
	}
	state := j.Lease.State
	if state == "" {
		return 0
	}
	key := j.Lease.Authority.Lease
	h, ok := m.leases[key]
	if !ok || (h.state == lease.Offered && state == lease.Accepted) {
		m.leases[key] = holder{heard: now, state: state}
	} else if h.state != state {
		h.state = state
		m.leases[key] = h
	}
	return 1
}

// forget drops what no open job has any more. leased is how many of those were observed:
// if that is all that is remembered, there is nothing to look for.
func (m *Memory) forget(s *site.State, leased int) {
	if len(m.leases) > leased {
		live, jobs := make(map[forgeyard.LeaseID]bool, leased), s.Jobs.Reader()
		for id := range s.Open.All() {
			live[jobs.Find(id).Lease.Authority.Lease] = true
		}
		for key := range m.leases {
			if !live[key] {
				delete(m.leases, key)
			}
		}
	}
	for k := range m.avoided {
		if !s.Open.Has(k.job) {
			delete(m.avoided, k)
		}
	}
}

// forgetDisabled drops leases that ended with their job, or were followed by another.
// live is how many are of disabled runners: if that is all, there is nothing to look for.
func (m *Memory) forgetDisabled(s *site.State, live int) {
	if len(m.disabled) <= live {
		return
	}
	held, jobs := make(map[forgeyard.LeaseID]bool, live), s.Jobs.Reader()
	for id := range s.Open.All() {
		if j := jobs.Find(id); j.Lease.Live() {
			held[j.Lease.Authority.Lease] = true
		}
	}
	for id := range m.disabled {
		if !held[id] {
			delete(m.disabled, id)
		}
	}
}

// Hello counts a sign of life of a runner.
func (m *Memory) Hello(r forgeyard.RunnerID, s Sign) {
	if prev, ok := m.runners[r]; ok && m.gap > 0 && (s.At.Sub(prev.At) > m.gap || s.Session != prev.Session) {
		m.returns[r] = back{times: m.returns[r].times + 1, since: s.At}
	}
	m.runners[r] = s
}

// back is how often a runner was lost and came back in this leadership, and when last.
type back struct {
	times int
	since forgeyard.Instant
}

// Runner returns the last sign of a runner.
func (m *Memory) Runner(r forgeyard.RunnerID) (Sign, bool) { s, ok := m.runners[r]; return s, ok }

// Renewal is one lease that a holder asks to renew.
type Renewal struct {
	Authority forgeyard.Authority
	Running   bool
}

// RenewalAnswer answers one renewal.
type RenewalAnswer struct {
	Answer lease.Answer
	Reason string
	// Left bounds how long, from the holder's send, the central daemon's grant still
	// covers the work; negative for the site's own work.
	Left time.Duration
}

// Renew answers a batch. The shell calls it only after its leadership was confirmed
// by a majority, after the batch arrived; arrived is when it did.
func (m *Memory) Renew(arrived forgeyard.Instant, in Input, batch []Renewal) []RenewalAnswer {
	out := make([]RenewalAnswer, 0, len(batch))
	for _, r := range batch {
		out = append(out, m.renewOne(arrived, in, r))
	}
	return out
}

func (m *Memory) renewOne(arrived forgeyard.Instant, in Input, r Renewal) RenewalAnswer {
	stale := func(why string) RenewalAnswer { return RenewalAnswer{Answer: lease.Stale, Reason: why, Left: -1} }
	j, ok := in.State.Jobs.Get(r.Authority.Job)
	if !ok {
		return stale("the job is not known")
	}
	if err := lease.Check(j.Lease.Authority, r.Authority); err != nil {
		return stale(err.Error())
	}
	if !j.Lease.Live() {
		return stale("the lease ended: " + string(j.Lease.Reason))
	}
	h := m.leases[r.Authority.Lease]
	if h.expiring {
		return stale("the lease is expiring")
	}
	if j.Grant != nil && !in.Known {
		// The holder goes on under what an earlier leader said. To answer "nothing is left"
		// would kill all delegated work at each change of the leader.
		return RenewalAnswer{Answer: lease.Wait, Reason: "the new leader is asking the voters how long the uplink was silent", Left: -1}
	}
	h.state, h.heard = j.Lease.State, max(h.heard, arrived)
	m.leases[r.Authority.Lease] = h
	a := RenewalAnswer{Answer: lease.Continue, Left: -1}
	if j.CancelAt != 0 {
		a.Answer, a.Reason = lease.Cancel, "cancelled by "+j.CancelBy
	}
	if j.Grant != nil {
		a.Left = max(0, j.Grant.Left(in.uplink(), in.Used))
	}
	return a
}

// Expiring marks a lease whose expiry is proposed; Settled is told the outcome.
func (m *Memory) Expiring(id forgeyard.LeaseID) { m.mark(id, true) }

// Settled ends what Expiring began: the outcome of the proposal is known.
func (m *Memory) Settled(id forgeyard.LeaseID) { m.mark(id, false) }

func (m *Memory) mark(id forgeyard.LeaseID, on bool) {
	if h, ok := m.leases[id]; ok {
		h.expiring = on
		m.leases[id] = h
	}
}

// Step returns what the leader should do now, and when to look again at the latest.
func Step(now forgeyard.Instant, in Input) ([]Effect, forgeyard.Instant) {
	s := stepper{now: now, in: in, wake: now.Add(idleLook)}
	in.Mem.gap = heardWithin * in.State.Config.Lease.Renew
	s.survey()
	if in.State.Site == "" {
		return nil, s.wake
	}
	s.silences()
	s.readiness()
	s.place()
	s.moves()
	s.deviceLeases()
	s.voters()
	s.format()
	return s.effects, s.wake
}

// idleLook is how long a leader waits at most before it looks again, changes or not.
const idleLook = time.Second

type stepper struct {
	now     forgeyard.Instant
	in      Input
	effects []Effect
	wake    forgeyard.Instant

	taken map[forgeyard.RunnerID]usage // by the leases that live
	holds map[forgeyard.RunnerID]bool  // a live lease

	members   site.Reader[forgeyard.RunnerID, site.Member]
	disabling int       // live leases of disabled runners
	waiting   []waiting // jobs that nobody holds, oldest first
	takers    []site.Member
}

// waiting is a job by the step of its submission.
type waiting struct {
	job *site.Job // in the state
	at  uint64
}

// survey looks at every open job once: there may be thousands, and a job is large.
func (s *stepper) survey() {
	s.taken, s.holds, s.members = map[forgeyard.RunnerID]usage{}, map[forgeyard.RunnerID]bool{}, s.in.State.Members.Reader()
	leased, jobs := 0, s.in.State.Jobs.Reader()
	var stops []Effect
	for id, at := range s.in.State.Open.All() {
		j := jobs.Find(id)
		leased += s.in.Mem.observe(s.now, j)
		s.expiry(j)
		stops = s.authority(j, stops)
		stops = s.pastEnd(j, stops)
		s.disabled(j)
		s.aged(j)
		s.take(j)
		if j.Lease.Live() {
			s.holds[j.Lease.Authority.Runner] = true
		} else {
			s.waiting = append(s.waiting, waiting{j, at})
		}
	}
	s.effects = append(s.effects, stops...)
	s.in.Mem.forget(s.in.State, leased)
	s.in.Mem.forgetDisabled(s.in.State, s.disabling)
	slices.SortFunc(s.waiting, func(a, b waiting) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.job.ID, b.job.ID)) })
}

func (s *stepper) propose(key string, b site.Body) {
	if s.in.State.MayWrite(b) != nil {
		return // a later format of the log, which not every voter reads yet
	}
	s.effects = append(s.effects, Propose{Key: key, Body: b})
}

// at asks for a look at an instant to come. What is due already was proposed in this step:
// its outcome asks for the next look, and a look at every turn until then would find the same.
func (s *stepper) at(t forgeyard.Instant) {
	if t > s.now {
		s.wake = min(s.wake, max(t, s.now.Add(time.Millisecond)))
	}
}
