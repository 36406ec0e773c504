package site

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// KindAttest is the kind of the event of a person's word that a machine is off.
const KindAttest = "attest"

// attestOff takes a person's word that the machine of a runner is off. Nothing here can
// check it: who said it, why, and what it set free stand in the site's events.
func (c *change) attestOff(b AttestOff) (AttestedOff, error) {
	m, ok := c.Members.Get(b.Runner)
	switch {
	case !ok:
		return AttestedOff{}, forgeyard.Errorf("attest", forgeyard.NotFound, "no member %s", forgeyard.Clip(string(b.Runner), 40))
	case b.Session == "" || m.Session.ID != b.Session:
		return AttestedOff{}, forgeyard.Errorf("attest", forgeyard.Stale, "session %s is not the current one of %s: it began anew meanwhile", forgeyard.Short(b.Session), m.Name)
	case b.Reason == "":
		return AttestedOff{}, forgeyard.Errorf("attest", forgeyard.Invalid, "the reason is empty")
	}
	word := fmt.Sprintf("%s attests that %s is off: %s", c.by, m.Name, forgeyard.Clip(b.Reason, 200))
	var out AttestedOff
	for id := range c.Open.All() {
		j, _ := c.Jobs.Get(id)
		if a := j.Lease.Authority; a.Runner != b.Runner || a.Session != b.Session || !c.off(&j, word) {
			continue
		}
		c.putJob(j)
		out.Released = append(out.Released, id)
	}
	c.note(KindAttest, "%s; %d jobs were held there and are free", word, len(out.Released))
	return out, nil
}

// off ends what a holder had whose machine is off, and reports whether it had something.
// After a forced recovery the last holder is not known, and no word about a machine tells it.
func (c *change) off(j *Job, word string) bool {
	switch {
	case j.Lease.State == lease.Offered:
		c.endLease(j, lease.EndExpired, word)
		c.requeue(j, word)
	case j.Lease.Live():
		c.endLease(j, lease.EndExpired, word)
		j.Phase = job.PhaseUnknown
		c.next = job.EventRunnerLost
		c.interrupted(j, job.RunnerLost, word)
	case j.Status == job.Unknown && !j.Certain && j.lastGranted():
		j.Certain = true
		c.noteLease(*j, "has certainly stopped: %s", word)
		c.settleUnknown(j)
	default:
		return false
	}
	return true
}
