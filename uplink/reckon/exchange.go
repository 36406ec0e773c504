package reckon

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

const opSync = "uplink"

// MayCall says why the site may not call its daemon now, or nil.
func MayCall(s *site.State) error {
	switch {
	case s.Central.Peer == "":
		return forgeyard.Errorf(opSync, forgeyard.Conflict, "the site has no central daemon").WithHint("forgeyard-node uplink connect TICKET")
	case s.Central.Drill:
		return forgeyard.Errorf(opSync, forgeyard.Unavailable, "a drill cuts the uplink").WithHint("forgeyard-node uplink drill restore")
	}
	return nil
}

// Outgoing is what goes with the next exchange.
type Outgoing struct {
	Records []site.Record
	Bytes   [][]byte // of each record, as it travels
	More    bool     // records wait that did not fit
}

// Still is a delegated job without an outcome that does not go on.
type Still struct {
	Grant  forgeyard.GrantID `cbor:"1,keyasint"`
	Status job.Status        `cbor:"2,keyasint"` // unknown | suspended
	Reason string            `cbor:"3,keyasint,omitempty"`
}

// Standing is what such a list says of one grant: nothing, while its job goes on.
func Standing(all []Still, g forgeyard.GrantID) (status, reason string) {
	for _, k := range all {
		if k.Grant == g {
			return string(k.Status), k.Reason
		}
	}
	return "", ""
}

// StandStill lists the delegated jobs of which the people at the daemon should know that
// nothing happens: whose execution is unknown, and those that are suspended. It is said
// anew with each exchange, and no record: nobody decides by it.
func StandStill(s *site.State) []Still {
	var out []Still
	for id := range s.Open.All() {
		j, _ := s.Jobs.Get(id)
		if j.Grant == nil || (j.Status != job.Unknown && j.Status != job.Suspended) {
			continue
		}
		if out = append(out, Still{j.Grant.ID, j.Status, forgeyard.Clip(j.Reason, MaxStillText)}); len(out) == MaxStill {
			break
		}
	}
	return out
}

// Collect takes the outbox from its oldest record on, as much as fits into limit bytes;
// one record always goes. Corrupt: the outbox has a gap.
func Collect(s *site.State, limit int) (Outgoing, error) {
	var out Outgoing
	size := 0
	for n := s.Acked + 1; n <= s.Sent; n++ {
		r, ok := s.Outbox.Get(site.SeqKey(n))
		if !ok || r.Seq != n {
			return Outgoing{}, forgeyard.Errorf(opSync, forgeyard.Corrupt, "record %d is missing from the outbox of %d to %d", n, s.Acked+1, s.Sent)
		}
		b := cborx.Marshal(r)
		if len(out.Records) == MaxBatchRecords || len(out.Records) > 0 && size+len(b) > limit {
			out.More = true
			return out, nil
		}
		out.Records, out.Bytes, size = append(out.Records, r), append(out.Bytes, b), size+len(b)
	}
	return out, nil
}

// Answer is the daemon's half of one exchange.
type Answer struct {
	Acked     uint64 // it has all records up to here, for good
	Terms     lease.UplinkTerms
	Cancelled []forgeyard.GrantID // taken back, and not yet told in their order
	Daemon    forgeyard.Wall      // what its own clock read; zero: it does not tell
}

// Check says what of the answer cannot be, or nil.
func (a Answer) Check(s *site.State) error {
	if err := CheckTerms(a.Terms); err != nil {
		return forgeyard.E("uplink: the daemon's terms", forgeyard.Invalid, err)
	}
	if a.Acked > s.Sent {
		return forgeyard.Errorf(opSync, forgeyard.Invalid, "the daemon acknowledged record %d, only %d were sent", a.Acked, s.Sent)
	}
	if len(a.Cancelled) > MaxCancelled {
		return forgeyard.Errorf(opSync, forgeyard.Limit, "the daemon takes back %d grants at once, the bound is %d", len(a.Cancelled), MaxCancelled)
	}
	return nil
}

// Cancels lists the jobs that are to be cancelled before anything else follows from
// the contact (E15). The record itself comes later, in its order, and changes nothing then.
func (a Answer) Cancels(s *site.State) []forgeyard.JobID {
	if len(a.Cancelled) == 0 {
		return nil
	}
	gone := map[forgeyard.GrantID]bool{}
	for _, g := range a.Cancelled {
		gone[g] = true
	}
	var out []forgeyard.JobID
	for id := range s.Open.All() {
		j, ok := s.Jobs.Get(id)
		if ok && j.Grant != nil && gone[j.Grant.ID] && j.CancelAt == 0 && !j.Status.Terminal() {
			out = append(out, id)
		}
	}
	return out
}

// Follows lists what enters the log once the cancels are in it, in this order; s is the
// state that the request was made from, silent how long ago that was. The contact comes
// before what follows from it, so that a site with records to deliver is seen to reconcile.
func (a Answer) Follows(s *site.State, silent time.Duration) []site.Body {
	var out []site.Body
	if st := s.Uplink.State; st != lease.Online && st != lease.Reconciling {
		out = append(out, site.UplinkObserve{Used: int64(silent), Contact: true, Terms: &a.Terms, Daemon: a.Daemon})
	}
	if a.Acked > s.Acked {
		out = append(out, site.OutboxAck{Upto: a.Acked})
	}
	return out
}

// CheckDelegations says why delegations cannot follow the cursor, or nil.
func CheckDelegations(cursor uint64, ds []site.Delegation) error {
	for _, d := range ds {
		if d.Seq <= cursor {
			return forgeyard.Errorf(opSync, forgeyard.Invalid, "delegation %d does not follow %d", d.Seq, cursor)
		}
		cursor = d.Seq
	}
	return nil
}

// Step is one step of taking delegations in: bring the inputs of one, or propose some.
type Step struct {
	Bring   *site.Delegation
	From    uint64 // what the proposed continue: where the site had no room for those before, they wait too
	Propose []site.Delegation
}

// Intake orders what an answer delegated after the cursor: each is proposed after its
// inputs were brought, and what needs none is proposed together, as much as one command
// may hold. gone was taken back already: its inputs are not needed.
func Intake(cursor uint64, ds []site.Delegation, gone map[forgeyard.GrantID]bool) []Step {
	var steps []Step
	var ready []site.Delegation
	size := 0
	flush := func() {
		if len(ready) > 0 {
			steps = append(steps, Step{From: cursor, Propose: ready})
			cursor = ready[len(ready)-1].Seq
		}
		ready, size = nil, 0
	}
	taken := cursor
	for _, d := range ds {
		if d.Seq <= taken {
			continue
		}
		if !d.Cancel && !gone[d.Grant.ID] && hasInputs(d) {
			flush()
			steps = append(steps, Step{Bring: &d})
		}
		if size+len(d.Spec) > maxDelegateBytes {
			flush()
		}
		ready = append(ready, d)
		size += len(d.Spec) + 512
	}
	flush()
	return steps
}

// hasInputs says whether anything must be brought. A spec that cannot be read
// needs nothing: the log refuses it, and the daemon is told why.
func hasInputs(d site.Delegation) bool {
	spec, err := job.DecodeSpec(d.Spec)
	return err == nil && len(spec.Inputs) > 0
}

// Gone is the set of what was taken back, by the answer or by one of its delegations.
func Gone(cancelled []forgeyard.GrantID, ds []site.Delegation) map[forgeyard.GrantID]bool {
	gone := map[forgeyard.GrantID]bool{}
	for _, g := range cancelled {
		gone[g] = true
	}
	for _, d := range ds {
		if d.Cancel {
			gone[d.Grant.ID] = true
		}
	}
	return gone
}
