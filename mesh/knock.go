package mesh

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// knock is what comes of opening a connection and saying nothing.
type knock uint8

const (
	somebody knock = iota // is there, or nobody can say
	refused               // nobody is there
	ending                // what accepted hung up: a process that ends closes its door last
)

// knockAll is refused if every address refuses, and somebody if there is none.
func knockAll(ctx context.Context, addrs []string) knock {
	if len(addrs) == 0 {
		return somebody
	}
	for _, a := range addrs {
		if k := knockAt(ctx, a); k != refused {
			return k
		}
	}
	return refused
}

func knockAt(ctx context.Context, addr string) knock {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.Is(err, syscall.ECONNRESET):
		return ending
	case err != nil:
		return somebody
	}
	defer c.Close() // nothing was said
	if err := c.SetReadDeadline(time.Now().Add(hangsUpWithin)); err != nil {
		return somebody
	}
	_, err = c.Read(make([]byte, 1))
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return somebody
	}
	return ending
}

// hangsUpWithin is how long a process that is being ended may take to hang up. One that
// lives waits for our first word much longer.
const hangsUpWithin = 100 * time.Millisecond

// udpAddr is empty for an address that is not of UDP.
func udpAddr(a ma.Multiaddr) string {
	if n, hp, err := manet.DialArgs(a); err == nil && (n == "udp" || n == "udp4" || n == "udp6") {
		return hp
	}
	return ""
}

// udpRefuses waits until the host of addr says that nobody has the port; false when ctx
// ends first. A byte that is no packet of QUIC's is dropped by who is there, so silence
// says nothing.
func udpRefuses(ctx context.Context, addr string) bool {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	// The port of a process that is being ended is free a moment later.
	for wait := firstKnock; ; wait = min(2*wait, lastKnock) {
		_, err := c.Write([]byte{0})
		if err == nil {
			if err = c.SetReadDeadline(time.Now().Add(wait)); err == nil {
				_, err = c.Read(make([]byte, 1))
			}
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
		if ctx.Err() != nil || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
	}
}

// The kernel of the other side answers about one knock a second when it is asked often.
const (
	firstKnock = 10 * time.Millisecond
	lastKnock  = time.Second
)
