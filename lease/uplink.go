package lease

import (
	"fmt"
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
	// Daemon is what the central daemon's own clock read at the last committed contact. Used
	// counts from there, so that the two together say what that clock reads now, at most.
	// Zero: a daemon that does not tell. It is compared with what the same clock said only.
	Daemon forgeyard.Wall `cbor:"9,keyasint,omitempty"`
}

// DaemonNow is what the central daemon's clock reads when used of silence was counted, or
// a little more; zero: not known.
func (u Uplink) DaemonNow(used time.Duration) forgeyard.Wall {
	if u.Daemon == 0 {
		return 0
	}
	return u.Daemon + forgeyard.Wall(used.Milliseconds())
}

// Silent reports whether so much silence ends the state online: what is left of an
// authority is then all there is, and no longer renewed with each contact.
func (u Uplink) Silent(used time.Duration) bool { return used >= u.Terms.SilentAfter }

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
	// End is the hard end of the authority, on the central daemon's clock: contact does not
	// renew it. Zero: it has none.
	End forgeyard.Wall `cbor:"4,keyasint,omitempty"`
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

// Left is how long the grant still holds when used of silence was counted: until its
// silence is used up, or its hard end, whichever comes first. Zero or less: nothing may
// be started or go on under it. A hard end that no committed contact can place has come.
func (g Grant) Left(u Uplink, used time.Duration) time.Duration {
	left := g.Span(u.Terms) - used
	if g.End != 0 {
		left = min(left, g.untilEnd(u, used))
	}
	return left
}

// untilEnd is what is left before the hard end; the caller knows that there is one.
func (g Grant) untilEnd(u Uplink, used time.Duration) time.Duration {
	now := u.DaemonNow(used)
	if now == 0 {
		return 0
	}
	return time.Duration(g.End-now) * time.Millisecond
}

// Ended says in words why the grant holds no longer, or nothing while it does.
func (g Grant) Ended(u Uplink, used time.Duration) string {
	switch {
	case g.Left(u, used) > 0:
		return ""
	case u.State == Standalone:
		return "the site was disconnected from the central daemon that gave it"
	case g.End != 0 && g.untilEnd(u, used) <= 0:
		return "the central daemon's grant has reached its hard end"
	case u.Doubt != "":
		return "the central daemon's grant counts as used up: " + u.Doubt
	}
	return fmt.Sprintf("the central daemon's grant is used up: %s of silence, %s were allowed", used.Round(time.Second), g.Span(u.Terms))
}

// Finishes says why work that may take need must not begin now, or nothing: started work
// that cannot end within what is left would be stopped half-way. While contact renews the
// grant only a hard end is in the way; resumable work, which gives a checkpoint when it is
// asked to stop, may use what is left of a silence, and never runs into a hard end.
func (g Grant) Finishes(u Uplink, used, need time.Duration, resumable bool) string {
	if g.End != 0 {
		if left := g.untilEnd(u, used); need > left {
			return fmt.Sprintf("it may run for %s, and the grant's hard end is in %s", need, max(0, left.Round(time.Second)))
		}
	}
	if left := g.Left(u, used); u.Silent(used) && !resumable && need > left {
		return fmt.Sprintf("it may run for %s, and %s of the central daemon's allowance are left", need, max(0, left.Round(time.Second)))
	}
	return ""
}
