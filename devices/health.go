package devices

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
)

// doubt turns good into unknown, with the reason. Worse stays as it is.
func (d Device) doubt(format string, args ...any) Device {
	if d.Health == Good || d.Health == Unknown {
		d.Health, d.Reason = Unknown, clip(fmt.Sprintf(format, args...), MaxReason)
	}
	return d
}

// HostLost is the device after its host went out of reach, or no longer declares
// it. A lease on it goes on until its own rules end it.
func (d Device) HostLost(why string) Device {
	if d.Presence == Absent {
		return d
	}
	d = d.doubt("its host is gone: %s", orUnsaid(why))
	d.Presence, d.Reason = Absent, clip("its host is gone: "+orUnsaid(why), MaxReason)
	return d
}

// HostRestarted is the device after the process that looks after it, or the
// uplink's view of it, began anew.
func (d Device) HostRestarted(why string) Device {
	return d.doubt("it must be checked: %s", orUnsaid(why))
}

// Settled is the device after it was quiet for as long as the site asks of one
// that came and went.
func (d Device) Settled() Device {
	d.Flaps = 0
	if d.Presence == Flapping {
		d.Presence = Present
		d = d.doubt("it was unsteady and must be checked")
	}
	return d
}

// Checked tells how a health check ended. A check that fails puts the device into
// quarantine; one that passes does not lift a quarantine. The kind is Conflict for
// a device that is not there.
func (d Device) Checked(ok bool, why string, index uint64, at forgeyard.Wall) (Device, error) {
	if d.Presence == Absent {
		return d, forgeyard.Errorf("check device", forgeyard.Conflict, "%s is absent", d.ID)
	}
	switch d.Health {
	case Maintenance, Retired:
		return d, nil
	case Bad:
		if ok {
			return d, nil // Recovered or Clear lifts it
		}
	}
	if !ok {
		return d.quarantineBySite("the health check failed: "+orUnsaid(why), index, at), nil
	}
	d.Health = Good
	if d.Presence == Present {
		d.Reason = ""
	}
	return d, nil
}

// Withdraw takes the device out of service: maintenance or retired. A lease on it
// goes on; it is not granted again. Health unknown brings it back, to be checked.
func (d Device) Withdraw(h Health, by, why string) (Device, error) {
	if h != Maintenance && h != Retired && h != Unknown {
		return d, forgeyard.Errorf("device", forgeyard.Invalid, "%q; allowed: maintenance, retired, unknown", h)
	}
	if by == "" || why == "" {
		return d, forgeyard.Errorf("device", forgeyard.Invalid, "a person and a reason are needed")
	}
	d.Health, d.Reason = h, clip(fmt.Sprintf("%s by %s: %s", h, by, why), MaxReason)
	return d, nil
}

// quarantineBySite keeps a quarantine that is already there: a person's must not
// be replaced by one that the site may lift (D16), and the first reason is the
// cause.
func (d Device) quarantineBySite(why string, index uint64, at forgeyard.Wall) Device {
	if d.Health == Good || d.Health == Unknown || d.Health == Bad {
		d.Health, d.Reason = Bad, clip(why, MaxReason)
	}
	if d.Quarantine == nil {
		d.Quarantine = &Quarantine{Reason: clip(why, MaxReason), By: Site, Since: at, Index: index, TriesLeft: MaxRecoveries}
	}
	return d
}

// Isolate puts the device into quarantine on a person's word. It takes the place
// of an automatic one. A lease goes on until it ends; end it by force where that
// cannot wait.
func (d Device) Isolate(by, why string, index uint64, at forgeyard.Wall) (Device, error) {
	if why == "" || len(why) > MaxReason {
		return d, forgeyard.Errorf("quarantine device", forgeyard.Invalid, "a reason in words is needed, of at most %d bytes", MaxReason).WithHint("--reason R")
	}
	if by == "" || by == Site || len(by) > MaxReason {
		return d, forgeyard.Errorf("quarantine device", forgeyard.Invalid, "%q is not a person's name", forgeyard.Clip(by, 40))
	}
	d.Quarantine = &Quarantine{Reason: why, By: by, Since: at, Index: index}
	return d, nil
}

// Clear lifts the quarantine on a person's word. What the last holder left is
// cleaned first, and the device is checked before it is granted. Clearing again
// changes nothing.
func (d Device) Clear(by string) (Device, error) {
	if by == "" || by == Site {
		return d, forgeyard.Errorf("clear device", forgeyard.Denied, "a person lifts a quarantine; the site may only try to recover the device")
	}
	if d.Quarantine == nil {
		return d, nil
	}
	return d.lift("its quarantine was lifted by " + by), nil
}

func (d Device) lift(why string) Device {
	d.Quarantine, d.PrepareFailures = nil, 0
	if d.Health == Bad {
		d.Health = Unknown
	}
	d = d.doubt("%s", why)
	if d.Dirty && d.Lease == nil {
		d.Use, d.Resets = Cleaning, 0
	}
	return d
}

// Recovered tells how one automatic try to bring the device back ended. It lifts
// the site's own quarantine, never a person's; when the tries are used up only a
// person can (D16). The evidence is that of a reset, so a success also cleans.
func (d Device) Recovered(e Evidence) (Device, error) {
	q := d.Quarantine
	switch {
	case q == nil:
		return d, nil
	case q.Manual():
		return d, forgeyard.Errorf("recover device", forgeyard.Denied, "%s is in quarantine by %s, who alone lifts it", d.ID, q.By)
	case d.Lease != nil || d.Use == Cleaning:
		return d, forgeyard.Errorf("recover device", forgeyard.Conflict, "%s is %s", d.ID, d.Use)
	case e.Try <= MaxRecoveries-q.TriesLeft:
		return d, nil // told before
	case q.TriesLeft == 0:
		return d, forgeyard.Errorf("recover device", forgeyard.Limit, "%s: %d tries are used up; a person must look at it", d.ID, MaxRecoveries)
	}
	e = e.bounded()
	d.Cleaned = &e
	if e.OK {
		d.Dirty = false
		return d.lift("it was recovered and must be checked"), nil
	}
	next := *q
	next.TriesLeft = max(0, MaxRecoveries-e.Try)
	d.Quarantine = &next
	return d, nil
}
