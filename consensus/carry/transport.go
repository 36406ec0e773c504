package carry

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Config is what a Transport is made of.
type Config struct {
	// Layer makes and takes connections. The transport closes it.
	Layer raft.StreamLayer
	// Timeout bounds one exchange; that of a snapshot grows with its size.
	Timeout time.Duration
	// Desk exchanges hellos; nil: none is sent, and none is read.
	Desk Desk
}

// Desk exchanges hellos: what a process says of itself, once in each direction of each
// connection, beside its first message. What is in them is the desk's own matter. A peer
// whose program knows no hellos passes ours over and sends none.
type Desk interface {
	// Hello is what is said to a peer: to the one at an address, or to one that said hello
	// itself. Nil: nothing is.
	Hello(to raft.ServerAddress, who Caller) []byte
	// Meet takes what a peer said. Nil: it is no hello, and the peer is as one without.
	Meet(hello []byte) Caller
}

// Caller is a process at the other end of a connection.
type Caller interface {
	// Refused reports that nothing that it says counts, now. It is asked at each message.
	Refused() bool
	// Stayed says that it called again after it had our hello, so it does not refuse us.
	Stayed()
	// Took is told of each answer to an append, on a connection on which it said hello.
	Took(from raft.ServerID, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse)
}

// ErrRefused is what calls to and from a refused process end with.
var ErrRefused = errors.New(refusedText)

// refusedText stands in an answer, and tells a caller of any later version that it is
// refused: it stays what it is.
const refusedText = "this process is not known as the voter that it speaks for"

// Guard stands between raft and its peers.
type Guard interface {
	// Arrive gives raft a call that came in, on the goroutine that read it: the answer is
	// waited for afterwards. False: the transport is closing.
	Arrive(call raft.RPC) bool
	// Held returns when raft may hear of an answer to a pipelined append; an error says
	// that it may not.
	Held(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error
}

// Transport implements raft.Transport. Calls may be made before Start, but none comes in.
type Transport struct {
	cfg   Config
	guard Guard
	once  sync.Once
	quit  chan struct{}

	heartbeats atomic.Pointer[func(raft.RPC)]

	mu   sync.Mutex // guards what is below
	idle map[raft.ServerAddress][]*link
	age  uint64 // how often Renew was called
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)

// New makes a transport; Start opens its door.
func New(cfg Config) *Transport {
	return &Transport{cfg: cfg, quit: make(chan struct{}), idle: map[raft.ServerAddress][]*link{}}
}

// Start takes calls in, and gives them to g. It is called once, before any pipeline opens.
func (t *Transport) Start(g Guard) {
	t.guard = g
	go t.listen()
}

// Consumer implements raft.Transport: calls go to the guard, and none comes here.
func (t *Transport) Consumer() <-chan raft.RPC { return nil }

// LocalAddr implements raft.Transport.
func (t *Transport) LocalAddr() raft.ServerAddress {
	return raft.ServerAddress(t.cfg.Layer.Addr().String())
}

// EncodePeer implements raft.Transport.
func (t *Transport) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte { return []byte(a) }

// DecodePeer implements raft.Transport.
func (t *Transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler implements raft.Transport: heartbeats go to f, past the guard.
func (t *Transport) SetHeartbeatHandler(f func(raft.RPC)) { t.heartbeats.Store(&f) }

// Close ends every connection, and with them all calls.
func (t *Transport) Close() (err error) {
	t.once.Do(func() {
		close(t.quit)
		err = t.cfg.Layer.Close()
	})
	return err
}

// AppendEntries implements raft.Transport.
func (t *Transport) AppendEntries(id raft.ServerID, to raft.ServerAddress, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	return t.exchange(to, appendEntries, q, r, func(l *link) { l.took(id, q, r) })
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(_ raft.ServerID, to raft.ServerAddress, q *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	return t.call(to, requestVote, q, r)
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(_ raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	return t.call(to, requestPreVote, q, r)
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, q *raft.TimeoutNowRequest, r *raft.TimeoutNowResponse) error {
	return t.call(to, timeoutNow, q, r)
}

// InstallSnapshot implements raft.Transport. Its connection is not used again: nobody
// knows what is left in it after an error.
func (t *Transport) InstallSnapshot(_ raft.ServerID, to raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	l, err := t.link(to)
	if err != nil {
		return err
	}
	defer l.conn.Close()
	if limit := t.cfg.Timeout; limit > 0 {
		_ = l.conn.SetDeadline(time.Now().Add(max(limit, limit*time.Duration(q.Size/scale)))) // a connection without deadlines ends with its peer
	}
	if err := l.send(installSnapshot, q); err != nil {
		return err
	}
	w := bufio.NewWriterSize(l.conn, scale)
	if _, err := io.Copy(w, data); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = l.answer(r)
	return err
}

// call makes one exchange on a connection of its own.
func (t *Transport) call(to raft.ServerAddress, k kind, q, r any) error {
	return t.exchange(to, k, q, r, func(*link) {})
}

// exchange is call; answered is called with the connection that a good answer came on.
func (t *Transport) exchange(to raft.ServerAddress, k kind, q, r any, answered func(*link)) error {
	l, err := t.link(to)
	if err != nil {
		return err
	}
	if t.cfg.Timeout > 0 {
		_ = l.conn.SetDeadline(time.Now().Add(t.cfg.Timeout)) // as above
	}
	if err := l.send(k, q); err != nil {
		_ = l.conn.Close() // it failed already
		return err
	}
	whole, err := l.answer(r)
	if err == nil {
		answered(l)
	}
	if whole {
		t.giveBack(to, l)
	} else {
		_ = l.conn.Close() // as above
	}
	return err
}

// Renew lets every later call go on a connection that is made from now on, and so begins
// with a new hello. Pipelines stay.
func (t *Transport) Renew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.age++
	for to, links := range t.idle {
		for _, l := range links {
			_ = l.conn.Close() // it served well
		}
		delete(t.idle, to)
	}
}

// link is a connection to a peer that nobody uses.
func (t *Transport) link(to raft.ServerAddress) (*link, error) {
	t.mu.Lock()
	age := t.age
	if n := len(t.idle[to]); n > 0 {
		l := t.idle[to][n-1]
		t.idle[to] = t.idle[to][:n-1]
		t.mu.Unlock()
		return l, nil
	}
	t.mu.Unlock()
	conn, err := t.cfg.Layer.Dial(to, t.cfg.Timeout)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, in: newReader(conn), desk: t.cfg.Desk, age: age}
	if l.desk != nil {
		l.hello = l.desk.Hello(to, nil)
	}
	return l, nil
}

func (t *Transport) giveBack(to raft.ServerAddress, l *link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.quit:
	default:
		if len(t.idle[to]) < maxPool && l.age == t.age {
			t.idle[to] = append(t.idle[to], l)
			return
		}
	}
	_ = l.conn.Close() // it served well
}

// link is one connection to a peer. One goroutine may send while another reads.
type link struct {
	conn  net.Conn
	in    *reader
	out   []byte
	desk  Desk
	hello []byte // still to be said
	peer  Caller // nil until it said hello
	age   uint64 // of the transport, when it was dialled
}

func (l *link) send(k kind, q any) (err error) {
	if l.out, err = appendGreeting(append(l.out[:0], k), q, l.hello); err != nil {
		return err
	}
	l.hello = nil
	_, err = l.conn.Write(l.out)
	l.out = kept(l.out)
	return err
}

// answer reads one. The connection can be used again if it came whole.
func (l *link) answer(r any) (whole bool, err error) {
	refusal, err := l.in.text()
	if err == nil {
		err = l.in.message(r)
	}
	if err != nil {
		return false, err
	}
	if c := l.in.met(l.desk); c != nil {
		l.peer = c
	}
	if refusal == refusedText || l.peer != nil && l.peer.Refused() {
		return false, ErrRefused
	}
	if refusal != "" {
		return true, errors.New(refusal)
	}
	return true, nil
}

// took passes an answer to an append on to who gave it.
func (l *link) took(id raft.ServerID, q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) {
	if l.peer != nil {
		l.peer.Took(id, q, r)
	}
}

// kept is a buffer for the next message.
func kept(b []byte) []byte {
	if cap(b) > keepBuffer {
		return nil
	}
	return b[:0]
}
