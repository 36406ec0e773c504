package simulation

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// terminal is terminal-once: a terminal status is written once, and nothing follows it
// (K10). It compares what it saw written with what stands there ever after.
type terminal struct {
	silent
	written map[forgeyard.JobID]ending
	order   []forgeyard.JobID
}

type ending struct {
	status  job.Status
	result  *job.Result
	at      forgeyard.Wall
	epoch   uint64
	lastSeq uint64
	index   uint64
	message forgeyard.MessageID
}

func newTerminal() *terminal { return &terminal{written: map[forgeyard.JobID]ending{}} }

func endingOf(s *site.State, j site.Job, index uint64) ending {
	r, _ := s.Runs.Get(j.Run)
	return ending{j.Status, j.Result, j.Ended, j.Epoch, r.LastSeq, index, j.Message}
}

func (c *terminal) applied(s *sim, e applied) {
	c.repeated(s, e)
	if e.still() {
		return
	}
	for id := range e.before.Open.All() {
		j, ok := e.after.Jobs.Get(id)
		if !ok {
			s.fail("terminal-once", "index %d: job %s is gone before it ended", e.index, id)
			return
		}
		if _, again := c.written[id]; j.Status.Terminal() && !again {
			c.written[id] = endingOf(e.after, j, e.index)
			c.order = append(c.order, id)
			c.events(s, e.after, j)
		}
	}
	for _, id := range c.order {
		was := c.written[id]
		j, ok := e.after.Jobs.Get(id)
		is := endingOf(e.after, j, was.index)
		if !ok || is != was || e.after.Open.Has(id) {
			s.fail("terminal-once", "index %d: job %s ended at index %d as %s (events %d), now it is %s (events %d), open %v",
				e.index, forgeyard.Short(id), was.index, was.status, was.lastSeq, is.status, is.lastSeq, e.after.Open.Has(id))
		}
	}
}

// recovered forgets the ends that the node did not have.
func (c *terminal) recovered(had, _ *site.State) {
	c.order = slices.DeleteFunc(c.order, func(id forgeyard.JobID) bool {
		was := c.written[id]
		j, ok := had.Jobs.Get(id)
		gone := !ok || endingOf(had, j, was.index) != was
		if gone {
			delete(c.written, id)
		}
		return gone
	})
}

// repeated looks at the answer to a completion that ended a job before: it is told that
// it is known, and never that it came too late.
func (c *terminal) repeated(s *sim, e applied) {
	b, ok := e.cmd.Body.(site.Complete)
	if !ok || !e.ok() {
		return
	}
	v, err := site.Value[site.Completed](e.reply)
	if was, ended := c.written[b.Authority.Job]; ended && was.message == b.Message && (err != nil || v.Verdict != site.DuplicateAccepted) {
		s.fail("terminal-once", "index %d: the completion that ended job %s is answered %s when it comes again", e.index, forgeyard.Short(b.Authority.Job), v.Verdict)
	}
}

// events looks for one terminal event, and that it is the last; and for no gap.
func (c *terminal) events(s *sim, st *site.State, j site.Job) {
	all := st.RunEvents(j.Run, 0)
	for i, ev := range all {
		if ev.Seq != uint64(i)+1 {
			s.fail("terminal-once", "job %s: event %d stands at place %d", forgeyard.Short(j.ID), ev.Seq, i+1)
		}
		if last := i == len(all)-1; ev.Status.Terminal() != last {
			s.fail("terminal-once", "job %s: event %d of %d says %q", forgeyard.Short(j.ID), ev.Seq, len(all), ev.Status)
		}
	}
}

func (c *terminal) end(s *sim) {
	for _, id := range c.order {
		j, _ := s.head().Jobs.Get(id)
		r, _ := s.head().Runs.Get(j.Run)
		if r.Status != j.Status {
			s.fail("terminal-once", "job %s is %s, its run %s", forgeyard.Short(id), j.Status, r.Status)
		}
		c.events(s, s.head(), j)
	}
}
