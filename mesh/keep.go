package mesh

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Keep replaces the set of peers to stay connected to: voters, the uplink. Each
// has a goroutine that redials for ever, with growing waits and jitter, so that a
// link that heals is used within redialMax, and 50 nodes do not all dial at once.
func (m *Mesh) Keep(peers []PeerAddr) error {
	want := map[peer.ID]bool{}
	for _, p := range peers {
		if p.PeerID == m.host.ID() || p.PeerID == "" {
			continue
		}
		if err := m.AddAddrs(p.PeerID, p.Addrs); err != nil {
			return err
		}
		want[p.PeerID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errClosed
	}
	for p, stop := range m.keepers {
		if !want[p] {
			stop()
			delete(m.keepers, p)
		}
	}
	for p := range want {
		if m.keepers[p] != nil {
			continue
		}
		ctx, stop := context.WithCancel(m.ctx)
		m.keepers[p] = stop
		m.wg.Go(func() { m.keep(ctx, p) })
	}
	return nil
}

func (m *Mesh) keep(ctx context.Context, p peer.ID) {
	failures := 0
	for ctx.Err() == nil {
		if err := m.ensureHello(ctx, p); err != nil {
			m.log.Debug("kept peer not reached", "peer", p, "failures", failures, "error", err)
			select {
			case <-m.clk.After(backoff(failures, rand.Float64())):
			case <-ctx.Done():
				return
			}
			failures++
			continue
		}
		failures = 0
		if !m.untilLost(ctx, p) {
			return
		}
	}
}

// untilLost returns true when p's last libp2p connection is gone or no longer introduced.
func (m *Mesh) untilLost(ctx context.Context, p peer.ID) bool {
	for {
		var changed chan struct{}
		var lost bool
		m.table.with(p, func(e *entry) { changed, lost = e.changed, !e.helloed || len(e.conns) == 0 })
		if lost || m.host.Network().Connectedness(p) != network.Connected {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// backoff is redialMin·2ⁿ up to redialMax, times a factor in [½, 1½).
func backoff(failures int, jitter float64) time.Duration {
	d := redialMax
	if failures < 10 {
		d = min(redialMax, redialMin<<failures)
	}
	return time.Duration(float64(d) * (0.5 + jitter))
}
