package simulation

import "time"

// centralID is the central daemon's place in the network, after the nodes.
const centralID = maxNodes

const endpoints = maxNodes + 1

// network carries messages between endpoints. A message is a function that runs at
// its destination. What damages it is counted, so that two faults that overlap each end
// for themselves.
type network struct {
	s    *sim
	cut  [endpoints][endpoints]int
	slow [endpoints][endpoints]time.Duration // extra delay: a clogged link
	loss int                                 // per mille
	dup  int                                 // per mille
	tail int                                 // per mille of messages that take long: reordering
}

// send delivers f at the destination, perhaps late, twice, or never.
func (w *network) send(from, to int, f func()) {
	s := w.s
	if from == to {
		s.deliver(0, to, f)
		return
	}
	if w.cut[from][to] > 0 || s.chance(w.loss) {
		return
	}
	copies := 1
	if s.chance(w.dup) {
		copies = 2
	}
	for range copies {
		d := time.Duration(500+s.rng.IntN(8_000)) * time.Microsecond
		if s.chance(w.tail) {
			d += time.Duration(s.rng.IntN(1_500)) * time.Millisecond
		}
		s.deliver(int64(d+w.slow[from][to]), to, f)
	}
}

// deliver runs a message at its destination, d later: never on a machine that is down
// then, and later still on one that is paused.
func (s *sim) deliver(d int64, to int, f func()) {
	if to == centralID {
		s.after(d, func() { s.up.hear(f) })
		return
	}
	s.events.push(event{at: s.now + d, n: s.nodes[to], life: arrives, f: f})
}

// between cuts what goes from one to the other, or ends that with -1.
func (w *network) between(from, to, by int) { w.cut[from][to] += by }

// isolate cuts a node off from the others, and from the daemon if uplink says so.
func (w *network) isolate(id int, uplink bool, by int) {
	for other := range endpoints {
		if other != id && (uplink || other != centralID) {
			w.between(id, other, by)
			w.between(other, id, by)
		}
	}
}

func (w *network) uplink(by int) {
	for n := range maxNodes {
		w.between(n, centralID, by)
		w.between(centralID, n, by)
	}
}

func (w *network) healAll() { *w = network{s: w.s} }

// send is a message of this node.
func (n *node) send(to int, f func()) {
	if !n.lost {
		n.s.net.send(n.id, to, f)
	}
}

// call is a request with an answer. serve runs at the destination and may answer
// later; done runs here once, with ok false when no answer came in time. late, if set,
// sees an answer that came after that.
func (n *node) call(to int, timeout time.Duration, serve func(dst *node, answer func(any)), done func(v any, ok bool), late func(v any)) {
	waiting := true
	life := n.life
	answer := func(v any) {
		n.s.net.send(to, n.id, func() {
			switch {
			case n.life != life || n.lost:
			case waiting:
				waiting = false
				done(v, true)
			case late != nil:
				late(v)
			}
		})
	}
	w := n.world
	n.send(to, func() {
		if to == centralID {
			serve(nil, answer)
			return
		}
		switch dst := n.s.nodes[to]; {
		case dst.world.lineage == w.lineage:
			serve(dst, answer)
		case w != n.s.world && n.life == life:
			n.outdated()
		}
	})
	n.after(timeout, func() {
		if waiting {
			waiting = false
			done(nil, false)
		}
	})
}
