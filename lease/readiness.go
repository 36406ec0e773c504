package lease

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Facts are what one member says of itself that bear on whether the site could go on
// alone now, for as long as its allowance lasts. They are asked while the link is up:
// when it is down it is too late to mend anything.
type Facts struct {
	Node       string
	Heard      bool          // it answered lately; the rest is meaningless otherwise
	Told       bool          // it says these things: an older version does not
	Voter      bool          // its log copy counts
	Credential time.Duration // until its credential ends
	ClockSet   bool          // a battery or the network set its wall clock since the boot
	ClockOff   time.Duration // its wall clock against the leader's; positive: it is ahead
	StoreFree  int64         // bytes that its content store can still take
	SpoolFree  int64         // bytes that its log spool can still take
	StoreLimit int64         // what its node.yaml allows each; zero: no bound of its own
	SpoolLimit int64
}

// Promise is what the site is to keep.
type Promise struct {
	Allowance time.Duration
	Copies    int    // nodes that must hold a checkpoint or an output before it commits
	DriftPPM  int64  // of Terms
	Doubt     string // of Uplink
	// DaemonOff is the leader's wall clock against the central daemon's; known with DaemonTold.
	DaemonOff  time.Duration
	DaemonTold bool
}

// Want names what a site lacks to keep its promise. Append only.
type Want string

// What may be lacking.
const (
	WantCredential Want = "credential" // it ends before the allowance does
	WantClock      Want = "clock"      // nobody could say how much of the allowance is used
	WantStore      Want = "store"      // no room for results
	WantSpool      Want = "spool"      // no room for logs
	WantCopies     Want = "copies"     // a checkpoint could not be copied
	WantVoters     Want = "voters"     // the next loss stops the site
)

// Shortfall is one reason why a site could not keep its promise.
type Shortfall struct {
	Node   string `cbor:"1,keyasint,omitempty"` // whose; empty: the site's
	What   Want   `cbor:"2,keyasint"`
	Detail string `cbor:"3,keyasint"`
}

func (s Shortfall) String() string {
	if s.Node == "" {
		return string(s.What) + ": " + s.Detail
	}
	return s.Node + ": " + string(s.What) + ": " + s.Detail
}

// Readiness says what keeps the site from going on alone for its whole allowance, in a
// fixed order; nothing: it is ready.
func Readiness(p Promise, all []Facts) []Shortfall {
	var out []Shortfall
	lack := func(node string, what Want, format string, args ...any) {
		out = append(out, Shortfall{node, what, fmt.Sprintf(format, args...)})
	}
	if p.Doubt != "" {
		lack("", WantClock, "%s", p.Doubt)
	}
	if off := p.DaemonOff.Abs(); p.DaemonTold && off > maxClockOff {
		lack("", WantClock, "the leader's wall clock is %s off the central daemon's, the bound is %s", off.Round(time.Second), maxClockOff)
	}
	heard, voters, voting := 0, 0, 0
	for _, f := range all {
		if f.Voter {
			voters++
		}
		if !f.Heard {
			continue
		}
		heard++
		if f.Voter {
			voting++
		}
		if f.Told {
			out = append(out, f.lacks(p)...)
		}
	}
	if heard < p.Copies {
		lack("", WantCopies, "%d nodes answer, a checkpoint must be on %d", heard, p.Copies)
	}
	if voters > 1 && 2*(voting-1) <= voters {
		lack("", WantVoters, "%d of %d voters answer: without one more of them nothing can be decided", voting, voters)
	}
	slices.SortStableFunc(out, func(a, b Shortfall) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.What, b.What))
	})
	return out
}

// lacks is the part of one member.
func (f Facts) lacks(p Promise) []Shortfall {
	var out []Shortfall
	lack := func(what Want, format string, args ...any) {
		out = append(out, Shortfall{f.Node, what, fmt.Sprintf(format, args...)})
	}
	if need := Stretch(p.Allowance, Terms{DriftPPM: p.DriftPPM}); f.Credential < need {
		lack(WantCredential, "it is good for %s, the allowance is %s", max(0, f.Credential.Round(time.Second)), p.Allowance)
	}
	if !f.ClockSet {
		lack(WantClock, "nothing has set its wall clock since the boot: after a loss of power nobody could say how long the uplink was silent")
	}
	if off := f.ClockOff.Abs(); off > maxClockOff {
		lack(WantClock, "its wall clock is %s off the leader's, the bound is %s", off.Round(time.Second), maxClockOff)
	}
	if need := room(f.StoreLimit); f.StoreFree < need {
		lack(WantStore, "it has room for %d MiB of content, %d MiB are needed", max(0, f.StoreFree)>>20, need>>20)
	}
	if need := room(f.SpoolLimit); f.SpoolFree < need {
		lack(WantSpool, "it has room for %d MiB of logs, %d MiB are needed", max(0, f.SpoolFree)>>20, need>>20)
	}
	return out
}

// room is what must be free where limit is all that may be used.
func room(limit int64) int64 {
	if limit > 0 {
		return min(minOfflineRoom, limit/2)
	}
	return minOfflineRoom
}

// SameWants reports whether two answers lack the same things of the same nodes. The words
// carry figures that change with every look.
func SameWants(a, b []Shortfall) bool {
	return slices.EqualFunc(a, b, func(x, y Shortfall) bool { return x.Node == y.Node && x.What == y.What })
}

const (
	// maxClockOff is how far a wall clock may be off: it is the last resort of a cold boot,
	// where a minute is a minute of the allowance.
	maxClockOff = time.Minute
	// minOfflineRoom is the least room for what piles up while nobody takes it: four times
	// the free space below which a node takes no work.
	minOfflineRoom = 256 << 20
)
