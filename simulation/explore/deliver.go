package explore

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// deliver lets a message arrive.
func (x *explorer) deliver(id uint32) {
	m := x.messages.rows[id]
	left := x.w.take(id)
	switch m.kind {
	case proposal:
		x.commit(id, &m, left)
	case reply:
		x.answered(&m)
	case heartbeat:
		x.renew(&m, &x.w.mem, x.w.site)
	case answer:
		x.renewedAt(&m)
	case sync:
		x.takeRecords(&m)
	case synced:
		x.takeAnswer(&m)
	}
}

// commit applies a proposal, and answers whom the answer concerns.
func (x *explorer) commit(id uint32, m *message, left bool) {
	w := x.w
	a := x.apply(m, left)
	r := x.replies.rows[a.reply]
	if r.Err() != nil {
		x.say("refused: %v", r.Err())
	}
	switch b := x.bodies.rows[m.says].body.(type) {
	case site.Accept, site.Complete, site.Register, site.Checkpoint:
		w.put(x.messageID(message{kind: reply, node: m.node, sent: m.sent, says: a.reply, of: id}))
	case site.Expire:
		if m.term == w.term {
			w.mem = recall(x, x.settled, ask(w.mem, m.says), func() uint32 {
				mem := x.mems.rows[w.mem].Clone()
				mem.Settled(b.Lease)
				return x.memID(mem)
			})
		}
	case site.UplinkObserve:
		if r.Err() == nil {
			w.marked = m.sent
			w.contact = w.contact && !(b.Contact && m.term == w.term && x.bodies.rows[m.says].key == "figure")
		}
	case site.Submit:
		w.submitted = true
	}
	x.lead() // who leads looks at every change
}

// answered is a node that hears what became of its proposal.
func (x *explorer) answered(m *message) {
	p := x.messages.rows[m.of]
	r := x.replies.rows[m.says]
	n := int(m.node)
	defer x.look(n) // a node looks whenever it hears something
	switch b := x.bodies.rows[p.says].body.(type) {
	case site.Accept:
		if r.Err() != nil {
			x.notAccepted(n, p.says, b)
			return
		}
		x.note(n, toldAccepted, uint64(p.says), m.sent, func(k *agent.Book) { k.Accepted(b.Authority.Lease, x.r.Counted(slow(m.sent), slow(x.w.tick))) })
	case site.Complete:
		if v, err := site.Value[site.Completed](r); err == nil {
			x.delivered(n, p.says, b, v)
		}
	case site.Register:
		if r.Err() == nil && b.Session == sessionID(n, x.w.node[n].session) {
			x.w.node[n].registered = true
		}
	case site.Checkpoint:
		x.saved(n, m, b, r)
	}
}

func (x *explorer) notAccepted(n int, body uint32, b site.Accept) {
	x.note(n, toldNotAccepted, uint64(body), 0, func(k *agent.Book) { k.NotAccepted(b.Authority.Lease) })
}

func (x *explorer) delivered(n int, body uint32, b site.Complete, v site.Completed) {
	nd := &x.w.node[n]
	if nd.spool == body {
		nd.spool = 0
	}
	x.checkDelivered(b, v)
	x.note(n, toldOver, 1<<32|uint64(body), 0, func(k *agent.Book) { k.Over(b.Authority.Lease) })
}

// saved is a runner whose checkpoint was answered: it goes on with the next epoch, or
// gives the lease back.
func (x *explorer) saved(n int, m *message, b site.Checkpoint, r site.Reply) {
	nd := &x.w.node[n]
	if e := nd.exec[0]; e.how != handing || x.starts.rows[e.start].authority != b.Authority {
		return
	}
	v, err := site.Value[site.Checkpointed](r)
	switch s := nd.exec[0].start; {
	case err == nil && v.Next != nil:
		nd.exec[0] = exec{}
		j := x.starts.rows[s].job
		x.note(n, toldGranted, uint64(m.says), m.sent, func(k *agent.Book) { k.Granted(*v.Next, j.Spec.Resources, x.r.Counted(slow(m.sent), slow(x.w.tick))) })
		x.over(n, s)
	case err != nil && forgeyard.KindOf(err) != forgeyard.Stale:
		x.release(n, interrupted, "its checkpoint was not committed")
	default:
		nd.exec[0] = exec{}
		x.over(n, s)
	}
}

// renew answers a heartbeat out of a leader's memory and the state that it sees.
func (x *explorer) renew(m *message, mem *uint32, seen uint32) {
	w := x.w
	lo, hi := x.count16(w)
	r := recall(x, x.renewed, ask(*mem, seen, uint8(m.says), uint8(m.says>>8), uint8(m.says>>16), m.node, w.tick, w.term, lo, hi), func() renewed {
		b := x.batches.rows[m.says]
		k := x.mems.rows[*mem].Clone()
		k.Hello(x.runner[m.node], controllers.Sign{Session: b.session, At: x.leads(w.tick)})
		out := x.r.Renew(k, x.leads(w.tick), x.input(w, k, seen, w.term), b.batch)
		return renewed{x.memID(k), x.renewalsID(out)}
	})
	*mem = r.mem
	w.put(x.messageID(message{kind: answer, node: m.node, sent: m.sent, says: r.says, of: m.says}))
}

func (x *explorer) renewedAt(m *message) {
	batch, all := x.batches.rows[m.of].batch, x.renewals.rows[m.says]
	for i, a := range batch {
		x.say("%s is told %s for epoch %d, sent at %s", nodeName(int(m.node)), all[i].Answer, a.Authority.Fence.Epoch, at(m.sent))
	}
	x.note(int(m.node), toldRenewed, uint64(m.of)<<32|uint64(m.says), m.sent, func(k *agent.Book) {
		for i, a := range batch {
			k.Renewed(a.Authority.Lease, x.r.Counted(slow(m.sent), slow(x.w.tick)), all[i].Answer, all[i].Left)
		}
	})
	x.look(int(m.node))
}

// lose is a message that never comes: whoever waits for its answer gives up.
func (x *explorer) lose(id uint32) {
	m := x.messages.rows[id]
	if left := x.w.take(id); left {
		return
	}
	p := m
	switch m.kind {
	case proposal:
		x.forget(&m)
	case reply:
		p = x.messages.rows[m.of]
	default:
		return
	}
	n := int(m.node)
	switch b := x.bodies.rows[p.says].body.(type) {
	case site.Accept:
		x.notAccepted(n, p.says, b)
	case site.Checkpoint:
		if e := x.w.node[n].exec[0]; e.how == handing && x.starts.rows[e.start].authority == b.Authority {
			x.release(n, interrupted, "what became of its checkpoint is not known")
		}
	case site.DeviceReset, site.DeviceHealth:
		x.note(n, toldNotReported, 0, 0, func(k *agent.Book) { k.NotReported(deviceID) })
	}
}

// forget drops the memory of a request that can no longer be repeated.
func (x *explorer) forget(m *message) {
	st := x.sites.rows[x.w.site].st
	if id := x.requestID(m); st.Requests.Has(id) && !x.whole {
		x.w.site = x.siteID(strip(st, id))
	}
}

// recordsOf is what the leader tells the daemon.
func (x *explorer) recordsOf(st *site.State) syncRow {
	out, err := reckon.Collect(st, reckon.MaxBatchBytes)
	if err != nil {
		x.fail("exactly-once-upstream", "%v", err)
	}
	return syncRow{cursor: st.Cursor, records: out.Records}
}

// takeRecords is the daemon: it takes the records that are new to it, in their order,
// and hands out what the site lacks.
func (x *explorer) takeRecords(m *message) {
	w := x.w
	w.heard = w.tick
	req := x.syncs.rows[m.says]
	for _, r := range req.records {
		switch {
		case x.r.New(uint64(w.last), r.Seq):
			w.last = max(w.last, uint8(r.Seq))
			x.takeIn(r)
		case r.Seq > uint64(w.last)+1:
			x.fail("exactly-once-upstream", "record %d comes after record %d: a gap", r.Seq, w.last)
		}
	}
	says := known(x.synced, question{uint64(w.last)<<32 | uint64(w.given), req.cursor}, func() uint32 {
		a := syncedRow{acked: uint64(w.last)}
		for term := req.cursor + 1; term <= uint64(w.given); term++ {
			a.grants = append(a.grants, x.c.delegation(term))
		}
		return x.syncedID(a)
	})
	w.put(x.messageID(message{kind: synced, node: theLeader, term: m.term, sent: m.sent, says: says, of: m.of}))
}

func (x *explorer) takeIn(r site.Record) {
	w := x.w
	if r.Kind != site.RecordOutcome || r.Fence.Term < uint64(w.given) {
		return
	}
	x.say("the daemon takes the outcome %s of term %d", r.Status, r.Fence.Term)
	if w.outcomes++; w.outcomes > 1 {
		x.fail("exactly-once-upstream", "the daemon has %d outcomes of term %d, the last is record %d", w.outcomes, r.Fence.Term, r.Seq)
	}
}

// takeAnswer is the leader whose exchange went well: the silence ends at its send, and
// the daemon's word goes into the log.
func (x *explorer) takeAnswer(m *message) {
	w := x.w
	if m.term != w.term {
		return // that leader is no more
	}
	w.used, w.from, w.contact = 0, m.sent, true
	lo, hi := x.count16(w)
	for _, b := range recall(x, x.follows, ask(m.of, m.says, lo, hi), func() []uint32 { return x.followsFrom(m) }) {
		x.propose(theLeader, b)
	}
}

// followsFrom is what enters the log after an exchange.
func (x *explorer) followsFrom(m *message) (out []uint32) {
	st, got := x.sites.rows[m.of].st, x.synceds.rows[m.says]
	a := reckon.Answer{Acked: got.acked, Terms: uplinkTerms}
	if err := a.Check(st); err != nil {
		x.fail("exactly-once-upstream", "the site refuses an answer of the daemon: %v", err)
	}
	for _, b := range a.Follows(st, x.silence(x.w)) {
		out = append(out, x.bodyID(b, "follows"))
	}
	for _, s := range reckon.Intake(st.Cursor, got.grants, reckon.Gone(nil, got.grants)) {
		if n := len(s.Propose); n > 0 {
			out = append(out, x.bodyID(site.Delegate{From: s.From, To: s.Propose[n-1].Seq, Grants: s.Propose}, "intake"))
		}
	}
	return out
}

// holderWaits is how long the daemon waits, by its own fast clock, before it believes
// that delegated work has stopped.
func holderWaits(g lease.Grant) time.Duration {
	t := lease.DefaultTerms()
	t.DriftPPM = driftPPM
	return lease.Stretch(g.Span(uplinkTerms), t) + t.KillMax
}
