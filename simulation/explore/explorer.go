package explore

import (
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// Violation is a broken invariant.
type Violation struct{ Invariant, Detail string }

func (v *Violation) Error() string { return v.Invariant + ": " + v.Detail }

// explorer steps the worlds of one company. One goroutine owns it.
type explorer struct {
	c Company
	r Rules
	tables
	count     counters
	runner    [nodes]forgeyard.RunnerID
	broken    *Violation
	forgetful bool           // no answer is taken from the tables: a slow twin
	whole     bool           // nothing is left out of a state: another
	line      func(s string) // of the transcript; nil: none is written
	w         *world         // being stepped
	cur       world          // what w points to
}

func newExplorer(c Company, r Rules) *explorer { return &explorer{c: c, r: r, tables: newTables()} }

// fail notes the first broken invariant.
func (x *explorer) fail(invariant, format string, args ...any) {
	if x.broken == nil {
		x.broken = &Violation{invariant, fmt.Sprintf(format, args...)}
	}
}

// say writes what happened under the line of a step.
func (x *explorer) say(format string, args ...any) {
	if x.line != nil {
		x.line(fmt.Sprintf(format, args...))
	}
}

// root is the world from which everything begins: a site that was formed before, its
// leader elected and both runners heard. The job is in the log, or its submission is
// under way.
func (x *explorer) root() world {
	st := &site.State{}
	apply := func(b site.Body) {
		next, r := st.ApplyEntry(st.Index+1, 1, site.Command{ID: forgeyard.MessageID(fmt.Sprint("found", st.Index)), At: wall, By: "founder", Body: b}.Encode())
		invariant.NoError(r.Err(), "the site can be formed")
		st = next
	}
	for _, b := range x.c.founding() {
		apply(b)
	}
	for id, m := range st.Members.All() {
		for n := range nodes {
			if m.Name == nodeName(n) {
				x.runner[n] = id
			}
		}
	}
	for n := range nodes {
		apply(site.Register{Runner: x.runner[n], Session: sessionID(n, 1), Version: "explored", Caps: x.c.caps(n)})
	}
	if x.c.Device {
		apply(site.DeviceHealth{Device: deviceID, Action: "checked", OK: true})
	}
	if x.c.Delegated {
		apply(site.Delegate{To: 1, Grants: []site.Delegation{x.c.delegation(1)}})
	}
	if !x.c.Submits && !x.c.Delegated {
		apply(x.c.submit())
	}
	st = strip(st, "")
	for id := range st.Requests.All() {
		st.Requests = st.Requests.Delete(id)
	}
	x.cur = world{site: x.siteID(st), term: 1, given: 1}
	w := &x.cur
	x.w = w
	mem := x.newMemory()
	for n := range nodes {
		if n != hostNode {
			mem.Hello(x.runner[n], controllers.Sign{Session: sessionID(n, 1), At: x.leads(0)})
		}
		w.node[n] = node{book: x.bookID(agent.NewBook()), view: w.site, session: 1, registered: true}
	}
	w.mem = x.memID(mem)
	if x.c.Submits {
		w.put(x.messageID(message{kind: proposal, node: theClient, says: x.bodyID(x.c.submit(), "")}))
	}
	x.lead()
	return *w
}

// propose sends a command on its way to the log.
func (x *explorer) propose(by uint8, body uint32) {
	term := x.w.term
	if by != theLeader {
		term = 0
	}
	x.proposeIn(term, by, body)
}

// proposeIn is propose for a leader of that term.
func (x *explorer) proposeIn(term, by uint8, body uint32) {
	m := message{kind: proposal, node: by, sent: x.w.tick, term: term, says: body}
	for x.used(&m) {
		m.try++
	}
	x.w.put(x.messageID(m))
}

// used reports whether a request id is under way or remembered: a new request has
// another.
func (x *explorer) used(m *message) bool {
	if asked := x.sites.rows[x.w.site].asked; len(asked) > 0 && slices.Contains(asked, x.requestID(m)) {
		return true
	}
	return x.flying(x.w, func(o *message) bool {
		return o.kind == proposal && o.says == m.says && o.node == m.node && o.try == m.try
	})
}

func (x *explorer) requestID(m *message) forgeyard.MessageID {
	return forgeyard.MessageID(fmt.Sprintf("%s/%s/%d", nameOf(m.node), x.bodies.rows[m.says].id, m.try))
}

// apply brings one proposal into the log. left says that another copy of it is under way.
func (x *explorer) apply(m *message, left bool) applied {
	term := x.w.term
	k := uint8(0)
	if left {
		k = 1
	}
	a := recall(x, x.applied, ask(x.w.site, m.says, m.node, m.try, term, k), func() applied { return x.applyAnew(m, term, left) })
	if a.broken != nil && x.broken == nil {
		x.broken = a.broken
	}
	x.w.site = a.site
	return a
}

func (x *explorer) applyAnew(m *message, term uint8, left bool) applied {
	before := x.sites.rows[x.w.site].st
	id := x.requestID(m)
	body := x.bodies.rows[m.says].body
	data := site.Command{ID: id, At: wall, By: nameOf(m.node), Body: body}.Encode()
	after, r := x.r.Apply(before, indexOf(before, body), uint64(term), data)
	e := entry{id: id, before: before, after: after, body: body, reply: r, repeat: before.Requests.Has(id)}
	broken := check(e)
	if again, _ := x.r.Apply(before, indexOf(before, body), uint64(term), data); broken == nil && again.Hash() != after.Hash() {
		broken = &Violation{"same-state", fmt.Sprintf("two voters apply %s and differ: %s against %s", describe(body), after.Hash().Short(), again.Hash().Short())}
	}
	drop := id
	if left {
		drop = ""
	}
	if x.whole {
		all := *after
		all.Step = 0 // numbers follow from what is decided, here too
		after = &all
	} else {
		after = strip(after, drop)
	}
	return applied{x.siteID(after), x.replyID(r), broken}
}

// note tells a book something, where the book has not been told it before.
func (x *explorer) note(n int, what told, about uint64, at uint8, f func(b *agent.Book)) {
	nd := &x.w.node[n]
	nd.book = recall(x, x.noted, question{uint64(nd.book)<<32 | uint64(what)<<16 | uint64(at)<<8 | uint64(x.w.tick), about}, func() uint32 {
		b := x.books.rows[nd.book].Clone()
		f(b)
		return x.bookID(b)
	})
}

// told is what a book is told.
type told uint8

const (
	toldAccepted told = iota
	toldNotAccepted
	toldRenewed
	toldGranted
	toldHanding
	toldOver
	toldNotReported
)

// input is what a leader of that term knows, who sees that state.
func (x *explorer) input(w *world, mem *controllers.Memory, seen uint32, term uint8) controllers.Input {
	return controllers.Input{State: x.sites.rows[seen].st, Mem: mem, Used: x.silence(w), Known: true, Term: uint64(term)}
}

// count16 is the leader's silence as part of a question.
func (x *explorer) count16(w *world) (lo, hi uint8) {
	t := uint16(min(x.silence(w)/tenth, 1<<16-1))
	return uint8(t), uint8(t >> 8)
}

func nameOf(by uint8) string {
	switch by {
	case theLeader:
		return "leader"
	case theClient:
		return "client"
	}
	return nodeName(int(by))
}

// at is the true time of a tick, as the slow clocks tell it.
func at(tick uint8) time.Duration { return time.Duration(tick) * slowTick }
