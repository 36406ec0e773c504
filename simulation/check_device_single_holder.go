package simulation

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/site"
)

// deviceHolder is device-single-holder: at no true instant do two holders act on a
// device. Acts come in the order of their tokens, none comes after the reset that follows
// its lease has begun, and none of another job before that.
type deviceHolder struct {
	silent
	highest map[forgeyard.DeviceID]uint64
	cleaned map[forgeyard.DeviceID]uint64
	holder  map[forgeyard.DeviceID]forgeyard.JobID // who acted last
}

func newDeviceHolder() *deviceHolder {
	return &deviceHolder{highest: map[forgeyard.DeviceID]uint64{}, cleaned: map[forgeyard.DeviceID]uint64{}, holder: map[forgeyard.DeviceID]forgeyard.JobID{}}
}

func (c *deviceHolder) touched(s *sim, h site.HeldDevice, a forgeyard.Authority) {
	switch {
	case h.Token < c.highest[h.Device]:
		s.fail("device-single-holder", "%s acts on %s under token %d after token %d", short(a), h.Device, h.Token, c.highest[h.Device])
	case h.Token <= c.cleaned[h.Device]:
		s.fail("device-single-holder", "%s acts on %s under token %d, whose reset has begun", short(a), h.Device, h.Token)
	case h.Token > c.highest[h.Device] && c.highest[h.Device] > c.cleaned[h.Device] && c.holder[h.Device] != a.Job:
		s.fail("device-single-holder", "%s acts on %s under token %d, and no reset came after token %d", short(a), h.Device, h.Token, c.highest[h.Device])
	}
	c.highest[h.Device], c.holder[h.Device] = h.Token, a.Job
}

// cleaning ends all that was done before, whatever the reset is named after: a site that was
// restored from a backup names it after the last lease that the backup knows.
func (c *deviceHolder) cleaning(_ *sim, d forgeyard.DeviceID, token uint64, _ *node) {
	c.cleaned[d] = max(c.cleaned[d], token, c.highest[d])
}
