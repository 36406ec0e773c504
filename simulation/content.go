package simulation

import (
	"slices"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/site"
)

// objects is a node's store: what it has, and who keeps it. Bytes are not modelled; an
// object is whole, damaged, or not there.
type objects struct {
	of   map[forgeyard.Digest]*object
	list []*object // in the order in which they came
	// lost are those that were found damaged. Pins are apart from bytes: they stay, and hold
	// what is fetched anew.
	lost map[forgeyard.Digest][]string
}

type object struct {
	digest forgeyard.Digest
	owners []string // whose pins keep it
	safe   bool     // it is on disk, whatever happens
	bad    bool     // its bytes are damaged; the next read finds that out
}

// Waits of the content, as package node has them.
const (
	askFor      = time.Second
	copyFor     = 3 * time.Second
	upkeepEvery = 10 * time.Second
	uploadFor   = 30 * time.Second
)

func (o *objects) drop(x *object) {
	delete(o.of, x.digest)
	o.list = slices.DeleteFunc(o.list, func(y *object) bool { return y == x })
}

// blackout is what a loss of power leaves.
func (o *objects) blackout(n *node) {
	for _, x := range slices.Clone(o.list) {
		if !x.safe {
			n.s.trace("%s loses %s with its power", n.name, x.digest.Short())
			o.drop(x)
		}
	}
}

// put stores an object for an owner and tells when it is safe, or that the disk takes
// nothing.
func (n *node) put(d forgeyard.Digest, owner string, done func(ok bool)) {
	x := n.objects.of[d]
	if x == nil {
		if n.disk.full > 0 {
			n.after(n.syncFor(), func() { done(false) })
			return
		}
		x = &object{digest: d, owners: slices.Clone(n.objects.lost[d])}
		n.objects.of[d], n.objects.list = x, append(n.objects.list, x)
	}
	if !slices.Contains(x.owners, owner) {
		x.owners = append(x.owners, owner)
	}
	if n.s.faults.unsafeStore {
		n.after(100*n.syncFor(), func() { x.safe = true })
		done(true)
		return
	}
	n.after(n.syncFor(), func() {
		x.safe = true
		done(true)
	})
}

// read says whether an object is here and whole. Damaged bytes are found out, and are
// here no more.
func (n *node) read(d forgeyard.Digest) bool {
	x := n.objects.of[d]
	if x == nil || n.disk.unreadable > 0 {
		return false
	}
	if x.bad {
		n.s.trace("%s puts %s into quarantine: its bytes are damaged", n.name, d.Short())
		if n.objects.lost == nil {
			n.objects.lost = map[forgeyard.Digest][]string{}
		}
		n.objects.lost[d] = x.owners
		n.objects.drop(x)
		return false
	}
	return true
}

func (n *node) unpin(owner string) {
	mine := func(o string) bool { return o == owner }
	for _, x := range n.objects.list {
		x.owners = slices.DeleteFunc(x.owners, mine)
	}
	for d, owners := range n.objects.lost { // each on its own: their order does not show
		n.objects.lost[d] = slices.DeleteFunc(slices.Clone(owners), mine)
	}
}

// others are the members that may have or take content, those that answer first.
func (n *node) others() []*node {
	var out []*node
	for i := range n.s.nodes {
		o := n.s.nodes[(n.id+1+i)%len(n.s.nodes)]
		m, ok := n.state().Members.Get(o.runner)
		if o != n && ok && !m.Removed {
			out = append(out, o)
		}
	}
	return out
}

// fetch makes an object local and pins it: from this store, then from peers, then from
// the daemon.
func (n *node) fetch(d forgeyard.Digest, owner string, done func(ok bool)) {
	if n.read(d) {
		n.put(d, owner, done)
		return
	}
	from := []int{}
	for _, o := range n.others() {
		from = append(from, o.id)
	}
	n.fetchFrom(append(from, centralID), d, owner, done)
}

func (n *node) fetchFrom(from []int, d forgeyard.Digest, owner string, done func(ok bool)) {
	if len(from) == 0 {
		done(false)
		return
	}
	serve := func(dst *node, answer func(any)) {
		has := false
		if dst == nil {
			has = n.s.up.has(d)
		} else {
			has = dst.read(d)
		}
		n.s.after(int64(n.s.within(2*time.Millisecond, 100*time.Millisecond)), func() { answer(has) })
	}
	n.call(from[0], askFor, serve, func(v any, ok bool) {
		if !ok || !v.(bool) {
			n.fetchFrom(from[1:], d, owner, done)
			return
		}
		n.put(d, owner, done)
	}, nil)
}

// replicas are the nodes that acknowledged a durable copy.
type replicas struct {
	nodes []forgeyard.RunnerID
	short bool // fewer than the site asks for
}

// replicate brings an object that is here to as many nodes as durability asks, each of
// which has acknowledged a durable and pinned copy (architecture §7).
func (n *node) replicate(d forgeyard.Digest, owner string, done func(r replicas, ok bool)) {
	n.put(d, owner, func(ok bool) {
		if !ok {
			done(replicas{}, false)
			return
		}
		n.copyOn(n.others(), d, owner, replicas{nodes: []forgeyard.RunnerID{n.runner}}, done)
	})
}

func (n *node) copyOn(to []*node, d forgeyard.Digest, owner string, r replicas, done func(r replicas, ok bool)) {
	asked := n.state().Config.Durability.Copies
	members := 0
	for _, m := range n.state().Members.All() {
		if !m.Removed {
			members++
		}
	}
	switch {
	case len(r.nodes) >= min(asked, members) || len(to) == 0:
		r.short = len(r.nodes) < asked
		done(r, len(r.nodes) >= min(asked, members))
		return
	case n.s.faults.noCopies:
		r.nodes = append(r.nodes, to[0].runner)
		n.copyOn(to[1:], d, owner, r, done)
		return
	}
	n.call(to[0].id, copyFor, func(dst *node, answer func(any)) {
		dst.put(d, owner, func(ok bool) {
			if ok {
				answer(true)
			}
		})
	}, func(_ any, ok bool) {
		if ok {
			r.nodes = append(slices.Clone(r.nodes), to[0].runner)
		}
		n.copyOn(to[1:], d, owner, r, done)
	}, nil)
}

// upkeep lets go of what nothing needs any more, then collects what nobody keeps: by
// agent.Needless, and by a copy of the log that has everything that was committed.
func (n *node) upkeep() {
	n.after(upkeepEvery, n.upkeep)
	if len(n.objects.list) == 0 {
		return
	}
	n.upToDate(func() {
		st := n.state()
		here := func(a forgeyard.AttemptID) bool {
			return slices.ContainsFunc(n.execs, func(x *execution) bool { return x.authority.Attempt == a })
		}
		for _, owner := range n.owners() {
			if n.needless(st, owner, here) || n.s.faults.eagerUnpin {
				n.unpin(owner)
			}
		}
		n.collect()
	})
}

// needless is what the real upkeep asks of a pin (node/own.go).
func (n *node) needless(st *site.State, owner string, here func(forgeyard.AttemptID) bool) bool {
	id, named := strings.CutPrefix(owner, site.NamePin(""))
	if !named {
		return agent.Needless(st, owner, here, n.clk.Wall())
	}
	var content []forgeyard.Digest
	for _, x := range n.objects.list {
		if slices.Contains(x.owners, owner) {
			content = append(content, x.digest)
		}
	}
	return agent.NameNeedless(st, forgeyard.JobID(id), content, n.clk.Wall())
}

func (n *node) owners() []string {
	var out []string
	for _, x := range n.objects.list {
		for _, o := range x.owners {
			if !slices.Contains(out, o) {
				out = append(out, o)
			}
		}
	}
	return out
}

func (n *node) collect() {
	for _, x := range slices.Clone(n.objects.list) {
		if len(x.owners) > 0 && !n.s.faults.ignorePins {
			continue
		}
		n.s.trace("%s collects %s", n.name, x.digest.Short())
		n.objects.drop(x)
		n.s.collected++
		for _, c := range n.s.checks {
			c.collected(n.s, n, x.digest)
		}
	}
}

// upToDate goes on when this node's copy of the log has everything that was committed
// when it asked; if that cannot be had, it does not.
func (n *node) upToDate(then func()) {
	if n.lead != nil {
		upto := n.commit
		n.confirm(func(ok bool) {
			if ok {
				n.reached(upto, then)
			}
		})
		return
	}
	if n.leads < 0 || n.leads == n.id {
		return
	}
	n.call(n.leads, forwardFor, func(dst *node, answer func(any)) {
		if dst.lead == nil {
			answer(uint64(0))
			return
		}
		upto := dst.commit
		dst.confirm(func(ok bool) {
			if ok {
				answer(upto)
			}
		})
	}, func(v any, ok bool) {
		if ok && v.(uint64) > 0 {
			n.reached(v.(uint64), then)
		}
	}, nil)
}

func (n *node) reached(index uint64, then func()) {
	n.waitApplied(index, readBack, func() {
		if n.applied >= index {
			then()
		}
	})
}

// outputsOf are the results that an ended job names.
func outputsOf(j site.Job) []job.Output {
	if j.Result == nil {
		return nil
	}
	return j.Result.Outputs
}
