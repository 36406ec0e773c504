package consensus

import (
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// sharedLayer lends the one stream layer to one raft instance after another.
// raft's transport closes its layer when it stops and forgets the connections
// that it pooled; here the lent layer closes those, and the real one stays.
type sharedLayer struct {
	inner raft.StreamLayer
	quit  chan struct{}
	done  chan struct{}

	mu      sync.Mutex
	current *lentLayer
}

func newSharedLayer(inner raft.StreamLayer) *sharedLayer {
	s := &sharedLayer{inner: inner, quit: make(chan struct{}), done: make(chan struct{})}
	go s.accept()
	return s
}

func (s *sharedLayer) accept() {
	defer close(s.done)
	const least, most = 5 * time.Millisecond, time.Second
	wait := least
	for {
		conn, err := s.inner.Accept()
		if err != nil {
			select {
			case <-s.quit:
				return
			case <-time.After(wait):
				wait = min(2*wait, most)
				continue
			}
		}
		wait = least
		s.mu.Lock()
		to := s.current
		s.mu.Unlock()
		if to == nil || !to.deliver(conn) {
			conn.Close() // nobody is at home: the peer tries again
		}
	}
}

// Refuser is a Layer that knows at once when a process has ended: one that looks for other
// ways when the first is refused cannot be told so by a Dial that fails late.
type Refuser interface {
	// Refuses reports that the machine at an address refuses every connection, as it does
	// when the process there has ended, and that none is left. It must not outlast timeout.
	Refuses(a raft.ServerAddress, timeout time.Duration) bool
}

// lend makes a layer for one instance; broken is poked when a connection that a peer
// opened ends and the layer is not closed.
func (s *sharedLayer) lend(broken chan<- struct{}) *lentLayer {
	l := &lentLayer{owner: s, in: make(chan net.Conn), quit: make(chan struct{}), broken: broken}
	s.mu.Lock()
	s.current = l
	s.mu.Unlock()
	return l
}

func (s *sharedLayer) close() error {
	close(s.quit)
	err := s.inner.Close()
	<-s.done
	return err
}

type lentLayer struct {
	owner *sharedLayer
	in    chan net.Conn
	quit  chan struct{}

	broken chan<- struct{} // capacity 1

	mu     sync.Mutex
	closed bool
	open   []*trackedConn // in the order in which they came, which is that of their end
}

type trackedConn struct {
	net.Conn
	of       *lentLayer
	accepted bool
}

// Close is called by raft's transport as soon as a connection that a peer opened ends.
func (c *trackedConn) Close() error {
	c.of.mu.Lock()
	c.of.open = slices.DeleteFunc(c.of.open, func(o *trackedConn) bool { return o == c })
	ended := c.accepted && !c.of.closed
	c.of.mu.Unlock()
	err := c.Conn.Close()
	if ended {
		select {
		case c.of.broken <- struct{}{}:
		default:
		}
	}
	return err
}

func (l *lentLayer) track(conn net.Conn, accepted bool) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	c := &trackedConn{Conn: conn, of: l, accepted: accepted}
	l.open = append(l.open, c)
	return c, nil
}

func (l *lentLayer) deliver(conn net.Conn) bool {
	select {
	case l.in <- conn:
		return true
	case <-l.quit:
		return false
	}
}

func (l *lentLayer) Accept() (net.Conn, error) {
	select {
	case conn := <-l.in:
		return l.track(conn, true)
	case <-l.quit:
		return nil, net.ErrClosed
	}
}

func (l *lentLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	select {
	case <-l.quit:
		return nil, net.ErrClosed
	default:
	}
	conn, err := l.owner.inner.Dial(addr, timeout)
	if err != nil {
		return nil, err
	}
	return l.track(conn, false)
}

func (l *lentLayer) Addr() net.Addr { return l.owner.inner.Addr() }

func (l *lentLayer) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	close(l.quit)
	open := l.open
	l.open = nil
	l.mu.Unlock()
	for _, c := range open {
		c.Conn.Close()
	}
	return nil
}
