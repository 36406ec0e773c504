package raftsim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// network carries byte streams and calls between machines. A link has a direction.
// On a link that is cut, bytes of a stream wait, as TCP's do, and calls are lost.
type network struct {
	w *world

	mu      sync.Mutex // guards what is below, and every stream
	rng     *rand.Rand
	ports   map[string]*port
	links   map[[2]string]*link
	changed chan struct{} // closed when a link or a port changes
	closed  bool
}

type link struct {
	from, to *machine
	cut      bool
	shut     bool          // new streams are refused; this link's alone, whatever the rest does
	clog     time.Duration // up to this much more delay
}

func newNetwork(w *world, rng *rand.Rand) *network {
	return &network{w: w, rng: rng, ports: map[string]*port{}, links: map[[2]string]*link{}, changed: make(chan struct{})}
}

// link is called with mu held.
func (n *network) link(from, to string) *link {
	k := [2]string{from, to}
	l := n.links[k]
	if l == nil {
		l = &link{from: n.w.machine(from), to: n.w.machine(to)}
		n.links[k] = l
	}
	return l
}

// passes reports whether anything arrives. Called with the network's lock held.
func (l *link) passes() bool { return !l.cut && !l.from.stopped() && !l.to.stopped() }

// delay draws one. Called with mu held.
func (n *network) delay(l *link) time.Duration {
	d := 300*time.Microsecond + time.Duration(n.rng.Int64N(int64(n.w.shape.latency)))
	if c := l.clog; c > 0 {
		d += time.Duration(n.rng.Int64N(int64(c)))
	}
	return d
}

// tell lets everybody look again. Called with mu held.
func (n *network) tell() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// look lets everybody look again.
func (n *network) look() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell()
}

func (n *network) setCut(from, to string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).cut = cut
	n.tell()
}

func (n *network) setClog(from, to string, clog time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(from, to).clog = clog
}

// reset ends the streams of a machine with one peer, or with all; both sides are told.
func (n *network) reset(name, with string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.ports[name]
	if p == nil {
		return
	}
	for _, s := range append(slices.Clone(p.open), p.in...) {
		if with == "" || s.to == with {
			s.reset, s.peer.reset = true, true
			s.poke()
			s.peer.poke()
		}
	}
}

// refuse makes two machines refuse each other's new streams, or no longer.
func (n *network) refuse(a, b string, v bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link(a, b).shut, n.link(b, a).shut = v, v
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		*l = link{from: l.from, to: l.to}
	}
	n.tell()
}

// close ends every wait.
func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.tell()
}

// errSilent is what a call gets that nobody answered.
var errSilent = errors.New("no answer came")

// leg is one direction of a call. It is lost on a cut link, and then nothing comes
// until ctx ends.
func (n *network) leg(ctx context.Context, from, to string) error {
	n.mu.Lock()
	l := n.link(from, to)
	pass, d := l.passes(), n.delay(l)
	n.mu.Unlock()
	if pass {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			n.mu.Lock()
			pass = l.passes()
			n.mu.Unlock()
			if pass {
				return nil
			}
		case <-ctx.Done():
			return errSilent
		}
	}
	<-ctx.Done()
	return errSilent
}

// callWithin bounds a call of the mesh.
const callWithin = 2 * time.Second

// call asks the process that is reached at addr. f runs there.
func (n *network) call(ctx context.Context, from *process, addr string, f func(ctx context.Context, to *process) error) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	if err := n.leg(ctx, from.m.name, addr); err != nil {
		return err
	}
	to := n.w.reach(addr)
	if to == nil {
		return errRefused
	}
	err := f(ctx, to)
	if to.dead.Load() || from.dead.Load() {
		<-ctx.Done()
		return errSilent
	}
	if back := n.leg(ctx, addr, from.m.name); back != nil {
		return back
	}
	return err
}

var errRefused = errors.New("connection refused")

// port is where a process's streams arrive: Raft's stream layer, at the machine's name, or
// gossip's, at an address of its own.
type port struct {
	n    *network
	p    *process
	name string // of the machine
	at   string
	in   []*stream // dialled, not accepted
	wake chan struct{}
	shut bool
	open []*stream // this side's ends, oldest first
}

var _ raft.StreamLayer = (*port)(nil)

func (n *network) listen(p *process, at string) *port {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &port{n: n, p: p, name: p.m.name, at: at, wake: make(chan struct{}, 1)}
	n.ports[at] = l
	return l
}

type simAddr string

func (a simAddr) Network() string { return "sim" }
func (a simAddr) String() string  { return string(a) }

// Addr implements net.Listener.
func (l *port) Addr() net.Addr { return simAddr(l.name) }

// Accept implements net.Listener.
func (l *port) Accept() (net.Conn, error) {
	for {
		l.n.mu.Lock()
		if l.shut {
			l.n.mu.Unlock()
			return nil, net.ErrClosed
		}
		if len(l.in) > 0 {
			s := l.in[0]
			l.in = l.in[1:]
			l.open = append(l.open, s)
			l.n.mu.Unlock()
			return s, nil
		}
		l.n.mu.Unlock()
		<-l.wake
	}
}

// closed reports whether the process behind the port has ended.
func (l *port) closed() bool {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	return l.shut
}

func (l *port) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close implements net.Listener: what is open is reset on both sides.
func (l *port) Close() error { l.shutdown(true); return nil }

// shutdown ends the port with all its streams. Without a goodbye the peers are not told.
func (l *port) shutdown(goodbye bool) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.shut {
		return
	}
	l.shut = true
	for _, s := range append(l.open, l.in...) {
		s.gone = true
		if goodbye {
			s.peer.reset = true
		} else {
			s.peer.orphan = true
		}
		s.poke()
		s.peer.poke()
	}
	if l.n.ports[l.at] == l {
		delete(l.n.ports, l.at)
	}
	l.poke()
}

// Dial implements raft.StreamLayer.
func (l *port) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.dial(string(to), string(to), timeout)
}

// dial opens a stream to a port of a machine: a handshake goes there and back.
func (l *port) dial(name, at string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.p.ctx, timeout)
	defer cancel()
	if l.n.leg(ctx, l.name, name) != nil || l.n.leg(ctx, name, l.name) != nil {
		return nil, os.ErrDeadlineExceeded
	}
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	peer := l.n.ports[at]
	if l.shut || peer == nil || l.n.link(l.name, name).shut {
		return nil, errRefused
	}
	a := &stream{n: l.n, from: l.name, to: name, out: l.n.link(l.name, name), wake: make(chan struct{}, 1)}
	b := &stream{n: l.n, from: name, to: l.name, out: l.n.link(name, l.name), wake: make(chan struct{}, 1)}
	a.peer, b.peer = b, a
	a.of, b.of = l, peer
	l.open = append(l.open, a)
	peer.in = append(peer.in, b)
	peer.poke()
	return a, nil
}

// stream is one end of a connection. The network's lock guards it.
type stream struct {
	n        *network
	of       *port
	from, to string // this end, the other
	out      *link  // from this end to the other
	peer     *stream
	wake     chan struct{} // capacity 1
	alarm    *time.Timer   // of a Read that waits
	rings    time.Time     // when it does; zero: nobody waits for it

	arriving []chunk // towards this end, in their order
	closed   bool    // by the other end, once all has arrived
	gone     bool    // by this end
	reset    bool
	orphan   bool // the other machine lost its power: nothing comes any more
	readBy   time.Time
}

type chunk struct {
	at   time.Time
	data []byte
}

var _ net.Conn = (*stream)(nil)

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

var errReset = errors.New("connection reset by peer")

// ready looks whether Read can return, and when it should look again otherwise; zero: when
// it is told to. Called with the lock held.
func (s *stream) ready(now time.Time) (at time.Time, err error, ok bool) {
	switch {
	case s.gone || s.n.closed:
		return at, net.ErrClosed, true
	case !s.readBy.IsZero() && !now.Before(s.readBy):
		return at, os.ErrDeadlineExceeded, true
	}
	at = s.readBy
	if !s.peer.out.passes() {
		return at, nil, false
	}
	switch {
	case s.reset:
		return at, errReset, true
	case len(s.arriving) > 0 && !now.Before(s.arriving[0].at):
		return at, nil, true
	case len(s.arriving) > 0:
		return sooner(at, s.arriving[0].at), nil, false
	case s.closed:
		return at, io.EOF, true
	}
	return at, nil, false
}

// sooner is the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// Read implements net.Conn. One goroutine reads.
func (s *stream) Read(b []byte) (int, error) {
	for {
		s.n.mu.Lock()
		at, err, ok := s.ready(time.Now())
		if ok {
			s.rings = time.Time{}
			if err == nil {
				k := copy(b, s.arriving[0].data)
				if s.arriving[0].data = s.arriving[0].data[k:]; len(s.arriving[0].data) == 0 {
					s.arriving = s.arriving[1:]
				}
				s.n.mu.Unlock()
				return k, nil
			}
			s.n.mu.Unlock()
			return 0, err
		}
		s.set(at)
		changed := s.n.changed
		s.n.mu.Unlock()
		select {
		case <-s.wake:
		case <-changed:
		case <-s.alarm.C:
		}
	}
}

// never is a while that no run lasts.
const never = 1000 * time.Hour

// set lets the alarm of a waiting Read ring. Called with the lock held.
func (s *stream) set(at time.Time) {
	d := never
	if !at.IsZero() {
		d = time.Until(at)
	}
	if s.alarm == nil {
		s.alarm = time.NewTimer(d)
	} else {
		s.alarm.Reset(d)
	}
	s.rings = time.Now().Add(d)
}

// Write implements net.Conn. It never waits: what is on its way is bounded by how much
// Raft sends without an answer.
func (s *stream) Write(b []byte) (int, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	switch {
	case s.gone || s.n.closed:
		return 0, net.ErrClosed
	case s.reset:
		return 0, errReset
	case s.orphan:
		return len(b), nil // nobody says that it does not arrive
	}
	at := time.Now().Add(s.n.delay(s.out))
	p := s.peer
	if k := len(p.arriving); k > 0 && p.arriving[k-1].at.After(at) {
		at = p.arriving[k-1].at
	}
	p.arriving = append(p.arriving, chunk{at, slices.Clone(b)})
	if !p.rings.IsZero() && at.Before(p.rings) {
		p.set(at) // who waits for these bytes wakes when they are there
	}
	return len(b), nil
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	s.gone, s.peer.closed = true, true
	s.of.open = slices.DeleteFunc(s.of.open, func(o *stream) bool { return o == s })
	s.poke()
	s.peer.poke()
	return nil
}

// LocalAddr implements net.Conn.
func (s *stream) LocalAddr() net.Addr { return simAddr(s.from) }

// RemoteAddr implements net.Conn.
func (s *stream) RemoteAddr() net.Addr { return simAddr(s.to) }

// SetDeadline implements net.Conn. Writes never wait.
func (s *stream) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	s.readBy = t
	s.poke()
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(time.Time) error { return nil }
