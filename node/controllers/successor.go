package controllers

import (
	"cmp"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// Heir is another voter, as the leader sees it.
type Heir struct {
	Runner forgeyard.RunnerID
	Behind uint64        // entries that it lacks
	Silent time.Duration // since it was heard
}

// Successor picks who is to lead after this node: a voter that was heard lately and is to
// stay one, one without a break in what is heard first, the least behind, then in the order of enrolment. One that drains would only
// have to hand over itself: it is picked if the leader stops and there is no other, and
// never because the leader drains, which can go on leading.
func Successor(st *site.State, heirs []Heir, stops bool) (forgeyard.RunnerID, bool) {
	member := func(h Heir) site.Member { m, _ := st.Members.Get(h.Runner); return m }
	able := slices.DeleteFunc(slices.Clone(heirs), func(h Heir) bool {
		m := member(h)
		return m.Runner == "" || m.Removed || m.Spare || (m.Draining && !stops) || h.Silent > heardWithin*st.Config.Lease.Renew
	})
	late := func(h Heir) bool { return h.Silent > st.Config.Lease.Renew } // it may be gone already
	if len(able) == 0 {
		return "", false
	}
	best := slices.MinFunc(able, func(a, b Heir) int {
		x, y := member(a), member(b)
		return cmp.Or(cmp.Compare(one(x.Draining), one(y.Draining)), cmp.Compare(one(late(a)), one(late(b))), cmp.Compare(a.Behind, b.Behind), cmp.Compare(x.Order, y.Order))
	})
	return best.Runner, true
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
