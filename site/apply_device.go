package site

import (
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
)

// declareDevices takes in what a registering node hosts, and marks absent what it
// no longer names.
func (c *change) declareDevices(m Member) {
	for _, f := range m.Caps.Devices {
		var prev *devices.Device
		if d, ok := c.Devices.Get(f.ID); ok {
			prev = &d
		}
		d, err := devices.Declare(prev, m.Runner, f)
		if err != nil {
			c.note("device", "%s declares %s: %v", m.Name, f.ID, err)
			continue
		}
		if m.Session.Index == c.Step && prev != nil {
			d = d.HostRestarted("its host's process restarted")
		}
		c.Devices = c.Devices.Put(d.ID, d)
	}
	for id, d := range c.Devices.All() {
		named := slices.ContainsFunc(m.Caps.Devices, func(f devices.Fact) bool { return f.ID == id })
		if d.Host == m.Runner && !named {
			c.Devices = c.Devices.Put(id, d.HostLost(m.Name+" declares it no longer"))
		}
	}
}

// leaseDevices grants the devices of an offer, in the order of the job's requests: all
// of them or, by the error, nothing of the whole offer.
func (c *change) leaseDevices(j *Job, ids []forgeyard.DeviceID) error {
	reqs := j.Spec.Devices
	if len(ids) != len(reqs) {
		return forgeyard.Errorf("offer", forgeyard.Invalid, "%d devices for %d requests", len(ids), len(reqs))
	}
	j.Devices = nil
	ds, gs := make([]devices.Device, len(ids)), make([]devices.Grant, len(ids))
	for i, id := range ids {
		d, ok := c.Devices.Get(id)
		if !ok {
			return forgeyard.Errorf("offer", forgeyard.NotFound, "no device %s", id)
		}
		if why := (devices.Request{Kind: reqs[i].Kind, Labels: reqs[i].Labels}).Fits(d); why != "" {
			return forgeyard.Errorf("offer", forgeyard.Conflict, "device %s does not fit %q: %s", id, reqs[i].As, why)
		}
		l := forgeyard.DeviceLeaseID(c.newID())
		ds[i], gs[i] = d, devices.Grant{
			Index: c.Step, At: c.at, Lease: l, RequestID: forgeyard.MessageID(l), Origin: devices.Local, TTL: devices.MaxTTL,
			Holder: devices.Holder{Job: j.ID, Attempt: j.Attempt, Epoch: j.Epoch},
		}
	}
	next, leases, err := devices.GrantAll(ds, gs)
	if err != nil {
		return err
	}
	for i, d := range next {
		c.Devices = c.Devices.Put(d.ID, d)
		j.Devices = append(j.Devices, HeldDevice{As: reqs[i].As, Device: d.ID, Lease: leases[i].ID, Token: leases[i].Token, Host: d.Host})
	}
	return nil
}

// releaseDevices ends the device leases of a job's epoch; each must be reset before
// anybody gets it.
func (c *change) releaseDevices(j *Job) {
	for _, h := range j.Devices {
		d, ok := c.Devices.Get(h.Device)
		if !ok {
			continue
		}
		next, err := d.End(h.Token, devices.End{Index: c.Step, At: c.at, Reason: devices.HolderEnded})
		if err != nil {
			c.note("device", "release of %s: %v", h.Device, err)
			continue
		}
		c.Devices = c.Devices.Put(h.Device, next)
	}
	j.Devices = nil
}

// rebindDevices lets an epoch that continues in place keep its devices: the same
// session holds them, and its old tree is dead.
func (c *change) rebindDevices(j *Job) {
	for _, h := range j.Devices {
		d, ok := c.Devices.Get(h.Device)
		if !ok || d.Admit(h.Token) != nil {
			continue
		}
		l := *d.Lease
		l.Holder.Epoch = j.Epoch
		d.Lease = &l
		c.Devices = c.Devices.Put(h.Device, d)
	}
}

func (c *change) device(op string, id forgeyard.DeviceID) (devices.Device, error) {
	d, ok := c.Devices.Get(id)
	if !ok {
		return d, forgeyard.Errorf(op, forgeyard.NotFound, "no device %q", forgeyard.Clip(string(id), 60)).WithHint("forgeyard-node device list shows them")
	}
	return d, nil
}

func (c *change) deviceLease(b DeviceLease) (DeviceLeased, error) {
	d, err := c.choose(b)
	if err != nil {
		return DeviceLeased{}, err
	}
	g := devices.Grant{
		Index: c.Step, At: c.at, Lease: forgeyard.DeviceLeaseID(c.newID()), RequestID: b.Key, Holder: devices.Holder{Person: b.Holder},
		Origin: devices.Local, TTL: time.Duration(b.TTL),
	}
	if c.Allows(FormatLeases) {
		g.DriftPPM = int64(c.Config.Lease.Drift)
	}
	next, l, err := d.Grant(g)
	if err != nil {
		return DeviceLeased{}, err
	}
	c.Devices = c.Devices.Put(d.ID, next)
	if l.Token == c.Step {
		c.note("device", "%s leased to %s", d.ID, b.Holder)
	}
	return DeviceLeased{Lease: l.ID, Token: l.Token, Device: d.ID, Host: d.Host}, nil
}

// choose finds the device of a request: the one named, the one that a repeat of the
// request was given, or the first that serves.
func (c *change) choose(b DeviceLease) (devices.Device, error) {
	if b.Device != "" {
		return c.device("device lease", b.Device)
	}
	all := values(c.Devices)
	for _, d := range all {
		if d.Lease != nil && d.Lease.RequestID == b.Key {
			return d, nil
		}
	}
	able, refused := devices.Match(devices.Request{Kind: b.Kind, Labels: b.Labels}, all)
	if len(able) > 0 {
		return c.device("device lease", able[0])
	}
	why := "the site has no device"
	if len(refused) > 0 {
		why = string(refused[0].Device) + ": " + refused[0].Reason
	}
	return devices.Device{}, forgeyard.Errorf("device lease", forgeyard.Conflict, "no device of %d serves: %s", len(all), why).WithHint("forgeyard-node device list shows each")
}

func (c *change) deviceRelease(b DeviceRelease) error {
	for id, d := range c.Devices.All() {
		l := d.Lease
		if l == nil || l.ID != b.Lease {
			if d.Last != nil && d.Last.ID == b.Lease {
				return nil // ended before
			}
			continue
		}
		if l.Holder.Job != "" && !b.Force {
			return forgeyard.Errorf("device release", forgeyard.Conflict, "%s is leased to job %s, and ends with it", id, l.Holder.Job).WithHint("cancel the job, or --force")
		}
		e := devices.End{Index: c.Step, At: c.at, Reason: devices.Released}
		switch {
		case b.Expired:
			e.Reason = devices.Expired
		case b.Force:
			e.Reason, e.By = devices.Forced, c.by
		}
		next, err := d.End(l.Token, e)
		if err != nil {
			return err
		}
		c.Devices = c.Devices.Put(id, next)
		c.note("device", "%s released: %s", id, e.Reason)
		return nil
	}
	return forgeyard.Errorf("device release", forgeyard.NotFound, "no device lease %q", forgeyard.Clip(string(b.Lease), 40))
}

func (c *change) deviceReset(b DeviceReset) error {
	d, err := c.device("device reset", b.Device)
	if err != nil {
		return err
	}
	if d.Host != b.Host {
		return forgeyard.Errorf("device reset", forgeyard.Stale, "%s is hosted by %s, not by %s", d.ID, d.Host, b.Host)
	}
	next, err := d.ResetDone(b.Evidence, c.Step, c.at)
	if err != nil {
		return err
	}
	c.Devices = c.Devices.Put(d.ID, next)
	if b.Evidence.OK {
		c.note("device", "%s reset", d.ID)
	} else {
		c.note("device", "reset of %s failed: %s", d.ID, b.Evidence.Error)
	}
	return nil
}

func (c *change) deviceHealth(b DeviceHealth) error {
	d, err := c.device("device", b.Device)
	if err != nil {
		return err
	}
	switch b.Action {
	case "checked":
		d, err = d.Checked(b.OK, b.Reason, c.Step, c.at)
	case "quarantine":
		d, err = d.Isolate(c.by, b.Reason, c.Step, c.at)
	case "clear":
		d, err = d.Clear(c.by)
	case "lost":
		d = d.HostLost(b.Reason)
	default:
		err = forgeyard.Errorf("device", forgeyard.Invalid, "action %q is not quarantine, clear, checked or lost", b.Action)
	}
	if err != nil {
		return err
	}
	c.Devices = c.Devices.Put(d.ID, d)
	c.note("device", "%s: %s %s by %s", d.ID, b.Action, b.Reason, c.by)
	return nil
}
