package site

import (
	"cmp"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

// Notice is the word that a runner will be taken away (69§99). No deadline in it is a promise.
type Notice struct {
	At     forgeyard.Wall `cbor:"1,keyasint"`
	Source string         `cbor:"2,keyasint"`           // who said so
	Left   int64          `cbor:"3,keyasint,omitempty"` // nanoseconds that were left then; 0: not said
	Step   uint64         `cbor:"4,keyasint"`           // of the log: no two notices have the same
}

// MaxNotice bounds how far ahead a notice tells.
const MaxNotice = 7 * 24 * time.Hour

// preempt takes in a notice, or takes it back. The runner gets no new work, and what runs
// there is asked for: with a checkpoint where there is time (CK-152). It is an event of
// operations, and no audit (CK-245).
func (c *change) preempt(b Preempt) error {
	m, ok := c.Members.Get(b.Runner)
	switch {
	case !ok || m.Removed:
		return forgeyard.Errorf("preempt", forgeyard.NotFound, "no member %s", b.Runner)
	case b.Session != "" && m.Session.ID != b.Session:
		return forgeyard.Errorf("preempt", forgeyard.Stale, "session %s of %s is not the current one", forgeyard.Short(b.Session), m.Name)
	case b.Left < 0 || time.Duration(b.Left) > MaxNotice:
		return forgeyard.Errorf("preempt", forgeyard.Invalid, "%s until the end is not in [0, %s]", time.Duration(b.Left), MaxNotice)
	}
	if b.Off {
		if m.Notice != nil {
			m.Notice = nil
			c.Members = c.Members.Put(m.Runner, m)
			c.note("preemption", "%s: the notice was taken back, by %s", m.Name, cmp.Or(b.Source, c.by))
		}
		return nil
	}
	if m.Notice != nil {
		return nil // the first one counts: what a source says again is no news
	}
	m.Notice = &Notice{At: c.at, Source: forgeyard.Clip(cmp.Or(b.Source, c.by), maxNote/2), Left: b.Left, Step: c.Step}
	c.Members = c.Members.Put(m.Runner, m)
	left := "no time is named"
	if b.Left > 0 {
		left = time.Duration(b.Left).Round(time.Second).String() + " are left, as it says"
	}
	c.note("preemption", "notice received for %s from %s: %s", m.Name, m.Notice.Source, left)
	reason := m.Name + " is being taken away: " + m.Notice.Source
	for id := range c.Open.All() {
		if j, _ := c.Jobs.Get(id); j.Lease.Live() && j.Lease.Authority.Runner == m.Runner {
			c.say(j, job.PreemptionNoticeReceived, job.EventMessage, "preemption notice received: %s; %s", m.Notice.Source, left)
		}
	}
	c.stopAll(m.Runner, stopPreempt, reason)
	return nil
}

// preempted charges an interruption that the holder has ended in order. What it saved is
// kept, so that even a job that begins never anew goes on if nothing of it is lost.
func (c *change) preempted(j *Job, why string) {
	j.Interruptions++
	if category, over := j.overBudget(); category != "" && j.CancelAt == 0 {
		c.finish(j, job.Failed, category, why+"; "+over)
		return
	}
	c.requeue(j, why)
}

// OnlyStable reports that the job was interrupted so often that no runner which may vanish
// gets it any more (CK-203).
func (j Job) OnlyStable() bool { return j.Spec.Interruption.Escalated(j.Interruptions) }

// maxStuck is how many times in a row a job may end with "checkpoint written, restart me"
// and have brought nothing: then it is a loop (CK-205).
const maxStuck = 3

// stuck counts a checkpoint that brought nothing over the one before, and ends the job at the
// bound. It reports whether it did.
func (c *change) stuck(j *Job, before []checkpoint.Commit, rec checkpoint.Commit) bool {
	if !c.Allows(FormatLeases) {
		return false
	}
	if n := len(before); n == 0 || !checkpoint.NoProgress(before[n-1], rec) {
		j.Stuck = 0
		return false
	}
	j.Stuck++
	return j.Stuck >= maxStuck
}
