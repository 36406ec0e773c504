package reckon

import (
	"fmt"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/lease"
)

// Sighting is the last figure of silence that a voter saw applied, and when.
//
//	file = CBOR {1 index, 2 boot id, 3 instant, 4 wall time of the figure}
type Sighting struct {
	Index   uint64            `cbor:"1,keyasint"`
	Boot    string            `cbor:"2,keyasint"`
	Instant forgeyard.Instant `cbor:"3,keyasint"` // no later than the moment at which the figure was true
	Wall    forgeyard.Wall    `cbor:"4,keyasint"` // of the figure, by its proposer's clock
}

// Encode gives the bytes of the file.
func (s Sighting) Encode() []byte { return cborx.Marshal(s) }

// DecodeSighting reads them.
func DecodeSighting(b []byte) (Sighting, error) {
	var s Sighting
	if err := cborx.UnmarshalCanonical(b, &s); err != nil {
		return Sighting{}, err
	}
	if s.Index == 0 || s.Instant <= 0 || len(s.Boot) > maxBootID {
		return Sighting{}, forgeyard.Errorf("uplink witness", forgeyard.Invalid, "index %d or instant %d is not possible", s.Index, s.Instant)
	}
	return s, nil
}

// Reading is one look at a machine's clocks.
type Reading struct {
	Now     forgeyard.Instant
	Wall    time.Time
	Boot    string
	TimeSet bool // the wall clock was set since the boot, by a battery or by the network
}

// Memory is what a voter remembers: evidence, never authority. All it can do is to
// make the count larger.
type Memory struct {
	Seen Sighting
	Own  bool // Seen was seen by this process

	// Of Seen, if it is our own: when it came, the figure, and the contact it counts from.
	came     forgeyard.Instant
	used     time.Duration
	contacts uint64
}

// Saw takes in the uplink's record after an entry that changed it was applied live, and
// reports whether that was news.
//
// The figure was true when its proposer read the clock, a little before it was applied. By
// how much is told by the wall clocks, and, since this one's may run behind the proposer's
// and hide it, by the figure before: if it grew by less than the time that passed here, the
// rest is how much later it came than that one. If it is too much, this node was paused or
// cut off, and it saw nothing live. What no clock shows is the delay that is common to all
// figures, the way through the log: a first figure after a contact that comes late to a
// node whose wall clock is behind by as much counts from its arrival, until the next.
func (m *Memory) Saw(u lease.Uplink, r Reading) bool {
	late := max(time.Duration(forgeyard.WallOf(r.Wall)-u.MarkedAt)*time.Millisecond, m.laterThanLast(u, r.Now), 0)
	known := u.Marked == m.Seen.Index || u.Marked < m.Seen.Index && m.Own
	if u.Marked == 0 || known || late > lateBy || forgeyard.Instant(late) >= r.Now {
		return false
	}
	m.Seen = Sighting{Index: u.Marked, Boot: r.Boot, Instant: r.Now.Add(-late), Wall: u.MarkedAt}
	m.Own, m.came, m.used, m.contacts = true, r.Now, u.Used, u.Contacts
	return true
}

// laterThanLast is how much longer the figure was on its way than the one seen before, by
// this node's own clock; zero or less where the two do not count from one contact.
func (m *Memory) laterThanLast(u lease.Uplink, now forgeyard.Instant) time.Duration {
	if !m.Own || u.Contacts != m.contacts || u.Used < m.used {
		return 0
	}
	return now.Sub(m.came) - (u.Used - m.used)
}

// Elapsed says how long ago the figure of the given log index was committed: by
// the sleep-proof clock if it was seen live in this boot, else by the wall clock. at
// is the wall time of the figure, where the caller knows it from the state; zero
// otherwise.
func (m Memory) Elapsed(marked uint64, at forgeyard.Wall, r Reading) Vouch {
	sameBoot := m.Own || r.Boot != "" && m.Seen.Boot == r.Boot
	if m.Seen.Index == marked && sameBoot && r.Now >= m.Seen.Instant {
		return Vouch{Known: true, Elapsed: r.Now.Sub(m.Seen.Instant), How: ByBoot}
	}
	if at == 0 && m.Seen.Index == marked {
		at = m.Seen.Wall
	}
	switch by := forgeyard.WallOf(r.Wall); {
	case at == 0:
		return Vouch{Why: fmt.Sprintf("the figure of index %d was not seen", marked)}
	case m.Seen.Boot != r.Boot && !r.TimeSet:
		return Vouch{Why: "the wall clock was not set since the boot"}
	case by < at:
		return Vouch{Why: fmt.Sprintf("the wall clock reads %s, earlier than the log's %s", r.Wall.UTC().Format(time.RFC3339), at.Time().Format(time.RFC3339))}
	default:
		return Vouch{Known: true, Elapsed: by.Time().Sub(at.Time()), How: ByWall}
	}
}
