package lease

import (
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// UplinkState is how the site stands to its central daemon.
type UplinkState string

// Uplink states. Append only.
const (
	Standalone  UplinkState = "standalone"
	Online      UplinkState = "online"
	InGrace     UplinkState = "grace"
	Offline     UplinkState = "offline_authorized"
	Exhausted   UplinkState = "exhausted"
	Reconciling UplinkState = "reconciling"
)

// UplinkTerms are what the central daemon gave the whole site.
type UplinkTerms struct {
	SilentAfter time.Duration `cbor:"1,keyasint"` // silence that ends online
	Grace       time.Duration `cbor:"2,keyasint"` // then grace, for so long
	Allowance   time.Duration `cbor:"3,keyasint"` // all silence together after which nothing delegated may go on
}

// DefaultUplinkTerms are used where a ticket says nothing.
func DefaultUplinkTerms() UplinkTerms {
	return UplinkTerms{SilentAfter: 10 * time.Second, Grace: 2 * time.Minute, Allowance: 8 * time.Hour}
}

// Uplink is the committed record of the site's authority from afar. Used is how
// much silence was counted since the last contact; it only grows until the next.
type Uplink struct {
	State    UplinkState    `cbor:"1,keyasint"`
	Since    forgeyard.Wall `cbor:"2,keyasint"`
	Used     time.Duration  `cbor:"3,keyasint"`
	Terms    UplinkTerms    `cbor:"4,keyasint"`
	Contacts uint64         `cbor:"5,keyasint"`           // contacts committed so far
	Marked   uint64         `cbor:"6,keyasint"`           // number of the command that committed Used
	MarkedAt forgeyard.Wall `cbor:"7,keyasint"`           // wall time of it: the last resort of a cold boot
	Doubt    string         `cbor:"8,keyasint,omitempty"` // why the allowance counts as used up, when no clock can vouch
}

// Connect starts the record; the first contact puts it online.
func (u Uplink) Connect(at forgeyard.Wall, index uint64, t UplinkTerms) Uplink {
	return Uplink{State: Online, Since: at, Terms: t, Marked: index, MarkedAt: at, Contacts: u.Contacts + 1}
}

// Observe commits a figure of silence. A figure smaller than what was committed
// before counts only with a contact: neither an election, a restart nor a clock
// that jumped can stretch the allowance.
func (u Uplink) Observe(at forgeyard.Wall, index uint64, used time.Duration, contact bool, pending int) Uplink {
	if u.State == "" || u.State == Standalone {
		return u
	}
	if contact {
		u.Used, u.Doubt, u.Contacts = max(0, used), "", u.Contacts+1
	} else {
		u.Used = max(u.Used, used)
	}
	u.Marked, u.MarkedAt = index, at
	return u.settle(at, contact, pending)
}

// Doubted marks the allowance as used up because nothing can say how long the
// silence was (§6): loudly, and until the link or a person ends it.
func (u Uplink) Doubted(at forgeyard.Wall, index uint64, why string) Uplink {
	if u.State == "" || u.State == Standalone {
		return u
	}
	u.Used, u.Doubt = max(u.Used, u.Terms.Allowance), forgeyard.Clip(why, maxDetail)
	u.Marked, u.MarkedAt = index, at
	return u.settle(at, false, 0)
}

// Drained is told when the last outbox record was acknowledged.
func (u Uplink) Drained(at forgeyard.Wall) Uplink {
	if u.State == Reconciling {
		u.State, u.Since = Online, at
	}
	return u
}

func (u Uplink) settle(at forgeyard.Wall, contact bool, pending int) Uplink {
	next := u.byUsed()
	switch {
	case next != Online:
	case u.State == Online:
	case u.State == Reconciling && pending > 0:
		next = Reconciling
	case contact && pending > 0:
		next = Reconciling
	case !contact && u.State != Reconciling:
		next = u.State // silence alone never improves anything
	}
	if next != u.State {
		u.State, u.Since = next, at
	}
	return u
}

func (u Uplink) byUsed() UplinkState {
	switch {
	case u.Used >= u.Terms.Allowance:
		return Exhausted
	case u.Used >= u.Terms.SilentAfter+u.Terms.Grace:
		return Offline
	case u.Used >= u.Terms.SilentAfter:
		return InGrace
	}
	return Online
}

// Grant is one job delegated to this site by the central daemon.
type Grant struct {
	ID     forgeyard.GrantID `cbor:"1,keyasint"`
	Term   uint64            `cbor:"2,keyasint"` // the daemon takes a job back only by raising it
	Policy Policy            `cbor:"3,keyasint"`
}

// Span is how much silence of the uplink the grant survives, bounded by the
// site's whole allowance.
func (g Grant) Span(t UplinkTerms) time.Duration {
	switch g.Policy.Policy {
	case job.Grace:
		grace := g.Policy.For
		if grace == 0 {
			grace = t.Grace
		}
		return min(t.SilentAfter+grace, t.Allowance)
	case job.OfflineAuthorized:
		return min(max(t.SilentAfter, g.Policy.For), t.Allowance)
	}
	return min(t.SilentAfter, t.Allowance)
}

// Left is how long the grant still holds when used of silence was counted. Zero
// or less: nothing may be started or go on under it.
func (g Grant) Left(t UplinkTerms, used time.Duration) time.Duration { return g.Span(t) - used }
