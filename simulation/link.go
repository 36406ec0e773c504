package simulation

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
)

// link is the leader's side of the uplink: a single-threaded twin of uplink.Link, whose
// goroutines and calls have no place here. The witness and the committed record are the
// real ones.
type link struct {
	l       *leadership
	base    time.Duration // of silence, at from
	from    forgeyard.Instant
	known   bool
	contact *contact
	last    forgeyard.Instant // of our last commit; zero: none yet
	busy    bool              // a proposal of the figure is under way
	looks   int
	taking  bool
}

type contact struct{ sent forgeyard.Instant }

// The link's times, as package uplink has them.
const (
	commitEvery = 5 * time.Second
	pollEvery   = 500 * time.Millisecond
	vouchFor    = 3 * time.Second
)

func newLink(l *leadership) *link { return &link{l: l} }

func (k *link) used() (time.Duration, bool) {
	return k.base + max(0, k.l.n.clk.Now().Sub(k.from)), k.known
}

// keep establishes the base, then commits the figure and exchanges.
func (k *link) keep() {
	n := k.l.n
	from := n.clk.Now()
	u := n.state().Uplink
	vouches := []uplink.Vouch{n.vouch(u.Marked)}
	open := nodeCount - 1
	for id := range nodeCount {
		if id == n.id {
			continue
		}
		n.call(id, vouchFor, func(dst *node, answer func(any)) { answer(dst.vouch(u.Marked)) }, func(v any, ok bool) {
			if ok {
				vouches = append(vouches, v.(uplink.Vouch))
			}
			if open--; open == 0 && k.l.alive() {
				k.establish(from, u, vouches)
			}
		}, nil)
	}
}

// vouch says how long ago the figure of an index was committed, as far as this node
// can tell.
func (n *node) vouch(marked uint64) uplink.Vouch {
	at := forgeyard.Wall(0)
	if u := n.state().Uplink; u.Marked == marked {
		at = u.MarkedAt
	}
	v := n.witness.Elapsed(marked, at)
	v.By = n.name
	return v
}

func (k *link) establish(from forgeyard.Instant, u lease.Uplink, vs []uplink.Vouch) {
	n := k.l.n
	var best time.Duration
	known := false
	for _, v := range vs {
		if v.Known {
			known, best = true, max(best, v.Elapsed)
		}
	}
	used := u.Used + best
	if !known {
		used = max(used, u.Terms.Allowance)
		if u.Doubt == "" {
			n.s.trace("%s: no clock can vouch", n.name)
			n.propose(n.name, site.UplinkObserve{Doubt: "no clock can vouch"}, proposeFor, nil)
		}
	}
	if k.contact == nil {
		k.known, k.base, k.from = true, n.s.faults.base(used), from
	}
	n.s.trace("%s counts the silence on from %s + %s", n.name, u.Used, best)
	k.l.again()
	k.commit()
	k.exchange()
}

// commit puts the figure into the log when a threshold was crossed, the link is back, or
// it is time.
func (k *link) commit() {
	n := k.l.n
	k.looks++
	if k.busy {
		return
	}
	u, pending := n.state().Uplink, n.state().Outbox.Len()
	used, _ := k.used()
	c := k.contact
	o := site.UplinkObserve{Used: int64(used), Contact: c != nil}
	tick := k.last.IsZero() || n.clk.Now().Sub(k.last) >= commitEvery
	returns := u.State != lease.Online && (u.State != lease.Reconciling || pending == 0)
	worse := u.Observe(u.MarkedAt, u.Marked, used, false, pending).State != u.State
	yes := worse || (tick && u.State != lease.Exhausted && used > u.Used)
	if c != nil {
		yes = worse || tick || u.Doubt != "" || returns
	}
	if !yes {
		mine := k.looks
		k.l.after(200*time.Millisecond, func() {
			if mine == k.looks {
				k.commit()
			}
		})
		return
	}
	k.busy = true
	now := n.clk.Now()
	n.propose(n.name, o, proposeFor, func(r site.Reply, known bool) {
		if !k.l.alive() {
			return
		}
		k.busy = false
		if known && r.Err() == nil {
			k.last = now
			if k.contact == c {
				k.contact = nil
			}
			k.commit()
			return
		}
		k.l.after(pollEvery, k.commit)
	})
}

// exchange is one Sync with the daemon, then the appointment for the next.
func (k *link) exchange() {
	n := k.l.n
	s := n.state()
	req := syncRequest{first: s.Acked + 1, cursor: s.Cursor}
	for i := s.Acked + 1; i <= s.Sent && len(req.records) < 8; i++ {
		r, ok := s.Outbox.Get(site.SeqKey(i))
		if !ok {
			n.s.fail("exactly-once-upstream", "record %d is missing from the outbox of %d to %d", i, s.Acked+1, s.Sent)
			return
		}
		req.records = append(req.records, r)
	}
	interval := max(200*time.Millisecond, s.Uplink.Terms.SilentAfter/5)
	sent := n.clk.Now()
	n.call(centralID, min(max(s.Uplink.Terms.SilentAfter/2, time.Second), time.Minute), func(_ *node, answer func(any)) { answer(n.s.up.sync(req)) }, func(v any, ok bool) {
		if !k.l.alive() {
			return
		}
		if ok {
			k.take(v.(syncAnswer), sent)
		}
		k.l.after(interval, k.exchange)
	}, nil)
}

// take brings an answer into the log: what was taken back is cancelled first (E15).
func (k *link) take(a syncAnswer, sent forgeyard.Instant) {
	n := k.l.n
	k.cancelFirst(a.cancelled, func() {
		k.known, k.base, k.from = true, 0, sent
		k.contact = &contact{sent}
		k.commit()
		if a.acked > n.state().Acked {
			n.propose(n.name, site.OutboxAck{Upto: a.acked}, proposeFor, nil)
		}
		k.takeIn(a.delegations)
	})
}

func (k *link) cancelFirst(grants []forgeyard.GrantID, then func()) {
	n := k.l.n
	for _, g := range grants {
		for id := range n.state().Open.All() {
			j, _ := n.state().Jobs.Get(id)
			if j.Grant == nil || j.Grant.ID != g || j.CancelAt != 0 || j.Status.Terminal() {
				continue
			}
			n.propose(n.name, site.Cancel{Job: id}, proposeFor, func(r site.Reply, known bool) {
				if k.l.alive() && known && r.Err() == nil {
					k.cancelFirst(grants, then)
				}
			})
			return
		}
	}
	then()
}

func (k *link) takeIn(ds []site.Delegation) {
	n := k.l.n
	cursor := n.state().Cursor
	var fresh []site.Delegation
	for _, d := range ds {
		if d.Seq > cursor {
			fresh = append(fresh, d)
		}
	}
	if len(fresh) == 0 || k.taking {
		return
	}
	k.taking = true
	n.propose(n.name, site.Delegate{From: cursor, To: fresh[len(fresh)-1].Seq, Grants: fresh}, proposeFor, func(site.Reply, bool) { k.taking = false })
}
