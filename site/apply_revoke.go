package site

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// Classes of a revocation. Append only.
const (
	RevokedByOperator = "operator"
	RevokedDisabled   = "disabled" // the runner was disabled and did not give the job back
	RevokedSecurity   = "security" // no grace, and its holder is not asked again
)

// KindLease is the kind of the events in LeaseLog, and of no other.
const KindLease = "lease"

// noteLease adds a line to the lease events of the site.
func (c *change) noteLease(j Job, format string, args ...any) {
	if c.Allows(FormatLeases) {
		c.noteAbout(fmt.Sprintf("%s epoch %d "+format, append([]any{j.ID, j.Epoch}, args...)...))
	}
}

func (c *change) noteAbout(text string) {
	if !c.Allows(FormatLeases) {
		return
	}
	c.LeaseSeq++
	c.LeaseLog = c.LeaseLog.Push(&SiteEvent{Index: c.Step, At: c.at, Kind: KindLease, Text: forgeyard.Clip(text, 400)})
	for c.LeaseLog.Len() > maxLeaseLog {
		e, _ := c.LeaseLog.First()
		c.LeaseForgotten, c.LeaseLog = e.Index, c.LeaseLog.Pop()
	}
}

func policyText(p lease.Policy) string {
	text := string(p.Policy)
	if p.For > 0 {
		text += " " + p.For.String()
	}
	if p.NoReplace {
		text += ", no replacement"
	}
	return text
}

// revoke ends a lease against its holder.
func (c *change) revoke(b Revoke) error {
	j, err := c.jobByID("revoke", b.Job)
	if err != nil {
		return err
	}
	switch b.Class {
	case RevokedByOperator, RevokedDisabled, RevokedSecurity:
	default:
		return forgeyard.Errorf("revoke", forgeyard.Invalid, "class %q is not operator, disabled or security", forgeyard.Clip(b.Class, 40))
	}
	if b.Lease != j.Lease.Authority.Lease {
		return forgeyard.Errorf("revoke", forgeyard.Stale, "lease %s is not the current one of job %s", forgeyard.Clip(string(b.Lease), 40), j.ID)
	}
	if !j.Lease.Live() {
		return forgeyard.Errorf("revoke", forgeyard.Conflict, "lease %s ended: %s", b.Lease, j.Lease.Reason)
	}
	why := b.Class
	if b.Class == RevokedByOperator {
		why += " " + c.by
	}
	if b.Reason != "" {
		why += ": " + b.Reason
	}
	c.avoid(&j, j.Lease.Authority, "its lease was revoked by "+why)
	c.takeAway(&j, "by "+why, "lease revoked by "+why)
	c.putJob(j)
	return nil
}

// takeAway ends a live lease whose holder was not asked. Nothing commits under it any
// more. It may still act: where that matters the execution is unknown until it has
// certainly stopped.
func (c *change) takeAway(j *Job, detail, reason string) {
	acting := j.Lease.State == lease.Accepted || (j.Status == job.Unknown && !j.Certain)
	c.endLease(j, lease.EndRevoked, detail)
	switch {
	case acting && j.waitsForCertain():
		c.doubt(j, reason)
	case acting && c.neverAgain(j, job.AuthorityEnded, reason):
	default:
		c.requeue(j, reason)
	}
}

// doubt makes an execution unknown whose lease has ended while its holder may still act.
func (c *change) doubt(j *Job, reason string) {
	c.releaseDevices(j)
	j.Status, j.Phase, j.Certain, j.Reason, j.StopKind, j.StopReason = job.Unknown, job.PhaseUnknown, false, forgeyard.Clip(reason, 300), "", ""
	c.moveRun(*j, "unknown: "+j.Reason)
}

// stopped takes a holder's word that its tree is dead. It is good for the execution whose
// authority is the last that was granted; for an older one it says nothing that matters.
func (c *change) stopped(b Stopped) error {
	j, err := c.jobByID("stopped", b.Authority.Job)
	if err != nil {
		return err
	}
	if err := lease.Check(j.Lease.Authority, b.Authority); err != nil {
		return err
	}
	if j.Lease.Live() && c.Allows(FormatLeases) {
		c.stoppedFirst(&j, b.LogSeq)
		c.putJob(j)
		return nil
	}
	if j.Status != job.Unknown || j.Certain || !j.lastGranted() {
		return nil
	}
	j.Certain = true
	c.noteLease(j, "stopped on %s, by its own word", c.memberName(b.Authority.Runner))
	c.settleUnknown(&j)
	c.putJob(j)
	return nil
}

// stoppedFirst ends a lease whose holder stopped before anybody missed it: its own time was
// over, since no renewal of it was answered. What the leader would still wait for is certain
// already.
func (c *change) stoppedFirst(j *Job, logSeq uint64) {
	begun, name := j.Lease.State == lease.Accepted, c.memberName(j.Lease.Authority.Runner)
	c.endLease(j, lease.EndExpired, name+" stopped by its own clock: no renewal was answered in time")
	if !begun {
		c.requeue(j, name+" had no time left for the offer")
		return
	}
	j.Phase, j.Tail = job.PhaseUnknown, logSeq
	if j.CancelAt == 0 && j.Grant != nil && (j.StopKind == stopAuthority || j.Grant.Ended(c.Uplink, c.Uplink.Used) != "") {
		// What was over is the authority that it came with: nobody lost it.
		if !c.neverAgain(j, job.AuthorityEnded, name+" stopped: the central daemon's authority was used up") {
			c.suspend(j)
		}
		return
	}
	c.next = job.EventRunnerLost
	c.interrupted(j, job.RunnerLost, name+" was cut off and has stopped")
}

// lastGranted reports whether the job's lease is known to be the last that anybody was
// granted. After a forced recovery it is not: the part of the log that was lost may have
// granted a later one, of which this lease's holder knows nothing.
func (j Job) lastGranted() bool { return j.Lease.Reason != lease.EndRecovered }

// silence notes that a runner is not heard, or is again. A word about a session that was
// superseded is out of date.
func (c *change) silence(b Silence) error {
	m, ok := c.Members.Get(b.Runner)
	if !ok || m.Session.ID != b.Session {
		return forgeyard.Errorf("silence", forgeyard.Stale, "session %s is not the current one of runner %s", forgeyard.Short(b.Session), b.Runner)
	}
	if b.Silent == (m.Silent != 0) {
		return nil
	}
	if b.Silent {
		m.Silent = c.at
		c.noteAbout(fmt.Sprintf("%s has not renewed for %s: it holds %d leases", m.Name, time.Duration(b.For).Round(100*time.Millisecond), c.liveLeases(m.Runner)))
	} else {
		away := c.at.Time().Sub(m.Silent.Time()).Round(time.Second)
		m.Silent = 0
		c.noteAbout(fmt.Sprintf("%s renews again after %s", m.Name, max(0, away)))
	}
	c.Members = c.Members.Put(m.Runner, m)
	return nil
}

// SiteEvents returns the site's events and those of its leases after a log index, in the
// order of the log.
func (s *State) SiteEvents(after uint64) []SiteEvent {
	var out []SiteEvent
	h := s.History
	for e := range s.LeaseLog.All() {
		for len(h) > 0 && h[0].Index <= e.Index {
			if h[0].Index > after {
				out = append(out, h[0])
			}
			h = h[1:]
		}
		if e.Index > after {
			out = append(out, *e)
		}
	}
	for _, e := range h {
		if e.Index > after {
			out = append(out, e)
		}
	}
	return out
}
