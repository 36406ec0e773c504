package simulation

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/site"
)

// client is who uses the site: it asks any node, and remembers what it was promised.
type client struct {
	acked   []site.Submitted
	open    int // submissions without an answer
	drained []forgeyard.RunnerID
	s       *sim
}

func (c *client) submit(s *sim, p *plan) {
	n := s.nodes[s.rng.IntN(nodeCount)]
	retry := func() { s.after(int64(time.Second), func() { c.submit(s, p) }) }
	if !n.up || n.paused {
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
	n.propose("client", p.submit(), proposeFor, func(r site.Reply, known bool) {
		if answered {
			return
		}
		v, err := site.Value[site.Submitted](r)
		if !known || err != nil {
			give()
			return
		}
		answered = true
		c.open--
		c.acked = append(c.acked, v)
		s.trace("client: %s is taken in as %s", p.id(), forgeyard.Short(v.Job))
	})
	s.after(int64(30*time.Second), give) // the node it asked may have died
}

func (c *client) cancelOne(s *sim) {
	if len(c.acked) == 0 || s.healing {
		return
	}
	v := c.acked[s.rng.IntN(len(c.acked))]
	n := s.nodes[s.rng.IntN(nodeCount)]
	if n.up && !n.paused {
		n.propose("client", site.Cancel{Job: v.Job, Force: s.chance(300)}, proposeFor, nil)
	}
}

// drainOne drains a runner for a while.
func (c *client) drainOne(s *sim) {
	n := s.nodes[s.rng.IntN(nodeCount)]
	if !n.up || n.paused || s.healing {
		return
	}
	c.drained = append(c.drained, n.runner)
	yes := true
	n.propose("client", site.MemberSet{Runner: n.runner, Draining: &yes, Cancel: s.chance(500)}, proposeFor, nil)
}

// settle ends what a person began: after the heal, every runner takes work again.
func (c *client) settle() {
	for _, r := range c.drained {
		c.undrain(r)
	}
	c.mend()
}

// mend clears quarantines, as a person would who has looked at the device.
func (c *client) mend() {
	for id, d := range c.s.head().Devices.All() {
		if d.Quarantine != nil && d.Use == devices.Free {
			c.s.nodes[0].propose("ana", site.DeviceHealth{Device: id, Action: "clear", Reason: "looked at"}, proposeFor, nil)
		}
	}
	c.s.after(int64(5*time.Second), c.mend)
}

func (c *client) undrain(r forgeyard.RunnerID) {
	no := false
	c.s.nodes[0].propose("client", site.MemberSet{Runner: r, Draining: &no}, proposeFor, func(rep site.Reply, known bool) {
		if !known || rep.Err() != nil {
			c.undrain(r)
		}
	})
}

// atRest says what the healed site still owes, or nothing.
func (s *sim) atRest() string {
	h := s.head()
	switch {
	case s.client.open > 0 || len(s.client.acked)+len(s.up.jobs) < s.shape.jobs:
		return "a submission has no answer"
	case h.Outbox.Len() > 0:
		return fmt.Sprintf("the outbox has %d records", h.Outbox.Len())
	case h.Cursor < uint64(len(s.up.delegations)):
		return "a delegation was not taken in"
	}
	for id := range h.Open.All() {
		j, _ := h.Jobs.Get(id)
		return fmt.Sprintf("%s is %s at epoch %d: %s", j.Spec.Title, j.Status, j.Epoch, j.Reason)
	}
	for _, d := range h.Devices.All() {
		if why := unsettled(d); why != "" {
			return why
		}
	}
	for _, n := range s.nodes {
		if len(n.spool) > 0 {
			return n.name + " holds a completion without an answer"
		}
		if n.applied < uint64(len(s.world.entries)) {
			return n.name + " lags"
		}
	}
	for _, j := range s.up.jobs {
		if len(j.outcomes) == 0 {
			return string(j.grant.ID) + " has no outcome at the daemon"
		}
	}
	return ""
}

func unsettled(d devices.Device) string {
	switch {
	case d.Use != devices.Free:
		return fmt.Sprintf("device %s is %s", d.ID, d.Use)
	case d.Health != devices.Good && (d.Quarantine == nil || d.Quarantine.Reason == ""):
		return fmt.Sprintf("device %s is %s, and nobody says why: %s", d.ID, d.Health, d.Reason)
	}
	return ""
}

func short(a forgeyard.Authority) string {
	return fmt.Sprintf("%s@%s", forgeyard.Short(a.Job), a.Fence)
}
