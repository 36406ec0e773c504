package simulation

import "time"

// mischief is one fault of the safety half, and the appointment for the next. Each
// fault ends by itself or with the heal.
func (s *sim) mischief() {
	if s.healing {
		return
	}
	defer func() { s.after(int64(s.within(s.shape.calm/2, s.shape.calm*2)), s.mischief) }()
	n := s.nodes[s.rng.IntN(nodeCount)]
	if lead := s.leading(); lead != nil && s.chance(300) {
		n = lead // the leader is where it hurts
	}
	s.shape.faults[s.rng.IntN(len(s.shape.faults))](s, n)
}

// faultKinds are what may happen. A run knows only some of them, so that each gets
// runs in which it happens often, and in every company.
var faultKinds = []func(*sim, *node){
	func(s *sim, n *node) {
		s.trace("FAULT %s is cut off", n.name)
		s.net.isolate(n.id, s.chance(500))
		s.recover(func() { s.net.healLinks(false) }, "the nodes reach each other again")
	},
	(*sim).mute,
	(*sim).clog,
	func(s *sim, _ *node) {
		s.net.loss, s.net.dup, s.net.tail = s.rng.IntN(200), s.rng.IntN(200), s.rng.IntN(200)
		s.trace("FAULT messages get lost, doubled and late: %d %d %d", s.net.loss, s.net.dup, s.net.tail)
		s.recover(func() { s.net.loss, s.net.dup, s.net.tail = 0, 0, 0 }, "messages arrive again")
	},
	func(s *sim, _ *node) {
		s.trace("FAULT the uplink is cut")
		s.net.setUplink(true)
		s.after(int64(s.within(time.Second, 2*s.shape.terms.Allowance)), func() {
			if !s.healing {
				s.trace("the uplink is back")
				s.net.setUplink(false)
			}
		})
	},
	func(s *sim, n *node) {
		s.trace("FAULT the link to the daemon loses what it carries to %s", n.name)
		s.net.cut[centralID][n.id] = true
		s.recover(func() { s.net.cut[centralID][n.id] = false }, "answers of the daemon arrive again")
	},
	func(s *sim, n *node) { s.kill(n, s.shape.power && s.chance(500)) },
	(*sim).pause,
	func(s *sim, _ *node) {
		if s.shape.badWall >= 0 {
			bad := s.nodes[s.shape.badWall]
			bad.clk.wallOff, bad.clk.trusted = int64(s.shape.wallJump), false
			s.trace("FAULT the wall clock of %s jumps by %s", bad.name, s.shape.wallJump)
		}
	},
	func(s *sim, _ *node) {
		if !s.shape.power || !s.chance(300) {
			return
		}
		s.trace("FAULT the power fails")
		for _, each := range s.nodes {
			s.kill(each, true)
		}
	},
}

// mute cuts one way: a node reaches one of the others, or none, and hears them, late
// perhaps.
func (s *sim) mute(n *node) {
	late := time.Duration(0)
	if s.chance(500) {
		late = s.within(500*time.Millisecond, 6*time.Second)
	}
	one := (n.id + 1 + s.rng.IntN(nodeCount-1)) % nodeCount
	all := s.chance(600)
	set := func(cut bool, slow time.Duration) {
		for id := range nodeCount {
			if id != n.id && (all || id == one) {
				s.net.cut[n.id][id], s.net.slow[id][n.id] = cut, slow
			}
		}
	}
	s.trace("FAULT %s does not reach others (all %v), and hears them %s late", n.name, all, late)
	// What comes late is clogged before the cut, so that it answers what was still heard.
	set(false, late)
	over := false
	s.after(int64(late), func() {
		if !s.healing && !over {
			set(true, late)
		}
	})
	s.recover(func() { over = true; set(false, 0) }, "the one-way cut ends")
}

// clog makes what goes to a node, or comes from it, late.
func (s *sim) clog(n *node) {
	var ends [][2]int
	into := s.chance(500)
	for _, other := range s.nodes {
		if other != n && s.chance(700) {
			if into {
				ends = append(ends, [2]int{other.id, n.id})
			} else {
				ends = append(ends, [2]int{n.id, other.id})
			}
		}
	}
	d := s.within(100*time.Millisecond, 6*time.Second)
	s.trace("FAULT %d links of %s are clogged by %s, into it %v", len(ends), n.name, d, into)
	for _, e := range ends {
		s.net.slow[e[0]][e[1]] = d
	}
	s.recover(func() {
		for _, e := range ends {
			s.net.slow[e[0]][e[1]] = 0
		}
	}, "the clog is gone")
}

func (s *sim) recover(f func(), what string) {
	s.after(int64(s.within(500*time.Millisecond, s.shape.longest)), func() {
		if !s.healing {
			s.trace("%s", what)
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

// kill ends a process, or a machine, which comes back later.
func (s *sim) kill(n *node, power bool) {
	if !n.up {
		return
	}
	n.resume()
	s.trace("FAULT %s %s", n.name, map[bool]string{true: "loses power", false: "is killed"}[power])
	n.crash()
	s.after(int64(s.within(200*time.Millisecond, 20*time.Second)), func() {
		if !n.up {
			n.start(power)
		}
	})
}

// pause stops a machine; its clock goes on.
func (s *sim) pause(n *node) {
	if !n.up || n.paused {
		return
	}
	s.trace("FAULT %s stops", n.name)
	n.paused = true
	life := n.life
	s.after(int64(s.within(500*time.Millisecond, 40*time.Second)), func() {
		if n.life == life && n.paused {
			n.resume()
		}
	})
}
