package simulation

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// leadership is one term of leading. What it holds dies with it.
type leadership struct {
	n      *node
	term   uint64
	mem    *controllers.Memory
	flying map[string]bool // keys of proposals under way; never ranged over
	soon   bool
	looks  int
	link   *link
}

// startLeading begins when our own empty entry is applied: from then on our state has
// all that any earlier leader committed.
func (n *node) startLeading() {
	n.s.elections++
	n.s.trace("%s leads term %d", n.name, n.term)
	l := &leadership{n: n, term: n.term, mem: controllers.NewMemory(n.clk.Now()), flying: map[string]bool{}}
	n.lead = l
	l.link = newLink(l)
	l.again()
	l.link.keep()
}

func (l *leadership) alive() bool { return l.n.lead == l }

// after is node.after that ends with this leadership.
func (l *leadership) after(d time.Duration, f func()) {
	l.n.after(d, func() {
		if l.alive() {
			f()
		}
	})
}

func (l *leadership) again() {
	if !l.soon {
		l.soon = true
		l.after(time.Millisecond, func() { l.soon = false; l.step() })
	}
}

func (l *leadership) input() controllers.Input {
	used, known := l.link.used()
	in := controllers.Input{State: l.n.state(), Mem: l.mem, Used: used, Known: known, Daemon: l.link.count.Daemon(), Term: l.term}
	g, _ := l.n.group()
	in.Group = make([]controllers.GroupMember, 0, maxNodes)
	for id, member := range g.member {
		if member {
			m := controllers.GroupMember{Runner: l.n.s.nodes[id].runner, Voter: g.voter[id]}
			if id != l.n.id {
				m.Behind = l.n.lastIndex() - min(l.n.match[id], l.n.lastIndex())
			}
			in.Group = append(in.Group, m)
		}
	}
	return in
}

func (l *leadership) step() {
	now := l.n.clk.Now()
	effects, wake := controllers.Step(now, l.input())
	for _, e := range effects {
		switch e := e.(type) {
		case controllers.Propose:
			l.carryOut(e)
		case controllers.SetVoter:
			l.setVoter(e)
		}
	}
	l.looks++
	mine := l.looks
	l.after(wake.Sub(now), func() {
		if mine == l.looks {
			l.step()
		}
	})
}

// setVoter changes the group, one change at a time.
func (l *leadership) setVoter(e controllers.SetVoter) {
	to := l.n.s.byRunner(e.Runner)
	if to == nil {
		return
	}
	l.n.reshape(to.id, func(g *group) {
		g.member[to.id], g.voter[to.id] = e.Role != controllers.Gone, e.Role == controllers.Voter
	})
}

func (l *leadership) carryOut(p controllers.Propose) {
	if l.flying[p.Key] {
		return
	}
	l.flying[p.Key] = true
	l.propose(p)
}

// propose tries for as long as it leads: an expiry must be settled before renewals of
// its lease are answered again.
func (l *leadership) propose(p controllers.Propose) {
	l.n.propose("leader", p.Body, time.Hour, func(site.Reply, bool) {
		if !l.alive() {
			return
		}
		delete(l.flying, p.Key)
		if x, ok := p.Body.(site.Expire); ok {
			l.mem.Settled(x.Lease)
		}
		l.again()
	})
}

// renewals is a heartbeat and its answer.
type renewals struct {
	runner forgeyard.RunnerID
	sign   controllers.Sign
	batch  []controllers.Renewal
}

// renew answers a heartbeat that arrived now, after a majority has confirmed, since,
// that this leadership still holds (decision 3).
func (l *leadership) renew(r renewals, answer func(any)) {
	arrived := l.n.clk.Now()
	reply := func() {
		_, before := l.mem.Runner(r.runner)
		r.sign.At = arrived
		l.mem.Hello(r.runner, r.sign)
		answer(l.mem.Renew(arrived, l.input(), r.batch))
		if !before {
			l.again()
		}
	}
	if l.n.s.faults.unconfirmed {
		reply()
		return
	}
	l.n.confirm(func(ok bool) {
		if ok && l.alive() {
			reply()
		}
	})
}

// enter registers when this process has gone through its log, or after a while.
func (n *node) enter() {
	n.waitApplied(n.bootLast, formatWait, func() { n.register(0) })
}

// formatWait bounds how long a process waits to learn the format of its log.
const formatWait = 30 * time.Second

func (n *node) registration() site.Register {
	b := site.Register{Runner: n.runner, Session: n.session, Version: "sim", Caps: n.facts, Formats: n.formats}
	if n.state().Allows(site.FormatPlaces) && site.FormatPlaces <= n.reads() {
		b.Place = cas.Sum(fmt.Appendf(nil, "%s of %s", n.dataDir, n.clk.BootID()))
	}
	return b
}

// tellPlace says where this process runs, once the log's format has room for it.
func (n *node) tellPlace() {
	m, ok := n.state().Members.Get(n.runner)
	if b := n.registration(); ok && m.Session.ID == n.session && m.Session.Place != b.Place {
		n.propose(n.name, b, proposeFor, nil)
	}
}

// register announces this process until the site has it in the log, then renews.
func (n *node) register(try int) {
	n.propose(n.name, n.registration(), proposeFor, func(r site.Reply, known bool) {
		if known && r.Err() == nil {
			n.renewLoop(0)
			return
		}
		n.after(min(100*time.Millisecond<<min(try, 6), 5*time.Second), func() { n.register(try + 1) })
	})
}

// renewLoop is the heartbeat, one at a time.
func (n *node) renewLoop(fails int) {
	n.tellPlace()
	batch := n.book.ToRenew()
	sent := n.clk.Now()
	again := func(ok bool) {
		wait := n.state().Config.Lease.Renew
		if wait <= 0 {
			wait = time.Second
		}
		if !ok {
			fails++
			wait = min(wait, 100*time.Millisecond<<min(fails, 6))
		} else {
			fails = 0
		}
		n.nextRenewal(wait/2+time.Duration(n.s.rng.Int64N(int64(wait/2)+1)), fails)
	}
	r := renewals{runner: n.runner, sign: controllers.Sign{Session: n.session, Pressure: "normal"}}
	for _, a := range batch {
		r.batch = append(r.batch, controllers.Renewal{Authority: a})
	}
	take := func(v any) bool {
		answers, ok := v.([]controllers.RenewalAnswer)
		if ok {
			n.takeAnswers(n.s.faults.counted(n, sent), batch, answers)
		}
		return ok
	}
	to := n.leads
	if to < 0 {
		to = n.s.rng.IntN(len(n.s.nodes))
	}
	late := func(v any) { take(v) }
	if !n.s.sc.Late {
		late = nil
	}
	n.call(to, forwardFor, func(dst *node, answer func(any)) {
		if dst.lead == nil {
			answer(nil)
			return
		}
		dst.lead.renew(r, answer)
	}, func(v any, ok bool) { again(ok && take(v)) }, late)
}

// hurried is how soon a heartbeat comes that is asked for out of turn.
const hurried = 100 * time.Millisecond

// nextRenewal waits for the next heartbeat, or for one that is asked for out of turn.
func (n *node) nextRenewal(wait time.Duration, fails int) {
	if n.renewed {
		wait = min(wait, hurried)
	}
	n.renewed = false
	n.beats++
	mine := n.beats
	beat := func() {
		if n.beats == mine {
			n.beats++
			n.hurry = nil
			n.renewLoop(fails)
		}
	}
	n.hurry = func() {
		n.hurry = nil
		n.after(n.s.within(0, hurried), beat)
	}
	n.after(wait, beat)
}

func (n *node) takeAnswers(sent forgeyard.Instant, batch []forgeyard.Authority, answers []controllers.RenewalAnswer) {
	for i, a := range batch {
		if answers[i].Answer == lease.Stale {
			n.s.trace("%s is told that %s is stale: %s", n.name, short(a), answers[i].Reason)
		}
		left := answers[i].Left
		if n.s.faults.boundless {
			left = -1
		}
		n.book.Renewed(a.Lease, sent, answers[i].Answer, left)
	}
	n.nudge()
}

// askForDeadlines renews soon when a lease is ours and we do not know until when.
func (n *node) askForDeadlines() {
	for _, a := range n.book.ToRenew() {
		if n.book.Deadline(a.Lease).IsZero() {
			if n.renewed = n.hurry == nil; !n.renewed {
				n.hurry()
			}
			return
		}
	}
}
