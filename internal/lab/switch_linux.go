package lab

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cable is the switch between the machines.
type cable struct {
	mu    sync.Mutex
	seed  uint64
	ports []*port
	links map[pair]*link
}

// pair is one direction, by port.
type pair struct{ from, to int }

type link struct {
	weather  Weather
	rng      *rand.Rand
	underway int
}

// port is one machine's end. Its file is safe for concurrent writes: each is a frame.
type port struct{ tap *os.File }

func newCable(seed uint64) *cable { return &cable{seed: seed, links: map[pair]*link{}} }

// plug gives a TAP the next port and begins to serve it.
func (c *cable) plug(tap *os.File) {
	c.mu.Lock()
	n := len(c.ports)
	c.ports = append(c.ports, &port{tap: tap})
	c.mu.Unlock()
	go c.serve(n, tap)
}

// set changes the weather of one direction.
func (c *cable) set(p pair, w Weather) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link(p).weather = w
}

// link is called with mu held.
func (c *cable) link(p pair) *link {
	l := c.links[p]
	if l == nil {
		l = &link{rng: stream(c.seed, p.from, p.to)}
		c.links[p] = l
	}
	return l
}

// maxFrame is the MTU of the interfaces with its header, and room for a VLAN tag.
const maxFrame = 1500 + headerLen + 4

// serve carries what one machine sends until its TAP is closed.
func (c *cable) serve(from int, tap *os.File) {
	buf := make([]byte, maxFrame)
	for {
		n, err := tap.Read(buf)
		if err != nil {
			return // closed
		}
		c.carry(from, append([]byte(nil), buf[:n]...))
	}
}

func (c *cable) carry(from int, frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, to := range receivers(frame, from, len(c.ports)) {
		l, out := c.link(pair{from, to}), c.ports[to]
		after, lost := l.weather.fate(l.rng)
		if lost || l.underway >= maxUnderway {
			continue
		}
		if after == 0 {
			out.deliver(frame)
			continue
		}
		l.underway++
		time.AfterFunc(after, func() {
			out.deliver(frame)
			c.mu.Lock()
			l.underway--
			c.mu.Unlock()
		})
	}
}

// deliver hands a frame to a machine. One that is shutting down takes nothing.
func (p *port) deliver(frame []byte) { _, _ = p.tap.Write(frame) }

func (c *cable) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.ports {
		_ = p.tap.Close() // the interface goes with it
	}
}

// openTAP makes an interface in the namespace of the calling thread.
func openTAP(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd) // nothing was made
		return nil, fmt.Errorf("a TAP named %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil // after the ioctl: the poller needs a tap that is attached
}
