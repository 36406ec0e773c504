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
		w := j.AtStake(s.in.Wall)
		w.Resumable = w.Resumable && !j.Spec.Resume.Checkpoint.NoneOnNotice
		byID[w.ID], all = j, append(all, w)
	}
	out := make([]site.Job, 0, len(mine))
	for _, w := range checkpoint.ByWorth(all) {
		out = append(out, byID[w.ID])
	}
	return out
}
