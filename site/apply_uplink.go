package site

import (
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// Record kinds of the outbox. Append only.
const (
	RecordAccepted = "accepted" // the delegation was taken in
	RecordOutcome  = "outcome"  // the job ended, with its result
)

func (c *change) uplinkConnect(b UplinkConnect) error {
	if b.Off {
		c.Central, c.Uplink, c.Ready = Central{}, lease.Uplink{State: lease.Standalone, Since: c.at}, Ready{}
		c.note("uplink", "disconnected by %s", c.by)
		return nil
	}
	if c.Central.Peer != "" && c.Central.Peer != b.Central.Peer {
		return forgeyard.Errorf("uplink connect", forgeyard.Conflict, "the site reports to %s already", c.Central.Name).WithHint("first: forgeyard-node uplink disconnect")
	}
	c.Central = b.Central
	c.Uplink = c.Uplink.Connect(c.at, c.Step, b.Terms)
	c.note("uplink", "connected to %s", b.Central.Name)
	return nil
}

func (c *change) uplinkObserve(b UplinkObserve) error {
	before := c.Uplink
	if b.Terms != nil && b.Contact {
		c.Uplink.Terms = *b.Terms
	}
	if b.Doubt != "" {
		c.Uplink = c.Uplink.Doubted(c.at, c.Step, b.Doubt)
	} else {
		c.Uplink = c.Uplink.Observe(c.at, c.Step, time.Duration(b.Used), b.Contact, c.Outbox.Len())
	}
	if b.Contact {
		c.Uplink.Daemon = b.Daemon
	}
	c.noteUplink(before)
	if b.Contact {
		c.authorityReturned()
	}
	return nil
}

// noteUplink tells each change of the state, and while it is silent each quarter of the
// allowance, with what is left.
func (c *change) noteUplink(before lease.Uplink) {
	u := c.Uplink
	left := max(0, u.Terms.Allowance-u.Used).Round(time.Millisecond)
	switch quarter := u.Terms.Allowance / 4; {
	case !c.Allows(FormatLeases):
		if u.State != before.State {
			c.note("uplink", "%s after %s of silence %s", u.State, u.Used.Round(time.Millisecond), u.Doubt)
		}
	case u.State != before.State:
		text := fmt.Sprintf("%s after %s of silence, %s left", u.State, u.Used.Round(time.Millisecond), left)
		if u.Doubt != "" {
			text += ": " + u.Doubt
		}
		c.note("uplink", "%s", text)
	case quarter > 0 && u.Silent(u.Used) && u.Used/quarter > before.Used/quarter:
		c.note("uplink", "%s of the allowance of %s are left", left, u.Terms.Allowance)
	}
}

// readiness notes what changed in what the site lacks. Figures alone change nothing.
func (c *change) readiness(b Readiness) error {
	if c.Uplink.State == lease.Standalone {
		return forgeyard.Errorf("readiness", forgeyard.Conflict, "the site has no central daemon to promise anything to")
	}
	if len(b.Lacks) > maxLacks {
		b.Lacks = b.Lacks[:maxLacks]
	}
	if c.Ready.Asked && lease.SameWants(c.Ready.Lacks, b.Lacks) {
		return nil
	}
	had := c.Ready.Lacks
	c.Ready = Ready{Asked: true, Since: c.at, Lacks: b.Lacks}
	for _, s := range b.Lacks {
		if !slices.ContainsFunc(had, func(h lease.Shortfall) bool { return h.Node == s.Node && h.What == s.What }) {
			c.note("readiness", "not ready to go on alone: %s", s)
		}
	}
	if len(b.Lacks) == 0 {
		c.note("readiness", "ready to go on alone for %s", c.Uplink.Terms.Allowance)
	}
	return nil
}

// authorityReturned puts back into the queue what was suspended for want of the
// central daemon's authority.
func (c *change) authorityReturned() {
	for id := range c.Open.All() {
		j, _ := c.Jobs.Get(id)
		if j.Status == job.Suspended && (j.Reason == suspendedForAuthority || j.Reason == suspendedForDisconnected) {
			c.requeue(&j, "the uplink is back")
			c.putJob(j)
		}
	}
}

// delegate takes in the daemon's records in their order. A part that was taken in
// before is skipped; a gap is refused. Where there is room for some of them only, those are
// taken in, and the others wait: what takes a job back does not wait with them, since it is
// what makes room. It comes a second time in its order, and changes nothing then.
func (c *change) delegate(b Delegate) error {
	if b.From > c.Cursor {
		return forgeyard.Errorf("delegate", forgeyard.Conflict, "records after %d are missing, these continue %d", c.Cursor, b.From)
	}
	before := c.Cursor
	for i, d := range b.Grants {
		if d.Seq <= c.Cursor {
			continue
		}
		if full := c.roomForDelegated(d); full != nil {
			if c.takeBack(b.Grants[i:]) || c.Cursor > before {
				return nil
			}
			return full
		}
		c.takeIn(d)
		c.Cursor = d.Seq
	}
	c.Cursor = max(c.Cursor, b.To)
	return nil
}

// roomForDelegated says why a new job cannot be taken in at this moment, or nil. To refuse
// it would end it for good, and tell the daemon that something is wrong with it.
func (s *State) roomForDelegated(d Delegation) error {
	if d.Cancel || s.Open.Len() < maxOpenJobs || !s.Allows(FormatLeases) {
		return nil
	}
	if _, known := s.byGrant(d.Grant.ID); known {
		return nil
	}
	return forgeyard.Errorf("delegate", forgeyard.Limit, "%d jobs have not ended, the bound is %d: grant %s waits", s.Open.Len(), maxOpenJobs, forgeyard.Clip(string(d.Grant.ID), 64))
}

// takeBack cancels what records that wait take back, and tells whether it changed anything.
func (c *change) takeBack(wait []Delegation) (changed bool) {
	for _, d := range wait {
		if !d.Cancel {
			continue // the look below goes through all jobs
		}
		if j, ok := c.byGrant(d.Grant.ID); ok && j.CancelAt == 0 && !j.Status.Terminal() {
			c.takeIn(d)
			changed = true
		}
	}
	return changed
}

func (c *change) takeIn(d Delegation) {
	c.by = "central"
	if j, ok := c.byGrant(d.Grant.ID); ok {
		switch {
		case d.Cancel && !j.Status.Terminal():
			if _, err := c.cancel(Cancel{Job: j.ID}); err != nil {
				c.note("uplink", "cancel of %s: %v", j.ID, err)
			}
		case d.Grant.Term > j.Term && !j.Status.Terminal():
			c.raiseTerm(j, d.Grant)
		case d.Grant.Term > j.Term && !d.Cancel:
			// It ended before the new term was heard. The daemon refuses the record of the old
			// term, so it is told under the new one.
			j.Said = c.post(Record{Kind: RecordOutcome, Grant: d.Grant.ID, Job: j.ID, Status: j.Status, Result: j.resultForCentral(), Runner: j.Lease.Authority.Runner,
				Fence: forgeyard.Fence{Incarnation: c.Incarnation, Term: d.Grant.Term, Epoch: j.Epoch}})
			c.Jobs = c.Jobs.Put(j.ID, j)
		}
		return
	}
	if d.Cancel {
		return
	}
	g := d.Grant
	if g.Term == 0 {
		// Everybody tells delegated work by its term. Its records would have none either, so
		// that the daemon could not take them: it is told in the site's events.
		c.note("uplink", "grant %s has term 0, which is the site's own work; not taken in", forgeyard.Clip(string(g.ID), 64))
		return
	}
	out, err := c.enqueue(job.Build, d.Title, "", d.Spec, d.SpecID, &g)
	if err != nil {
		c.post(Record{Kind: RecordOutcome, Grant: g.ID, Status: job.Failed, Fence: forgeyard.Fence{Incarnation: c.Incarnation, Term: g.Term},
			Result: &job.Result{Outcome: job.OutcomeFailed, Category: job.SpecInvalid, Message: err.Error()}})
		return
	}
	c.note("uplink", "central delegated job %s", forgeyard.Short(out.Job))
	c.post(Record{Kind: RecordAccepted, Grant: g.ID, Job: out.Job, Status: job.Queued, Fence: forgeyard.Fence{Incarnation: c.Incarnation, Term: g.Term}})
}

// raiseTerm is the daemon giving the same job anew: whatever ran under the lower
// term can no longer commit.
func (c *change) raiseTerm(j Job, g lease.Grant) {
	acting := j.Lease.Live() || (j.Status == job.Unknown && !j.Certain)
	c.endLease(&j, lease.EndRevoked, "the central daemon raised the term")
	j.Term, j.Grant, j.Begun = g.Term, &g, 0
	if acting && (j.Lease.WaitsForCertain() || (j.CancelAt != 0 && c.Allows(FormatLeases))) {
		// The old holder can no longer commit, and may still act: nobody else may do the work
		// yet, or somebody waits to hear that nothing runs any more.
		c.releaseDevices(&j)
		j.Status, j.Phase, j.Certain, j.Reason, j.StopKind, j.StopReason = job.Unknown, job.PhaseUnknown, false, "delegated anew while it ran", "", ""
		c.moveRun(j, "unknown: "+j.Reason)
	} else {
		c.requeue(&j, "delegated anew")
	}
	c.putJob(j)
}

func (s *State) byGrant(id forgeyard.GrantID) (Job, bool) {
	for _, j := range s.Jobs.All() {
		if j.Grant != nil && j.Grant.ID == id {
			return j, true
		}
	}
	return Job{}, false
}

// HasOpenGrant reports whether a job under the grant has not ended.
func (s *State) HasOpenGrant(id forgeyard.GrantID) bool {
	for jid := range s.Open.All() {
		if j, _ := s.Jobs.Get(jid); j.Grant != nil && j.Grant.ID == id {
			return true
		}
	}
	return false
}

// outcome queues the end of a delegated job for the daemon.
func (c *change) outcome(j *Job) {
	if j.Grant == nil {
		return
	}
	j.Said = c.post(Record{Kind: RecordOutcome, Grant: j.Grant.ID, Job: j.ID, Fence: j.recordFence(c.Incarnation), Status: j.Status, Result: j.resultForCentral(), Runner: j.Lease.Authority.Runner})
}

func (j Job) recordFence(incarnation uint64) forgeyard.Fence {
	return forgeyard.Fence{Incarnation: incarnation, Term: j.Term, Epoch: j.Epoch}
}

func (j Job) resultForCentral() *job.Result {
	r := job.Result{Outcome: job.Outcome(j.Status), Category: j.Category, Message: j.Reason}
	if j.Result != nil {
		r = *j.Result
	}
	r.Log, r.Overran, r.Diagnostics = j.Log, false, nil // a daemon refuses a record with a key that it does not know, and has no use for these
	return &r
}

// post appends to the outbox, and gives the record's number: numbers have no gap. A voter
// of format 1 would lose the number, so there is none before.
func (c *change) post(r Record) (said uint64) {
	if c.Uplink.State == lease.Standalone {
		return 0
	}
	c.Sent++
	r.Seq, r.At, r.Used = c.Sent, c.at, int64(c.Uplink.Used)
	c.Outbox = c.Outbox.Put(SeqKey(r.Seq), r)
	if !c.Allows(FormatLeases) {
		return 0
	}
	return r.Seq
}

func (c *change) outboxAck(b OutboxAck) error {
	if b.Upto > c.Sent {
		return forgeyard.Errorf("outbox", forgeyard.Invalid, "record %d was acknowledged, only %d were sent", b.Upto, c.Sent)
	}
	for k, r := range c.Outbox.All() {
		if r.Seq > b.Upto {
			break
		}
		c.Outbox = c.Outbox.Delete(k)
	}
	c.Acked = max(c.Acked, b.Upto)
	if c.Outbox.Len() == 0 {
		before := c.Uplink.State
		c.Uplink = c.Uplink.Drained(c.at)
		if before != c.Uplink.State {
			c.note("uplink", "reconciled: every record is acknowledged")
		}
	}
	return nil
}

func (c *change) drill(b Drill) error {
	if c.Central.Peer == "" {
		return forgeyard.Errorf("uplink drill", forgeyard.Conflict, "the site has no uplink to cut").WithHint("forgeyard-node uplink connect TICKET")
	}
	c.Central.Drill = b.Cut
	c.note("uplink", "drill: cut=%v by %s", b.Cut, c.by)
	return nil
}
