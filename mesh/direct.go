package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/forgeyard/forgeyard-node"
)

// directALPN keeps a direct connection from being mistaken for libp2p's own TLS.
const directALPN = "forgeyard-direct/1"

// tlsRecord is the first byte of a TLS ClientHello. libp2p begins with the length
// of "/multistream/1.0.0\n", 0x13.
const tlsRecord = 0x16

// directServer owns the TCP listener of the mesh port: it reads one byte of each
// connection and gives it to libp2p or to serve.
//
//	client                                   server
//	  │ TLS 1.3, both show the libp2p certificate of their node key
//	  │ frame: hello {…, protocol} ──────────▶│ judge; is the protocol open to the class?
//	  │◀────────── frame: {error} or {hello}  │
//	  │ judge; from here the bytes are the protocol's own
type directServer struct {
	m     *Mesh
	id    *libp2ptls.Identity
	slots chan struct{} // one per connection that is not through its hello yet

	mu   sync.Mutex
	busy map[io.Closer]struct{} // the same connections, to close them at the end
	shut bool
}

func newDirectServer(m *Mesh) (*directServer, error) {
	key, err := m.cfg.Identity.key()
	if err != nil {
		return nil, err
	}
	id, err := tlsIdentity(key)
	if err != nil {
		return nil, err
	}
	return &directServer{m: m, id: id, slots: make(chan struct{}, maxAccepting), busy: map[io.Closer]struct{}{}}, nil
}

// hold registers a young connection; false after close.
func (d *directServer) hold(c io.Closer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.shut {
		d.busy[c] = struct{}{}
	}
	return !d.shut
}

func (d *directServer) release(c io.Closer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, c)
}

func (d *directServer) close() {
	d.mu.Lock()
	d.shut = true
	young := make([]io.Closer, 0, len(d.busy))
	for c := range d.busy {
		young = append(young, c)
	}
	d.mu.Unlock()
	for _, c := range young {
		_ = c.Close()
	}
}

// demuxListener is the listener that libp2p sees.
type demuxListener struct {
	manet.Listener
	out  chan manet.Conn
	done chan struct{}
	once sync.Once
}

func (l *demuxListener) Accept() (manet.Conn, error) {
	select {
	case c := <-l.out:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *demuxListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

func (d *directServer) demux(l manet.Listener) manet.Listener {
	dl := &demuxListener{Listener: l, out: make(chan manet.Conn), done: make(chan struct{})}
	d.m.spawn(func() { d.acceptLoop(dl) })
	return dl
}

func (d *directServer) acceptLoop(l *demuxListener) {
	for {
		c, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, most likely: wait, do not spin, do not die
			d.m.log.Warn("accept failed", "error", err)
			select {
			case <-d.m.clk.After(50 * time.Millisecond):
				continue
			case <-l.done:
				return
			}
		}
		select {
		case d.slots <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		if !d.hold(c) || !d.m.spawn(func() { d.sort(l, c) }) {
			<-d.slots
			_ = c.Close()
			return
		}
	}
}

// peekedConn gives back the byte that was read.
type peekedConn struct {
	manet.Conn
	first []byte
}

func (c *peekedConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 && len(b) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

func (d *directServer) sort(l *demuxListener, c manet.Conn) {
	defer func() { <-d.slots }()
	defer d.release(c)
	var b [1]byte
	_ = c.SetReadDeadline(time.Now().Add(firstByteTimeout))
	if _, err := io.ReadFull(c, b[:]); err != nil {
		_ = c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	pc := &peekedConn{Conn: c, first: b[:]}
	if b[0] == tlsRecord {
		d.serve(pc)
		return
	}
	select {
	case l.out <- pc:
	case <-l.done:
		_ = c.Close()
	}
}

// serve takes one connection through TLS and hello to its listener.
func (d *directServer) serve(raw net.Conn) {
	ctx, cancel := context.WithTimeout(d.m.ctx, tlsTimeout)
	defer cancel()
	select {
	case <-d.m.ready:
	case <-ctx.Done():
		_ = raw.Close()
		return
	}
	cfg, keys := d.id.ConfigForPeer("")
	cfg.NextProtos = []string{directALPN}
	c := tls.Server(&wideConn{Conn: raw}, cfg)
	if err := c.HandshakeContext(ctx); err != nil || c.ConnectionState().NegotiatedProtocol != directALPN {
		_ = raw.Close()
		return
	}
	p, err := peer.IDFromPublicKey(<-keys)
	if err != nil {
		_ = raw.Close()
		return
	}
	if err := d.admit(c, p); err != nil {
		d.m.log.Debug("direct connection refused", "peer", p, "reason", err)
		_ = c.Close()
	}
}

func (d *directServer) admit(c *tls.Conn, p peer.ID) error {
	m := d.m
	_ = c.SetDeadline(time.Now().Add(helloTimeout))
	var h hello
	if err := readFrame(c, &h, maxHelloFrame); err != nil {
		return err
	}
	pr, err := m.judge(p, &h)
	var l *Listener
	if err == nil {
		l, err = m.listener(h.Protocol, pr)
	}
	conn := m.direct.conn(c, pr)
	if err == nil {
		err = m.adopt(conn)
	}
	if err != nil {
		_ = writeFrame(c, m.reply(helloReply{Err: toWire(err)}), maxHelloFrame)
		return err
	}
	if err := writeFrame(c, m.reply(helloReply{Hello: m.ownHello()}), maxHelloFrame); err != nil {
		return errors.Join(err, conn.Close())
	}
	_ = c.SetDeadline(time.Time{})
	if !l.offer(conn) {
		return errors.Join(forgeyard.Errorf("mesh", forgeyard.Limit, "%d connections wait for %s already", acceptBacklog, h.Protocol), conn.Close())
	}
	return nil
}

// adopt ties the connection to its peer.
func (m *Mesh) adopt(c *directConn) error {
	_, was := m.table.get(c.remote.ID)
	if err := m.table.track(c.remote.Peer, c); err != nil {
		return err
	}
	if !was {
		m.peerEvent(c.remote.Peer, true)
	}
	return nil
}

// directConn is one TLS connection for one stream. It is embedded as a net.Conn so that HTTP/2 does not find a
// ConnectionState in it and ask for an ALPN of its own.
type directConn struct {
	net.Conn
	wide          *wideConn // under it
	m             *Mesh
	local, remote Addr
}

// conn is a TLS connection whose other end was judged. Ours all run over a wideConn.
func (d *directServer) conn(c *tls.Conn, p Peer) *directConn {
	return &directConn{Conn: c, wide: c.NetConn().(*wideConn), m: d.m, local: Addr{Peer{ID: d.m.host.ID()}}, remote: Addr{p}}
}

// Write implements net.Conn. The records of a large write leave together.
func (c *directConn) Write(b []byte) (int, error) {
	if len(b) <= tlsPlainMax {
		return c.Conn.Write(b)
	}
	n, err := 0, c.wide.hold()
	if err == nil {
		n, err = c.Conn.Write(b)
	}
	if lerr := c.wide.let(); err == nil && lerr != nil {
		return 0, lerr // how much of it went is not known
	}
	return n, err
}

func (c *directConn) LocalAddr() net.Addr  { return c.local }
func (c *directConn) RemoteAddr() net.Addr { return c.remote }

// Close implements net.Conn. It ends a write under way, however little the other end reads.
func (c *directConn) Close() error {
	if lost, gone := c.m.table.untrack(c.remote.ID, c); gone {
		c.m.peerEvent(lost, false)
	}
	cut, err := c.wide.cut()
	if cerr := c.Conn.Close(); !cut {
		err = cerr
	}
	return err
}

// errNoDirect: there is no TCP address to try; not a failure of the peer.
var errNoDirect = errors.New("no TCP address is known")

// dialDirect opens proto at p on a connection of its own. A Denied, Invalid, NotFound or Limit error is the
// peer's answer; anything else means that this way is not open.
func (m *Mesh) dialDirect(ctx context.Context, p peer.ID, proto protocol.ID) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, directDialTimeout)
	defer cancel()
	c, err := m.dialTLS(ctx, p)
	if err != nil {
		return nil, forgeyard.E("dial", forgeyard.Unavailable, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	own := m.ownHello()
	own.Protocol = proto
	pr, err := m.exchange(c, p, own)
	if !stop() && err == nil {
		err = forgeyard.E("dial", forgeyard.Unavailable, ctx.Err())
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	conn := m.direct.conn(c, pr)
	if err := m.adopt(conn); err != nil {
		_ = c.Close()
		return nil, err
	}
	return conn, nil
}

// dialTLS races the peer's TCP addresses with a stagger and keeps the first that proves to be the peer.
func (m *Mesh) dialTLS(ctx context.Context, p peer.ID) (*tls.Conn, error) {
	addrs := m.tcpAddrs(p)
	if len(addrs) == 0 {
		return nil, errNoDirect
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		c   *tls.Conn
		err error
	}
	results := make(chan result)
	started := 0
	start := func() bool {
		a := addrs[started]
		started++
		return m.spawn(func() {
			c, err := m.dialOne(ctx, p, a)
			select {
			case results <- result{c, err}:
			case <-ctx.Done():
				if c != nil {
					_ = c.Close()
				}
			}
		})
	}
	if !start() {
		return nil, errClosed
	}
	var errs []error
	for len(errs) < len(addrs) {
		var next <-chan time.Time
		if started < len(addrs) {
			next = m.clk.After(dialStagger)
		}
		select {
		case r := <-results:
			if r.err == nil {
				return r.c, nil
			}
			errs = append(errs, r.err)
			if started < len(addrs) && started == len(errs) && !start() {
				return nil, errClosed
			}
		case <-next:
			if !start() {
				return nil, errClosed
			}
		case <-ctx.Done():
			return nil, errors.Join(append(errs, ctx.Err())...)
		}
	}
	return nil, errors.Join(errs...)
}

func (m *Mesh) dialOne(ctx context.Context, p peer.ID, addr string) (*tls.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	cfg, _ := m.direct.id.ConfigForPeer(p)
	cfg.NextProtos = []string{directALPN}
	c := tls.Client(&wideConn{Conn: raw}, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

// tcpAddrs lists host:port of what the peerstore knows, at most maxAddrs.
func (m *Mesh) tcpAddrs(p peer.ID) []string {
	var out []string
	for _, a := range m.host.Peerstore().Addrs(p) {
		if len(a) != 2 || a[1].Code() != ma.P_TCP {
			continue
		}
		n, hp, err := manet.DialArgs(a)
		if err == nil && n[:3] == "tcp" && len(out) < maxAddrs {
			out = append(out, hp)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
