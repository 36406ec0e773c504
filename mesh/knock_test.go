package mesh

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/forgeyard/forgeyard-node"
)

// A process that is being ended still accepts for a moment, or resets: that is neither
// somebody nor nobody.
func TestKnock(t *testing.T) {
	listen := func(serve func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				serve(c)
			}
		}()
		return l.Addr().String()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed := l.Addr().String()
	must(t, l.Close())
	var held []net.Conn
	silent := listen(func(c net.Conn) { held = append(held, c) })
	hangsUp := listen(func(c net.Conn) { _ = c.Close() })
	for _, c := range []struct {
		addrs []string
		want  knock
	}{
		{nil, somebody}, {[]string{"not an address"}, somebody}, {[]string{closed}, refused}, {[]string{silent}, somebody}, {[]string{hangsUp}, ending},
		{[]string{closed, silent}, somebody}, {[]string{closed, hangsUp}, ending}, {[]string{closed, closed}, refused},
	} {
		if got := knockAll(t.Context(), c.addrs); got != c.want {
			t.Errorf("%v: %d, not %d", c.addrs, got, c.want)
		}
	}
}

// udpSocket is somebody who has a port and never answers.
func udpSocket(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestUDPRefuses(t *testing.T) {
	c := udpSocket(t)
	addr := c.LocalAddr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if udpRefuses(ctx, addr) {
		t.Error("a port that somebody has refuses")
	}
	must(t, c.Close())
	if !udpRefuses(t.Context(), addr) {
		t.Error("a port that nobody has does not refuse")
	}
	if udpRefuses(t.Context(), "not an address") {
		t.Error("what is no address refuses")
	}
}

// udpVia gives b's QUIC port another number; what it returns ends that, as the end of a
// process does: without a word.
func udpVia(t *testing.T, b *Mesh) (at ma.Multiaddr, end func()) {
	t.Helper()
	var real *net.UDPAddr
	for _, a := range b.host.Network().ListenAddresses() {
		if hp := udpAddr(a); hp != "" {
			var err error
			real, err = net.ResolveUDPAddr("udp", hp)
			must(t, err)
		}
	}
	front, back := udpSocket(t), udpSocket(t)
	var from net.Addr
	seen := make(chan struct{})
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, a, err := front.ReadFrom(buf)
			if err != nil {
				return
			}
			if n == 1 {
				continue // a knock, which comes from a socket of its own
			}
			if from == nil {
				from = a
				close(seen)
			}
			_, _ = back.WriteTo(buf[:n], real)
		}
	}()
	go func() {
		<-seen
		buf := make([]byte, 1<<16)
		for {
			n, _, err := back.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = front.WriteTo(buf[:n], from)
		}
	}()
	at, err := ma.NewMultiaddr("/ip4/127.0.0.1/udp/" + port(front.LocalAddr().String()) + "/quic-v1")
	must(t, err)
	return at, func() { must(t, front.Close()) }
}

func port(hostPort string) string {
	_, p, _ := net.SplitHostPort(hostPort)
	return p
}

// Where only QUIC passes, the end of the peer's process is known at once too, and not when
// the connection has been silent for half a minute.
func TestHungUpOverQUIC(t *testing.T) {
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	at, end := udpVia(t, b)
	must(t, a.host.Connect(t.Context(), peer.AddrInfo{ID: b.PeerID(), Addrs: []ma.Multiaddr{at}}))
	l, err := a.RaftLayer()
	must(t, err)
	layer := l.(*raftLayer)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if layer.hungUp(short, b.PeerID()) {
		t.Fatal("a peer that lives has hung up")
	}
	end()
	long, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if !layer.hungUp(long, b.PeerID()) {
		t.Error("the peer's end is not noticed")
	}
}

// A dial of a peer that is away ends at once, over QUIC too: it must not hang on until the
// peer is back, and then be the link.
func TestDialOfNobodyEndsAtOnce(t *testing.T) {
	s := newTestSite(t, "north")
	a, b := start(t, s.member(t)), start(t, s.member(t))
	at, end := udpVia(t, b)
	end()
	began := time.Now()
	err := a.host.Connect(t.Context(), peer.AddrInfo{ID: b.PeerID(), Addrs: []ma.Multiaddr{at}})
	if took := time.Since(began); err == nil || took > dialTimeout/2 {
		t.Errorf("%v after %v", err, took)
	}
	must(t, a.AddAddrs(b.PeerID(), b.Addrs()))
	c, err := a.Dial(t.Context(), b.PeerID(), "/nobody/1")
	if err == nil {
		_ = c.Close()
	}
	if forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Errorf("%v", err)
	}
}
