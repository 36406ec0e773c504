package site

import (
	"slices"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
)

// IncarnationSpan is how far apart the log indexes of two incarnations begin. Fencing
// tokens are log indexes, and what the lost part of a site granted had indexes that
// nobody can ask for any more: the next incarnation begins above all that it can have
// reached, so no token ever repeats or falls.
const IncarnationSpan = 1 << 40

// FirstIndex is the log index of the command that begins an incarnation.
func FirstIndex(incarnation uint64) uint64 { return incarnation * IncarnationSpan }

// MaxIncarnation keeps FirstIndex within what JSON's numbers hold exactly.
const MaxIncarnation = 1 << 12

// Recover begins a new incarnation of the site with one voter, after the others were
// lost for good or from a backup. Everything that was granted under an older one is
// dead, whether this state knows of it or not.
type Recover struct {
	Incarnation uint64             `cbor:"1,keyasint"` // the new one
	Lineage     string             `cbor:"2,keyasint"` // names the Raft group that goes on; drawn at random
	Runner      forgeyard.RunnerID `cbor:"3,keyasint"` // its only voter
	Node        string             `cbor:"4,keyasint"`
	Peer        string             `cbor:"5,keyasint"`
	From        uint64             `cbor:"6,keyasint"` // index that the state had
	Backup      bool               `cbor:"7,keyasint,omitempty"`
	// PublicKey is set when the site key was lost too: no credential of before is good, so
	// no member stays but the one that recovers, and the uplink must be connected anew.
	PublicKey []byte      `cbor:"8,keyasint,omitempty"`
	Formats   FormatRange `cbor:"9,keyasint,omitzero"` // of the program that carries it out
}

// Recovered is Recover's reply: what was fenced.
type Recovered struct {
	Leases  int `cbor:"1,keyasint"` // of jobs; their holders may not commit
	Devices int `cbor:"2,keyasint"` // leases of persons
	Tokens  int `cbor:"3,keyasint"` // join tokens, all revoked
	Members int `cbor:"4,keyasint"` // that must join again
	Held    int `cbor:"5,keyasint"` // jobs with protected effects that wait until nobody can act any more
}

// Recovery is one forced step of the incarnation.
type Recovery struct {
	Incarnation uint64             `cbor:"1,keyasint"`
	Lineage     string             `cbor:"2,keyasint"`
	Runner      forgeyard.RunnerID `cbor:"3,keyasint"`
	At          forgeyard.Wall     `cbor:"4,keyasint"`
	By          string             `cbor:"5,keyasint,omitempty"`
	From        uint64             `cbor:"6,keyasint"`
	Backup      bool               `cbor:"7,keyasint,omitempty"`
}

// Lineage names the Raft group that the state belongs to; empty: the first.
func (s *State) Lineage() string {
	if n := len(s.Recoveries); n > 0 {
		return s.Recoveries[n-1].Lineage
	}
	return ""
}

func (c *change) recover(b Recover) (Recovered, error) {
	var r Recovered
	if err := c.mayRecover(b); err != nil {
		return r, err
	}
	c.adopt(b, &r)
	for id := range c.Open.All() {
		j, _ := c.Jobs.Get(id)
		c.fenceJob(&j, &r)
		c.putJob(j)
	}
	for id, d := range c.Devices.All() {
		c.Devices = c.Devices.Put(id, c.fenceDevice(d, &r))
	}
	for id, t := range c.Tokens.All() {
		if !t.Revoked {
			r.Tokens++
		}
		c.Tokens = c.Tokens.Delete(id)
	}
	old := c.Incarnation
	c.Incarnation = b.Incarnation
	if b.Formats.Max > c.LogFormat() {
		c.Format = b.Formats.Max // its only voter reads it
	}
	c.Recoveries = append(slices.Clone(c.Recoveries), Recovery{b.Incarnation, b.Lineage, b.Runner, c.at, c.by, b.From, b.Backup})
	if n := len(c.Recoveries); n > maxRecoveries {
		c.Recoveries = c.Recoveries[n-maxRecoveries:]
	}
	how := "recovered by force"
	if b.Backup {
		how = "restored from a backup"
	}
	c.note("recovery", "%s by %s on %s: incarnation %d follows %d, from log index %d; fenced %d job leases, %d device leases, %d join tokens; %s is the only voter",
		how, c.by, b.Node, b.Incarnation, old, b.From, r.Leases, r.Devices, r.Tokens, b.Node)
	return r, nil
}

func (c *change) mayRecover(b Recover) error {
	no := func(kind forgeyard.Kind, format string, args ...any) error {
		return forgeyard.Errorf("recover", kind, format, args...)
	}
	switch {
	case b.Incarnation <= c.Incarnation:
		return no(forgeyard.Stale, "incarnation %d does not follow %d", b.Incarnation, c.Incarnation)
	case b.Incarnation > MaxIncarnation:
		return no(forgeyard.Limit, "incarnation %d is over the bound of %d", b.Incarnation, MaxIncarnation)
	case c.Index < FirstIndex(b.Incarnation):
		return no(forgeyard.Invalid, "incarnation %d begins at log index %d, not at %d", b.Incarnation, FirstIndex(b.Incarnation), c.Index)
	case b.Lineage == "" || len(b.Lineage) > maxRequestID:
		return no(forgeyard.Invalid, "lineage of %d letters is not in [1, %d]", len(b.Lineage), maxRequestID)
	}
	if b.PublicKey != nil {
		return nil
	}
	m, ok := c.Members.Get(b.Runner)
	if !ok || m.Removed || m.Peer != b.Peer {
		return no(forgeyard.Denied, "runner %s is no member of site %s with that key", b.Runner, c.Name)
	}
	return nil
}

// adopt makes the node that recovers a member, if the site key is new, and ends the
// membership of all whose credentials the old one signed.
func (c *change) adopt(b Recover, r *Recovered) {
	if b.PublicKey == nil {
		m, _ := c.Members.Get(b.Runner)
		m.MayVote, m.Waiting = true, false
		c.Members = c.Members.Put(m.Runner, m)
		return
	}
	c.PublicKey = b.PublicKey
	for id, m := range c.Members.All() {
		if !m.Removed {
			r.Members++
			m.Removed = true
			c.Members = c.Members.Put(id, m)
		}
	}
	c.Members = c.Members.Put(b.Runner, Member{Runner: b.Runner, Name: c.freeName(b.Node, b.Runner), Peer: b.Peer, MayVote: true, Joined: c.at, Order: c.Step})
	if c.Central.Peer != "" {
		c.note("uplink", "the central daemon %s knows the old site key: connect with a new ticket", c.Central.Name)
		c.Central, c.Uplink = Central{}, lease.Uplink{State: lease.Standalone, Since: c.at}
	}
}

// fenceJob ends what somebody may hold, and puts a job that waits for certainty into doubt
// also where this state knows of no holder, or of an earlier one: the lost part of the log
// may have had another. The new leader counts the whole length of the policy before it is
// certain; the word of a holder that this state knows is not enough (see lastGranted).
func (c *change) fenceJob(j *Job, r *Recovered) {
	const why = "the site was recovered by force"
	waits := j.Spec.Effects == job.EffectsProtected || c.policy(j.Spec).NoReplace
	switch {
	case j.Lease.Live():
		r.Leases++
		c.endLease(j, lease.EndRecovered, why)
		j.Interruptions++
	case waits && (j.Status == job.Queued || j.Status == job.Suspended || j.Status == job.Unknown):
		j.Lease = lease.Lease{
			Authority: forgeyard.Authority{Job: j.ID, Attempt: j.Attempt, Lease: forgeyard.LeaseID(c.newID()), Spec: j.SpecID, Fence: forgeyard.Fence{Incarnation: c.Incarnation, Term: j.Term, Epoch: j.Epoch}},
			State:     lease.Accepted, Granted: c.at, Protected: j.Spec.Effects == job.EffectsProtected, Policy: c.policy(j.Spec), Terms: c.terms(),
		}.End(c.at, lease.EndRevoked, why)
	default:
		return
	}
	if waits {
		r.Held++
	}
	c.releaseDevices(j)
	j.Status, j.Phase, j.Certain, j.Reason = job.Unknown, job.PhaseUnknown, false, why
	c.moveRun(*j, "unknown: "+why)
}

// fenceDevice ends a person's lease, and wants the device reset before anybody gets it:
// somebody may have held it whom this state does not know.
func (c *change) fenceDevice(d devices.Device, r *Recovered) devices.Device {
	const why = "the site was recovered by force"
	by := c.by
	if by == "" {
		by = "site recover"
	}
	if l := d.Lease; l != nil {
		r.Devices++
		if next, err := d.End(l.Token, devices.End{Index: c.Step, At: c.at, Reason: devices.Forced, By: by}); err != nil {
			c.note("device", "release of %s: %v", d.ID, err)
		} else {
			d = next
		}
	}
	return d.HoldersUnknown(c.Step, c.at, by).HostRestarted(why)
}
