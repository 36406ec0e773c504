package simulation

import "github.com/forgeyard/forgeyard-node/job"

// upstream is exactly-once-upstream: after reconciliation the daemon holds each outcome
// once, in order, with no gap (E01, E13). Order and gaps are looked at as records arrive.
type upstream struct{ silent }

func (upstream) end(s *sim) {
	for i, r := range s.up.records {
		if r.Seq != uint64(i)+1 {
			s.fail("exactly-once-upstream", "the daemon's record %d has number %d", i+1, r.Seq)
		}
	}
	h := s.head()
	if s.up.last != h.Sent || h.Acked != h.Sent {
		s.fail("exactly-once-upstream", "the daemon has %d records, the site sent %d and knows of %d", s.up.last, h.Sent, h.Acked)
	}
	for _, j := range s.up.jobs {
		switch {
		case len(j.outcomes) != 1:
			s.fail("exactly-once-upstream", "%s has %d outcomes at the daemon", j.grant.ID, len(j.outcomes))
			return
		case j.accepted != 1 && !j.cancel:
			s.fail("exactly-once-upstream", "%s was taken in %d times", j.grant.ID, j.accepted)
			return
		}
		o := j.outcomes[0]
		at, ok := h.Jobs.Get(o.Job)
		if !ok || at.Status != o.Status || o.Fence.Epoch != at.Epoch || (o.Result != nil && at.Result != nil && o.Result.Outcome != at.Result.Outcome) {
			s.fail("exactly-once-upstream", "%s ended %s at the daemon and %s at the site", j.grant.ID, o.Status, at.Status)
		}
		if at.Status == job.Done && o.Result == nil {
			s.fail("exactly-once-upstream", "%s is done without a result", j.grant.ID)
		}
	}
}
