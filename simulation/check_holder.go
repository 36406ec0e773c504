package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
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

// deviceHolder is device-single-holder: at no true instant do two holders act on a
// device. Acts come in the order of their tokens, and none comes after the reset that
// follows its lease has begun.
type deviceHolder struct {
	silent
	highest map[forgeyard.DeviceID]uint64
	cleaned map[forgeyard.DeviceID]uint64
}

func newDeviceHolder() *deviceHolder {
	return &deviceHolder{highest: map[forgeyard.DeviceID]uint64{}, cleaned: map[forgeyard.DeviceID]uint64{}}
}

func (c *deviceHolder) touched(s *sim, h site.HeldDevice, a forgeyard.Authority) {
	switch {
	case h.Token < c.highest[h.Device]:
		s.fail("device-single-holder", "%s acts on %s under token %d after token %d", short(a), h.Device, h.Token, c.highest[h.Device])
	case h.Token <= c.cleaned[h.Device]:
		s.fail("device-single-holder", "%s acts on %s under token %d, whose reset has begun", short(a), h.Device, h.Token)
	}
	c.highest[h.Device] = h.Token
}

func (c *deviceHolder) cleaning(_ *sim, d forgeyard.DeviceID, token uint64, _ *node) {
	c.cleaned[d] = max(c.cleaned[d], token)
}
