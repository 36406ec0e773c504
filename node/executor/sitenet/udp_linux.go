package sitenet

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// flow is what passes between one port of the job and one of another machine. Nothing says
// when it is over, so the longest silent one makes room for a new one.
type flow struct {
	idle   time.Duration
	spoken atomic.Int64 // the last datagram, as time.Now().UnixNano()
	end    context.CancelFunc
}

func (f *flow) speaks() { f.spoken.Store(time.Now().UnixNano()) }

// beginFlow takes a place for a flow.
func (n *Net) beginFlow(port uint16) (*flow, context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, nil
	}
	if len(n.flows) >= maxFlows {
		var oldest *flow
		for f := range n.flows {
			if oldest == nil || f.spoken.Load() < oldest.spoken.Load() {
				oldest = f
			}
		}
		oldest.end()
		delete(n.flows, oldest)
	}
	f := &flow{idle: udpIdle}
	if port == 53 {
		f.idle = nameIdle
	}
	f.speaks()
	var ctx context.Context
	ctx, f.end = context.WithCancel(n.ctx)
	n.flows[f] = true
	n.wg.Add(1)
	return f, ctx
}

func (n *Net) endFlow(f *flow) {
	f.end()
	n.mu.Lock()
	delete(n.flows, f)
	n.mu.Unlock()
	n.wg.Done()
}

// udpFlow must not wait: it is called while the stack handles the packet.
func (n *Net) udpFlow(r *udp.ForwarderRequest) {
	to, ok := n.judge(r.ID(), "udp")
	if !ok {
		return
	}
	f, ctx := n.beginFlow(to.Port())
	if f == nil {
		return
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil {
		n.endFlow(f)
		return
	}
	go func() {
		defer n.endFlow(f)
		in := gonet.NewUDPConn(&wq, ep)
		defer in.Close()
		out, err := n.dial("udp", to)
		if err != nil {
			return
		}
		defer out.Close()
		stop := context.AfterFunc(ctx, func() { in.Close(); out.Close() })
		defer stop()
		f.exchange(in, out)
	}()
}

// exchange passes datagrams both ways until none came for a while.
func (f *flow) exchange(a, b net.Conn) {
	awake := func() {
		f.speaks()
		t := time.Now().Add(f.idle)
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
