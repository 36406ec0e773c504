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
	raw := site.Command{ID: forgeyard.MessageID(n.s.newID("r")), At: n.clk.wall(), By: by, Body: b}.Encode()
	if done == nil {
		done = func(site.Reply, bool) {}
	}
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
	switch {
	case n.lead != nil:
		n.here(p.raw, p.outcome)
	case n.leads >= 0 && n.leads != n.id:
		n.call(n.leads, forwardFor, func(dst *node, answer func(any)) {
			if dst.lead == nil {
				answer(uint64(0))
				return
			}
			dst.here(p.raw, func(index uint64) { answer(index) })
		}, func(v any, ok bool) {
			if !ok {
				v = uint64(0)
			}
			p.outcome(v.(uint64))
		}, nil)
	default:
		p.again()
	}
}

func (p *proposal) outcome(index uint64) {
	if index == 0 {
		p.again()
		return
	}
	reply := p.n.s.world.replies[index]
	p.n.waitApplied(index, readBack, func() { p.done(reply, true) })
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
