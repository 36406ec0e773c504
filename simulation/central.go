package simulation

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// central is a tiny model of the daemon: everything it answers is on its disk.
type central struct {
	s           *sim
	jobs        []*centralJob // in the order of delegation
	delegations []site.Delegation
	records     []site.Record // taken, in order
	last        uint64        // number of the last one taken
	contact     int64         // true time at which it last heard the site
	cancelled   []forgeyard.GrantID

	electionsAtContact int
}

type centralJob struct {
	grant    lease.Grant
	plan     *plan
	accepted int
	outcomes []site.Record
	cancel   bool
}

type syncRequest struct {
	first, cursor uint64
	records       []site.Record
}

type syncAnswer struct {
	reckon.Answer
	delegations []site.Delegation
}

func newCentral(s *sim) *central { return &central{s: s} }

// sync takes records in their order, each once, and hands out what the site lacks.
func (c *central) sync(req syncRequest) syncAnswer {
	c.contact, c.electionsAtContact = c.s.now, c.s.elections
	for i, r := range req.records {
		seq := req.first + uint64(i)
		if seq != r.Seq {
			c.s.fail("exactly-once-upstream", "record %d stands at place %d", r.Seq, seq)
		}
		switch {
		case seq == c.last+1:
			c.last = seq
			c.takeIn(r)
		case seq > c.last+1:
			c.s.fail("exactly-once-upstream", "record %d came after %d: a gap", seq, c.last)
		case c.s.faults.forgetful:
			c.takeIn(r)
		}
	}
	a := syncAnswer{Answer: reckon.Answer{Acked: c.last, Terms: c.s.shape.terms}}
	for _, d := range c.delegations {
		if d.Seq > req.cursor && len(a.delegations) < 3 {
			a.delegations = append(a.delegations, d)
		}
	}
	a.Cancelled = append(a.Cancelled, c.cancelled...)
	return a
}

func (c *central) takeIn(r site.Record) {
	c.records = append(c.records, r)
	j := c.byGrant(r.Grant)
	if j == nil {
		c.s.fail("exactly-once-upstream", "record %d is of grant %s, which was never given", r.Seq, r.Grant)
		return
	}
	switch r.Kind {
	case site.RecordAccepted:
		j.accepted++
	case site.RecordOutcome:
		if r.Fence.Term < j.grant.Term {
			c.s.trace("daemon: %s of %s under term %d is stale", r.Grant, j.plan.id(), r.Fence.Term)
			return
		}
		j.outcomes = append(j.outcomes, r)
		c.s.trace("daemon: %s of %s is %s (record %d)", r.Grant, j.plan.id(), r.Status, r.Seq)
	}
}

func (c *central) byGrant(id forgeyard.GrantID) *centralJob {
	for _, j := range c.jobs {
		if j.grant.ID == id {
			return j
		}
	}
	return nil
}

// delegate writes a job down for the site.
func (c *central) delegate(p *plan) {
	g := lease.Grant{ID: forgeyard.GrantID(fmt.Sprintf("G%d", len(c.jobs)+1)), Term: 1, Policy: c.policy()}
	c.jobs = append(c.jobs, &centralJob{grant: g, plan: p})
	c.write(site.Delegation{Grant: g, Title: p.id(), Spec: p.raw, SpecID: cas.Sum(p.raw)})
	c.s.trace("daemon: delegates %s as %s, %s %s", p.id(), g.ID, g.Policy.Policy, g.Policy.For)
}

func (c *central) policy() job.Connectivity {
	t := c.s.shape.terms
	switch c.s.rng.IntN(3) {
	case 0:
		return job.Connectivity{Policy: job.Continuous}
	case 1:
		return job.Connectivity{Policy: job.Grace, For: c.s.within(0, t.Allowance)}
	}
	return job.Connectivity{Policy: job.OfflineAuthorized, For: c.s.within(t.SilentAfter, 2*t.Allowance)}
}

func (c *central) write(d site.Delegation) {
	d.Seq = uint64(len(c.delegations)) + 1
	c.delegations = append(c.delegations, d)
}

// cancelOne takes a job back.
func (c *central) cancelOne() {
	if c.s.healing || len(c.jobs) == 0 {
		return
	}
	j := c.jobs[c.s.rng.IntN(len(c.jobs))]
	if j.cancel || len(j.outcomes) > 0 {
		return
	}
	j.cancel = true
	c.cancelled = append(c.cancelled, j.grant.ID)
	c.write(site.Delegation{Grant: j.grant, Cancel: true})
	c.s.trace("daemon: takes %s back", j.grant.ID)
}

// raiseOne gives a job anew: what ran under the lower term can no longer commit.
func (c *central) raiseOne() {
	if c.s.healing || len(c.jobs) == 0 {
		return
	}
	j := c.jobs[c.s.rng.IntN(len(c.jobs))]
	if j.cancel || len(j.outcomes) > 0 {
		return
	}
	j.grant.Term++
	c.write(site.Delegation{Grant: j.grant, Title: j.plan.id(), Spec: j.plan.raw, SpecID: cas.Sum(j.plan.raw)})
	c.s.trace("daemon: gives %s anew, term %d", j.grant.ID, j.grant.Term)
}
