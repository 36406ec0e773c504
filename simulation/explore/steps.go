package explore

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// action is one thing that can happen, with the number of what it happens to.
type action uint32

const (
	doDeliver = iota + 1
	doLose
	doCopy
	doMislead // a deposed leader gets a heartbeat
	doLook    // a node reads the log and decides
	doBeat    // a runner sends its heartbeat
	doUse     // an execution acts on the device
	doFinish
	doSave
	doAgain // a node repeats what was not answered: a completion, its registration
	doCrash
	doLead // the leader decides
	doElect
	doLinger // a leader that was deposed and does not know it decides
	doCancel
	doCut
	doSync
	doFigure // the leader commits its figure of silence
	doRaise
	doDrain  // a person drains a runner
	doBan    // or disables it
	doRevoke // or takes the lease from its holder
	doTick
)

func act(kind, arg uint32) action     { return action(kind<<24 | arg) }
func (a action) kind() uint32         { return uint32(a) >> 24 }
func (a action) arg() uint32          { return uint32(a) & (1<<24 - 1) }
func (n *node) running(slot int) bool { return n.exec[slot].how == alive || n.exec[slot].how == dying }

// actions appends all that can happen in a world. What changes nothing leads to a world
// that is known.
func (x *explorer) actions(w *world, out []action) []action {
	out = x.onMessages(w, out)
	for n := range nodes {
		out = x.onNode(w, uint32(n), out)
	}
	out = append(out, act(doLead, 0))
	add := func(yes bool, a uint32) {
		if yes {
			out = append(out, act(a, 0))
		}
	}
	row := &x.sites.rows[w.site]
	add(int(w.elected) < x.c.Elects, doElect)
	add(w.old != 0 && x.c.Lingers, doLinger)
	add(int(w.called) < x.c.Cancels && row.known && !row.job.Status.Terminal(), doCancel)
	add(int(w.revoked) < x.c.Revokes && row.known && row.job.Lease.Live(), doRevoke)
	if x.c.Delegated {
		add(w.cut || int(w.cuts) < x.c.Cuts, doCut)
		add(int(w.syncs) < x.c.Syncs && !x.flying(w, func(m *message) bool { return m.kind == sync || m.kind == synced }), doSync)
		add(int(w.figured) < x.c.Figures && x.figure(w) != 0 && !x.flying(w, x.figures), doFigure)
		add(int(w.given) <= x.c.Raises && w.outcomes == 0, doRaise)
	}
	add(int(w.tick) < x.c.Ticks, doTick)
	return out
}

func (x *explorer) figures(m *message) bool {
	if m.kind != proposal || m.node != theLeader {
		return false
	}
	_, yes := x.bodies.rows[m.says].body.(site.UplinkObserve)
	return yes
}

func (x *explorer) onMessages(w *world, out []action) []action {
	for i, id := range w.net {
		if id == 0 {
			break
		}
		if i > 0 && w.net[i-1] == id {
			continue
		}
		m := &x.messages.rows[id]
		beyond := m.kind == sync || m.kind == synced
		if !w.cut || !beyond {
			out = append(out, act(doDeliver, id))
		}
		if m.kind == heartbeat && w.old != 0 && x.r.Deposed {
			out = append(out, act(doMislead, id))
		}
		if int(w.lost) < x.c.Losses {
			out = append(out, act(doLose, id))
		}
		if int(w.copied) < x.c.Copies && (m.kind == proposal || m.kind == sync) && w.net[maxNet-1] == 0 {
			out = append(out, act(doCopy, id))
		}
	}
	return out
}

func (x *explorer) onNode(w *world, n uint32, out []action) []action {
	nd := &w.node[n]
	if n == hostNode && !x.c.Device {
		return out
	}
	out = append(out, act(doLook, n))
	if n == hostNode {
		return out
	}
	if nd.registered && int(w.beats) < x.c.Beats && !x.waiting(w, uint8(n), heartbeat, answer) && x.news(w, int(n)) {
		out = append(out, act(doBeat, n))
	}
	if nd.exec[0].how == alive {
		out = append(out, act(doFinish, n))
		if int(nd.saves) < x.c.Saves {
			out = append(out, act(doSave, n))
		}
	}
	for slot := range nd.exec {
		if x.c.Device && nd.running(slot) {
			out = append(out, act(doUse, n<<1|uint32(slot)))
		}
	}
	if (nd.spool != 0 || !nd.registered) && !x.waiting(w, uint8(n), proposal, reply) {
		out = append(out, act(doAgain, n))
	}
	for _, t := range [...]struct {
		kind uint32
		used uint8
		most int
	}{{doCrash, w.crashed, x.c.Crashes}, {doDrain, w.drained, x.c.Drains}, {doBan, w.disabled, x.c.Bans}} {
		if int(t.used) < t.most {
			out = append(out, act(t.kind, n))
		}
	}
	return out
}

// news reports whether a heartbeat would say or ask anything that the leader does not
// know since this tick.
func (x *explorer) news(w *world, n int) bool {
	if len(x.batches.rows[x.batch(w, n)].batch) > 0 {
		return true
	}
	sign, ok := x.mems.rows[w.mem].Runner(x.runner[n])
	return !ok || sign.At != x.leads(w.tick) || sign.Session != sessionID(n, w.node[n].session)
}

// step makes the world after one action, which stays until the next step. The caller
// looks at broken.
func (x *explorer) step(from *world, a action) *world {
	x.cur = *from
	x.w = &x.cur
	w := x.w
	n := int(a.arg())
	switch a.kind() {
	case doDeliver:
		x.deliver(a.arg())
	case doLose:
		w.lost++
		x.lose(a.arg())
	case doCopy:
		w.copied++
		w.put(a.arg())
	case doMislead:
		m := x.messages.rows[a.arg()]
		w.take(a.arg())
		x.renew(&m, &w.old, w.seen)
	case doLook:
		w.node[n].view = w.site
		x.look(n)
	case doBeat:
		x.beat(n)
	case doUse:
		x.use(n>>1, n&1)
	case doFinish:
		x.complete(n, job.Result{Outcome: job.OutcomeDone})
	case doSave:
		x.save(n)
	case doAgain:
		x.again(n)
	case doCrash:
		w.crashed++
		w.node[n] = node{book: x.bookID(agent.NewBook()), view: w.node[n].view, session: w.node[n].session + 1, spool: w.node[n].spool, begun: w.node[n].begun}
	default:
		x.others(a)
	}
	x.checkWorld(w)
	return w
}

func (x *explorer) others(a action) {
	w := x.w
	switch a.kind() {
	case doLead:
		x.lead()
	case doElect:
		x.elect()
	case doLinger:
		x.leadAs(&w.old, w.seen, w.term-1)
	case doCancel:
		w.called++
		x.tell(x.body(saysCancel, uint64(w.site), func() site.Body { return site.Cancel{Job: x.sites.rows[w.site].job.ID} }))
	case doDrain:
		w.drained++
		x.tell(x.body(saysDrain, uint64(a.arg()), func() site.Body {
			yes := true
			return site.MemberSet{Runner: x.runner[a.arg()], Draining: &yes, Cancel: true}
		}))
	case doBan:
		w.disabled++
		x.tell(x.body(saysBan, uint64(a.arg()), func() site.Body {
			yes := true
			return site.MemberSet{Runner: x.runner[a.arg()], Disabled: &yes}
		}))
	case doRevoke:
		w.revoked++
		x.tell(x.body(saysRevoke, uint64(w.site), func() site.Body {
			j := &x.sites.rows[w.site].job
			return site.Revoke{Job: j.ID, Lease: j.Lease.Authority.Lease, Class: site.RevokedByOperator}
		}))
	case doCut:
		if w.cut = !w.cut; w.cut {
			w.cuts++
		}
	case doSync:
		w.syncs++
		says := known(x.records, ask(w.site, 0), func() uint32 { return x.syncID(x.recordsOf(x.sites.rows[w.site].st)) })
		w.put(x.messageID(message{kind: sync, node: theLeader, term: w.term, sent: w.tick, says: says, of: w.site}))
	case doFigure:
		w.figured++
		x.propose(theLeader, x.figure(w))
	case doRaise:
		w.given++
		w.outcomes = 0
	case doTick:
		x.tick()
	}
}

// tell brings a person's command into the log at once.
func (x *explorer) tell(body uint32) {
	x.apply(&message{kind: proposal, node: theClient, says: body}, false)
	x.lead()
}

// tick lets time pass: who was killed is dead now, and no timer of a node waits longer.
func (x *explorer) tick() {
	x.w.tick++
	for n := range x.w.node {
		for slot := range x.w.node[n].exec {
			if e := &x.w.node[n].exec[slot]; e.how == dying {
				x.over(n, e.start)
				*e = exec{}
			}
		}
		x.look(n)
	}
}

func (x *explorer) over(n int, start uint32) {
	id := x.starts.rows[start].authority.Lease
	x.note(n, toldOver, uint64(start), 0, func(b *agent.Book) { b.Over(id) })
}

// look is a node's step over its copy of the log, and what comes of it.
func (x *explorer) look(n int) {
	nd := &x.w.node[n]
	s := recall(x, x.stepped, ask(nd.book, nd.view, uint8(n), nd.session, x.w.tick), func() stepped {
		b := x.books.rows[nd.book].Clone()
		in := agent.Input{State: x.sites.rows[nd.view].st, Me: x.runner[n], Session: sessionID(n, nd.session), Caps: x.c.caps(n)}
		effects, _ := x.r.Agent(slow(x.w.tick), in, b)
		b.TrustLog() // no copy of the log goes back here
		return stepped{x.bookID(b), x.agentEffects(effects)}
	})
	nd.book = s.book
	for _, e := range s.effects {
		x.obey(n, e)
	}
}

func (x *explorer) agentEffects(all []agent.Effect) []agentEffect {
	var out []agentEffect
	for _, e := range all {
		r := agentEffect{effect: e}
		switch e := e.(type) {
		case agent.Accept:
			r.body = x.bodyID(site.Accept{Authority: e.Authority}, "")
		case agent.Reject:
			r.body = x.bodyID(site.Reject{Authority: e.Authority, Reason: e.Reason, Detail: e.Detail}, "")
		case agent.Start:
			r.start = x.startID(e.Job, e.Lease.Authority)
		case agent.CheckDevice:
			r.body = x.bodyID(site.DeviceHealth{Device: e.Device, Action: "checked", OK: true}, "")
		case agent.ResetDevice:
			b := site.DeviceReset{Device: e.Device, Host: x.runner[hostNode]}
			b.Evidence.Token, b.Evidence.Try, b.Evidence.OK = e.Token, e.Try, true
			r.body = x.bodyID(b, "")
		}
		out = append(out, r)
	}
	return out
}

func (x *explorer) obey(n int, e agentEffect) {
	nd := &x.w.node[n]
	switch a := e.effect.(type) {
	case agent.Accept, agent.Reject, agent.CheckDevice:
		x.propose(uint8(n), e.body)
	case agent.Start:
		x.say("%s starts epoch %d", nodeName(n), a.Lease.Authority.Fence.Epoch)
		if nd.exec[0].how != gone {
			nd.exec[1] = nd.exec[0]
		}
		nd.exec[0] = exec{e.start, alive}
		x.checkStart(n, e.start)
	case agent.Cancel:
		x.cancelled(n, a)
	case agent.Stop:
		if x.runs(n, a.Lease) {
			x.release(n, a.Kind, a.Why)
		}
	case agent.Kill:
		x.kill(n, a)
	case agent.ResetDevice:
		x.reset(a, e.body)
	}
}

// runs reports whether the node's execution of a lease acts.
func (x *explorer) runs(n int, id forgeyard.LeaseID) bool {
	e := x.w.node[n].exec[0]
	return e.how == alive && x.starts.rows[e.start].authority.Lease == id
}

func (x *explorer) kill(n int, k agent.Kill) {
	nd := &x.w.node[n]
	for slot := range nd.exec {
		e := &nd.exec[slot]
		if e.how == gone || x.starts.rows[e.start].authority.Lease != k.Lease {
			continue
		}
		x.say("%s kills epoch %d: %s", nodeName(n), x.starts.rows[e.start].authority.Fence.Epoch, k.Why)
		if e.how == handing {
			x.over(n, e.start)
			*e = exec{}
		} else {
			e.how = dying
		}
	}
}

func (x *explorer) cancelled(n int, c agent.Cancel) {
	nd := &x.w.node[n]
	if x.runs(n, c.Lease) {
		x.complete(n, job.Result{Outcome: job.OutcomeCancelled, Message: c.Why})
		return
	}
	for _, a := range x.books.rows[nd.book].ToRenew() {
		if a.Lease == c.Lease {
			unstarted := x.startID(site.Job{}, a)
			x.report(n, unstarted, a, job.Result{Outcome: job.OutcomeCancelled, Message: c.Why})
		}
	}
}

// complete ends the execution of a node with a result.
func (x *explorer) complete(n int, r job.Result) {
	nd := &x.w.node[n]
	s := nd.exec[0].start
	nd.exec[0] = exec{}
	x.report(n, s, x.starts.rows[s].authority, r)
}

func (x *explorer) report(n int, about uint32, a forgeyard.Authority, r job.Result) {
	says := saysDone
	if r.Outcome == job.OutcomeCancelled {
		says = saysCancelled
	}
	x.w.node[n].spool = x.body(says, uint64(about), func() site.Body {
		return site.Complete{Authority: a, Message: forgeyard.MessageID("result of " + string(a.Lease)), Result: r}
	})
	x.propose(uint8(n), x.w.node[n].spool)
}

func (x *explorer) release(n int, kind, why string) {
	nd := &x.w.node[n]
	s := nd.exec[0].start
	nd.exec[0] = exec{}
	says := saysYield
	if kind == interrupted {
		says = saysInterrupted
	}
	x.propose(uint8(n), x.body(says, uint64(s), func() site.Body {
		return site.Release{Authority: x.starts.rows[s].authority, Kind: kind, Detail: why}
	}))
	x.over(n, s)
}

// interrupted is the kind of a release that nobody asked for.
const interrupted = "interrupted"

// save ends the tree by a checkpoint, to go on in place with the next epoch.
func (x *explorer) save(n int) {
	nd := &x.w.node[n]
	s := nd.exec[0].start
	a := x.starts.rows[s].authority
	nd.saves++
	nd.exec[0].how = handing
	x.note(n, toldHanding, uint64(s), 0, func(b *agent.Book) { b.HandingOver(a.Lease) })
	x.propose(uint8(n), x.body(saysSaved, uint64(s), func() site.Body {
		m := cas.Sum([]byte("checkpoint of " + string(a.Lease)))
		return site.Checkpoint{Authority: a, Continue: true, Commit: checkpoint.Commit{
			Seq: 1, Manifest: m, Payload: m, Marker: m, Bytes: 1, Attempt: a.Attempt, Epoch: a.Fence.Epoch, Replicas: []forgeyard.RunnerID{a.Runner}, Consistency: checkpoint.Application,
		}}
	}))
}

// again repeats a completion until it is answered, and registers after that.
func (x *explorer) again(n int) {
	nd := &x.w.node[n]
	if nd.spool != 0 {
		x.propose(uint8(n), nd.spool)
		return
	}
	x.propose(uint8(n), x.body(saysRegister, uint64(n)<<8|uint64(nd.session), func() site.Body {
		return site.Register{Runner: x.runner[n], Session: sessionID(n, nd.session), Version: "explored", Caps: x.c.caps(n)}
	}))
}

func (x *explorer) beat(n int) {
	x.w.beats++
	x.w.put(x.messageID(message{kind: heartbeat, node: uint8(n), sent: x.w.tick, says: x.batch(x.w, n)}))
}

// batch is what the node's heartbeat would say.
func (x *explorer) batch(w *world, n int) uint32 {
	nd := &w.node[n]
	return known(x.batched, ask(nd.book, 0, nd.session, uint8(n)), func() uint32 {
		r := batchRow{session: sessionID(n, nd.session)}
		for _, a := range x.books.rows[nd.book].ToRenew() {
			r.batch = append(r.batch, controllers.Renewal{Authority: a})
		}
		return x.batchID(r)
	})
}

// lead is the leader's step, and the proposals that come of it.
func (x *explorer) lead() { x.leadAs(&x.w.mem, x.w.site, x.w.term) }

// leadAs is the step of a leader of some term, out of what it has heard and seen.
func (x *explorer) leadAs(mem *uint32, seen uint32, term uint8) {
	w := x.w
	lo, hi := x.count16(w)
	l := recall(x, x.led, ask(*mem, seen, w.tick, term, lo, hi), func() led {
		m := x.mems.rows[*mem].Clone()
		effects, _ := x.r.Lead(x.leads(w.tick), x.input(w, m, seen, term))
		var r led
		for _, e := range effects {
			if p, ok := e.(controllers.Propose); ok {
				r.bodies = append(r.bodies, x.bodyID(p.Body, p.Key))
			}
		}
		r.mem = x.memID(m)
		return r
	})
	*mem = l.mem
	for _, b := range l.bodies {
		key := x.bodies.rows[b].key
		if !x.flying(w, func(m *message) bool {
			return m.kind == proposal && m.node == theLeader && m.term == term && x.bodies.rows[m.says].key == key
		}) {
			x.proposeIn(term, theLeader, b)
		}
	}
}

// elect is a new leader: it has heard nothing, and counts the silence on from the
// committed figure and what the voters can vouch for.
func (x *explorer) elect() {
	w := x.w
	if x.r.Deposed || x.c.Lingers {
		w.old, w.seen = w.mem, w.site
	}
	w.elected++
	w.term++
	w.mem = x.memID(x.newMemory())
	if x.c.Delegated {
		vouch := reckon.Vouch{Known: true, Elapsed: x.leads(w.tick).Sub(x.leads(w.marked)), How: reckon.ByBoot}
		base := reckon.Resume(x.sites.rows[w.site].st.Uplink, []reckon.Vouch{vouch})
		w.used, w.from, w.contact = uint16(x.r.Base(base.Used)/tenth), w.tick, false
	}
}

// newMemory is that of a leader elected now. The device's host sends no heartbeats here: it
// is heard at every time, or nobody would be given its device.
func (x *explorer) newMemory() *controllers.Memory {
	m := controllers.NewMemory(x.leads(x.w.tick))
	m.Hello(x.runner[hostNode], controllers.Sign{Session: sessionID(hostNode, 1), At: x.leads(uint8(x.c.Ticks))})
	return m
}

// figure is what the leader would commit of its count now; zero: nothing.
func (x *explorer) figure(w *world) uint32 {
	return recall(x, x.figured, ask(w.site, uint32(w.used), w.from, w.tick, bit(w.contact, 0)), func() uint32 {
		k, st := x.keeper(w), x.sites.rows[w.site].st
		c, yes, _ := k.Look(x.leads(w.tick), st.Uplink, st.Outbox.Len())
		if !yes {
			return 0
		}
		return x.bodyID(c.Body, "figure")
	})
}

// use is one act on the device, at the gate of its host.
func (x *explorer) use(n, slot int) {
	w := x.w
	s := &x.starts.rows[w.node[n].exec[slot].start]
	for _, h := range s.job.Devices {
		d := x.sites.rows[w.node[hostNode].view].device
		if !x.r.Admit(d, h.Token, 100*uint64(w.gate), w.closed) {
			x.say("the host refuses token %d", h.Token)
			continue
		}
		token := uint8(h.Token / 100)
		if token > w.gate {
			w.gate, w.closed = token, false
		}
		x.say("%s acts on the device under token %d", nodeName(n), h.Token)
		switch {
		case token < w.touched:
			x.fail("device-single-holder", "%s acts on the device under token %d after token %d", nodeName(n), h.Token, 100*int(w.touched))
		case token <= w.cleaned:
			x.fail("device-single-holder", "%s acts on the device under token %d, whose reset has begun", nodeName(n), h.Token)
		}
		w.touched = token
	}
}

func (x *explorer) reset(r agent.ResetDevice, body uint32) {
	w := x.w
	token := uint8(r.Token / 100)
	if token >= w.gate {
		w.gate, w.closed = token, true
	}
	w.cleaned = max(w.cleaned, token)
	x.propose(hostNode, body)
}
