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

// skewFresh is how long a peer's reading of its clock is believed: crystals drift apart by
// seconds a day.
const skewFresh = 24 * time.Hour

// ClockOff is how far this node's wall clock is ahead of the median of its peers', by what
// they said when they last met; of is how many said so. It is for people and for doctor,
// never for authority.
func (m *Mesh) ClockOff() (off time.Duration, of int) {
	all := m.clockOffs()
	if len(all) == 0 {
		return 0, 0
	}
	return all[len(all)/2], len(all)
}

// ClockAgainst counts the peers whose clocks say that this node's is off by at least a bound,
// all to the same side, of those that said what theirs reads. Where they are most, and more
// than one, it is this node's clock that is wrong and not one of theirs.
func (m *Mesh) ClockAgainst(bound time.Duration) (against, of int) {
	ahead, behind := 0, 0
	all := m.clockOffs()
	for _, off := range all {
		switch {
		case off >= bound:
			ahead++
		case off <= -bound:
			behind++
		}
	}
	return max(ahead, behind), len(all)
}

// clockOffs are how far this node's wall clock is ahead of each peer's, the least first.
func (m *Mesh) clockOffs() []time.Duration {
	now, wall := m.clk.Now(), m.clk.Wall()
	var all []time.Duration
	for _, d := range m.Doors() {
		if !d.reads.IsZero() && now.Sub(d.At) < skewFresh {
			all = append(all, wall.Sub(d.reads.Add(time.Duration(now))))
		}
	}
	slices.Sort(all)
	return all
}
