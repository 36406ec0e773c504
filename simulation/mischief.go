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
	switch s.rng.IntN(12) {
	case 0, 1:
		s.trace("FAULT %s is cut off", n.name)
		s.net.isolate(n.id, s.chance(500))
		s.recover(func() { s.net.healLinks(false) }, "the nodes reach each other again")
	case 2:
		other := (n.id + 1 + s.rng.IntN(nodeCount-1)) % nodeCount
		s.trace("FAULT %s does not reach %s", n.name, s.nodes[other].name)
		s.net.cut[n.id][other] = true
		s.recover(func() { s.net.cut[n.id][other] = false }, "one-way cut ends")
	case 3:
		s.net.slow[n.id][(n.id+1)%nodeCount] = s.within(100*time.Millisecond, 3*time.Second)
		s.trace("FAULT a link of %s is clogged", n.name)
		s.recover(func() { s.net.slow[n.id][(n.id+1)%nodeCount] = 0 }, "the clog is gone")
	case 4:
		s.net.loss, s.net.dup, s.net.tail = s.rng.IntN(200), s.rng.IntN(200), s.rng.IntN(200)
		s.trace("FAULT messages get lost, doubled and late: %d %d %d", s.net.loss, s.net.dup, s.net.tail)
		s.recover(func() { s.net.loss, s.net.dup, s.net.tail = 0, 0, 0 }, "messages arrive again")
	case 5, 6:
		s.trace("FAULT the uplink is cut")
		s.net.setUplink(true)
		s.after(int64(s.within(time.Second, 2*s.shape.terms.Allowance)), func() {
			if !s.healing {
				s.trace("the uplink is back")
				s.net.setUplink(false)
			}
		})
	case 7, 8:
		s.kill(n, s.shape.power && s.chance(500))
	case 9:
		s.pause(n)
	case 10:
		if s.shape.badWall >= 0 {
			bad := s.nodes[s.shape.badWall]
			bad.clk.wallOff, bad.clk.trusted = int64(s.shape.wallJump), false
			s.trace("FAULT the wall clock of %s jumps by %s", bad.name, s.shape.wallJump)
		}
	case 11:
		if s.shape.power && s.chance(300) {
			s.trace("FAULT the power fails")
			for _, each := range s.nodes {
				s.kill(each, true)
			}
			return
		}
		s.trace("FAULT the link to the daemon loses what it carries")
		s.net.cut[centralID][n.id] = true
		s.recover(func() { s.net.cut[centralID][n.id] = false }, "answers of the daemon arrive again")
	}
}

func (s *sim) recover(f func(), what string) {
	s.after(int64(s.within(500*time.Millisecond, 25*time.Second)), func() {
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
