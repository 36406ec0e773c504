package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// Waits of a proposer, as node/replica has them.
const (
	proposeFor = 10 * time.Second
	forwardFor = 2 * time.Second
	retryFirst = 20 * time.Millisecond
	retryLast  = 500 * time.Millisecond
	readBack   = 2 * time.Second
)

// propose gets a command into the log from any node, with one request id through
// every retry. done is told the reply, or that the outcome could not be learnt.
func (n *node) propose(by string, b site.Body, total time.Duration, done func(r site.Reply, known bool)) {
	if done == nil {
		done = func(site.Reply, bool) {}
	}
	if err := n.mayWrite(b); err != nil {
		done(site.Reply{Kind: forgeyard.KindOf(err), Error: err.Error()}, true)
		return
	}
	raw := site.Command{ID: forgeyard.MessageID(n.s.newID("r")), At: n.clk.wall(), By: by, Body: b}.Encode()
	p := &proposal{n: n, raw: raw, until: n.clk.Now().Add(total), wait: retryFirst, done: done}
	p.try()
}

type proposal struct {
	n     *node
	raw   []byte
	until forgeyard.Instant
	wait  time.Duration
	done  func(site.Reply, bool)
}

func (p *proposal) try() {
	n := p.n
	to := n.leads
	if n.outside() {
		to = n.s.rng.IntN(len(n.s.nodes))
	}
	switch {
	case n.lead != nil:
		n.here(p.raw, p.outcome)
	case to >= 0 && to != n.id:
		n.call(to, forwardFor, func(dst *node, answer func(any)) {
			if dst.lead == nil {
				answer(place{})
				return
			}
			dst.here(p.raw, func(at place) { answer(at) })
		}, func(v any, ok bool) {
			if !ok {
				v = place{}
			}
			p.outcome(v.(place))
		}, nil)
	default:
		p.again()
	}
}

func (p *proposal) outcome(at place) {
	if at.index == 0 {
		p.again()
		return
	}
	if at.index >= uint64(len(p.n.world.replies)) {
		p.n.s.fail("nothing-lost", "%s is told that its command is entry %d, and its incarnation has %d", p.n.name, at.index, len(p.n.world.entries))
		return
	}
	reply := p.n.world.replies[at.index][at.pos]
	p.n.waitApplied(at.index, readBack, func() { p.done(reply, true) })
}

func (p *proposal) again() {
	n := p.n
	if n.clk.Now() >= p.until {
		p.done(site.Reply{}, false)
		return
	}
	n.after(p.wait, p.try)
	p.wait = min(2*p.wait, retryLast)
}
