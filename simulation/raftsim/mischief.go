package raftsim

import (
	"context"
	"time"
)

// mischief is one kind of trouble. Most end by themselves; heal ends the rest.
type mischief struct {
	name string
	do   func(*world)
}

var allMischief = []mischief{
	{"isolate", (*world).isolate},
	{"oneway", (*world).oneWay},
	{"split", (*world).split},
	{"clog", (*world).clog},
	{"stop", (*world).stop},
	{"crash", func(w *world) { w.crash(false) }},
	{"power", func(w *world) { w.crash(true) }},
	{"blackout", (*world).blackout},
	{"slowdisk", (*world).slowDisk},
	{"hungdisk", (*world).hungDisk},
	{"snapshot", (*world).snapshot},
	{"transfer", (*world).transfer},
	{"demote", (*world).demote},
	{"remove", (*world).remove},
	deposing,
	{"haunt", (*world).haunt},
	{"reset", (*world).reset},
	{"refuse", (*world).refuse},
	{"longcut", (*world).cutLong},
	{"behind", (*world).behind},
}

var deposing = mischief{"depose", (*world).depose}

// staged are those that need a company of their own, and are in no shape that is drawn.
var staged = []mischief{
	{"putback", (*world).putBack},
}

// victim is a machine; the leader more often than others.
func (w *world) victim() *machine {
	if p := w.leader(); p != nil && w.chance(500) {
		return p.m
	}
	return w.nodes[w.rng.IntN(len(w.nodes))]
}

func (w *world) lasts() time.Duration { return w.within(w.shape.longest/10, w.shape.longest) }

// later ends a trouble, unless the run ends before.
func (w *world) later(d time.Duration, f func()) {
	w.tasks.Go(func() {
		select {
		case <-time.After(d):
			f()
		case <-w.end:
		}
	})
}

func (w *world) isolate() {
	m, d := w.victim(), w.lasts()
	w.trace("%s is cut off for %s", m.name, d)
	w.cutOff(m, true, true, d)
}

func (w *world) oneWay() {
	m, d, in := w.victim(), w.lasts(), w.chance(500)
	w.trace("%s is cut off for %s, inward: %v", m.name, d, in)
	w.cutOff(m, in, !in, d)
}

func (w *world) cutOff(m *machine, in, out bool, d time.Duration) {
	w.cut(m, in, out, true)
	w.later(d, func() {
		w.trace("%s is joined again", m.name)
		w.cut(m, in, out, false)
		w.client.hurry(time.Second, m, 25*time.Millisecond)
	})
}

// cut sets or heals the links of a machine, those towards it, those from it, or both.
func (w *world) cut(m *machine, in, out, cut bool) {
	for _, o := range w.nodes {
		if o == m {
			continue
		}
		if in {
			w.net.setCut(o.name, m.name, cut)
		}
		if out {
			w.net.setCut(m.name, o.name, cut)
		}
	}
}

func (w *world) split() {
	a, b, d := w.nodes[w.rng.IntN(len(w.nodes))], w.nodes[w.rng.IntN(len(w.nodes))], w.lasts()
	w.trace("%s and %s are cut off from each other for %s", a.name, b.name, d)
	w.net.setCut(a.name, b.name, true)
	w.net.setCut(b.name, a.name, true)
	w.later(d, func() { w.net.setCut(a.name, b.name, false); w.net.setCut(b.name, a.name, false) })
}

func (w *world) clog() {
	m, d, by := w.victim(), w.lasts(), w.within(50*time.Millisecond, 2*time.Second)
	w.trace("what reaches %s takes up to %s more, for %s", m.name, by, d)
	for _, o := range w.nodes {
		w.net.setClog(o.name, m.name, by)
	}
	w.later(d, func() {
		for _, o := range w.nodes {
			w.net.setClog(o.name, m.name, 0)
		}
	})
}

func (w *world) stop() {
	m, d := w.victim(), w.lasts()
	w.trace("%s stands still for %s", m.name, d)
	m.clk.stop()
	w.net.look()
	w.later(d, func() {
		if m.stopped() {
			w.trace("%s goes on", m.name)
			m.clk.resume()
			w.net.look()
			w.client.hurry(time.Second, m, 25*time.Millisecond)
		}
	})
}

func (w *world) crash(power bool) {
	m, d := w.victim(), w.lasts()/2
	m.crash(power)
	w.later(d, m.boot)
}

func (w *world) blackout() {
	d := w.lasts() / 2
	for _, m := range w.nodes {
		m.crash(true)
		w.later(d+w.within(0, time.Second), m.boot)
	}
}

func (w *world) slowDisk() {
	m, d, by := w.victim(), w.lasts(), w.within(10*time.Millisecond, 300*time.Millisecond)
	w.trace("the disk of %s takes %s longer, for %s", m.name, by, d)
	m.disk.setSlow(by)
	w.later(d, m.disk.heal)
}

func (w *world) hungDisk() {
	m, d := w.victim(), w.lasts()
	w.trace("the disk of %s hangs for %s", m.name, d)
	m.disk.hang()
	w.later(d, m.disk.heal)
}

// ask runs something that a person asks for, on the side.
func (w *world) ask(p *process, what string, f func(ctx context.Context) error) {
	if p == nil {
		return
	}
	w.trace("%s is asked to %s", p.m.name, what)
	w.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, proposeFor)
		defer cancel()
		if err := f(ctx); err != nil && !p.dead.Load() {
			w.trace("%s could not %s: %v", p.m.name, what, err)
		}
	})
}

func (w *world) snapshot() {
	if p := w.victim().process(); p != nil {
		w.ask(p, "take a snapshot", p.group.Snapshot)
	}
}

func (w *world) transfer() {
	to := w.nodes[w.rng.IntN(len(w.nodes))]
	if p := w.leader(); p != nil && p.m != to {
		w.ask(p, "hand over to "+to.name, func(ctx context.Context) error { return p.group.Transfer(ctx, string(to.runner)) })
	}
}

func (w *world) demote() {
	m := w.nodes[w.rng.IntN(len(w.nodes))]
	if p := w.leader(); p != nil {
		w.ask(p, "demote "+m.name, func(ctx context.Context) error { return p.group.Demote(ctx, string(m.runner)) })
	}
}

// remove takes a machine out of the group; the controllers bring it in again.
func (w *world) remove() {
	m := w.nodes[w.rng.IntN(len(w.nodes))]
	if p := w.leader(); p != nil && p.m != m {
		w.ask(p, "remove "+m.name, func(ctx context.Context) error { return p.group.Remove(ctx, string(m.runner)) })
	}
}

// promoteSlow makes the machine with the slow timers lead: it will notice late that
// it does no longer.
func (w *world) promoteSlow() *machine {
	if w.shape.slow < 0 {
		return w.victim()
	}
	m := w.nodes[w.shape.slow]
	if p := w.leader(); p != nil && p.m != m {
		w.ask(p, "hand over to "+m.name, func(ctx context.Context) error { return p.group.Transfer(ctx, string(m.runner)) })
		w.sleep(2 * time.Second)
	}
	return m
}

// depose lets the others elect another leader behind the back of a slow one. When it
// is joined again, what it sends takes longer than what it is sent: it hears of the
// other before it can find out itself. Then somebody proposes to it.
func (w *world) depose() {
	m := w.promoteSlow()
	d := w.within(3*w.shape.heartbeat, 6*w.shape.heartbeat)
	w.trace("%s is cut off for %s", m.name, d)
	outward := func(clog time.Duration) {
		for _, o := range w.nodes {
			w.net.setClog(m.name, o.name, clog)
		}
	}
	outward(w.shape.heartbeat)
	w.cut(m, true, true, true)
	w.sleep(d)
	w.cut(m, true, true, false)
	w.trace("%s is joined again", m.name)
	w.sleep(w.within(0, 2*w.shape.heartbeat))
	if p := m.process(); p != nil && !m.stopped() {
		w.tasks.Go(func() { w.client.touch(p) })
	}
	w.sleep(2 * w.shape.heartbeat)
	outward(0)
}

// haunt lets answers to a leader arrive long after they were given, and another be
// elected in between.
func (w *world) haunt() {
	m := w.promoteSlow()
	by := 8 * w.shape.heartbeat
	w.trace("answers reach %s up to %s late", m.name, by)
	for _, o := range w.nodes {
		w.net.setClog(o.name, m.name, by)
	}
	w.sleep(w.within(w.shape.heartbeat, 3*w.shape.heartbeat))
	w.cutOff(m, false, true, 10*w.shape.heartbeat)
	w.client.hurry(10*w.shape.heartbeat, m, 20*time.Millisecond)
	w.sleep(10 * w.shape.heartbeat)
	for _, o := range w.nodes {
		w.net.setClog(o.name, m.name, 0)
	}
}

// reset breaks every stream of a machine that lives; some at once again.
func (w *world) reset() {
	m := w.victim()
	w.trace("every stream of %s is reset", m.name)
	for range 1 + w.rng.IntN(3) {
		w.net.reset(m.name, "")
		w.sleep(w.within(0, 300*time.Millisecond))
	}
}

// refuse breaks the streams of two machines with each other, and lets them open no others
// for a while. Two pairs at once could each cost a leader one voter more than it can lose.
func (w *world) refuse() {
	a, b, d := w.victim(), w.nodes[w.rng.IntN(len(w.nodes))], w.lasts()
	if a == b || w.now() < w.refused {
		return
	}
	w.trace("%s and %s refuse each other's streams for %s", a.name, b.name, d)
	w.refused = w.now() + d + 30*time.Second
	w.net.refuse(a.name, b.name, true)
	w.net.reset(a.name, b.name)
	w.later(d, func() { w.net.refuse(a.name, b.name, false) })
}

// behind makes a leader's disk slower than those of a bare majority that hears it, and
// takes its power while they have what it has not. It comes back to the others, and those
// who could tell are away.
func (w *world) behind() {
	p := w.leader()
	if p == nil {
		return
	}
	var hears, deaf []*machine
	for _, o := range w.nodes {
		switch {
		case o == p.m:
		case len(hears) < len(w.nodes)/2:
			hears = append(hears, o)
		default:
			deaf = append(deaf, o)
		}
	}
	by := w.within(w.shape.heartbeat, 3*w.shape.heartbeat)
	w.trace("the disk of %s takes %s longer, and %d hear it", p.m.name, by, len(hears))
	for _, o := range deaf {
		w.cut(o, true, true, true)
	}
	p.m.disk.setSlow(by)
	w.client.hurry(by, p.m, 25*time.Millisecond)
	w.sleep(w.within(by/4, by))
	p.m.crash(true)
	for _, o := range deaf {
		w.cut(o, true, true, false)
	}
	for _, o := range hears {
		w.cutOff(o, true, true, 12*w.shape.heartbeat)
	}
	w.sleep(200 * time.Millisecond)
	p.m.boot()
}
