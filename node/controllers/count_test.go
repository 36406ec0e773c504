package controllers

import (
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// The granter counts from the latest of what a holder may count from: from the acceptance,
// which may come long after the offer was seen, and from the newest renewal that was
// answered, also when an older one is answered after it (decision 1).
func TestCountsFromTheLatest(t *testing.T) {
	r := newRig(t)
	id := r.submit(nil)
	r.hello()
	r.obey()
	r.want("")
	r.after(14 * time.Second) // the offer is nearly over
	j, _ := r.s.Jobs.Get(id)
	r.apply(site.Accept{Authority: j.Lease.Authority})
	r.want("")
	r.after(15*time.Second + 249*time.Millisecond)
	r.want("")
	a := j.Lease.Authority
	before := r.now
	r.after(time.Second)
	r.in.State = r.s
	for _, arrived := range []int{1, 0} {
		at := before.Add(time.Duration(arrived) * time.Second)
		if got := r.in.Mem.Renew(at, r.in, []Renewal{{Authority: a}})[0]; got.Answer != lease.Continue {
			t.Fatalf("%+v", got)
		}
	}
	r.after(15*time.Second + 249*time.Millisecond)
	r.want("")
	r.after(time.Millisecond)
	r.want("expire certain=false term=7")
}

// What an execution takes of its runner is taken until it has certainly stopped: it may
// still run there.
func TestDoubtTakesRoom(t *testing.T) {
	r := newRig(t)
	wide := func(s *job.Spec) { s.Effects, s.Resources.MilliCPU = job.EffectsProtected, 2000 }
	a := r.held(r.submit(wide))
	r.after(15*time.Second + 250*time.Millisecond)
	r.want("expire certain=false term=7")
	r.obey()
	yes := true
	r.apply(site.MemberSet{Runner: r.r[1], Disabled: &yes})
	r.hello()
	r.submit(wide)
	r.want("") // n1 is heard again, and its last execution is not known to be over
	r.apply(site.Stopped{Authority: a})
	r.want("offer to n1")
}

// A node that drains gets no vote, and neither does one that lacks much of the log.
func TestWhoIsNotPromoted(t *testing.T) {
	r := newRig(t)
	r.hello()
	two := func(behind uint64) []GroupMember {
		return []GroupMember{{Runner: r.r[0], Voter: false, Behind: behind}, {Runner: r.r[1], Voter: false}}
	}
	r.in.Group = two(0)
	r.want("n1 becomes voter")
	r.in.Group = two(caughtUp + 1)
	r.want("n2 becomes voter")
	r.in.Group = two(0)
	yes := true
	r.apply(site.MemberSet{Runner: r.r[0], Draining: &yes})
	r.want("n2 becomes voter")
}
