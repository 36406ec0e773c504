package simulation

import (
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// holder is holder-stops-first: in true time, a holder has stopped acting before its
// work is granted again, where effects are protected; and before the site calls it
// ended, since then a person believes that nothing runs.
type holder struct{ silent }

func newHolder() *holder { return &holder{} }

func (c *holder) ran(s *sim, x *execution) {
	if x.job.Spec.Effects != job.EffectsProtected {
		return
	}
	j, ok := s.head().Jobs.Get(x.authority.Job)
	switch {
	case !ok:
		s.fail("holder-stops-first", "%s acts for a job that is gone", x.n.name)
	case j.Lease.Authority != x.authority:
		s.fail("holder-stops-first", "%s acts under %s while %s is granted", x.n.name, short(x.authority), short(j.Lease.Authority))
	case j.Lease.State == lease.Ended && (j.Status != job.Unknown || j.Certain):
		s.fail("holder-stops-first", "%s acts under %s, whose lease ended (%s), and the job is %s", x.n.name, short(x.authority), j.Lease.Reason, j.Status)
	}
}
