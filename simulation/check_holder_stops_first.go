package simulation

import (
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// holder is holder-stops-first: in true time, a holder has stopped acting before its
// work is granted again, where effects are protected or the job asks for no replacement;
// and before the site calls it ended, since then a person believes that nothing runs.
type holder struct{ silent }

func newHolder() *holder { return &holder{} }

func (c *holder) ran(s *sim, x *execution) {
	if x.job.Spec.Effects != job.EffectsProtected && !x.job.Spec.Connectivity.NoReplace {
		return
	}
	j, ok := s.head().Jobs.Get(x.authority.Job)
	if x.n.world != s.world {
		c.outlived(s, x, j, ok)
		return
	}
	switch {
	case !ok:
		s.fail("holder-stops-first", "%s acts for a job that is gone", x.n.name)
	case j.Lease.Authority != x.authority:
		s.fail("holder-stops-first", "%s acts under %s while %s is granted", x.n.name, short(x.authority), short(j.Lease.Authority))
	case j.Lease.State == lease.Ended && (j.Status != job.Unknown || j.Certain):
		s.fail("holder-stops-first", "%s acts under %s, whose lease ended (%s), and the job is %s", x.n.name, short(x.authority), j.Lease.Reason, j.Status)
	}
}

// outlived is a holder whose incarnation is over. The new one may not know of its lease,
// or of its job: then nobody else gets that. What it knows stays in doubt until this one
// has stopped.
func (c *holder) outlived(s *sim, x *execution, j site.Job, known bool) {
	if known && (j.Status != job.Unknown || j.Certain) {
		s.fail("holder-stops-first", "%s acts under %s of an older incarnation, and the job is %s (certain=%v) in the new one", x.n.name, short(x.authority), j.Status, j.Certain)
	}
}
