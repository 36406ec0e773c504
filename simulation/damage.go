package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node/simulation/scenario"
)

// suffer lets one damage of the scenario happen. Each ends by itself, or with the heal.
func (s *sim) suffer(d scenario.Damage) {
	if s.healing {
		return
	}
	if do := damages[d.Kind]; d.Node == 0 || s.hit(d) != nil {
		s.trace("FAULT %s", d)
		do(s, d, s.hit(d))
	}
}

// hit is the node that a damage names, or nil: all, none, or one that is gone.
func (s *sim) hit(d scenario.Damage) *node {
	n := (*node)(nil)
	switch {
	case d.Node > 0:
		n = s.nodes[d.Node-1]
	case d.Node == scenario.Leader:
		if n = s.leading(); n == nil {
			n = s.nodes[0]
		}
	}
	if n != nil && n.gone {
		return nil
	}
	return n
}

// ends lets a damage end at its time, unless the heal was first.
func (s *sim) ends(d scenario.Damage, f func()) {
	s.after(int64(d.For), func() {
		if !s.healing {
			s.trace("over: %s", d)
			f()
		}
	})
}

func (s *sim) leading() *node {
	for _, n := range s.nodes {
		if n.up && n.lead != nil {
			return n
		}
	}
	return nil
}

// damages are what the kinds of package scenario do. n is nil where no node is meant.
var damages = map[string]func(s *sim, d scenario.Damage, n *node){
	"cut": func(s *sim, d scenario.Damage, n *node) {
		s.net.isolate(n.id, d.Word == "uplink", 1)
		s.ends(d, func() { s.net.isolate(n.id, d.Word == "uplink", -1) })
	},
	"mute": (*sim).mute,
	"clog": (*sim).clog,
	"noise": func(s *sim, d scenario.Damage, _ *node) {
		add := func(by int) {
			s.net.loss, s.net.dup, s.net.tail = s.net.loss+by*d.Loss, s.net.dup+by*d.Dup, s.net.tail+by*d.Tail
		}
		add(1)
		s.ends(d, func() { add(-1) })
	},
	"uplink": func(s *sim, d scenario.Damage, _ *node) {
		s.net.uplink(1)
		s.ends(d, func() { s.net.uplink(-1) })
	},
	"deaf": func(s *sim, d scenario.Damage, n *node) {
		s.net.between(centralID, n.id, 1)
		s.ends(d, func() { s.net.between(centralID, n.id, -1) })
	},
	"kill": func(s *sim, d scenario.Damage, n *node) { s.kill(n, d.For, false) },
	"power": func(s *sim, d scenario.Damage, n *node) {
		for _, each := range s.nodes {
			if n == nil || n == each {
				s.kill(each, d.For, true)
			}
		}
	},
	"pause": func(s *sim, d scenario.Damage, n *node) { s.pause(n, d.For, false) },
	"sleep": func(s *sim, d scenario.Damage, n *node) { s.pause(n, d.For, true) },
	"wall": func(_ *sim, d scenario.Damage, n *node) {
		n.clk.wallOff, n.clk.trusted = int64(d.By), false
		if d.Word == "back" {
			n.clk.wallOff = -n.clk.wallOff
		}
	},
	"slow-disk": func(s *sim, d scenario.Damage, n *node) {
		n.disk.slow += d.By
		s.ends(d, func() { n.disk.slow -= d.By })
	},
	"full": func(s *sim, d scenario.Damage, n *node) {
		n.disk.full++
		s.ends(d, func() { n.disk.full-- })
	},
	"unreadable": func(s *sim, d scenario.Damage, n *node) {
		n.disk.unreadable++
		s.ends(d, func() { n.disk.unreadable-- })
	},
	"corrupt":   func(s *sim, d scenario.Damage, n *node) { s.corrupt(n, d) },
	"daemon":    func(s *sim, d scenario.Damage, _ *node) { s.up.suffer(d) },
	"take-back": func(s *sim, d scenario.Damage, _ *node) { s.up.takeBack(d.Job) },
	"raise":     func(s *sim, d scenario.Damage, _ *node) { s.up.raise(d.Job) },
	"cancel":    func(s *sim, d scenario.Damage, _ *node) { s.client.cancel(d.Job, d.Word == "force") },
	"revoke":    func(s *sim, d scenario.Damage, _ *node) { s.client.revoke(d.Job, d.Word == "security") },
	"suspend":   func(s *sim, d scenario.Damage, _ *node) { s.client.suspend(d) },
	"disable":   func(s *sim, _ scenario.Damage, n *node) { s.client.disable(n) },
	"upgrade": func(_ *sim, d scenario.Damage, n *node) {
		if n.up {
			n.resume()
			n.crash()
			n.comesBack(d.For)
		}
	},
	"copy":    func(s *sim, d scenario.Damage, n *node) { s.copied(n, d.For) },
	"drain":   func(s *sim, d scenario.Damage, n *node) { s.client.drain(n, d.Word == "cancel") },
	"recover": func(s *sim, d scenario.Damage, n *node) { s.recover(n, d.For, nil) },
	"backup":  func(s *sim, _ scenario.Damage, n *node) { s.backUp(n) },
	"restore": func(s *sim, d scenario.Damage, n *node) {
		if s.backup != nil {
			s.recover(n, d.For, s.backup)
		}
	},
	"preempt": func(s *sim, d scenario.Damage, n *node) { s.client.preempt(n, d.For) },
	"remove":  func(s *sim, _ scenario.Damage, n *node) { s.client.remove(n) },
	"voters":  func(s *sim, d scenario.Damage, _ *node) { s.client.set("voters", d.Word) },
	"ttl":     func(s *sim, d scenario.Damage, _ *node) { s.client.setTTL(d.By) },
	"grace":   func(s *sim, d scenario.Damage, _ *node) { s.client.set("lease.grace", d.By.String()) },
}

// mute cuts one way: a node reaches one of the others, or none, and hears them, late
// perhaps. What comes late is clogged before the cut, so that it answers what was still
// heard.
func (s *sim) mute(d scenario.Damage, n *node) {
	set := func(cut int, slow time.Duration) {
		for id := range s.nodes {
			if id != n.id && (d.Peer == 0 || d.Peer == id+1) {
				s.net.between(n.id, id, cut)
				s.net.slow[id][n.id] += slow
			}
		}
	}
	set(0, d.By)
	deaf, over := 0, false
	s.after(int64(d.By), func() {
		if !s.healing && !over {
			deaf = 1
			set(1, 0)
		}
	})
	s.ends(d, func() { over = true; set(-deaf, -d.By) })
}

// clog makes what goes to a node, or comes from it, late.
func (s *sim) clog(d scenario.Damage, n *node) {
	add := func(by time.Duration) {
		for id := range s.nodes {
			switch {
			case id == n.id:
			case d.Word == "into":
				s.net.slow[id][n.id] += by
			default:
				s.net.slow[n.id][id] += by
			}
		}
	}
	add(d.By)
	s.ends(d, func() { add(-d.By) })
}

// kill ends a process, or a machine, which comes back later.
func (s *sim) kill(n *node, down time.Duration, power bool) {
	if !n.up {
		return
	}
	n.resume()
	n.crash()
	if power {
		n.blackout()
	}
	life := n.life
	s.after(int64(down), func() {
		if !n.up && n.life == life && !n.gone {
			n.start(power)
		}
	})
}

// pause stops a machine; its clock goes on. One that sleeps loses what is sent to it.
func (s *sim) pause(n *node, d time.Duration, asleep bool) {
	if !n.up || n.paused {
		return
	}
	n.paused, n.asleep = true, asleep
	life := n.life
	s.after(int64(d), func() {
		if n.life == life && n.paused {
			n.resume()
		}
	})
}
