package agent

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/site"
)

// preempt is the kind of a stop for want of the machine.
const preempt = "preempt"

// seenNotice is which notice of the log was seen here, and when by it this machine may be gone,
// counted from when it was seen first.
type seenNotice struct {
	step  uint64
	until forgeyard.Instant
}

// noticed is when this machine may be gone, by its own word or else by the log's; 0: it is
// not being taken away, or nobody says when. The log's word is counted from when it was first
// seen here: nothing is a promise (69§101), so what the way took does not matter.
func (s *stepper) noticed() forgeyard.Instant {
	if n := s.in.Notice; n != nil && n.Until != 0 {
		return n.Until
	}
	me, _ := s.in.State.Members.Get(s.in.Me)
	if me.Notice == nil {
		s.book.notice = seenNotice{}
		return 0
	}
	if s.book.notice.step != me.Notice.Step {
		s.book.notice = seenNotice{step: me.Notice.Step}
		if me.Notice.Left > 0 {
			s.book.notice.until = s.now.Add(time.Duration(me.Notice.Left))
		}
	}
	return s.book.notice.until
}

// inOrder puts first what is worth most to be asked first, where the machine is being taken
// away and there may not be time for all (CK-154).
func (s *stepper) inOrder(mine []site.Job) []site.Job {
	me, _ := s.in.State.Members.Get(s.in.Me)
	if s.in.Notice == nil && me.Notice == nil {
		return mine
	}
	byID := make(map[string]site.Job, len(mine))
	all := make([]checkpoint.Work, 0, len(mine))
	for _, j := range mine {
		w := work(j, s.in.Wall)
		byID[w.ID], all = j, append(all, w)
	}
	out := make([]site.Job, 0, len(mine))
	for _, w := range checkpoint.ByWorth(all) {
		out = append(out, byID[w.ID])
	}
	return out
}

// work is what a job would lose, as the log knows it.
func work(j site.Job, wall forgeyard.Wall) checkpoint.Work {
	since := j.Lease.Granted
	for _, c := range j.Checkpoints {
		since = max(since, c.At)
	}
	return checkpoint.Work{
		ID: string(j.ID), Resumable: j.TakesCheckpoints() && !j.Spec.Resume.Checkpoint.NoneOnNotice, MilliCPU: j.Spec.Resources.MilliCPU, Priority: j.Spec.Interruption.Priority,
		Unsaved: max(0, wall.Time().Sub(since.Time())), Write: writes(j),
	}
}

// copyRate is what a checkpoint is taken to be written and copied with, in bytes a second: the
// order needs no better figure, and the same one for all.
const copyRate = 64 << 20

// writes is how long the next checkpoint of a job may take, as long as the last one, or by its
// size.
func writes(j site.Job) time.Duration {
	n := len(j.Checkpoints)
	switch {
	case n == 0:
		return 0
	case j.Checkpoints[n-1].Took > 0:
		return j.Checkpoints[n-1].Took
	}
	return time.Second + time.Duration(j.Checkpoints[n-1].Bytes/(copyRate/1000))*time.Millisecond
}
