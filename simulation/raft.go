package simulation

import (
	"math/bits"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node/site"
)

// The log: a small Raft. Term and vote are on disk before they are told. Entries are
// acknowledged when they are; the rest is memory. Who votes is an entry too, in force
// as soon as it is in a log, one change at a time.

type role uint8

const (
	follower role = iota
	candidate
	leader
)

// entry is one entry of the log: commands that are applied one after the other, or a
// change of the group; without either it is the empty entry of a new leader.
type entry struct {
	term  uint64
	cmds  [][]byte
	group *group
}

// group is who takes part.
type group struct{ member, voter [maxNodes]bool }

func (g *group) majority() int {
	n := 0
	for _, v := range g.voter {
		if v {
			n++
		}
	}
	return n/2 + 1
}

// count is how many of those in the set vote.
func (g *group) count(set uint) int {
	for id, v := range g.voter {
		if !v {
			set &^= 1 << id
		}
	}
	return bits.OnesCount(set)
}

// Raft's times, by each node's own clock.
const (
	raftTick     = 300 * time.Millisecond
	electMin     = 1200 * time.Millisecond
	electSpread  = 1200 * time.Millisecond
	leaderSilent = 1500 * time.Millisecond // a leader that hears no majority steps down
)

type raftState struct {
	// On disk.
	term   uint64
	voted  int
	log    []entry
	synced uint64 // entries that are on disk, whatever happens
	cuts   int    // how often entries were cut off
	// Memory.
	role    role
	leads   int // who leads, as far as we know; -1: nobody
	commit  uint64
	applied uint64
	votes   uint
	heardAt int64 // from the leader, local nanoseconds
	next    [maxNodes]uint64
	match   [maxNodes]uint64
	ack     [maxNodes]int64 // local nanoseconds of the last answer
	electAt int64
	noop    uint64    // index of our own empty entry
	groups  []groupAt // those in the log, the first one of before it
	pending []pendingEntry
	queue   []queued // proposals that wait for an entry to share
}

// place is where a command stands: the entry, and which of its commands it is. An index of
// zero is nowhere that is known.
type place struct {
	index uint64
	pos   int
}

// pendingEntry is a proposal on its way; done gets its place, or that it is unknown.
type pendingEntry struct {
	place
	term uint64
	done func(place)
}

type queued struct {
	data []byte
	done func(place)
}

func (n *node) lastIndex() uint64 { return uint64(len(n.log)) }

func (n *node) termAt(i uint64) uint64 {
	if i == 0 {
		return 0
	}
	return n.log[i-1].term
}

// group is the newest one in the log, and where it stands.
func (n *node) group() (*group, uint64) {
	last := n.groups[len(n.groups)-1]
	return last.group, last.index
}

type groupAt struct {
	index uint64
	group *group
}

func (n *node) appendEntry(e entry) {
	n.log = append(n.log, e)
	if e.group != nil {
		n.groups = append(n.groups, groupAt{n.lastIndex(), e.group})
	}
}

// cutLog forgets what stands after an index.
func (n *node) cutLog(keep uint64) {
	if keep >= n.lastIndex() {
		return
	}
	n.cuts++
	n.log = slices.Clone(n.log[:keep])
	n.synced = min(n.synced, keep)
	for n.groups[len(n.groups)-1].index > keep {
		n.groups = n.groups[:len(n.groups)-1]
	}
}

func (n *node) resetElection() {
	n.electAt = int64(n.clk.Now()) + int64(electMin) + n.s.rng.Int64N(int64(electSpread))
}

func (n *node) raftLoop() {
	now := int64(n.clk.Now())
	g, _ := n.group()
	switch {
	case n.role == leader:
		heard := uint(1) << n.id
		for id := range n.s.nodes {
			if id != n.id && now-n.ack[id] < int64(leaderSilent) {
				heard |= 1 << id
			}
		}
		if g.count(heard) < g.majority() {
			n.stepDown("it hears no majority")
			break
		}
		n.broadcast()
	case now >= n.electAt && g.voter[n.id]:
		n.poll()
	}
	n.after(raftTick, n.raftLoop)
}

func (n *node) stepDown(why string) {
	n.s.trace("%s steps down: %s", n.name, why)
	n.toFollower(n.term, -1)
	n.resetElection()
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
	waiting := n.queue
	n.queue = nil
	for _, p := range n.takePending(func(pendingEntry) bool { return true }) {
		p.done(place{})
	}
	for _, q := range waiting {
		q.done(place{})
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
	g, _ := n.group()
	if g.count(n.votes) >= g.majority() { // the only voter
		n.won(trial)
		return
	}
	for id := range n.s.nodes {
		if id != n.id && g.voter[id] {
			n.tell(id, func(to *node) { to.askedForVote(n.id, term, last, lastTerm, trial) })
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
	n.tell(from, func(to *node) { to.gotVote(n.id, mineNow, term, grant, trial) })
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
	if g, _ := n.group(); g.count(n.votes) >= g.majority() {
		n.won(trial)
	}
}

// won is what follows from a majority: the real vote, or the lead.
func (n *node) won(trial bool) {
	if trial {
		n.campaign()
		return
	}
	n.role, n.leads = leader, n.id
	now := int64(n.clk.Now())
	for id := range maxNodes {
		n.next[id], n.match[id], n.ack[id] = n.lastIndex()+1, 0, now
	}
	n.s.trace("%s is elected for term %d", n.name, n.term)
	n.noop = n.lastIndex() + 1
	n.propel(entry{term: n.term})
}

// propel appends one entry of a leader and sends it; a disk that takes nothing ends the
// lead (decision 26e).
func (n *node) propel(e entry) bool {
	if n.disk.full > 0 {
		n.stepDown("its disk takes nothing")
		return false
	}
	n.appendEntry(e)
	n.persist(n.advance)
	n.broadcast()
	return true
}

func (n *node) broadcast() {
	g, _ := n.group()
	for id := range n.s.nodes {
		if id != n.id && g.member[id] {
			n.sendEntries(id)
		}
	}
}

func (n *node) sendEntries(to int) {
	prev := n.next[to] - 1
	prevTerm, term, commit := n.termAt(prev), n.term, n.commit
	entries := n.log[prev:len(n.log):len(n.log)] // never changed in place: what is cut off is copied first
	if n.disk.unreadable > 0 {
		entries = nil
	}
	n.tell(to, func(to *node) { to.gotEntries(n.id, term, prev, prevTerm, entries, commit) })
}

func (n *node) gotEntries(from int, term, prev, prevTerm uint64, entries []entry, commit uint64) {
	answer := func(ok bool, match uint64) {
		mine := n.term
		n.tell(from, func(to *node) { to.gotAnswer(n.id, mine, term, ok, match) })
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
	upto := prev + uint64(len(entries))
	news := false
	for i, e := range entries {
		at := prev + 1 + uint64(i)
		if at <= n.lastIndex() && n.termAt(at) == e.term {
			continue
		}
		if n.disk.full > 0 {
			return // it cannot take them, and says nothing
		}
		n.cutLog(at - 1)
		n.appendEntry(e)
		news = true
	}
	n.commitTo(min(commit, upto))
	if !news || n.s.faults.ackFirst {
		acked := min(upto, n.synced)
		if n.s.faults.ackFirst {
			acked = upto
		}
		answer(true, acked)
	}
	if news {
		n.persist(func() {
			if n.term == term {
				answer(true, min(upto, n.synced))
			}
		})
	}
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
		n.sendEntries(from)
		return
	}
	n.match[from] = max(n.match[from], match)
	n.next[from] = n.match[from] + 1
	n.advance()
}

// advance commits what a majority has on disk, if it is of this term: with it goes all
// that stands before it.
func (n *node) advance() {
	if n.role != leader {
		return
	}
	g, at := n.group()
	for i := n.lastIndex(); i > n.commit && (n.termAt(i) == n.term || n.s.faults.oldTermCount); i-- {
		have := uint(0)
		for id := range n.s.nodes {
			if (id == n.id && (n.synced >= i || n.s.faults.ackFirst)) || (id != n.id && n.match[id] >= i) {
				have |= 1 << id
			}
		}
		if g.count(have) >= g.majority() {
			n.commitTo(i)
			n.broadcast()
			break
		}
	}
	if n.role == leader && !g.voter[n.id] && n.commit >= at {
		n.stepDown("it votes no more")
	}
}

func (n *node) commitTo(i uint64) {
	if i <= n.commit {
		return
	}
	n.commit = i
	n.s.committed(n, i)
	n.flush()
	lag := time.Duration(n.s.rng.IntN(3)) * time.Millisecond
	if n.role != leader {
		lag += time.Duration(n.s.rng.IntN(30)) * time.Millisecond
		if n.s.chance(n.s.sc.Slow) {
			lag += time.Duration(n.s.rng.IntN(900)) * time.Millisecond
		}
	}
	n.after(lag, func() { n.applyTo(i) })
}

// applyTo is the node's own copy of the state reaching an index.
func (n *node) applyTo(i uint64) {
	i, halts := n.readable(i)
	if i <= n.applied {
		return
	}
	before := n.state()
	n.applied = i
	now := n.state()
	if halts {
		n.halt()
		return
	}
	if now.Uplink.Marked != before.Uplink.Marked && now.Uplink.Marked > n.world.index(n.bootLast) && n.witness.Saw(now.Uplink, n.reading()) {
		n.keepSighting()
	}
	for _, p := range n.takePending(func(p pendingEntry) bool { return p.index <= i }) {
		if n.termAt(p.index) == p.term {
			p.done(p.place)
		} else {
			p.done(place{})
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
func (n *node) here(data []byte, done func(place)) {
	n.queue = append(n.queue, queued{data, done})
	n.flush()
}

// mostInEntry bounds the commands of one entry, as package consensus does.
const mostInEntry = 256

// flush sends what waits. Where the log's format allows it, commands that wait while
// entries are under way share the next one (decision 0013 of the project).
func (n *node) flush() {
	for n.role == leader && len(n.queue) > 0 {
		share := 1
		if n.state().Allows(site.FormatBatches) {
			if n.lastIndex()-n.commit >= n.s.underWay {
				return
			}
			share = min(len(n.queue), mostInEntry)
		}
		batch := n.queue[:share]
		n.queue = n.queue[share:]
		e := entry{term: n.term}
		for _, q := range batch {
			e.cmds = append(e.cmds, q.data)
		}
		if !n.propel(e) {
			for _, q := range batch {
				q.done(place{})
			}
			return
		}
		for pos, q := range batch {
			n.pending = append(n.pending, pendingEntry{place{n.lastIndex(), pos}, n.term, q.done})
		}
		n.advance() // one voter is a majority of one
	}
}

// reshape changes the group, if the last change is committed and this leadership's own
// empty entry too.
func (n *node) reshape(id int, change func(*group)) {
	g, at := n.group()
	next := *g
	change(&next)
	if next == *g || at > n.commit || n.noop > n.commit || n.role != leader {
		return
	}
	what := "follows from now on"
	switch {
	case !next.member[id]:
		what = "is in it no more"
	case next.voter[id]:
		what = "votes from now on"
	}
	n.s.trace("%s reshapes the group: n%d %s", n.name, id+1, what)
	n.next[id] = max(1, min(n.next[id], n.lastIndex()+1))
	n.propel(entry{term: n.term, group: &next})
}

// confirm proves that no newer leader had been elected when it was called: a
// majority answers, after that, that their term is still ours (decision 3).
func (n *node) confirm(done func(ok bool)) {
	g, _ := n.group()
	term, have, over := n.term, uint(1)<<n.id, false
	finish := func(ok bool) {
		if !over {
			over = true
			done(ok && n.role == leader && n.term == term)
		}
	}
	if g.count(have) >= g.majority() {
		finish(true)
		return
	}
	open := 0
	for id := range n.s.nodes {
		if id == n.id || !g.voter[id] {
			continue
		}
		open++
		n.call(id, 700*time.Millisecond, func(dst *node, answer func(any)) { answer(dst.term) }, func(v any, ok bool) {
			open--
			if ok && v.(uint64) == term {
				have |= 1 << id
			}
			switch {
			case g.count(have) >= g.majority():
				finish(true)
			case open == 0 || (ok && v.(uint64) > term):
				finish(false)
			}
		}, nil)
	}
}

// tell sends a message of the log. Nodes of two incarnations do not hear each other.
func (n *node) tell(to int, f func(to *node)) {
	w := n.world
	n.send(to, func() {
		if dst := n.s.nodes[to]; dst.world.lineage == w.lineage {
			f(dst)
		}
	})
}

// world is the one committed sequence, which no node sees as a whole. A forced recovery
// begins another; whoever is still in the first is not heard there.
type world struct {
	entries []entry
	states  []*site.State  // after each index; states[0] is the empty one
	replies [][]site.Reply // of each command
	needs   []site.Format  // that a program must read to apply the entry
	at      []uint64       // index of each for the site; it leaps where an incarnation begins
	lineage string         // names its group of voters: what is sent within it is heard
	lift    uint64         // of the next one above its place in the log
}

func newWorld() *world {
	return &world{states: []*site.State{{}}, replies: [][]site.Reply{nil}, needs: []site.Format{site.FormatOldest}, at: []uint64{0}}
}

// index is what the site calls the entry at a place of the log.
func (w *world) index(place uint64) uint64 {
	if place < uint64(len(w.at)) {
		return w.at[place]
	}
	return place + w.lift
}

// upto is a world of its own that begins with the first entries of this one.
func (w *world) upto(n int) *world {
	return &world{
		entries: slices.Clone(w.entries[:n]), states: slices.Clone(w.states[:n+1]), replies: slices.Clone(w.replies[:n+1]), needs: slices.Clone(w.needs[:n+1]),
		at: slices.Clone(w.at[:n+1]), lift: w.lift,
	}
}

// committed takes in what a node learnt to be committed. The first to learn makes
// it true for all; everybody later must have the same.
func (s *sim) committed(n *node, upto uint64) {
	w := n.world
	for i := uint64(len(w.entries)) + 1; i <= upto && w == s.world; i++ {
		s.take(n.log[i-1], s.observe)
	}
	if upto > uint64(len(w.entries)) {
		s.fail("nothing-lost", "%s takes entry %d for committed, and %d are", n.name, upto, len(w.entries))
		return
	}
	if w.entries[upto-1].term != n.termAt(upto) {
		s.fail("nothing-lost", "%s has term %d at index %d, term %d was committed there", n.name, n.termAt(upto), upto, w.entries[upto-1].term)
	}
}

// watcher sees one command and says which format it belongs to.
type watcher func(index uint64, before *site.State, data []byte, reply site.Reply, after *site.State) site.Format

// take applies one entry to the newest state.
func (s *sim) take(e entry, watch watcher) {
	w := s.world
	next := s.head()
	index := uint64(len(w.entries)) + 1 + w.lift
	needs := site.FormatOldest
	if len(e.cmds) > 1 {
		needs = site.FormatBatches
	}
	var replies []site.Reply
	for _, data := range e.cmds {
		before := next
		after, reply := s.faults.apply(before, index, e.term, data)
		if !s.faults.skipsRest || len(replies) == 0 || replies[len(replies)-1].Err() == nil {
			next = after
		}
		replies = append(replies, reply)
		needs = max(needs, watch(index, before, data, reply, next))
	}
	w.entries = append(w.entries, e)
	w.states = append(w.states, next)
	w.replies = append(w.replies, replies)
	w.needs = append(w.needs, needs)
	w.at = append(w.at, index)
}
