package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/simulation/scenario"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// central is a tiny model of the daemon. What it answers for is on its disk; what it
// has only heard is gone when it restarts.
type central struct {
	s           *sim
	jobs        []*centralJob // in the order of delegation
	delegations []site.Delegation
	records     []site.Record // taken, in order
	last        uint64        // number of the last one taken
	contact     int64         // true time at which it last heard the site
	cancelled   []forgeyard.GrantID
	content     map[forgeyard.Digest]bool

	down int           // faults under way that keep it from hearing
	slow time.Duration // its disk takes so much longer
	life int

	electionsAtContact int
	firstRead          forgeyard.Wall // of its clock, by the site
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

func newCentral(s *sim) *central { return &central{s: s, content: map[forgeyard.Digest]bool{}} }

// hear runs a message at the daemon, if it is up.
func (c *central) hear(f func()) {
	if c.down == 0 {
		f()
	}
}

func (c *central) heal() { c.down, c.slow = 0, 0 }

func (c *central) has(d forgeyard.Digest) bool { return c.content[d] }

// suffer lets the daemon restart (what it had not on disk is gone), be slow, or die
// between hearing records and keeping them.
func (c *central) suffer(d scenario.Damage) {
	if d.Word == "slow" {
		c.slow += d.By
		c.s.ends(d, func() { c.slow -= d.By })
		return
	}
	if d.Word == "forgets-unconfirmed" {
		c.life++ // whatever it was writing is lost; it is back at once
		return
	}
	c.life++
	c.down++
	c.s.ends(d, func() { c.down-- })
}

// sync takes records in their order, each once, keeps them, then answers with what the
// site lacks.
func (c *central) sync(req syncRequest, answer func(any)) {
	c.contact, c.electionsAtContact = c.s.now, c.s.elections
	write := time.Duration(1+c.s.rng.IntN(20))*time.Millisecond + c.slow
	life := c.life
	if c.s.faults.hasty {
		c.s.after(int64(write), func() {
			if c.life == life {
				c.keep(req)
			}
		})
		answer(c.answer(req, max(c.last, req.first+uint64(len(req.records))-1)))
		return
	}
	c.s.after(int64(write), func() {
		if c.life == life {
			c.keep(req)
			answer(c.answer(req, c.last))
		}
	})
}

func (c *central) answer(req syncRequest, acked uint64) syncAnswer {
	a := syncAnswer{Answer: reckon.Answer{Acked: acked, Terms: c.s.terms, Daemon: c.clock()}}
	for _, d := range c.delegations {
		if d.Seq > req.cursor && len(a.delegations) < 3 {
			a.delegations = append(a.delegations, d)
		}
	}
	a.Cancelled = append(a.Cancelled, c.cancelled...)
	return a
}

func (c *central) keep(req syncRequest) {
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
	id := forgeyard.GrantID(forgeyard.NewULID(epoch.Add(time.Duration(c.s.now)), [10]byte{7, byte(len(c.jobs))}))
	g := lease.Grant{ID: id, Term: 1, Policy: policyOf(p.Grant), End: c.end(p)}
	c.jobs = append(c.jobs, &centralJob{grant: g, plan: p})
	if p.Input {
		c.content[p.input()] = true
	}
	c.write(site.Delegation{Grant: g, Title: p.id(), Spec: p.raw, SpecID: cas.Sum(p.raw)})
	c.s.trace("daemon: delegates %s, %s %s", p.id(), g.Policy.Policy, g.Policy.For)
}

// clock is what the daemon's own clock reads: true time, since its ends are made by it.
func (c *central) clock() forgeyard.Wall { return forgeyard.WallOf(epoch.Add(time.Duration(c.s.now))) }

// read is the site reading the daemon's clock in an answer.
func (c *central) read(at forgeyard.Wall) forgeyard.Wall {
	if c.firstRead == 0 {
		c.firstRead = at
	}
	if c.s.faults.readsOnce {
		return c.firstRead
	}
	return at
}

// end is the hard end of what is given now.
func (c *central) end(p *plan) forgeyard.Wall {
	if p.Ends == 0 {
		return 0
	}
	return c.clock() + forgeyard.Wall(p.Ends.Milliseconds())
}

func (c *central) write(d site.Delegation) {
	d.Seq = uint64(len(c.delegations)) + 1
	c.delegations = append(c.delegations, d)
}

// open is a job of the daemon that has no outcome there and was not taken back.
func (c *central) open(name string) *centralJob {
	for _, j := range c.jobs {
		if j.plan.id() == name && !j.cancel && len(j.outcomes) == 0 {
			return j
		}
	}
	return nil
}

// takeBack cancels a job.
func (c *central) takeBack(name string) {
	if j := c.open(name); j != nil {
		j.cancel = true
		c.cancelled = append(c.cancelled, j.grant.ID)
		c.write(site.Delegation{Grant: j.grant, Cancel: true})
	}
}

// raise gives a job anew: what ran under the lower term can no longer commit.
func (c *central) raise(name string) {
	if j := c.open(name); j != nil {
		j.grant.Term++
		j.grant.End = c.end(j.plan)
		c.write(site.Delegation{Grant: j.grant, Title: j.plan.id(), Spec: j.plan.raw, SpecID: cas.Sum(j.plan.raw)})
		c.s.trace("daemon: gives %s anew, term %d", name, j.grant.Term)
	}
}
