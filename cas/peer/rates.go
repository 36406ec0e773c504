package peer

import (
	"context"
	"sync"
	"time"

	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// Rates bound what content takes of the lines, bytes a second; zero bounds nothing.
// What is urgent is counted and never waits.
type Rates struct {
	PeerOut   int64 // sent to one peer
	PeersOut  int64 // sent to all peers, the uplink not among them
	PeersIn   int64 // asked from all peers
	UplinkOut int64 // sent over the uplink
	UplinkIn  int64 // asked over the uplink
}

func (r Rates) validate() error {
	for _, v := range []int64{r.PeerOut, r.PeersOut, r.PeersIn, r.UplinkOut, r.UplinkIn} {
		if v < 0 {
			return forgeyard.Errorf("cas peer", forgeyard.Invalid, "a rate of %d bytes a second is negative", v)
		}
	}
	return nil
}

// paces holds the buckets of the rates.
type paces struct {
	peerRate int64

	peersOut, peersIn, uplinkOut, uplinkIn *bulk.Bucket

	mu    *sync.Mutex
	peers map[libpeer.ID]*bulk.Bucket
}

func newPaces(r Rates) paces {
	return paces{
		peerRate: r.PeerOut, peersOut: bulk.NewBucket(r.PeersOut), peersIn: bulk.NewBucket(r.PeersIn),
		uplinkOut: bulk.NewBucket(r.UplinkOut), uplinkIn: bulk.NewBucket(r.UplinkIn),
		mu: &sync.Mutex{}, peers: map[libpeer.ID]*bulk.Bucket{},
	}
}

// out says how long to wait before n bytes are sent to a peer.
func (p *paces) out(now forgeyard.Instant, to libpeer.ID, uplink bool, n int) time.Duration {
	if uplink {
		return p.uplinkOut.Take(now, n)
	}
	p.mu.Lock()
	b := p.peers[to]
	if b == nil && p.peerRate > 0 {
		b = bulk.NewBucket(p.peerRate)
		p.peers[to] = b
	}
	p.mu.Unlock()
	return max(b.Take(now, n), p.peersOut.Take(now, n))
}

// in says how long to wait before n bytes are asked for.
func (p *paces) in(now forgeyard.Instant, uplink bool, n int) time.Duration {
	if uplink {
		return p.uplinkIn.Take(now, n)
	}
	return p.peersIn.Take(now, n)
}

func (p *paces) forget(id libpeer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.peers, id)
}

// burstIn is the most bytes to ask for at once; zero: as many as the window holds.
func (p *paces) burstIn(uplink bool) int64 {
	if uplink {
		return p.uplinkIn.Burst()
	}
	return p.peersIn.Burst()
}

type priorityKey struct{}

// WithPriority makes fetches under ctx overtake others of a lower priority, at each
// peer that speaks the bulk protocol.
func WithPriority(ctx context.Context, p bulk.Priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

func priorityOf(ctx context.Context) bulk.Priority {
	p, _ := ctx.Value(priorityKey{}).(bulk.Priority)
	return p
}

type meterKey struct{}

// WithMeter makes fetches under ctx add to a counter the bytes that they brought and stored.
func WithMeter(ctx context.Context, m func(bytes int64)) context.Context {
	return context.WithValue(ctx, meterKey{}, m)
}

// metered tells who asked for it what a session brought.
func metered(ctx context.Context, bytes int64) {
	if m, ok := ctx.Value(meterKey{}).(func(int64)); ok && bytes > 0 {
		m(bytes)
	}
}
