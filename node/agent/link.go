package agent

import (
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Link decides by whom this node reaches the leader, how long it waits after a failure,
// and when it stops trying (07§189–190, §194–196).
//
//	           answer                    silentAfter failures
//	connecting ──────▶ online ─────────────────────────────▶ reconnecting
//	                     ▲                   answer                │
//	                     └─────────────────────────────────────────┘
//	any ──▶ ended(revoked | incompatible)      any ⇄ disabled, as the log says
//
// It asks one peer at a time (07§195) and keeps to one that works. The leader itself is
// asked first; where it cannot be reached, a member that may vote passes on what is asked,
// and the leader is tried again only after homeAfter, so that a link which comes and goes
// is not followed at every turn. After a failure the next peer is asked almost at once; when
// all were asked in vain, the waits double up to a bound. Every wait is drawn from the
// given source, so that many nodes that lose one leader do not return in one instant.
//
// Invariants: it never ends for silence; a wait is never zero and never above its bound.
// One goroutine owns it.
type Link struct {
	draw func() float64 // of [0, 1)
	pace Pace

	term   uint64 // of the leader that was last seen
	stick  string // who answered last; empty after it failed
	since  forgeyard.Instant
	failed map[string]failure
	round  map[string]bool // asked in vain since the last answer or round
	rounds int

	fails    int // in a row
	answered forgeyard.Instant
	returns  int
	tries    int
	ended    End
}

type failure struct {
	at    forgeyard.Instant
	times int
}

// Pace bounds the waits.
type Pace struct {
	First time.Duration // after the first failure
	Most  time.Duration // between two tries at the longest
}

// Bounds of the link.
const (
	// silentAfter failures in a row are silence.
	silentAfter = 3
	// homeAfter is how long a link by way of a member is kept before the leader is tried.
	homeAfter = 30 * time.Second
	// shunMost is the longest that a peer which failed is asked only when no other is left.
	shunFirst = time.Second
	shunMost  = 30 * time.Second
)

// View is what the node knows of the site at the moment.
type View struct {
	Leader string // who leads as far as is known here; empty: nobody
	Term   uint64
	// Members may pass on what is asked: they may vote. Without this node.
	Members []string
	// Busy bounds the waits further while leases are held here: the time between two
	// renewals. Zero: none is held.
	Busy time.Duration
}

// End is why the link ended for good.
type End string

// Ends. Append only.
const (
	NotEnded     End = ""
	Revoked      End = "revoked"      // the node was removed from the site
	Incompatible End = "incompatible" // no member speaks a version that this program speaks
)

// LinkState is how the link is.
type LinkState string

// Link states (07§12 has words for the node as a whole; these are for the link alone).
const (
	LinkConnecting   LinkState = "connecting"
	LinkOnline       LinkState = "online"
	LinkReconnecting LinkState = "reconnecting"
	LinkEnded        LinkState = "ended"
)

// NewLink returns a link that has asked nobody yet.
func NewLink(p Pace, draw func() float64) *Link {
	return &Link{draw: draw, pace: p, failed: map[string]failure{}, round: map[string]bool{}}
}

// SetPace bounds the waits from now on.
func (l *Link) SetPace(p Pace) { l.pace = p }

// Route names whom to ask now; empty: nobody is known.
func (l *Link) Route(now forgeyard.Instant, v View) string {
	if v.Term > l.term {
		l.term = v.Term
		if v.Leader != "" {
			// A new leader is asked itself, whatever failed before it led.
			l.stick = ""
			delete(l.failed, v.Leader)
		}
	}
	home := v.Leader != "" && !l.shunned(now, v.Leader)
	switch {
	case l.stick != "" && l.stick == v.Leader:
		return l.stick
	case l.stick != "" && slices.Contains(v.Members, l.stick) && (!home || now.Sub(l.since) < homeAfter):
		return l.stick
	case home && !l.round[v.Leader]:
		return v.Leader
	}
	return l.another(now, v)
}

// another is the member that is asked instead: one that was not asked in vain in this
// round, the one whose failure is longest ago first, each node in an order of its own.
func (l *Link) another(now forgeyard.Instant, v View) string {
	all := slices.Clone(v.Members)
	if v.Leader != "" && !slices.Contains(all, v.Leader) {
		all = append(all, v.Leader)
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	from := int(l.draw() * float64(len(all)))
	all = append(all[from:], all[:from]...)
	best, bestKey := "", [3]int64{}
	for _, p := range all {
		key := [3]int64{0, 0, int64(l.failed[p].at)}
		if l.round[p] {
			key[0] = 1
		}
		if l.shunned(now, p) {
			key[1] = 1
		}
		if best == "" || slices.Compare(key[:], bestKey[:]) < 0 {
			best, bestKey = p, key
		}
	}
	return best
}

func (l *Link) shunned(now forgeyard.Instant, p string) bool {
	f, ok := l.failed[p]
	return ok && now.Sub(f.at) < min(shunFirst<<min(f.times-1, 10), shunMost)
}

// Answered is told that a peer answered for the leader. It reports whether the link was
// silent before.
func (l *Link) Answered(now forgeyard.Instant, p string) (returned bool) {
	returned = l.fails >= silentAfter
	if returned {
		l.returns++
	}
	if p != l.stick {
		l.stick, l.since = p, now
	}
	delete(l.failed, p)
	clear(l.round)
	l.fails, l.rounds, l.answered = 0, 0, now
	return returned
}

// Failed is told that a peer did not answer, or cannot reach the leader itself. It returns
// how long to wait before the next try.
func (l *Link) Failed(now forgeyard.Instant, p string, v View) time.Duration {
	l.fails++
	l.tries++
	if p != "" {
		f := l.failed[p]
		l.failed[p] = failure{at: now, times: f.times + 1}
		l.round[p] = true
	}
	if p == l.stick {
		l.stick = ""
	} else if l.stick != "" {
		l.since = now // the way home is shut: it is tried again after as long
	}
	for _, m := range v.Members {
		if !l.round[m] {
			return l.within(l.pace.First) // somebody else may answer
		}
	}
	clear(l.round)
	l.rounds++
	d := l.pace.Most
	if l.rounds < 20 {
		d = min(d, l.pace.First<<l.rounds)
	}
	if v.Busy > 0 {
		d = min(d, v.Busy)
	}
	return l.within(d)
}

// within draws a wait of (d/2, d].
func (l *Link) within(d time.Duration) time.Duration {
	return d - time.Duration(l.draw()*float64(d/2))
}

// DoorRefusal is why a member refused this node at the door.
type DoorRefusal struct {
	Peer string
	Why  End
}

// Refused is told what the members said at the door when they were last asked. The link ends
// when more than half of them say that this node was removed: one that lies is not enough,
// and what the log itself says needs none of them; or when none of them speaks a version
// that this program speaks, since while one does, the others are being upgraded.
func (l *Link) Refused(v View, said []DoorRefusal) End {
	count := map[End]int{}
	for _, r := range said {
		if slices.Contains(v.Members, r.Peer) {
			count[r.Why]++
		}
	}
	switch n := len(v.Members); {
	case n == 0:
	case 2*count[Revoked] > n:
		l.ended = Revoked
	case count[Incompatible] == n:
		l.ended = Incompatible
	}
	return l.ended
}

// Ended is told that the log itself ended the link.
func (l *Link) Ended(why End) { l.ended = why }

// LinkStatus is what there is to know of a link.
type LinkStatus struct {
	State    LinkState
	End      End
	Peer     string            // who answers, or answered last
	Direct   bool              // Peer leads
	Answered forgeyard.Instant // of the last answer; zero: none yet
	Fails    int               // in a row
	Tries    int               // that failed, in all
	Returns  int               // after silence
}

// Status tells how the link is.
func (l *Link) Status(v View) LinkStatus {
	s := LinkStatus{State: LinkOnline, End: l.ended, Peer: l.stick, Direct: l.stick != "" && l.stick == v.Leader, Answered: l.answered, Fails: l.fails, Tries: l.tries, Returns: l.returns}
	switch {
	case l.ended != NotEnded:
		s.State = LinkEnded
	case l.answered == 0:
		s.State = LinkConnecting
	case l.fails >= silentAfter:
		s.State = LinkReconnecting
	}
	return s
}
