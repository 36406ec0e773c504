package raftsim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// client submits jobs to any node, and reads. Only it believes what it was told.
type client struct {
	w *world

	mu    sync.Mutex // guards what is below
	made  int
	open  int // submissions without an answer
	works map[string]time.Duration
	jobs  []forgeyard.JobID
	haste time.Time // until then it asks much more often, and one machine above all
	whom  *machine
	pace  time.Duration
	woken chan struct{} // capacity 1: there is haste
}

// start lets it work until the run's end.
func (c *client) start() {
	c.works, c.woken = map[string]time.Duration{}, make(chan struct{}, 1)
	c.w.tasks.Go(c.pester)
	c.w.tasks.Go(func() { c.repeat(c.w.shape.jobs, c.submit) })
	c.w.tasks.Go(func() { c.repeat(c.w.shape.reads, c.read) })
}

func (c *client) repeat(every time.Duration, f func()) {
	for {
		wait := every/2 + c.draw(every)
		if c.hasty() {
			wait = min(wait, 20*time.Millisecond)
		}
		select {
		case <-c.w.end:
			return
		case <-time.After(wait):
			c.w.tasks.Go(f)
		}
	}
}

// draw is a duration below d, of the network's chance: the script's is not ours.
func (c *client) draw(d time.Duration) time.Duration {
	c.w.net.mu.Lock()
	defer c.w.net.mu.Unlock()
	return time.Duration(c.w.net.rng.Int64N(int64(d)))
}

// hurry makes everybody ask at once, as after an outage, and most of them that machine.
func (c *client) hurry(d time.Duration, m *machine, pace time.Duration) {
	c.mu.Lock()
	c.haste, c.whom, c.pace = time.Now().Add(d), m, pace
	c.mu.Unlock()
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// pester proposes to one machine, and reads from it, every few milliseconds while there
// is haste.
func (c *client) pester() {
	for {
		select {
		case <-c.w.end:
			return
		case <-c.woken:
		}
		for c.hasty() {
			c.mu.Lock()
			p, pace := c.whom.process(), c.pace
			c.mu.Unlock()
			if p != nil && !p.m.stopped() {
				c.w.tasks.Go(func() { c.touch(p) })
				if c.draw(8) == 0 {
					c.w.tasks.Go(func() { c.readFrom(p) })
				}
			}
			time.Sleep(pace/2 + c.draw(pace))
		}
	}
}

// touch commits a command that changes nothing, if that machine leads.
func (c *client) touch(p *process) {
	id := forgeyard.MessageID(c.w.newID("t"))
	raw := site.Command{ID: id, At: forgeyard.WallOf(p.m.clk.Wall()), By: "client", Body: site.MemberSet{Runner: p.m.runner}}.Encode()
	ctx, cancel := context.WithTimeout(p.ctx, time.Second)
	defer cancel()
	if _, err := p.group.Propose(ctx, raw); err == nil && !p.dead.Load() {
		c.w.check.ack(id)
	}
}

func (c *client) hasty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.haste)
}

// anyone is a process that runs, or nil.
func (c *client) anyone() *process {
	m := c.w.nodes[int(c.draw(time.Duration(len(c.w.nodes))))]
	if m.stopped() {
		return nil
	}
	return m.process()
}

// maxJobs bounds what a run has to work off.
const maxJobs = 200

func (c *client) submit() {
	p := c.anyone()
	if p == nil {
		return
	}
	c.mu.Lock()
	if c.made >= maxJobs {
		c.mu.Unlock()
		return
	}
	c.made++
	c.open++
	title := fmt.Sprintf("job %d", c.made)
	c.mu.Unlock()
	takes := 200*time.Millisecond + c.draw(4*time.Second)
	c.mu.Lock()
	c.works[title] = takes
	c.mu.Unlock()
	c.insist(p, title, c.body(title))
	c.mu.Lock()
	c.open--
	c.mu.Unlock()
}

// insist asks until it is answered, with one request id, as node/replica does.
func (c *client) insist(p *process, title string, body site.Submit) {
	id := forgeyard.MessageID(c.w.newID("c"))
	for !c.w.failed() {
		if p != nil {
			ctx, cancel := context.WithTimeout(p.ctx, proposeFor)
			r, err := p.proposer.ProposeID(ctx, id, "client", body)
			cancel()
			if err == nil && !p.dead.Load() {
				c.answered(id, title, r)
				return
			}
		}
		time.Sleep(200 * time.Millisecond)
		if p = c.anyone(); p == nil && c.over() {
			return
		}
	}
}

func (c *client) over() bool {
	for _, m := range c.w.nodes {
		if m.process() != nil {
			return false
		}
	}
	return true
}

func (c *client) answered(id forgeyard.MessageID, title string, r site.Reply) {
	v, err := site.Value[site.Submitted](r)
	if err != nil {
		c.w.trace("client: %s is refused: %v", title, r.Err())
		return
	}
	c.w.check.ack(id)
	c.w.count(func(r *Result) { r.Acked++ })
	c.w.trace("client: %s is taken in as %s", title, forgeyard.Short(v.Job))
	c.mu.Lock()
	c.jobs = append(c.jobs, v.Job)
	c.mu.Unlock()
}

func (c *client) body(title string) site.Submit {
	sp := job.Spec{Title: title, Steps: []job.Step{{Name: "work", Run: []string{"work"}}}}
	sp.Resources.MilliCPU = 500
	sp.Interruption = job.Interruption{Tolerance: job.ToleranceRestartable, Budget: 1000, Retry: job.RetryResumeOrRestart}
	if c.draw(2) == 0 {
		sp.Effects = job.EffectsProtected
	}
	if c.draw(2) == 0 {
		sp.Connectivity = job.Connectivity{Policy: job.Grace, For: 5 * time.Second}
	} else {
		sp.Connectivity = job.Connectivity{Policy: job.Continuous}
	}
	raw := sp.Defaulted().Canonical()
	return site.Submit{Kind: job.Build, Title: title, Key: title, Spec: raw, SpecID: cas.Sum(raw)}
}

func (c *client) takes(title string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.works[title]
}

func (c *client) promised() []forgeyard.JobID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]forgeyard.JobID(nil), c.jobs...)
}

// read asks a node for current state, and holds what it sees against what was
// acknowledged before it asked.
func (c *client) read() {
	if p := c.anyone(); p != nil {
		c.readFrom(p)
	}
}

func (c *client) readFrom(p *process) {
	acked := c.w.check.ackedStep()
	ctx, cancel := context.WithTimeout(p.ctx, 3*time.Second)
	defer cancel()
	if err := p.group.ReadBarrier(ctx); err != nil || p.dead.Load() {
		return
	}
	c.w.check.read(p, p.replica.State().Step, acked)
	c.w.count(func(r *Result) { r.Reads++ })
}

// owed says what the healed site still owes, or nothing.
func (c *client) owed() string {
	c.mu.Lock()
	open := c.open
	c.mu.Unlock()
	if open > 0 {
		return fmt.Sprintf("%d submissions have no answer", open)
	}
	h := c.w.check.latest()
	for id := range h.Open.All() {
		j, _ := h.Jobs.Get(id)
		return fmt.Sprintf("%s is %s at epoch %d: %s", j.Spec.Title, j.Status, j.Epoch, j.Reason)
	}
	return ""
}
