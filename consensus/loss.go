package consensus

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// lossWatch lets a follower act on a leader whose process ended, instead of waiting for
// raft's timer. A process that ends resets its connections, and refuses new ones:
//
//	a connection that a peer opened here ends
//	   ─▶ is the leader there?   it refuses at once: lost.  anything else: the timer's matter
//	   ─▶ did you lose it too?   most voters say so: stand.  anything else: the timer's matter
//
// A leader that lives is not disturbed. A voter that hears it says no, and until most
// voters have said yes no term is raised, here or elsewhere. The question is raft's own
// pre-vote, so an older peer answers it by raft's rules: no, while it knows a leader.
//
// Those who lost the same leader agree on who stands: the longest log first, then the
// smallest id. Who said yes to a better one does not stand itself. All of this only
// decides when an election begins; what elects is raft's vote, once a term, on disk.
type lossWatch struct {
	in     *instance
	t      *guardedTransport
	broken chan struct{}  // capacity 1: an accepted connection has ended
	stand  chan candidacy // to relay

	mu       sync.Mutex // guards what is below
	contacts uint64     // calls of a leader so far
	probe    net.Conn   // its read is ended by the next one
	lost     *loss      // nil while there is, or may be, a leader
	yielded  *standing  // the best of those that got our word since
	stood    *candidacy // the last one that raft was told
}

// loss is a leader that refuses connections, and the term that it leads.
type loss struct {
	id   raft.ServerID
	addr raft.ServerAddress
	term uint64
}

// standing orders those who would stand.
type standing struct {
	log position
	id  raft.ServerID
}

func (s standing) better(o standing) bool {
	if c := s.log.compare(o.log); c != 0 {
		return c > 0
	}
	return cmp.Less(s.id, o.id)
}

// candidacy is an election that most voters agreed to.
type candidacy struct {
	of      loss
	granted map[raft.ServerID]bool
}

func newLossWatch(in *instance, t *guardedTransport) *lossWatch {
	return &lossWatch{in: in, t: t, broken: in.broken, stand: make(chan candidacy)}
}

// patience is how long a loss is looked into: after it, raft's own timer may run out.
func (w *lossWatch) patience() time.Duration {
	return min(w.in.g.cfg.Timings.Heartbeat, w.in.g.cfg.Timings.RPC)
}

// run ends with the transport.
func (w *lossWatch) run() {
	for {
		select {
		case <-w.broken:
		case <-w.t.quit:
			return
		}
		l, ok := w.leader()
		if !ok {
			continue
		}
		if w.in.g.cfg.off.alone {
			w.offer(candidacy{of: l, granted: w.others(l)})
			continue
		}
		if w.gone(l) {
			w.campaign(l)
		}
	}
}

// leader is whom this node follows.
func (w *lossWatch) leader() (loss, bool) {
	term := w.in.g.Term()
	addr, id := w.in.raft.LeaderWithID()
	ok := addr != "" && string(id) != w.in.g.cfg.LocalID && w.in.raft.State() == raft.Follower && term == w.in.g.Term()
	return loss{id: id, addr: addr, term: term}, ok
}

// heard is told of every call that only a leader makes.
func (w *lossWatch) heard(term uint64) {
	if term < w.in.g.Term() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.contacts++
	w.lost, w.yielded = nil, nil
	if w.probe != nil {
		// It has served. Its read ends, and who reads closes it: to close waits for a peer that
		// may be gone, and no call of a peer is looked at before we return.
		_ = w.probe.SetReadDeadline(time.Unix(1, 0))
		w.probe = nil
	}
}

// gone reports whether the leader refuses connections. One that accepts is watched until
// it says something or hangs up: a process that is ending still accepts for a moment.
func (w *lossWatch) gone(l loss) bool {
	w.mu.Lock()
	seen := w.contacts
	w.mu.Unlock()
	clk, most := w.in.g.cfg.Clock, w.patience()
	for end := clk.Now().Add(most); ; {
		began := clk.Now()
		left := end.Sub(began)
		if left <= 0 {
			return false
		}
		if r, ok := w.in.lent.owner.inner.(Refuser); ok && r.Refuses(l.addr, left) {
			return clk.Now() < end
		}
		conn, err := w.in.lent.Dial(l.addr, left)
		if err != nil { // clocks differ: what took half of the time may have timed out
			return refused(err) && clk.Now().Sub(began) < left/2
		}
		if w.alive(conn, seen, left) || !w.pause(lossStep) {
			return false
		}
	}
}

// pause reports false when the transport is closed.
func (w *lossWatch) pause(d time.Duration) bool {
	select {
	case <-w.in.g.cfg.Clock.After(d):
		return true
	case <-w.t.quit:
		return false
	}
}

// refused tells a peer that is not there from one that is silent, or will not have us.
func refused(err error) bool {
	var n net.Error
	switch k := forgeyard.KindOf(err); {
	case k != forgeyard.Other && k != forgeyard.Unavailable:
		return false
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
		return false
	}
	return !errors.As(err, &n) || !n.Timeout()
}

// alive holds a connection to the leader and reports false when it was hung up.
func (w *lossWatch) alive(conn net.Conn, seen uint64, most time.Duration) bool {
	defer conn.Close()
	w.mu.Lock()
	if w.contacts != seen {
		w.mu.Unlock()
		return true
	}
	w.probe = conn
	w.mu.Unlock()
	var err error
	if err = conn.SetReadDeadline(time.Now().Add(most)); err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probe = nil
	return w.contacts != seen || err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// campaign asks the other voters until most have lost the leader too.
func (w *lossWatch) campaign(l loss) {
	w.mu.Lock()
	if w.lost == nil || *w.lost != l {
		w.lost, w.yielded = &l, nil
	}
	w.mu.Unlock()
	clk := w.in.g.cfg.Clock
	end := clk.Now().Add(w.patience())
	// They notice within moments of each other. Whose turn it is asks first, and is
	// asked for a yes before the next one's turn comes.
	for wait := time.Duration(w.rank(l)) * lossStep; ; wait = min(2*wait+lossStep, 8*lossStep) {
		if !w.pause(wait) || clk.Now() >= end || !w.may(l) {
			return
		}
		if granted, ok := w.ask(l); ok {
			w.offer(candidacy{of: l, granted: granted})
			return
		}
	}
}

// rank is how many other voters have the earlier turn.
func (w *lossWatch) rank(l loss) (n int) {
	for _, s := range w.in.servers() {
		if s.Suffrage == raft.Voter && s.ID != l.id && string(s.ID) < w.in.g.cfg.LocalID {
			n++
		}
	}
	return n
}

// may reports whether this node may still stand because of this loss.
func (w *lossWatch) may(l loss) bool {
	w.mu.Lock()
	same := w.lost != nil && *w.lost == l && w.yielded == nil
	w.mu.Unlock()
	return same && w.in.g.Term() == l.term && w.in.raft.State() == raft.Follower && w.votes(w.in.g.cfg.LocalID) && w.in.voteless() == nil
}

func (w *lossWatch) votes(id string) bool {
	for _, s := range w.in.servers() {
		if string(s.ID) == id {
			return s.Suffrage == raft.Voter
		}
	}
	return false
}

// others are the voters besides this node and the leader.
func (w *lossWatch) others(l loss) map[raft.ServerID]bool {
	m := map[raft.ServerID]bool{}
	for _, s := range w.in.servers() {
		if s.Suffrage == raft.Voter && s.ID != l.id && string(s.ID) != w.in.g.cfg.LocalID {
			m[s.ID] = true
		}
	}
	return m
}

// ask reports who said yes, and whether that is most voters, this one included.
func (w *lossWatch) ask(l loss) (granted map[raft.ServerID]bool, most bool) {
	term, index, err := w.in.g.LastEntry()
	if err != nil {
		return nil, false
	}
	answers := make(chan raft.ServerID, len(w.in.servers()))
	voters, asked := 0, 0
	for _, s := range w.in.servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		if voters++; s.ID == l.id || string(s.ID) == w.in.g.cfg.LocalID {
			continue
		}
		asked++
		req := &raft.RequestPreVoteRequest{RPCHeader: w.t.header(), Term: l.term + 1, LastLogIndex: index, LastLogTerm: term}
		w.in.watch.Go(func() {
			var resp raft.RequestPreVoteResponse
			if err := w.t.innerTransport.RequestPreVote(s.ID, s.Address, req, &resp); err != nil || !resp.Granted {
				answers <- ""
				return
			}
			answers <- s.ID
		})
	}
	granted = map[raft.ServerID]bool{}
	late := w.in.g.cfg.Clock.After(w.patience())
	for ; asked > 0 && len(granted)+1 <= voters/2; asked-- {
		select {
		case id := <-answers:
			if id != "" {
				granted[id] = true
			}
		case <-late:
			return nil, false
		case <-w.t.quit:
			return nil, false
		}
	}
	return granted, len(granted)+1 > voters/2
}

// grants answers a peer that asks whether we lost the leader too. If not, raft answers.
func (w *lossWatch) grants(q *raft.RequestPreVoteRequest) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lost
	if l == nil || q.Term != l.term+1 || w.in.g.Term() != l.term || string(l.id) == string(q.ID) || !w.votes(string(q.ID)) {
		return false
	}
	term, index, err := w.in.g.LastEntry()
	if err != nil {
		return false // whose log is newer is not known
	}
	self := standing{log: position{Term: term, Index: index}, id: raft.ServerID(w.in.g.cfg.LocalID)}
	peer := standing{log: position{Term: q.LastLogTerm, Index: q.LastLogIndex}, id: raft.ServerID(q.ID)}
	switch {
	case peer.log.compare(self.log) < 0, w.stood != nil && w.stood.of == *l:
		return false
	case w.votes(w.in.g.cfg.LocalID) && !peer.better(self):
		return false // it will be asked by us
	case w.yielded != nil && w.yielded.better(peer):
		return false
	}
	w.yielded = &peer
	return true
}

// offer gives a candidacy to relay, through which every call of a leader passes too.
func (w *lossWatch) offer(c candidacy) {
	select {
	case w.stand <- c:
	case <-w.t.quit:
	}
}

// take reports whether raft is to stand. It is called between two calls of peers, so no
// word of a leader can come between the look and raft's being told.
func (w *lossWatch) take(c candidacy) bool {
	if !w.in.g.cfg.off.alone && !w.may(c.of) {
		return false
	}
	w.mu.Lock()
	w.stood = &c
	w.mu.Unlock()
	w.in.g.events.put(Event{Kind: LeaderLost, Term: c.of.term})
	return true
}

// handedOver is told of a leader that asks this node to stand.
func (w *lossWatch) handedOver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stood = nil
}

// request is a request for a vote as this peer may have it. raft marks those of an
// election that it was told to hold, and a voter obeys the mark whether it has a leader
// or not; of ours, only those get it who said that they have none.
func (w *lossWatch) request(to raft.ServerID, q *raft.RequestVoteRequest) *raft.RequestVoteRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !q.LeadershipTransfer || w.stood == nil || w.stood.of.term+1 == q.Term && w.stood.granted[to] {
		return q
	}
	plain := *q
	plain.LeadershipTransfer = false
	return &plain
}
