package peer

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/ipfs/boxo/bitswap/message"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// bulkSource lets the bulk server read a store.
type bulkSource struct{ store cas.Store }

func (s bulkSource) Block(ctx context.Context, name forgeyard.Digest, buf []byte, check bool) (int, error) {
	var b []byte
	var err error
	if r, ok := s.store.(cas.BlockReader); ok {
		b, err = r.ReadBlock(ctx, name, buf, check)
	} else {
		b, err = s.store.Block(ctx, name)
	}
	if err != nil || len(b) == 0 || &b[0] == &buf[0] {
		return len(b), err
	}
	return copy(buf, b), nil
}

// Open implements bulk.Opener.
func (s bulkSource) Open(name forgeyard.Digest) cas.Pieces {
	if o, ok := s.store.(cas.BlockOpener); ok {
		return o.OpenBlock(name)
	}
	return nil
}

// Many implements bulk.Many.
func (s bulkSource) Many(ctx context.Context, names []forgeyard.Digest, f func(i int, b []byte)) {
	if m, ok := s.store.(cas.ManyReader); ok {
		m.ReadMany(ctx, names, false, f)
	}
}

func (s bulkSource) Manifest(ctx context.Context, name forgeyard.Digest) (cas.Manifest, error) {
	b, err := s.store.Block(ctx, name)
	if err != nil {
		return cas.Manifest{}, err
	}
	return cas.DecodeManifest(b)
}

// serveBulk answers one connection of a peer.
func (x *Exchange) serveBulk(p libpeer.ID, c io.ReadWriteCloser) {
	defer func() { _ = c.Close() }()
	end, err := x.begin()
	if err != nil {
		return
	}
	defer end()
	x.mu.Lock()
	over := x.served[p] >= servedPerPeer
	if !over {
		x.served[p]++
	}
	x.mu.Unlock()
	if over {
		x.cfg.Log.Debug("a peer opened more bulk connections than are served", "peer", p, "bound", servedPerPeer)
		return
	}
	x.stats.bulkPeers.Add(1)
	s := x.bulk
	s.Stall = x.patience(p)
	s.Pace = func(n int) time.Duration { return x.paces.out(x.cfg.Clock.Now(), p, x.isUplink(p), n) }
	err = s.Serve(x.ctx, c)
	x.stats.bulkPeers.Add(-1)
	x.mu.Lock()
	if x.served[p]--; x.served[p] == 0 {
		delete(x.served, p)
		x.paces.forget(p)
	}
	x.mu.Unlock()
	if err != nil {
		x.cfg.Log.Debug("a bulk connection ended", "peer", p, "err", err)
	}
}

// isUplink reports whether a peer is the one behind Config.Uplink.
func (x *Exchange) isUplink(p libpeer.ID) bool {
	if x.cfg.Uplink == "" {
		return false
	}
	info, err := x.resolve(x.cfg.Uplink)
	return err == nil && info.ID == p
}

// dial opens the link's bulk connection, once. It reports false when the peer
// speaks bitswap only. The caller holds sendMu.
func (l *link) dial(ctx context.Context) (bool, error) {
	if l.bulk != nil || l.plain {
		return l.bulk != nil, nil
	}
	x := l.x
	dctx, cancel := x.within(ctx, l.timeout)
	defer cancel()
	conn, err := x.lines.dial(dctx, l.peer)
	if forgeyard.KindOf(err) == forgeyard.NotFound {
		l.plain = true
		return false, nil
	}
	if err != nil {
		return false, cause(dctx, err)
	}
	end, err := x.begin()
	if err != nil {
		_ = conn.Close()
		return false, err
	}
	c := bulk.NewClient(conn, (*bulkLink)(l), x.pool, x.cfg.Clock, l.timeout)
	l.bulk = c
	l.overBulk.Store(true)
	x.stats.bulkPeers.Add(1)
	go func() {
		defer end()
		ctx, cancel := context.WithCancel(x.ctx)
		defer cancel()
		go func() {
			select {
			case <-l.down:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := c.Run(ctx)
		x.stats.bulkPeers.Add(-1)
		x.cfg.Log.Debug("a bulk connection ended", "peer", l.peer, "err", err)
		x.dropLink(l)
	}()
	return true, nil
}

// dropLink ends a link; the next fetch makes another.
func (x *Exchange) dropLink(l *link) {
	x.mu.Lock()
	if x.links[l.peer] == l {
		delete(x.links, l.peer)
	}
	x.mu.Unlock()
	l.fail()
}

// window is the most bytes outstanding. It is asked with and without sendMu, so it
// goes by what both protocols can hold until one is chosen.
func (l *link) window() int64 {
	if l.overBulk.Load() {
		return bulkBytes
	}
	return windowBytes
}

// askBulk sends wants of a lane over the bulk connection. The caller holds sendMu.
func (l *link) askBulk(a *lane, ws []want) error {
	for len(ws) > 0 {
		n := 1
		for n < len(ws) && ws[n].priority == ws[0].priority && ws[n].park == ws[0].park && ws[n].check == ws[0].check {
			n++
		}
		park := time.Duration(0)
		if ws[0].park {
			park = parkTime
		}
		blocks := make([]bulk.Block, n)
		for i, w := range ws[:n] {
			blocks[i] = bulk.Block{Name: w.digest, Size: w.size, Manifest: w.manifest, Index: w.index}
		}
		terms := bulk.Terms{Priority: max(ws[0].priority, a.p.s.priority), Park: park, Check: ws[0].check}
		if err := l.bulk.Ask(blocks, terms); err != nil {
			return err
		}
		ws = ws[n:]
	}
	return nil
}

// cancelNow tells the peer what is no longer wanted. The caller holds sendMu.
func (l *link) cancelNow(ctx context.Context) error {
	if l.bulk == nil {
		m := message.New(false)
		l.mu.Lock()
		l.cancelInto(m)
		l.mu.Unlock()
		return l.transmit(ctx, m)
	}
	l.mu.Lock()
	var names []forgeyard.Digest
	for _, d := range l.cancels {
		if len(l.waiting[d]) == 0 {
			names = append(names, d)
		}
	}
	l.cancels = nil
	l.mu.Unlock()
	return l.bulk.Cancel(names)
}

// bulkLink is the link as it takes a bulk connection's answers.
type bulkLink link

var _ bulk.Handler = (*bulkLink)(nil)

// Heard implements bulk.Handler.
func (b *bulkLink) Heard(n int, block bool) {
	now := int64(b.x.cfg.Clock.Now())
	b.lastByte.Store(now)
	if block {
		b.lastUse.Store(now)
		b.x.progress.Add(int64(n))
	}
	b.x.stats.bytesIn.Add(int64(n))
}

// Alive implements bulk.Handler.
func (b *bulkLink) Alive(progress int64) {
	if b.progress.Swap(progress) != progress {
		b.lastUse.Store(int64(b.x.cfg.Clock.Now()))
	}
}

// Block implements bulk.Handler: it hands the bytes to every lane that waits.
func (b *bulkLink) Block(name forgeyard.Digest, data []byte, release func()) {
	l := (*link)(b)
	b.lastUse.Store(b.lastByte.Load())
	b.x.progress.Add(1)
	b.x.stats.blocksIn.Add(1)
	b.x.stats.bulkIn.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	lanes := l.waiting[name]
	if len(lanes) == 0 {
		b.x.stats.duplicates.Add(1)
		release()
		return
	}
	l.answered(name)
	var left atomic.Int64
	left.Store(int64(len(lanes)))
	free := func() {
		if left.Add(-1) == 0 {
			release()
		}
	}
	for _, a := range lanes {
		a.arrivals <- arrival{digest: name, data: data, free: free}
	}
}

// Refused implements bulk.Handler.
func (b *bulkLink) Refused(name forgeyard.Digest, r bulk.Reason) {
	l := (*link)(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	lanes := l.waiting[name]
	if len(lanes) == 0 {
		return
	}
	b.x.stats.refusals.Add(1)
	l.answered(name)
	for _, a := range lanes {
		a.arrivals <- arrival{digest: name, late: r == bulk.Late || r == bulk.Busy}
	}
}

// Lied implements bulk.Handler.
func (b *bulkLink) Lied(name forgeyard.Digest, why string) {
	l := (*link)(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.waiting[name] {
		a.accuse(lie{name, why})
	}
}
