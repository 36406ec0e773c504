package simulation

import (
	"math/bits"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node/site"
)

// The log: a small Raft. Term, vote and entries are on a synced disk and survive
// every crash; the rest is memory.

type role uint8

const (
	follower role = iota
	candidate
	leader
)

// entry is one entry of the log; no data: the empty entry of a new leader.
type entry struct {
	term uint64
	data []byte
}

// Raft's times, by each node's own clock.
const (
	raftTick     = 200 * time.Millisecond
	electMin     = 1200 * time.Millisecond
	electSpread  = 1200 * time.Millisecond
	leaderSilent = 1500 * time.Millisecond // a leader that hears no majority steps down
)

type raftState struct {
	// On disk.
	term  uint64
	voted int
	log   []entry
	// Memory.
	role    role
	leads   int // who leads, as far as we know; -1: nobody
	commit  uint64
	applied uint64
	votes   uint
	heardAt int64 // from the leader, local nanoseconds
	next    [nodeCount]uint64
	match   [nodeCount]uint64
	ack     [nodeCount]int64 // local nanoseconds of the last answer
	electAt int64
	noop    uint64 // index of our own empty entry
	pending []pendingEntry
}

// pendingEntry is a proposal on its way; done gets the index, or zero: unknown.
type pendingEntry struct {
	index, term uint64
	done        func(index uint64)
}

func (n *node) lastIndex() uint64 { return uint64(len(n.log)) }

func (n *node) termAt(i uint64) uint64 {
	if i == 0 {
		return 0
	}
	return n.log[i-1].term
}

func (n *node) resetElection() {
	n.electAt = int64(n.clk.Now()) + int64(electMin) + n.s.rng.Int64N(int64(electSpread))
}

func (n *node) raftLoop() {
	now := int64(n.clk.Now())
	switch {
	case n.role == leader:
		heard := 1
		for id := range nodeCount {
			if id != n.id && now-n.ack[id] < int64(leaderSilent) {
				heard++
			}
		}
		if heard < majority {
			n.s.trace("%s steps down: it hears no majority", n.name)
			n.toFollower(n.term, -1)
			n.resetElection()
			break
		}
		n.broadcast()
	case now >= n.electAt:
		n.poll()
	}
	n.after(raftTick, n.raftLoop)
}

func (n *node) toFollower(term uint64, leads int) {
	if term > n.term {
		n.term, n.voted = term, -1
	}
	if n.role == leader {
		n.deposed()
	}
	n.role, n.leads = follower, leads
}

func (n *node) deposed() {
	n.role = follower
	for _, p := range n.takePending(func(pendingEntry) bool { return true }) {
		p.done(0)
	}
	if n.lead != nil {
		n.s.trace("%s leads no more", n.name)
		n.lead = nil
	}
}

func (n *node) takePending(which func(pendingEntry) bool) []pendingEntry {
	var out []pendingEntry
	n.pending = slices.DeleteFunc(n.pending, func(p pendingEntry) bool {
		if which(p) {
			out = append(out, p)
			return true
		}
		return false
	})
	return out
}

// poll asks first whether a vote would be won, as hashicorp/raft does: who merely hears
// nothing does not disturb a leader that others hear.
func (n *node) poll() {
	n.leads, n.role = -1, follower
	n.resetElection()
	n.canvass(n.term+1, true)
}

func (n *node) campaign() {
	n.term++
	n.voted, n.role, n.leads = n.id, candidate, -1
	n.resetElection()
	n.canvass(n.term, false)
}

func (n *node) canvass(term uint64, trial bool) {
	n.votes = 1 << n.id
	last := n.lastIndex()
	lastTerm := n.termAt(last)
	for id := range nodeCount {
		if id != n.id {
			n.s.net.send(n.id, id, func() { n.s.nodes[id].askedForVote(n.id, term, last, lastTerm, trial) })
		}
	}
}

func (n *node) askedForVote(from int, term, last, lastTerm uint64, trial bool) {
	mine := n.termAt(n.lastIndex())
	current := lastTerm > mine || (lastTerm == mine && last >= n.lastIndex())
	content := n.role == leader || (n.leads >= 0 && n.leads != from && int64(n.clk.Now())-n.heardAt < int64(electMin))
	grant := current && !content
	if trial {
		grant = grant && term > n.term
	} else if !content {
		if term > n.term {
			n.toFollower(term, -1)
		}
		if grant = grant && term == n.term && (n.voted == -1 || n.voted == from); grant {
			n.voted = from
			n.resetElection()
		}
	}
	mineNow := n.term
	n.s.net.send(n.id, from, func() { n.s.nodes[from].gotVote(n.id, mineNow, term, grant, trial) })
}

func (n *node) gotVote(from int, theirs, asked uint64, grant, trial bool) {
	if theirs > n.term {
		n.toFollower(theirs, -1)
		return
	}
	open := (trial && n.role == follower && n.leads == -1 && asked == n.term+1) || (!trial && n.role == candidate && asked == n.term)
	if !open || !grant {
		return
	}
	n.votes |= 1 << from
	if bits.OnesCount(n.votes) < majority {
		return
	}
	if trial {
		n.campaign()
		return
	}
	n.role, n.leads = leader, n.id
	now := int64(n.clk.Now())
	for id := range nodeCount {
		n.next[id], n.match[id], n.ack[id] = n.lastIndex()+1, 0, now
	}
	n.log = append(n.log, entry{term: n.term})
	n.noop = n.lastIndex()
	n.s.trace("%s is elected for term %d", n.name, n.term)
	n.broadcast()
}

func (n *node) broadcast() {
	for id := range nodeCount {
		if id != n.id {
			n.replicate(id)
		}
	}
}

func (n *node) replicate(to int) {
	prev := n.next[to] - 1
	prevTerm, term, commit := n.termAt(prev), n.term, n.commit
	entries := slices.Clone(n.log[prev:])
	n.s.net.send(n.id, to, func() { n.s.nodes[to].gotEntries(n.id, term, prev, prevTerm, entries, commit) })
}

func (n *node) gotEntries(from int, term, prev, prevTerm uint64, entries []entry, commit uint64) {
	answer := func(ok bool, match uint64) {
		mine := n.term
		n.s.net.send(n.id, from, func() { n.s.nodes[from].gotAnswer(n.id, mine, term, ok, match) })
	}
	if term < n.term {
		answer(false, 0)
		return
	}
	if term > n.term || n.role != follower || n.leads != from {
		n.toFollower(term, from)
	}
	n.resetElection()
	n.heardAt = int64(n.clk.Now())
	if prev > n.lastIndex() || n.termAt(prev) != prevTerm {
		answer(false, min(prev-1, n.lastIndex()))
		return
	}
	for i, e := range entries {
		at := prev + 1 + uint64(i)
		if at <= n.lastIndex() {
			if n.termAt(at) == e.term {
				continue
			}
			n.log = slices.Clone(n.log[:at-1])
		}
		n.log = append(n.log, e)
	}
	n.commitTo(min(commit, prev+uint64(len(entries))))
	answer(true, prev+uint64(len(entries)))
}

func (n *node) gotAnswer(from int, theirs, term uint64, ok bool, match uint64) {
	if theirs > n.term {
		n.toFollower(theirs, -1)
		return
	}
	if n.role != leader || term != n.term {
		return
	}
	n.ack[from] = int64(n.clk.Now())
	if !ok {
		n.next[from] = max(1, min(match+1, n.next[from]))
		n.replicate(from)
		return
	}
	n.match[from] = max(n.match[from], match)
	n.next[from] = n.match[from] + 1
	for i := n.lastIndex(); i > n.commit && n.termAt(i) == n.term; i-- {
		have := 1
		for id := range nodeCount {
			if id != n.id && n.match[id] >= i {
				have++
			}
		}
		if have >= majority {
			n.commitTo(i)
			n.broadcast()
			return
		}
	}
}

func (n *node) commitTo(i uint64) {
	if i <= n.commit {
		return
	}
	n.commit = i
	n.s.committed(n, i)
	lag := time.Duration(n.s.rng.IntN(3)) * time.Millisecond
	if n.role != leader {
		lag += time.Duration(n.s.rng.IntN(30)) * time.Millisecond
		if n.s.chance(n.s.shape.slowApply) {
			lag += time.Duration(n.s.rng.IntN(900)) * time.Millisecond
		}
	}
	n.after(lag, func() { n.applyTo(i) })
}

// applyTo is the node's own copy of the state reaching an index.
func (n *node) applyTo(i uint64) {
	if i <= n.applied {
		return
	}
	before := n.state()
	n.applied = i
	now := n.state()
	if now.Uplink.Marked != before.Uplink.Marked && now.Uplink.Marked > n.bootLast {
		n.witness.Saw(now.Uplink, n.reading())
	}
	for _, p := range n.takePending(func(p pendingEntry) bool { return p.index <= i }) {
		if n.termAt(p.index) == p.term {
			p.done(p.index)
		} else {
			p.done(0)
		}
	}
	if n.role == leader && n.lead == nil && n.noop <= i {
		n.startLeading()
	}
	n.wakeWaiters()
	n.nudge()
	if n.lead != nil {
		n.lead.again()
	}
}

// here proposes on this node, which must lead.
func (n *node) here(data []byte, done func(index uint64)) {
	n.log = append(n.log, entry{term: n.term, data: data})
	n.pending = append(n.pending, pendingEntry{n.lastIndex(), n.term, done})
	n.broadcast()
}

// confirm proves that no newer leader had been elected when it was called: a
// majority answers, after that, that their term is still ours (decision 3).
func (n *node) confirm(done func(ok bool)) {
	term, have, over := n.term, 1, false
	finish := func(ok bool) {
		if !over {
			over = true
			done(ok && n.role == leader && n.term == term)
		}
	}
	for id := range nodeCount {
		if id == n.id {
			continue
		}
		n.call(id, 700*time.Millisecond, func(dst *node, answer func(any)) { answer(dst.term) }, func(v any, ok bool) {
			if ok && v.(uint64) == term {
				have++
			}
			if have >= majority {
				finish(true)
			} else if !ok || v.(uint64) > term {
				finish(false)
			}
		}, nil)
	}
}

// world is the one committed sequence, which no node sees as a whole.
type world struct {
	entries []entry
	states  []*site.State // after each index; states[0] is the empty one
	replies []site.Reply
}

// committed takes in what a node learnt to be committed. The first to learn makes
// it true for all; everybody later must have the same.
func (s *sim) committed(n *node, upto uint64) {
	w := &s.world
	for i := uint64(len(w.entries)) + 1; i <= upto; i++ {
		s.applyOne(n.log[i-1])
	}
	if w.entries[upto-1].term != n.termAt(upto) {
		s.fail("nothing-lost", "%s has term %d at index %d, term %d was committed there", n.name, n.termAt(upto), upto, w.entries[upto-1].term)
	}
}

func (s *sim) applyOne(e entry) {
	w := &s.world
	before := w.states[len(w.states)-1]
	index := uint64(len(w.entries)) + 1
	next, reply := before, site.Reply{}
	if e.data != nil {
		next, reply = s.faults.apply(before, index, e.term, e.data)
	}
	w.entries = append(w.entries, e)
	w.states = append(w.states, next)
	w.replies = append(w.replies, reply)
	if e.data != nil {
		s.observe(index, before, e.data, reply, next)
	}
}
