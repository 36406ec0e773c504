package site

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// report takes in what an execution tells between its phases.
func (c *change) report(b Report) error {
	j, err := c.current("report", b.Authority, true)
	if err != nil {
		return err
	}
	if n := len(b.Told.Events); n > job.MaxTold {
		return forgeyard.Errorf("report", forgeyard.Limit, "%d events are told at once, the bound is %d", n, job.MaxTold)
	}
	if n := len(b.Log); n > MaxReportedLog {
		return forgeyard.Errorf("report", forgeyard.Limit, "%d parts of a log are told at once, the bound is %d", n, MaxReportedLog)
	}
	for _, h := range b.Told.Events {
		if err := h.Check(); err != nil {
			return err
		}
	}
	c.addLog(&j, b.Log)
	c.told(&j, b.Told)
	c.putJob(j)
	return nil
}

// told appends what an execution tells to its run's events, ordered with the others, each
// once. What is no happening is left out: the command that it came with is about more. A
// run that has many events says once where the rest is.
func (c *change) told(j *Job, t job.Told) {
	r, ok := c.Runs.Get(j.Run)
	if !ok || r.Status.Terminal() {
		return
	}
	for i, h := range t.Events {
		n := t.First + uint64(i)
		if n <= j.Told || h.Check() != nil {
			continue
		}
		j.Told = n
		switch {
		case r.LastSeq < maxTold:
			c.append(&r, job.Event{Type: h.Type(), Kind: h.Kind, Message: h.Message, Tool: h.Tool, Output: h.Output})
		case r.LastSeq == maxTold:
			c.event(&r, job.EventMessage, "", "there are too many events: what more the execution tells is in its log alone")
		}
	}
	c.Runs = c.Runs.Put(r.ID, r)
}
