package simulation

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// What a workload does outside: one thing, half way through its work, of which the outside
// keeps no count for it. It is begun in the log, performed, and told; whoever comes after one
// that was not told looks outside before its first step.

const effectKey, effectIdem = "publish", "v1"

// published is how far the effect of an execution has come.
type published uint8

const (
	effectNone  published = iota
	effectAsked           // its intent is under way
	effectBegun           // it may be performed
	effectActed           // it was performed here
	effectKnown           // done, and the log knows
)

// publishes says whether the site's log takes what the workload tells of its effect.
func (x *execution) publishes() bool {
	return x.plan.Publishes && x.n.reads() >= site.FormatLeases && x.n.state().Allows(site.FormatLeases)
}

// reconcile looks for what earlier epochs began, one after the other, then goes on.
func (x *execution) reconcile(left []site.Effect, then func()) {
	if x.over {
		return
	}
	if len(left) == 0 || x.n.s.faults.looksNot {
		then()
		return
	}
	b := site.EffectOutcome{Authority: x.authority, Key: left[0].Key, State: site.EffectAborted, Reconciled: true}
	if x.n.s.outside[x.authority.Job] > 0 {
		b.State, b.Evidence = site.EffectDone, []byte("it is there")
	}
	x.n.propose(x.n.name, b, proposeFor, func(r site.Reply, known bool) {
		switch {
		case x.over:
		case known && r.Err() == nil:
			x.reconcile(left[1:], then)
		case !known:
			x.n.after(time.Second, func() { x.reconcile(left, then) })
		}
	})
}

// publish takes the effect one step further. It is called at each tick, so that whatever
// was not answered is asked again.
func (x *execution) publish() {
	switch x.effect {
	case effectNone:
		x.effect = effectAsked
		x.n.propose(x.n.name, site.EffectIntent{Authority: x.authority, Key: effectKey, Idem: effectIdem}, proposeFor, func(r site.Reply, known bool) {
			v, err := site.Value[site.EffectBegun](r)
			switch {
			case !known || err != nil:
				x.effect = effectNone
			case v.Already:
				x.effect = effectKnown
			default:
				x.effect = effectBegun
			}
		})
	case effectBegun: // a tick later, if it lives that long
		x.n.s.outside[x.authority.Job]++
		x.effect = effectActed
		for _, c := range x.n.s.checks {
			c.acted(x.n.s, x)
		}
	case effectActed:
		x.effect = effectAsked
		b := site.EffectOutcome{Authority: x.authority, Key: effectKey, State: site.EffectDone, Evidence: fmt.Appendf(nil, "by epoch %d", x.authority.Fence.Epoch)}
		x.n.propose(x.n.name, b, proposeFor, func(r site.Reply, known bool) {
			x.effect = effectKnown
			if !known || r.Err() != nil {
				x.effect = effectActed
			}
		})
	}
}

// effectRules are those of work that publishes.
func effectRules() job.EffectRules {
	return job.EffectRules{Keys: []job.EffectDecl{{Key: effectKey, Policy: job.EffectReconcile, Reconcile: []string{"look"}}}}
}

// effectOnce is effect-once: what is done outside is done once, and no program runs in an
// epoch while nobody has looked what an earlier one left open. What a forced recovery knows
// nothing of may have been done before.
type effectOnce struct {
	silent
	acts    map[forgeyard.JobID]int
	excused map[forgeyard.JobID]bool
}

func newEffectOnce() *effectOnce {
	return &effectOnce{acts: map[forgeyard.JobID]int{}, excused: map[forgeyard.JobID]bool{}}
}

func (c *effectOnce) acted(s *sim, x *execution) {
	id := x.authority.Job
	if c.acts[id]++; c.acts[id] > 1 && !c.excused[id] {
		s.fail("effect-once", "%s performs the effect of %s, which was performed before", x.n.name, short(x.authority))
	}
}

func (c *effectOnce) ran(s *sim, x *execution) {
	j, ok := s.head().Jobs.Get(x.authority.Job)
	if !ok || x.n.world != s.world || j.Fence() != x.authority.Fence {
		return
	}
	if left := j.Unreconciled(j.Epoch); len(left) > 0 {
		s.fail("effect-once", "%s runs %s, and nobody has looked for what epoch %d began", x.n.name, short(x.authority), left[0].Epoch)
	}
}

func (c *effectOnce) recovered(_, lost *site.State) {
	for id := range lost.Jobs.All() {
		c.excused[id] = true
	}
}
