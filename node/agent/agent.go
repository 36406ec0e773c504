// Package agent decides what a runner does about the leases that name it: accept
// or reject, start, stop softly, kill.
//
//	Step(now, Input, *Book) → []Effect
//
//	       offer seen          accept applied          Continue answered
//	(none) ─────────▶ asking ─────────────────▶ held ─────────────────▶ held …
//	                    │ refused                │ deadline, Stale, superseded
//	                    ▼                        ▼
//	                 (none)                    dead: killed, never completes
//
// Invariants: nothing starts without a deadline in the future that was counted from
// our own send (07§115–117, E06), by the terms that the log gave that very epoch; an
// attempt whose deadline has passed is killed, and
// a process that slept knows it when it wakes, because every step compares the clock;
// one lease starts at most one execution, however often it is seen (RA-442).
//
// The agent is never an authority (07§1): it proposes, and the log decides. It knows
// no placement rule. The package is pure.
package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// Effect is a wish of the agent; the shell carries it out.
type Effect interface{ effect() }

type (
	// Accept asks for the offer to be accepted. The shell notes when it sent the proposal
	// and tells the Book the outcome.
	Accept struct{ Authority forgeyard.Authority }
	// Reject refuses an offer before any work.
	Reject struct {
		Authority forgeyard.Authority
		Reason    job.RejectReason
		Detail    string
	}
	// Start begins the execution of an accepted lease.
	Start struct {
		Job   site.Job
		Lease lease.Lease
	}
	// Cancel ends an execution and reports it as cancelled.
	Cancel struct {
		Lease  forgeyard.LeaseID
		Force  bool
		Why    string
		Reason job.CancelReason // empty: only the leader knows it
		// Save asks for a checkpoint first, within that time; 0: as the contract says.
		Save   bool
		Within time.Duration
	}
	// Stop asks an execution to give the job back, by a checkpoint where the contract has one.
	Stop struct {
		Lease forgeyard.LeaseID
		Kind  string
		Why   string
		Wish  uint64 // of a person: which of theirs
		// Until is when the machine may be gone; 0: nobody says when.
		Until forgeyard.Instant
	}
	// Hasten tells an execution that was asked to end in whatever way that its machine may be
	// gone then.
	Hasten struct {
		Lease forgeyard.LeaseID
		Until forgeyard.Instant
	}
	// Kill ends an execution at once. It finalises nothing.
	Kill struct {
		Lease forgeyard.LeaseID
		Why   string
	}
	// ResetDevice asks for the reset of a device hosted here, after its lease ended.
	ResetDevice struct {
		Device forgeyard.DeviceID
		Token  uint64
		Try    int
	}
	// CheckDevice asks whether a device hosted here is fit for its next lease.
	CheckDevice struct{ Device forgeyard.DeviceID }
)

func (Accept) effect()      {}
func (Reject) effect()      {}
func (Start) effect()       {}
func (Cancel) effect()      {}
func (Stop) effect()        {}
func (Hasten) effect()      {}
func (Kill) effect()        {}
func (ResetDevice) effect() {}
func (CheckDevice) effect() {}

// Input is what the node knows now.
type Input struct {
	State *site.State
	// Suspect says that State may be wrong: it differs from the group's, or is being built
	// again. Nothing follows from it then; deadlines hold as ever.
	Suspect bool
	Me      forgeyard.RunnerID
	Session forgeyard.SessionID
	// Refusing lists the reasons for taking no work now: draining, pressure, clock. The
	// first names the reject reason.
	Refusing []Refusal
	Caps     job.Capabilities // probed now, not what the log remembers
	// Notice is this machine's own word that it is being taken away, which the log may not
	// have yet, or never get: what runs is asked for at once.
	Notice *Notice
	Wall   forgeyard.Wall // for the order in which work is asked for, and nothing else
}

// Notice says that the machine is being taken away.
type Notice struct {
	Source string
	Until  forgeyard.Instant // 0: nobody says when
}

// Refusal is one reason for taking no work.
type Refusal struct {
	Reason job.RejectReason
	Detail string
}

// stage is where a lease stands here.
type stage uint8

const (
	asking  stage = iota + 1 // the acceptance is under way
	held                     // accepted; deadline known or asked for
	running                  // started
	ended                    // over here; kept until the log says so too
)

type entry struct {
	authority forgeyard.Authority
	policy    lease.Policy
	terms     lease.Terms
	known     bool // policy and terms are the log's; before that nobody here knows how long it may go on
	stage     stage
	sent      forgeyard.Instant // our send of the last request that was granted; zero: none yet
	left      time.Duration     // from sent; negative: no bound
	stale     bool              // we were told so: over, for good
	told      bool              // a renewal was answered with Cancel
	cancelled bool
	pressed   int               // how hard the cancellation that was passed on was
	stopped   string            // the stop that was passed on
	until     forgeyard.Instant // the nearest end of this machine that was passed on; 0: none
	asks      uint64            // checkpoints that were asked for, and passed on
	handing   bool
	spec      job.Resources
}

// Book is what the agent knows of its own leases. One goroutine owns it. A new
// process starts with an empty one: a new session inherits nothing (07§8).
type Book struct {
	leases map[forgeyard.LeaseID]*entry
	// doubted are leases of which an acceptance of ours may or may not be in the log. A
	// later one that goes well may repeat it, and then grants nothing: the granter counts
	// from the first, we must not count from the second.
	doubted map[forgeyard.LeaseID]bool
	upkeep  map[forgeyard.DeviceID]upkeep // asked of the shell, its report not in the log yet
	// past are leases that were started here and that the log ended, the newest maxPast. A
	// copy of the log that turns out to be wrong, or older, may call one live again.
	past   []forgeyard.LeaseID
	notice seenNotice
}

// maxPast is far more leases than may end here between the mistake of a state and the
// comparison that finds it, which comes once a minute.
const maxPast = 1024

type upkeep struct {
	token uint64
	try   int
	check bool
	// A device may be good for an instant between two doubts, which we may not see: the
	// doubts differ by these two.
	session uint64
	doubt   string
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{leases: map[forgeyard.LeaseID]*entry{}, doubted: map[forgeyard.LeaseID]bool{}, upkeep: map[forgeyard.DeviceID]upkeep{}}
}

// Accepted is told that an acceptance, sent then, was applied. Delegated work has no
// deadline yet: only a renewal says how much of the central daemon's authority is left.
// Nor has a lease whose acceptance may be the repeat of one that we gave up waiting for.
func (b *Book) Accepted(id forgeyard.LeaseID, sent forgeyard.Instant) {
	e, ok := b.leases[id]
	if !ok || e.stage != asking {
		return
	}
	e.stage = held
	if !delegated(e.authority) && !b.doubted[id] {
		e.sent = sent
	}
}

// delegated says that the authority comes from the central daemon: its term is not zero.
func delegated(a forgeyard.Authority) bool { return a.Fence.Term != 0 }

// NotAccepted is told that an acceptance failed, or that its outcome could not be learnt;
// the next step looks anew.
func (b *Book) NotAccepted(id forgeyard.LeaseID) {
	if e, ok := b.leases[id]; ok && e.stage == asking {
		delete(b.leases, id)
		b.doubted[id] = true
	}
}

// Granted is told that a proposal, sent then, granted the next epoch in place. As with
// Accepted, delegated work waits for its first renewal. How long the epoch may go on is
// for the log to say, as it is with an offer: the site's settings, and with them what the
// granter counts by, may be others than when the epoch before was granted.
func (b *Book) Granted(a forgeyard.Authority, spec job.Resources, sent forgeyard.Instant) {
	if delegated(a) {
		sent = 0
	}
	e, ok := b.leases[a.Lease]
	if !ok {
		b.leases[a.Lease] = &entry{authority: a, stage: held, sent: sent, left: -1, spec: spec}
		return
	}
	if e.sent.IsZero() { // else a renewal was quicker, and knows better
		e.sent = sent
	}
}

// Renewed is told the answer to a renewal that was sent then. Answers may come out of
// their order: of two that go on, the one that was sent later holds, bound and all.
// Anything but Continue, Cancel and Stale (lease.Wait among them) changes nothing.
func (b *Book) Renewed(id forgeyard.LeaseID, sent forgeyard.Instant, answer lease.Answer, left time.Duration) {
	e, ok := b.leases[id]
	if !ok {
		return
	}
	switch answer {
	case lease.Stale:
		e.stale = true // for good, whatever answer comes after it
	case lease.Cancel, lease.Continue:
		e.told = e.told || answer == lease.Cancel
		if e.stage != ended && !e.stale && sent >= e.sent {
			e.sent, e.left = sent, left
		}
	}
}

// HandingOver is told that a proposal is under way which ends this lease and may grant
// the next epoch in place: its tree is dead already, so the lease's end in the log is no
// reason to kill anything.
func (b *Book) HandingOver(id forgeyard.LeaseID) {
	if e, ok := b.leases[id]; ok && e.stage == running {
		e.handing = true
	}
}

// Over is told that an execution has ended here, its tree confirmed dead.
func (b *Book) Over(id forgeyard.LeaseID) {
	if e, ok := b.leases[id]; ok {
		e.stage = ended
	}
}

// NotReported is told that a reset or check could not be reported: it is asked for anew.
func (b *Book) NotReported(d forgeyard.DeviceID) { delete(b.upkeep, d) }

// Deadline is when the holder of a lease must have stopped. Zero: it has none yet
// and must not start. Of a lease whose terms the log has not told yet it is the send
// itself: a renewal would not help, and nothing can start.
func (b *Book) Deadline(id forgeyard.LeaseID) forgeyard.Instant {
	e, ok := b.leases[id]
	if !ok || (e.sent.IsZero() && !e.stale) {
		return 0
	}
	return e.deadline()
}

// longPast is a deadline that has passed on every clock.
const longPast = forgeyard.Instant(1)

func (e *entry) deadline() forgeyard.Instant {
	if e.stale {
		return longPast
	}
	if !e.known {
		return e.sent
	}
	return lease.HolderStop(e.policy, e.terms, e.sent, e.left)
}

// ToRenew lists the authorities to renew, those without a deadline among them.
func (b *Book) ToRenew() []forgeyard.Authority {
	var out []forgeyard.Authority
	for _, e := range b.leases {
		if e.stage == held || e.stage == running {
			out = append(out, e.authority)
		}
	}
	slices.SortFunc(out, func(x, y forgeyard.Authority) int { return cmp.Compare(x.Lease, y.Lease) })
	return out
}

// Active counts the leases that hold resources here.
func (b *Book) Active() int {
	n := 0
	for _, e := range b.leases {
		if e.stage != ended {
			n++
		}
	}
	return n
}

// Holds is what the leases take of this machine, and how many they are.
func (b *Book) Holds() (r job.Resources, leases int) {
	for _, e := range b.leases {
		if e.stage != ended {
			r.MilliCPU, r.Memory, r.Disk, leases = r.MilliCPU+e.spec.MilliCPU, r.Memory+e.spec.Memory, r.Disk+e.spec.Disk, leases+1
		}
	}
	return r, leases
}

// Step returns what to do now and when to look again at the latest.
func Step(now forgeyard.Instant, in Input, b *Book) ([]Effect, forgeyard.Instant) {
	s := stepper{now: now, in: in, book: b, wake: now.Add(time.Second)}
	if in.Suspect {
		s.deadlines()
		return s.effects, s.wake
	}
	mine := s.mine()
	s.terms(mine)
	s.deadlines()
	s.vanished(mine)
	until := s.noticed()
	for _, j := range s.inOrder(mine) {
		s.look(j, until)
	}
	s.devices()
	return s.effects, s.wake
}

type stepper struct {
	now     forgeyard.Instant
	in      Input
	book    *Book
	effects []Effect
	wake    forgeyard.Instant
}

func (s *stepper) do(e Effect) { s.effects = append(s.effects, e) }

// mine are the jobs whose live lease names this runner and this session.
func (s *stepper) mine() []site.Job {
	var out []site.Job
	for id := range s.in.State.Open.All() {
		j, _ := s.in.State.Jobs.Get(id)
		if a := j.Lease.Authority; j.Lease.Live() && a.Runner == s.in.Me && a.Session == s.in.Session {
			out = append(out, j)
		}
	}
	return out
}

// terms takes from the log how long each lease may go on in silence, and nothing from
// elsewhere: it is what the granter counts by.
func (s *stepper) terms(mine []site.Job) {
	for _, j := range mine {
		if e, ok := s.book.leases[j.Lease.Authority.Lease]; ok {
			e.policy, e.terms, e.known = j.Lease.Policy, j.Lease.Terms, true
		}
	}
}

// deadlines kills what may no longer act, whatever the log says: that is all a
// holder can know who hears nothing.
func (s *stepper) deadlines() {
	for _, id := range s.ids() {
		e := s.book.leases[id]
		d := s.book.Deadline(id)
		if e.stage == ended || d.IsZero() || (!e.known && !e.stale) {
			continue
		}
		if d > s.now {
			s.wake = min(s.wake, d)
			continue
		}
		if e.stage == running {
			s.do(Kill{Lease: id, Why: "its lease is over: nothing was heard in time"})
		}
		e.stage = ended
	}
}

func (s *stepper) ids() []forgeyard.LeaseID {
	out := make([]forgeyard.LeaseID, 0, len(s.book.leases))
	for id := range s.book.leases {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// vanished looks at leases of the book that the log no longer calls live.
func (s *stepper) vanished(mine []site.Job) {
	live := func(id forgeyard.LeaseID) bool {
		return slices.ContainsFunc(mine, func(j site.Job) bool { return j.Lease.Authority.Lease == id })
	}
	maps.DeleteFunc(s.book.doubted, func(id forgeyard.LeaseID, _ bool) bool { return !live(id) })
	for _, id := range s.ids() {
		e := s.book.leases[id]
		if live(id) {
			continue
		}
		if e.stage == asking || !s.seen(e) {
			continue // our own log may be behind what we were answered
		}
		if e.stage == running && e.handing {
			continue // Over follows
		}
		if e.stage == running {
			s.do(Kill{Lease: id, Why: "the log says that its lease ended"})
		}
		s.book.forget(id)
	}
}

// forget takes a lease out of the book. If it was started, it never is again.
func (b *Book) forget(id forgeyard.LeaseID) {
	if e := b.leases[id]; e.stage == running || e.stage == ended {
		b.past = append(b.past[max(0, len(b.past)-maxPast+1):], id)
	}
	delete(b.leases, id)
}

// seen reports whether our copy of the log has reached the epoch of the entry, so
// that its absence means something. A copy that has not the job may be older than the
// job, or so much newer that the job is forgotten: of what is not over here it says
// nothing, and the deadline, which nobody moves for a lease that ended, ends it.
func (s *stepper) seen(e *entry) bool {
	j, ok := s.in.State.Jobs.Get(e.authority.Job)
	if !ok {
		return e.stage == ended
	}
	return j.Fence().Compare(e.authority.Fence) >= 0
}

func (s *stepper) look(j site.Job, until forgeyard.Instant) {
	id := j.Lease.Authority.Lease
	e, known := s.book.leases[id]
	switch {
	case !known && slices.Contains(s.book.past, id):
		return // it is not renewed: the site learns by its end that nothing runs
	case !known && j.Lease.State == lease.Offered:
		s.answer(j)
		return
	case !known:
		// Accepted in the log, and we don't know when we asked: it gets a deadline from the
		// next renewal, and nothing starts before.
		s.book.leases[id] = &entry{authority: j.Lease.Authority, policy: j.Lease.Policy, terms: j.Lease.Terms, known: true, stage: held, left: -1, spec: j.Spec.Resources}
		return
	case e.stage == held && j.Lease.State == lease.Accepted && s.book.Deadline(id) > s.now:
		if j.CancelAt != 0 || e.told { // a cancel while unstarted is applied before the start (K10)
			if !e.cancelled {
				s.cancel(e, j)
			}
			return
		}
		e.stage = running
		s.do(Start{Job: j, Lease: j.Lease})
		return
	}
	if e.stage != running {
		return
	}
	if (j.CancelAt != 0 || e.told) && s.cancel(e, j) {
		return
	}
	if j.Asks > e.asks {
		e.asks = j.Asks
		s.do(Stop{Lease: id, Kind: site.AskCheckpoint, Why: "a person asked for it"})
	}
	// A wish to suspend may be refused, and asked for again.
	stop, kind, why := j.Stop(), j.StopKind, j.StopReason
	if n := s.in.Notice; n != nil && !j.Stops() {
		stop, kind, why = preempt, preempt, "this machine is being taken away: "+n.Source
	}
	if stop != e.stopped {
		e.stopped, e.until = stop, 0
		if kind == preempt {
			e.until = until
			s.do(Stop{Lease: id, Kind: kind, Why: why, Until: until})
		} else if kind != "" {
			s.do(Stop{Lease: id, Kind: kind, Why: why, Wish: j.Wish()})
		}
	}
	s.hasten(e, until)
}

// hasten tells what was asked to end already that there is less time for it than it was told.
func (s *stepper) hasten(e *entry, until forgeyard.Instant) {
	if until == 0 || (e.until != 0 && until >= e.until) || (e.stopped == "" && !e.cancelled) {
		return
	}
	e.until = until
	s.do(Hasten{Lease: e.authority.Lease, Until: until})
}

// cancel passes a cancellation on, once, and once more when somebody presses harder: the
// grace that the workload was given ends then.
func (s *stepper) cancel(e *entry, j site.Job) bool {
	c := Cancel{Lease: e.authority.Lease, Force: j.Force, Why: whyCancelled(j), Reason: j.CancelReason()}
	if n := j.Cancel; n != nil {
		c.Save, c.Within = n.After, time.Duration(n.Within)
	}
	on := j.Spec.Resume.Checkpoint
	c.Save = !c.Force && (c.Save || (j.CancelAt != 0 && checkpoint.SavesOnCancel(on.OnCancel, c.Reason, on.Window)))
	press := c.press()
	if e.cancelled && e.pressed >= press {
		return false
	}
	e.cancelled, e.pressed = true, press
	s.do(c)
	return true
}

// press is how hard a cancellation is: each that is harder is passed on.
func (c Cancel) press() int {
	switch {
	case c.Reason == job.CancelSecurity:
		return 4
	case c.Force:
		return 3
	case !c.Save:
		return 2
	}
	return 1
}

// whyCancelled is for the result. Where our own copy of the log has not seen who asked for
// it, the answer to a renewal has.
func whyCancelled(j site.Job) string {
	if j.CancelAt == 0 {
		return "cancelled, as the leader answered"
	}
	why := "cancelled by " + j.CancelBy
	if r := j.CancelReason(); r != job.CancelUser {
		why += ": " + string(r)
	}
	if j.Cancel != nil && j.Cancel.Note != "" {
		why += ": " + j.Cancel.Note
	}
	return why
}

// answer validates an offer (07§30): defence in depth, whatever the placement
// thought of it (07§226).
func (s *stepper) answer(j site.Job) {
	a := j.Lease.Authority
	if r := s.refusal(j); r.Reason != "" {
		s.do(Reject{Authority: a, Reason: r.Reason, Detail: r.Detail})
		return
	}
	s.book.leases[a.Lease] = &entry{authority: a, policy: j.Lease.Policy, terms: j.Lease.Terms, known: true, stage: asking, left: -1, spec: j.Spec.Resources}
	s.do(Accept{Authority: a})
}

func (s *stepper) refusal(j site.Job) Refusal {
	if len(s.in.Refusing) > 0 {
		return s.in.Refusing[0]
	}
	me, _ := s.in.State.Members.Get(s.in.Me)
	if why := s.in.Caps.Lacks(j.Spec, me.Assigned); len(why) > 0 {
		return Refusal{s.reasonFor(j.Spec, me), strings.Join(why, "; ")}
	}
	return s.room(j.Spec)
}

// reasonFor names why the machine as it is now cannot serve a spec: what it registered
// could, so it has changed since (RA-444), as it has where only what the site says of it
// forbids it now; only its own rules forbid it; or it never could.
func (s *stepper) reasonFor(sp job.Spec, me site.Member) job.RejectReason {
	asAsked := job.Assignment{Pool: sp.Requires.Pool, Trust: sp.Requires.Trust, Labels: me.Assigned.Labels}
	if me.Digest != (forgeyard.Digest{}) && len(me.Caps.Lacks(sp, asAsked)) == 0 {
		return job.RejectCapabilityChanged
	}
	open := s.in.Caps
	open.Networks = append(slices.Clone(open.Networks), sp.Network)
	if len(open.Lacks(sp, me.Assigned)) == 0 {
		return job.RejectLocalPolicy
	}
	return job.RejectUnsupportedSpec
}

// room is the hard local guard, should the placement have counted wrong (07§224).
func (s *stepper) room(sp job.Spec) Refusal {
	held, n := s.book.Holds()
	cpu, mem, disk := held.MilliCPU, held.Memory, held.Disk
	c, r := s.in.Caps, sp.Resources
	switch {
	case n >= c.MaxJobs:
		return Refusal{job.RejectPressure, fmt.Sprintf("%d jobs run here, the bound is %d", n, c.MaxJobs)}
	case cpu+r.MilliCPU > c.MilliCPU:
		return Refusal{job.RejectPressure, fmt.Sprintf("%d of %d thousandths of a core are taken, the job asks for %d", cpu, c.MilliCPU, r.MilliCPU)}
	case mem+r.Memory > c.Memory:
		return Refusal{job.RejectPressure, fmt.Sprintf("%d MiB of %d MiB of memory are taken, the job asks for %d MiB", mem>>20, c.Memory>>20, r.Memory>>20)}
	case disk+r.Disk > c.Disk:
		return Refusal{job.RejectDisk, fmt.Sprintf("%d MiB of %d MiB of disk are taken, the job asks for %d MiB", disk>>20, c.Disk>>20, r.Disk>>20)}
	}
	return Refusal{}
}

// devices asks for the reset and the check of what is hosted here, once for each
// time that the log wants it.
func (s *stepper) devices() {
	me, _ := s.in.State.Members.Get(s.in.Me)
	for _, d := range s.in.State.Devices.All() {
		if d.Host != s.in.Me {
			continue
		}
		var want upkeep
		switch {
		case d.Use == devices.Cleaning && d.Last != nil:
			want = upkeep{token: d.Last.Token, try: d.Resets + 1}
		case d.Use == devices.Free && d.Health == devices.Unknown && d.Presence != devices.Absent:
			want = upkeep{token: d.HighestFence, check: true, session: me.Session.Index, doubt: d.Reason}
		default:
			delete(s.book.upkeep, d.ID)
			continue
		}
		if s.book.upkeep[d.ID] == want {
			continue
		}
		s.book.upkeep[d.ID] = want
		if want.check {
			s.do(CheckDevice{Device: d.ID})
		} else {
			s.do(ResetDevice{Device: d.ID, Token: want.token, Try: want.try})
		}
	}
}
