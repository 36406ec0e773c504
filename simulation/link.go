package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// link is the leader's side of the uplink in one thread: what it decides is package
// reckon's, as it is for uplink.Link; only the carrying out is its own.
type link struct {
	l      *leadership
	count  reckon.Keeper
	looks  int
	busy   bool // a proposal of the figure is under way
	taking bool // delegations are being taken in
	late   int  // calls in a row without an answer
	batch  int  // bytes of records to send at most
}

// Waits of uplink.Link that no rule gives.
const (
	pollEvery = 500 * time.Millisecond
	vouchFor  = 3 * time.Second
)

func newLink(l *leadership) *link { return &link{l: l, batch: reckon.MaxBatchBytes / 4} }

func (k *link) used() (time.Duration, bool) { return k.count.Used(k.l.n.clk.Now()) }

// keep establishes the base, then commits the figure and exchanges.
func (k *link) keep() {
	n := k.l.n
	from := n.clk.Now()
	u := n.state().Uplink
	vouches := []reckon.Vouch{n.vouch(u.Marked)}
	open := 0
	finish := func() {
		if open == 0 && k.l.alive() {
			k.establish(from, u, vouches)
		}
	}
	g, _ := n.group()
	for id, votes := range g.voter {
		if id == n.id || !votes {
			continue
		}
		open++
		n.call(id, vouchFor, func(dst *node, answer func(any)) { answer(dst.vouch(u.Marked)) }, func(v any, ok bool) {
			if ok {
				vouches = append(vouches, v.(reckon.Vouch))
			}
			open--
			finish()
		}, nil)
	}
	if open == 0 {
		finish()
	}
}

// vouch says how long ago the figure of an index was committed, as far as this node
// can tell.
func (n *node) vouch(marked uint64) reckon.Vouch {
	at := forgeyard.Wall(0)
	if u := n.state().Uplink; u.Marked == marked {
		at = u.MarkedAt
	}
	v := n.witness.Elapsed(marked, at, n.reading())
	v.By = n.name
	return v
}

func (k *link) establish(from forgeyard.Instant, u lease.Uplink, vs []reckon.Vouch) {
	n := k.l.n
	base := reckon.Resume(u, vs)
	if base.Doubt != "" {
		n.s.trace("%s: %s", n.name, base.Doubt)
		if u.Doubt == "" {
			n.propose(n.name, site.UplinkObserve{Doubt: base.Doubt}, proposeFor, nil)
		}
	}
	k.count.Begin(n.s.faults.base(u.Used, base.Used), from)
	n.s.trace("%s counts the silence on from %s + %s", n.name, u.Used, base.Best.Elapsed)
	k.l.again()
	k.commit()
	k.exchange()
}

// commit puts the figure into the log when it is time.
func (k *link) commit() {
	n := k.l.n
	k.looks++
	if k.busy {
		return
	}
	now := n.clk.Now()
	c, yes, wait := k.count.Look(now, n.state().Uplink, n.state().Outbox.Len())
	if !yes {
		mine := k.looks
		k.l.after(wait, func() {
			if mine == k.looks {
				k.commit()
			}
		})
		return
	}
	k.busy = true
	n.propose(n.name, n.told(c.Body), proposeFor, func(r site.Reply, known bool) {
		if !k.l.alive() {
			return
		}
		k.busy = false
		if known && r.Err() == nil {
			k.count.Committed(c, now)
			k.commit()
			return
		}
		k.l.after(pollEvery, k.commit)
	})
}

// told is what the log's format has room for: the daemon's clock came with the second.
func (n *node) told(o site.UplinkObserve) site.UplinkObserve {
	if !n.state().Allows(site.FormatLeases) {
		o.Daemon = 0
	}
	return o
}

// exchange is one exchange with the daemon, then the appointment for the next.
func (k *link) exchange() {
	n := k.l.n
	s := n.state()
	out, err := reckon.Collect(s, k.batch)
	if err != nil {
		n.s.fail("exactly-once-upstream", "%v", err)
		return
	}
	req := syncRequest{first: s.Acked + 1, cursor: s.Cursor, records: out.Records}
	sent := n.clk.Now()
	n.call(centralID, reckon.CallTimeout(s.Uplink.Terms, k.late), func(_ *node, answer func(any)) { n.s.up.sync(req, answer) }, func(v any, ok bool) {
		if !k.l.alive() {
			return
		}
		k.late, k.batch = k.late+1, reckon.BatchAfter(k.batch, !ok)
		if ok {
			k.late = 0
			k.take(s, v.(syncAnswer), sent)
		}
		k.l.after(reckon.Interval(s.Uplink.Terms), k.exchange)
	}, nil)
}

// take brings an answer into the log, in the order of reckon: what was taken back is
// cancelled, the contact counts, and the rest follows.
func (k *link) take(s *site.State, a syncAnswer, sent forgeyard.Instant) {
	n := k.l.n
	if err := a.Check(s); err != nil {
		n.s.fail("exactly-once-upstream", "the site refuses an answer of the daemon: %v", err)
		return
	}
	var cancels []site.Body
	for _, id := range a.Cancels(s) {
		cancels = append(cancels, site.Cancel{Job: id})
	}
	k.inOrder(cancels, func() {
		k.count.Heard(sent, a.Terms, n.s.up.read(a.Daemon))
		k.commit()
		follows := a.Follows(s, n.clk.Now().Sub(sent))
		for i, b := range follows {
			if o, ok := b.(site.UplinkObserve); ok {
				follows[i] = n.told(o)
			}
		}
		k.inOrder(follows, func() { k.takeIn(a) })
	})
}

// inOrder proposes one after the other; then comes what follows from all.
func (k *link) inOrder(bs []site.Body, then func()) {
	if len(bs) == 0 {
		then()
		return
	}
	k.l.n.propose(k.l.n.name, bs[0], proposeFor, func(r site.Reply, known bool) {
		if k.l.alive() && known && r.Err() == nil {
			k.inOrder(bs[1:], then)
		}
	})
}

func (k *link) takeIn(a syncAnswer) {
	n := k.l.n
	cursor := n.state().Cursor
	if k.taking || len(a.delegations) == 0 {
		return
	}
	k.steps(reckon.Intake(cursor, a.delegations, reckon.Gone(a.Cancelled, a.delegations)))
}

// steps carries out the steps of an intake.
func (k *link) steps(todo []reckon.Step) {
	if k.taking = len(todo) > 0; !k.taking {
		return
	}
	next := func() { k.steps(todo[1:]) }
	if d := todo[0].Bring; d != nil {
		k.bring(*d, func(ok bool) {
			if k.taking = ok; ok {
				next()
			}
		})
		return
	}
	gs := todo[0].Propose
	body := site.Delegate{From: todo[0].From, To: gs[len(gs)-1].Seq, Grants: gs}
	k.l.n.propose(k.l.n.name, body, proposeFor, func(r site.Reply, known bool) {
		if known && r.Err() == nil {
			next()
			return
		}
		k.taking = false
	})
}

// bring fetches the inputs of a delegation and copies them within the site, before the
// site takes the job in: what needs the uplink is done while there is one.
func (k *link) bring(d site.Delegation, then func(ok bool)) {
	n := k.l.n
	owner := agent.GrantPin(d)
	spec, err := job.DecodeSpec(d.Spec)
	if err != nil {
		n.s.fail("log", "the daemon's spec of %s: %v", d.Grant.ID, err)
		return
	}
	in := spec.Inputs[0].Digest
	n.fetch(in, owner, func(ok bool) {
		if !ok || !k.l.alive() {
			then(false)
			return
		}
		n.replicate(in, owner, func(_ replicas, ok bool) { then(ok && k.l.alive()) })
	})
}
