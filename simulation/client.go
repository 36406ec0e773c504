package simulation

import (
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/simulation/scenario"
	"github.com/forgeyard/forgeyard-node/site"
)

// client is who uses the site: it asks any node, and remembers what it was promised.
type client struct {
	acked   []site.Submitted
	names   map[string]forgeyard.JobID // of what was acknowledged
	lost    int                        // acknowledged, and not there after a forced recovery
	open    int                        // submissions without an answer
	drained []forgeyard.RunnerID
	noticed []forgeyard.RunnerID
	held    []forgeyard.JobID    // somebody asked that they wait
	off     []forgeyard.RunnerID // disabled
	leaving *node                // the node that is being removed
	s       *sim
}

// anyone is a node that can be asked, or nil.
func (c *client) anyone() *node {
	n := c.s.nodes[c.s.rng.IntN(len(c.s.nodes))]
	if !n.up || n.paused {
		return nil
	}
	return n
}

// submit puts the input into a node's store, then the job into the site, under one
// idempotency key until it has an answer.
func (c *client) submit(s *sim, p *plan) {
	n := c.anyone()
	retry := func() { s.after(int64(time.Second), func() { c.submit(s, p) }) }
	if n == nil {
		retry()
		return
	}
	c.open++
	answered := false
	give := func() {
		if !answered {
			answered = true
			c.open--
			retry()
		}
	}
	s.after(int64(30*time.Second), give) // the node it asked may have died
	if !p.Input {
		c.ask(n, p, &answered, give)
		return
	}
	n.put(p.input(), "hold/"+p.id(), func(ok bool) {
		if !ok {
			give()
			return
		}
		c.ask(n, p, &answered, give)
	})
}

func (c *client) ask(n *node, p *plan, answered *bool, give func()) {
	if c.s.chance(200) { // somebody asks for what is refused, at the same moment
		n.propose("ana", site.TokenRevoke{Token: "none"}, proposeFor, nil)
	}
	n.propose("client", p.submit(c.s), proposeFor, func(r site.Reply, known bool) {
		if *answered {
			return
		}
		v, err := site.Value[site.Submitted](r)
		if known && p.Ingest > 0 && forgeyard.KindOf(err) == forgeyard.NotFound { // its node has left the site
			*answered = true
			c.open--
			c.lost++
			return
		}
		if !known || err != nil {
			give()
			return
		}
		*answered = true
		c.open--
		if n.world != c.s.world && !c.s.head().Jobs.Has(v.Job) { // whoever answers does not know yet what was lost
			c.lost++
			return
		}
		c.acked = append(c.acked, v)
		if c.names == nil {
			c.names = map[string]forgeyard.JobID{}
		}
		c.names[p.id()] = v.Job
		c.s.trace("client: %s is taken in as %s", p.id(), forgeyard.Short(v.Job))
		if p.Input {
			n.put(p.input(), "job/"+string(v.Job)+"/inputs", func(bool) { n.unpin("hold/" + p.id()) })
		}
	})
}

func (c *client) cancel(name string, force bool) {
	id, ok := c.names[name]
	if n := c.anyone(); ok && n != nil {
		n.propose("client", site.Cancel{Job: id, Force: force}, proposeFor, nil)
	}
}

// suspend asks that a job wait, or only for a checkpoint, and resumes it later.
func (c *client) suspend(d scenario.Damage) {
	id := c.job(d.Job)
	n := c.anyone()
	if id == "" || n == nil {
		return
	}
	if d.Word == site.AskCheckpoint {
		n.propose("ana", site.Ask{Job: id, What: site.AskCheckpoint}, proposeFor, nil)
		return
	}
	c.held = append(c.held, id)
	n.propose("ana", site.Ask{Job: id, What: site.AskSuspend, Or: d.Word}, proposeFor, nil)
	c.s.ends(d, func() { c.resume(id) })
}

// job is the job of that title: acknowledged, or delegated and taken in.
func (c *client) job(title string) forgeyard.JobID {
	if id, ok := c.names[title]; ok {
		return id
	}
	st := c.s.head()
	for id := range st.Open.All() {
		if j, _ := st.Jobs.Get(id); j.Spec.Title == title {
			return id
		}
	}
	return ""
}

// resume asks for it until the job waits for no person any more.
func (c *client) resume(id forgeyard.JobID) {
	again := func() { c.s.after(int64(time.Second), func() { c.resume(id) }) }
	n := c.anyone()
	if n == nil {
		again()
		return
	}
	n.propose("ana", site.Resume{Job: id}, proposeFor, func(_ site.Reply, known bool) {
		if j, _ := c.s.head().Jobs.Get(id); !known || j.Held() {
			again()
		}
	})
}

// revoke takes the lease of a job, whoever holds it, as soon as somebody does.
func (c *client) revoke(title string, atOnce bool) {
	if c.s.healing {
		return
	}
	again := func() { c.s.after(int64(time.Second), func() { c.revoke(title, atOnce) }) }
	n := c.anyone()
	if n == nil {
		again()
		return
	}
	class := site.RevokedByOperator
	if atOnce {
		class = site.RevokedSecurity
	}
	st := n.state()
	for id := range st.Open.All() {
		if j, _ := st.Jobs.Get(id); j.Spec.Title == title && j.Lease.Live() {
			n.propose("ana", site.Revoke{Job: id, Lease: j.Lease.Authority.Lease, Class: class, Reason: "as drawn"}, proposeFor, func(r site.Reply, known bool) {
				if known && r.Err() != nil {
					again()
				}
			})
			return
		}
	}
	again()
}

// disable disables a runner until the heal.
func (c *client) disable(n *node) {
	c.off = append(c.off, n.runner)
	yes := true
	if by := c.anyone(); by != nil {
		by.propose("ana", site.MemberSet{Runner: n.runner, Disabled: &yes}, proposeFor, nil)
	}
}

// drain drains a runner until the heal.
func (c *client) drain(n *node, cancel bool) {
	c.drained = append(c.drained, n.runner)
	yes := true
	if by := c.anyone(); by != nil {
		by.propose("client", site.MemberSet{Runner: n.runner, Draining: &yes, Cancel: cancel}, proposeFor, nil)
	}
}

// preempt tells the site that a machine is to be taken away, which happens when it was said,
// whatever became of the word.
func (c *client) preempt(n *node, left time.Duration) {
	c.noticed = append(c.noticed, n.runner)
	if by := c.anyone(); by != nil {
		by.propose("client", site.Preempt{Runner: n.runner, Source: "its platform", Left: int64(left)}, proposeFor, nil)
	}
	c.s.after(int64(left), func() {
		if !c.s.healing {
			c.s.trace("%s is taken away", n.name)
			c.s.kill(n, left, true)
		}
	})
	c.s.after(2*int64(left), func() {
		if by := c.anyone(); by != nil && !c.s.healing {
			by.propose("client", site.Preempt{Runner: n.runner, Off: true}, proposeFor, nil)
		}
	})
}

// set changes a setting of the site.
func (c *client) set(key, value string) {
	if n := c.anyone(); n != nil {
		n.propose("client", site.ConfigSet{Key: key, Value: value}, proposeFor, nil)
	}
}

// setTTL changes how long leases are, and with it the renewal, which is never more than a
// third: the shorter renewal comes first.
func (c *client) setTTL(ttl time.Duration) {
	n := c.anyone()
	if n == nil {
		return
	}
	renew := min(n.state().Config.Lease.Renew, (ttl / 3).Truncate(time.Millisecond))
	n.propose("client", site.ConfigSet{Key: "lease.renew", Value: renew.String()}, proposeFor, func(_ site.Reply, known bool) {
		if known {
			n.propose("client", site.ConfigSet{Key: "lease.ttl", Value: ttl.String()}, proposeFor, nil)
		}
	})
}

// remove drains a node and takes it out of the site when its leases have ended; when the
// group goes on without it too, its machine is switched off.
func (c *client) remove(n *node) {
	n = c.s.nodes[n.id] // its data dir may have been copied meanwhile
	if c.leaving != nil && c.leaving != n {
		return
	}
	c.leaving = n
	yes := true
	by := c.anyone()
	if by == nil || by == n {
		c.s.after(int64(time.Second), func() { c.remove(n) })
		return
	}
	by.propose("client", site.MemberSet{Runner: n.runner, Draining: &yes, Cancel: true}, proposeFor, func(site.Reply, bool) {
		by.propose("client", site.MemberSet{Runner: n.runner, Removed: &yes}, proposeFor, func(r site.Reply, known bool) {
			if known && r.Err() == nil {
				c.switchOff(n)
				return
			}
			c.s.after(int64(3*time.Second), func() { c.remove(n) })
		})
	})
}

// switchOff ends the machine of a node that was removed, as soon as somebody says that the
// group goes on without it.
func (c *client) switchOff(n *node) {
	n = c.s.nodes[n.id]
	by := c.anyone()
	switch {
	case n.gone:
	case by != nil && (by.without(n) || c.s.faults.offAtOnce):
		c.s.trace("%s is switched off: it was removed", n.name)
		n.resume()
		if n.up {
			n.crash()
		}
		n.gone = true
	default:
		c.s.after(int64(groupLook), func() { c.switchOff(n) })
	}
}

// groupLook is how often a person looks at the group who waits for a change of it.
const groupLook = 500 * time.Millisecond

// without reports whether a node was removed and does not vote, by what this one knows to be
// committed.
func (n *node) without(gone *node) bool {
	m, ok := n.state().Members.Get(gone.runner)
	g, at := n.group()
	return ok && m.Removed && !g.voter[gone.id] && at <= n.commit
}

// forget is what a forced recovery costs: what the node did not have.
func (c *client) forget(had *site.State) {
	c.acked = slices.DeleteFunc(c.acked, func(v site.Submitted) bool {
		gone := !had.Jobs.Has(v.Job)
		if gone {
			c.lost++
		}
		return gone
	})
}

// bury removes nodes that were lost, now or before, however long that takes.
func (c *client) bury() {
	yes := true
	for _, n := range c.s.nodes {
		if n.gone {
			c.restore(site.MemberSet{Runner: n.runner, Removed: &yes})
		}
	}
}

// settle ends what a person began: after the heal, every runner takes work again.
func (c *client) settle() {
	no := false
	for _, r := range c.drained {
		if c.leaving == nil || r != c.leaving.runner {
			c.restore(site.MemberSet{Runner: r, Draining: &no})
		}
	}
	for _, r := range c.noticed {
		c.restore(site.Preempt{Runner: r, Off: true})
	}
	for _, r := range c.off {
		c.restore(site.MemberSet{Runner: r, Disabled: &no})
	}
	if c.leaving != nil && !c.leaving.gone {
		c.remove(c.leaving) // whoever was asked may have died with the question
	}
	c.mend()
}

// mend clears quarantines, as a person would who has looked at the device, and lets those
// take work again whom a word that was on its way at the heal keeps from it: an ingest of
// theirs can go nowhere else.
func (c *client) mend() {
	for _, id := range c.held {
		if j, _ := c.s.head().Jobs.Get(id); j.Held() {
			c.resume(id)
		}
	}
	no := false
	for _, m := range c.s.head().Members.All() {
		if (m.Disabled || m.Draining) && !m.Removed && (c.leaving == nil || c.leaving.runner != m.Runner) {
			c.s.present().propose("client", site.MemberSet{Runner: m.Runner, Disabled: &no, Draining: &no}, proposeFor, nil)
		}
	}
	for id, d := range c.s.head().Devices.All() {
		if d.Quarantine != nil && d.Use == devices.Free {
			c.s.present().propose("ana", site.DeviceHealth{Device: id, Action: "clear", Reason: "looked at"}, proposeFor, nil)
		}
	}
	c.s.after(int64(5*time.Second), c.mend)
}

// restore puts a member back to what it was, however long that takes.
func (c *client) restore(b site.Body) {
	done := false
	again := func() {
		if !done {
			done = true
			c.restore(b)
		}
	}
	if n := c.s.present(); n.up && !n.paused {
		n.propose("client", b, proposeFor, func(rep site.Reply, known bool) {
			switch {
			case known && rep.Err() == nil:
				done = true
			default:
				c.s.after(int64(time.Second), again)
			}
		})
	}
	c.s.after(int64(2*proposeFor), again) // whoever was asked may have died with the question
}

// present is a node that was not removed.
func (s *sim) present() *node {
	for _, n := range s.nodes {
		if !n.gone {
			return n
		}
	}
	return s.nodes[0]
}
