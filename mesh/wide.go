package mesh

import (
	"net"
	"sync"
	"sync/atomic"
)

// wideConn is the TCP connection under the TLS of a direct connection. TLS gives away one
// record of 16 KiB at a time, each with a system call of its own that also wakes the other
// end; here the records of one large write leave together. On the wire are the same bytes.
type wideConn struct {
	net.Conn

	held atomic.Int32 // large writes under way; changed under mu only
	shut atomic.Bool  // no large write begins any more

	mu  sync.Mutex
	out *[]byte // lent while held; nil: nothing was gathered
	n   int     // of out, gathered
	err error   // of a write of which TLS believes that it was done
}

const (
	// tlsPlainMax is the most that one TLS record carries, and tlsRecordMax the most that it is.
	tlsPlainMax  = 16 << 10
	tlsRecordMax = tlsPlainMax + 256 + 5

	// wideSize is what goes to the kernel at once. A quarter of it took 3 % more processor
	// time; much more than it would leave the processor's cache before it is sent.
	wideSize = 16 * tlsRecordMax
)

var wides = sync.Pool{New: func() any { b := make([]byte, wideSize); return &b }}

// Write implements net.Conn. While a large write is under way it gathers.
func (c *wideConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if c.held.Load() == 0 {
		return c.Conn.Write(b)
	}
	if c.out == nil {
		c.out = wides.Get().(*[]byte)
	}
	if c.n+len(b) > len(*c.out) {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	if len(b) > len(*c.out) {
		return c.Conn.Write(b)
	}
	c.n += copy((*c.out)[c.n:], b)
	return len(b), nil
}

// flush writes what was gathered. The caller holds mu.
func (c *wideConn) flush() error {
	if c.n == 0 || c.err != nil {
		return c.err
	}
	_, c.err = c.Conn.Write((*c.out)[:c.n])
	c.n = 0
	return c.err
}

// hold begins a large write; let ends it, also where this fails.
func (c *wideConn) hold() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held.Add(1)
	if c.shut.Load() {
		return net.ErrClosed
	}
	return nil
}

// let ends a large write: all of it, and what others wrote meanwhile, is with the kernel
// unless it returns an error.
func (c *wideConn) let() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.flush()
	if c.held.Add(-1) == 0 && c.out != nil {
		wides.Put(c.out)
		c.out = nil
	}
	return err
}

// cut ends the large write that is under way, if one is, and with it the connection. TLS does
// not know of it: it would wait behind it for seconds to say farewell.
func (c *wideConn) cut() (bool, error) {
	c.shut.Store(true)
	if c.held.Load() == 0 {
		return false, nil
	}
	return true, c.Conn.Close()
}
