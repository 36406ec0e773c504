package mesh

import (
	"io"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
)

// Class is what a peer is to this node; protocols are opened by class.
type Class uint8

const (
	// ClassStranger has shown nothing yet. It opens hello and join, nothing else.
	ClassStranger Class = iota
	// ClassMember holds a valid credential of this node's own site.
	ClassMember
	// ClassUplink is the pinned central daemon, seen from a site.
	ClassUplink
	// ClassSite is a member of a site, seen from the central daemon.
	ClassSite
)

func (c Class) String() string {
	if names := [...]string{"stranger", "member", "uplink", "site"}; int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

type classSet uint32

func newClassSet(classes []Class) classSet {
	var s classSet
	for _, c := range classes {
		s |= 1 << c
	}
	return s &^ (1 << ClassStranger) // nothing registered by others is ever open to strangers
}

func (s classSet) has(c Class) bool { return s&(1<<c) != 0 }

// Peer is an admitted remote. Comparable.
type Peer struct {
	ID      peer.ID
	Runner  forgeyard.RunnerID  // empty for the central daemon
	Site    forgeyard.SiteID    // the site that signed its credential; empty if it was pinned
	Session forgeyard.SessionID // the process that said hello last
	Class   Class
	Expires time.Time // of its credential, by wall clock; zero if it was pinned
}

// entry is what is known of one peer while it has a connection.
type entry struct {
	peer     Peer
	admitted bool  // its hello was accepted by us
	helloed  bool  // and ours by it, on the libp2p connectivity that exists now
	refusal  error // why the last hello failed; nil after a good one
	joins    int   // joins running: the connection is not timed out meanwhile
	strikes  int   // streams refused while a stranger
	waiters  int   // streams that wait for the hello
	conns    map[network.Conn]forgeyard.Instant
	told     map[network.Conn]bool // conns that member notifiees were told of
	directs  map[io.Closer]struct{}
	changed  chan struct{}
	flight   *helloFlight
}

type helloFlight struct {
	done chan struct{}
	err  error
}

func (e *entry) idle() bool {
	return len(e.conns) == 0 && len(e.directs) == 0 && e.joins == 0 && e.waiters == 0 && e.flight == nil
}

// table is the membership as this node sees it now: trust lives exactly as long
// as a connection does. No callback runs under mu.
type table struct {
	mu      sync.Mutex
	peers   map[peer.ID]*entry
	pins    map[peer.ID]Class
	known   map[peer.ID]struct{} // addresses we were given by a trusted source: not counted as strangers
	revoked map[peer.ID]struct{}
}

func newTable() *table {
	return &table{peers: map[peer.ID]*entry{}, pins: map[peer.ID]Class{}, known: map[peer.ID]struct{}{}, revoked: map[peer.ID]struct{}{}}
}

// with runs f on p's entry and forgets the entry if nothing holds it any more.
func (t *table) with(p peer.ID, f func(*entry)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.peers[p]
	if e == nil {
		e = &entry{conns: map[network.Conn]forgeyard.Instant{}, told: map[network.Conn]bool{}, directs: map[io.Closer]struct{}{}, changed: make(chan struct{})}
		t.peers[p] = e
	}
	f(e)
	if e.idle() {
		delete(t.peers, p)
		close(e.changed)
	}
}

// wake tells everyone who waits for a change of the entry. Under mu.
func (e *entry) wake() {
	close(e.changed)
	e.changed = make(chan struct{})
}

func (t *table) get(p peer.ID) (Peer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.peers[p]; e != nil && e.admitted {
		return e.peer, true
	}
	return Peer{}, false
}

// admit records an accepted hello. overStream: it came on a libp2p connection, so streams may follow there.
// It returns the connections that member notifiees have not heard of.
func (t *table) admit(p Peer, overStream bool) (fresh []network.Conn, isNew bool) {
	t.with(p.ID, func(e *entry) {
		isNew = !e.admitted
		e.peer, e.admitted, e.refusal, e.strikes = p, true, nil, 0
		e.helloed = e.helloed || overStream
		fresh = e.untold()
		e.wake()
	})
	return fresh, isNew
}

func (e *entry) untold() (fresh []network.Conn) {
	for c := range e.conns {
		if !e.told[c] {
			e.told[c] = true
			fresh = append(fresh, c)
		}
	}
	return fresh
}

func (t *table) refuse(p peer.ID, err error) {
	t.with(p, func(e *entry) { e.refusal = err; e.wake() })
}

// connected notes a libp2p connection; tell is true if notifiees of members should hear of it now.
func (t *table) connected(c network.Conn, now forgeyard.Instant) (tell bool) {
	t.with(c.RemotePeer(), func(e *entry) {
		e.conns[c] = now
		if tell = e.admitted; tell {
			e.told[c] = true
		}
	})
	return tell
}

func (t *table) disconnected(c network.Conn) (tell bool, lost Peer, gone bool) {
	t.with(c.RemotePeer(), func(e *entry) {
		tell = e.told[c]
		delete(e.conns, c)
		delete(e.told, c)
		if len(e.conns) == 0 {
			e.helloed = false
			if len(e.directs) == 0 {
				lost, gone = e.peer, e.admitted
				e.admitted = false
			}
		}
		e.wake()
	})
	return tell, lost, gone
}

// track ties a direct connection to its peer, so that dropping the peer closes it.
func (t *table) track(p Peer, c io.Closer) error {
	var err error
	t.with(p.ID, func(e *entry) {
		if len(e.directs) >= maxDirectPerPeer {
			err = forgeyard.Errorf("mesh", forgeyard.Limit, "peer %s has %d direct connections, the limit is %d", p.ID, len(e.directs), maxDirectPerPeer)
			return
		}
		e.directs[c] = struct{}{}
		e.peer, e.admitted, e.refusal = p, true, nil
		e.wake()
	})
	return err
}

func (t *table) untrack(p peer.ID, c io.Closer) (lost Peer, gone bool) {
	t.with(p, func(e *entry) {
		if _, ok := e.directs[c]; !ok {
			return
		}
		delete(e.directs, c)
		if len(e.directs) == 0 && len(e.conns) == 0 {
			lost, gone = e.peer, e.admitted
			e.admitted = false
		}
	})
	return lost, gone
}

// expel makes the peer a stranger again and returns what must be closed.
func (t *table) expel(p peer.ID, why error) (directs []io.Closer, lost Peer, was bool) {
	t.with(p, func(e *entry) {
		lost, was = e.peer, e.admitted
		e.admitted, e.helloed, e.refusal = false, false, why
		for c := range e.directs {
			directs = append(directs, c)
		}
		e.wake()
	})
	return directs, lost, was
}

// joinFlight returns the hello that is on its way to p, or starts one.
func (t *table) joinFlight(p peer.ID) (f *helloFlight, leader, done bool) {
	t.with(p, func(e *entry) {
		if e.admitted && e.helloed {
			done = true
			return
		}
		if leader = e.flight == nil; leader {
			e.flight = &helloFlight{done: make(chan struct{})}
		}
		f = e.flight
	})
	return f, leader, done
}

func (t *table) endFlight(p peer.ID, f *helloFlight, err error) {
	t.with(p, func(e *entry) { e.flight = nil })
	f.err = err
	close(f.done)
}

// strangers counts connections that are neither admitted, nor pinned, nor expected.
func (t *table) strangers() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.peers {
		if !e.admitted && !t.expectedLocked(id) {
			n += len(e.conns)
		}
	}
	return n
}

func (t *table) expected(p peer.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.expectedLocked(p)
}

func (t *table) expectedLocked(p peer.ID) bool {
	if _, bad := t.revoked[p]; bad {
		return false
	}
	_, pinned := t.pins[p]
	_, known := t.known[p]
	e := t.peers[p]
	return pinned || known || (e != nil && e.admitted)
}

func (t *table) snapshot() (admitted []Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.peers {
		if e.admitted {
			admitted = append(admitted, e.peer)
		}
	}
	return admitted
}

// overdue returns connections of strangers that had their time, or too many streams.
func (t *table) overdue(now forgeyard.Instant) (late []network.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.peers {
		if e.admitted {
			continue
		}
		for c, since := range e.conns {
			tooLong := now.Sub(since) > strangerGrace && e.joins == 0
			if tooLong || e.strikes > maxStrikes || len(c.GetStreams()) > maxStrangerStreams {
				late = append(late, c)
			}
		}
	}
	return late
}
