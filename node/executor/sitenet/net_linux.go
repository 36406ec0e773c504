package sitenet

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/forgeyard/forgeyard-node"
)

// Bounds of one job, which cost the daemon memory and descriptors.
const (
	maxConns    = 256       // TCP connections at once
	maxDials    = 64        // of them not answered yet
	maxFlows    = 256       // UDP flows at once; the longest silent makes room for a new one
	queue       = 128       // packets on their way to the job
	window      = 256 << 10 // bytes of a connection that one side has not taken yet
	dialTimeout = 10 * time.Second
	udpIdle     = 60 * time.Second // a flow that is silent for so long is forgotten
	nameIdle    = 5 * time.Second  // the same where names are asked, each with a flow of its own
)

const nic tcpip.NICID = 1

// Config is the network of one job.
type Config struct {
	Rules Rules
	Log   *slog.Logger
	// Dial replaces the dialler that carries a judged connection on; for tests.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Net is the network of one job. Close ends it, with all its connections.
type Net struct {
	cfg   Config
	ctx   context.Context
	end   context.CancelFunc
	tun   *os.File
	link  *channel.Endpoint
	stack *stack.Stack
	full  sync.Once // told that it has as many connections as it may

	mu     sync.Mutex // guards what is below
	closed bool
	conns  int
	flows  map[*flow]bool
	wg     sync.WaitGroup // Add under mu, unless closed
}

// Attach gives the network to a process, a child of parent, that stands in a network
// namespace of its own and has not begun its work.
func Attach(pid, parent int, cfg Config) (*Net, error) {
	tun, err := openTUN(pid, parent, cfg.Rules.Allow)
	if err != nil {
		return nil, forgeyard.E("site network", forgeyard.Unavailable, err)
	}
	if cfg.Dial == nil {
		cfg.Dial = new(net.Dialer).DialContext
	}
	n := &Net{cfg: cfg, tun: tun, link: channel.New(queue, mtu, ""), flows: map[*flow]bool{}}
	n.ctx, n.end = context.WithCancel(context.Background())
	if err := n.openStack(); err != nil {
		n.end()
		tun.Close()
		return nil, err
	}
	n.wg.Add(2)
	go n.fromJob()
	go n.toJob()
	return n, nil
}

func (n *Net) openStack() error {
	n.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := n.stack.CreateNIC(nic, n.link); err != nil {
		return forgeyard.Errorf("site network", forgeyard.Unavailable, "%v", err)
	}
	// It takes what is addressed to others, and answers in their name.
	if err := n.stack.SetPromiscuousMode(nic, true); err != nil {
		return forgeyard.Errorf("site network", forgeyard.Unavailable, "%v", err)
	}
	if err := n.stack.SetSpoofing(nic, true); err != nil {
		return forgeyard.Errorf("site network", forgeyard.Unavailable, "%v", err)
	}
	for _, o := range []tcpip.SettableTransportProtocolOption{
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: window, Max: window},
		&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: window, Max: window},
	} {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return forgeyard.Errorf("site network", forgeyard.Unavailable, "%v", err)
		}
	}
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(n.stack, 0, maxDials, n.tcpFlow).HandlePacket)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(n.stack, n.udpFlow).HandlePacket)
	return nil
}

// Close ends the network. It returns when nothing of it runs any more.
func (n *Net) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.end()
	n.tun.Close()
	done := make(chan struct{})
	go func() { n.wg.Wait(); close(done) }()
	// A connection that was dialled at this moment may still be given an endpoint, which would
	// try for two minutes to be heard by a job that is gone.
	for again := time.NewTicker(abortEvery); ; {
		for _, e := range n.stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-again.C:
			continue
		case <-done:
		}
		again.Stop()
		break
	}
	n.stack.Close()
	n.stack.Wait()
	n.link.Close()
}

const abortEvery = 5 * time.Millisecond

// fromJob carries packets of TCP and UDP into the stack, and drops the rest: what the stack
// would answer by itself, as an echo, would say that an address is there.
func (n *Net) fromJob() {
	defer n.wg.Done()
	b := make([]byte, mtu)
	for {
		k, err := n.tun.Read(b)
		if err != nil {
			return // closed, or the namespace is gone
		}
		proto, ok := carried(b[:k])
		if !ok {
			continue
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b[:k])})
		n.link.InjectInbound(proto, p)
		p.DecRef()
	}
}

// carried reports whether a packet is one of TCP or UDP, and of which IP.
func carried(b []byte) (tcpip.NetworkProtocolNumber, bool) {
	is := func(p uint8) bool {
		return p == uint8(header.TCPProtocolNumber) || p == uint8(header.UDPProtocolNumber)
	}
	switch {
	case len(b) >= header.IPv4MinimumSize && b[0]>>4 == 4:
		return ipv4.ProtocolNumber, is(b[9])
	case len(b) >= header.IPv6MinimumSize && b[0]>>4 == 6:
		return ipv6.ProtocolNumber, is(b[6]) // no extension headers: no program of a job needs them
	}
	return 0, false
}

func (n *Net) toJob() {
	defer n.wg.Done()
	for {
		p := n.link.ReadContext(n.ctx)
		if p == nil {
			return
		}
		v := p.ToView()
		_, err := n.tun.Write(v.AsSlice())
		v.Release()
		p.DecRef()
		if err != nil && errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// judge says where a flow wants to go, and whether it may.
func (n *Net) judge(id stack.TransportEndpointID, network string) (to netip.AddrPort, ok bool) {
	a, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	to = netip.AddrPortFrom(a.Unmap(), id.LocalPort)
	why := n.cfg.Rules.Judge(to.Addr())
	if why != "" {
		n.cfg.Log.Debug("a job's connection is refused", "network", network, "to", to, "why", why)
	}
	return to, why == ""
}

// beginConn takes a place for a TCP connection.
func (n *Net) beginConn() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns >= maxConns {
		n.full.Do(func() { n.cfg.Log.Warn("a job has as many connections as it may; more are refused", "max", maxConns) })
	}
	if n.closed || n.conns >= maxConns {
		return false
	}
	n.conns++
	n.wg.Add(1)
	return true
}

func (n *Net) endConn() {
	n.mu.Lock()
	n.conns--
	n.mu.Unlock()
	n.wg.Done()
}

func (n *Net) dial(network string, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(n.ctx, dialTimeout)
	defer cancel()
	return n.cfg.Dial(ctx, network, to.String())
}

// tcpFlow is called on a goroutine of its own. The job's connection is answered only when
// the other end has answered, so it sees a refusal as one.
func (n *Net) tcpFlow(r *tcp.ForwarderRequest) {
	to, ok := n.judge(r.ID(), "tcp")
	if !ok || !n.beginConn() {
		r.Complete(true)
		return
	}
	defer n.endConn()
	out, err := n.dial("tcp", to)
	if err != nil {
		r.Complete(true)
		return
	}
	defer out.Close()
	if n.ctx.Err() != nil {
		r.Complete(true)
		return
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	r.Complete(terr != nil)
	if terr != nil {
		return
	}
	in := gonet.NewTCPConn(&wq, ep)
	defer in.Close()
	stop := context.AfterFunc(n.ctx, func() { in.Close(); out.Close() })
	defer stop()
	splice(in, out)
}

type halfCloser interface{ CloseWrite() error }

// splice copies both ways until both ends have said all.
func splice(a, b net.Conn) {
	done := make(chan struct{})
	pass := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if h, ok := to.(halfCloser); ok && err == nil {
			_ = h.CloseWrite()
			return
		}
		to.Close() // one that failed must not hold the other
		from.Close()
	}
	go func() { defer close(done); pass(a, b) }()
	pass(b, a)
	<-done
}
