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
	maxFlows    = 256       // connections and UDP flows at once
	maxDials    = 64        // of them not answered yet
	queue       = 128       // packets on their way to the job
	window      = 256 << 10 // bytes of a connection that one side has not taken yet
	dialTimeout = 10 * time.Second
	udpIdle     = 60 * time.Second // a flow that is silent for so long is forgotten
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
	flows chan struct{}

	mu     sync.Mutex // guards closed against a flow that begins
	closed bool
	wg     sync.WaitGroup
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
	n := &Net{cfg: cfg, tun: tun, link: channel.New(queue, mtu, ""), flows: make(chan struct{}, maxFlows)}
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
	n.stack.Close()
	n.stack.Wait()
	n.wg.Wait()
	n.link.Close()
}

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

// begin takes a place for a flow to a judged address, or says why there is none.
func (n *Net) begin(id stack.TransportEndpointID, what string) (to netip.AddrPort, ok bool) {
	a, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	to = netip.AddrPortFrom(a.Unmap(), id.LocalPort)
	if why := n.cfg.Rules.Judge(to.Addr()); why != "" {
		n.cfg.Log.Debug("a job's connection is refused", "network", what, "to", to, "why", why)
		return to, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return to, false
	}
	select {
	case n.flows <- struct{}{}:
		n.wg.Add(1)
		return to, true
	default:
		n.cfg.Log.Debug("a job's connection is refused", "network", what, "to", to, "why", "it has as many as it may", "max", maxFlows)
		return to, false
	}
}

func (n *Net) finish() {
	<-n.flows
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
	to, ok := n.begin(r.ID(), "tcp")
	if !ok {
		r.Complete(true)
		return
	}
	defer n.finish()
	out, err := n.dial("tcp", to)
	if err != nil {
		r.Complete(true)
		return
	}
	defer out.Close()
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

// udpFlow must not wait: it is called while the stack handles the packet.
func (n *Net) udpFlow(r *udp.ForwarderRequest) {
	to, ok := n.begin(r.ID(), "udp")
	if !ok {
		return
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil {
		n.finish()
		return
	}
	go func() {
		defer n.finish()
		in := gonet.NewUDPConn(&wq, ep)
		defer in.Close()
		out, err := n.dial("udp", to)
		if err != nil {
			return
		}
		defer out.Close()
		stop := context.AfterFunc(n.ctx, func() { in.Close(); out.Close() })
		defer stop()
		exchange(in, out)
	}()
}

// exchange passes datagrams both ways until none came for a while.
func exchange(a, b net.Conn) {
	awake := func() {
		t := time.Now().Add(udpIdle)
		_ = a.SetReadDeadline(t)
		_ = b.SetReadDeadline(t)
	}
	awake()
	pass := func(to, from net.Conn) {
		defer to.Close()
		buf := make([]byte, 1<<16)
		for {
			k, err := from.Read(buf)
			if err != nil {
				return
			}
			awake()
			if _, err := to.Write(buf[:k]); err != nil && errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}
	done := make(chan struct{})
	go func() { defer close(done); pass(a, b) }()
	pass(b, a)
	<-done
}
