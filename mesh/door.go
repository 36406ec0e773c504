package mesh

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

// Refusal says why one side does not let the other in, for programs; the error's text says
// it for people. It travels: append only.
type Refusal uint8

// Refusals.
const (
	RefusedOther   Refusal = iota // no more is known than the text
	RefusedRevoked                // the one refused was removed from the site
	RefusedVersion                // the two speak no common version
	RefusedExpired                // the credential's time is over, by the clock of who refuses
)

// because marks an error with what it means for programs.
type because struct {
	error
	why Refusal
}

func (b because) Unwrap() error { return b.error }

func refusedFor(why Refusal, err *forgeyard.Error) *forgeyard.Error {
	err.Err = because{err.Err, why}
	return err
}

// WhyRefused is the refusal that an error of this package stands for.
func WhyRefused(err error) Refusal {
	var b because
	if errors.As(err, &b) {
		return b.why
	}
	return RefusedOther
}

// Door is how the last hello that this node began with a peer went.
type Door struct {
	Peer peer.ID
	At   forgeyard.Instant
	Why  Refusal
	// Ours is set when this node refused the peer, not the peer this node.
	Ours bool
	Err  error // nil: both let the other in
	// reads is what the peer's wall clock reads when our sleep-proof clock reads zero, so
	// that setting our wall clock right shows at once. Zero: it did not say.
	reads time.Time
}

// offAt is how far a wall clock is ahead of the peer's, at an instant of ours.
func (d Door) offAt(now forgeyard.Instant, wall time.Time) time.Duration {
	return wall.Sub(d.reads.Add(time.Duration(now)))
}

// met notes how a hello went. Only peers whose addresses we were given are dialled, so
// there are as many doors as members.
func (m *Mesh) met(d Door) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.doors[d.Peer] = d
}

// Doors lists how the last hello with each peer went.
func (m *Mesh) Doors() []Door {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Door
	for _, d := range m.doors {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Door) int { return strings.Compare(string(a.Peer), string(b.Peer)) })
	return out
}

const (
	// skewFresh is how long a peer's reading of its clock is told to people: crystals drift
	// apart by seconds a day.
	skewFresh = 24 * time.Hour
	// skewCounts is how old a reading may be that counts against our own clock: the peer's may
	// have been set since, and its connection stays.
	skewCounts = time.Minute
	// skewAgain is how long after a reading, or an attempt to get one, it is asked for anew.
	skewAgain = 10 * time.Second
)

// ClockOff is how far this node's wall clock is ahead of the median of its peers', by what
// they said when they last met; of is how many said so. It is for people and for doctor,
// never for authority.
func (m *Mesh) ClockOff() (off time.Duration, of int) {
	now, wall := m.clk.Now(), m.clk.Wall()
	var all []time.Duration
	for _, d := range m.clocks(now) {
		all = append(all, d.offAt(now, wall))
	}
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)/2], len(all)
}

// ClockAgainst counts the peers whose clocks say that this node's is off by at least a bound,
// all to the same side, of those that said what theirs reads. Where they are most, and more
// than one, it is this node's clock that is wrong and not one of theirs. What was against it
// and is older than skewCounts does not count; AskClocks gets it anew.
func (m *Mesh) ClockAgainst(bound time.Duration) (against, of int) {
	ahead, behind := 0, 0
	now, wall := m.clk.Now(), m.clk.Wall()
	for _, d := range m.clocks(now) {
		switch off := d.offAt(now, wall); {
		case off.Abs() < bound:
			of++
		case now.Sub(d.At) >= skewCounts:
		case off > 0:
			ahead, of = ahead+1, of+1
		default:
			behind, of = behind+1, of+1
		}
	}
	return max(ahead, behind), of
}

// AskClocks says hello anew to the peers whose clocks, as they read at the last hello, are off
// this node's by at least a bound: they may have been set since, and so may ours. It waits for
// no answer.
func (m *Mesh) AskClocks(bound time.Duration) {
	now, wall := m.clk.Now(), m.clk.Wall()
	for _, d := range m.clocks(now) {
		if d.offAt(now, wall).Abs() < bound || now.Sub(d.At) < skewAgain || !m.asksClock(d.Peer, now) {
			continue
		}
		m.spawn(func() {
			if err := m.sayHello(d.Peer); err != nil {
				m.log.Debug("no hello for the peer's clock", "peer", d.Peer, "error", err)
			}
		})
	}
}

// asksClock notes that a peer is asked, unless it was lately.
func (m *Mesh) asksClock(p peer.ID, now forgeyard.Instant) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at, ok := m.asked[p]; ok && now.Sub(at) < skewAgain {
		return false
	}
	m.asked[p] = now
	return true
}

// clocks are the doors whose peers said what their clocks read, not too long ago.
func (m *Mesh) clocks(now forgeyard.Instant) []Door {
	return slices.DeleteFunc(m.Doors(), func(d Door) bool { return d.reads.IsZero() || now.Sub(d.At) >= skewFresh })
}
