package peer

import (
	"context"
	"fmt"
	"sync"
	"time"

	blocks "github.com/ipfs/go-block-format"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// pull is a set of wants on their way in, over all holders of a session. Its
// state is guarded by the session's mu.
type pull struct {
	s       *session
	wants   []want
	index   map[forgeyard.Digest]int
	deliver deliver
	workers chan struct{}
	wg      sync.WaitGroup // lanes and deliveries

	pending []int   // not in flight, in order of need
	flights []uint8 // per want: lanes that have it in flight
	owner   []*lane // per want: the last lane that took it
	done    []bool
	undone  int // no want before this one is missing
	left    int
	err     error // ends the pull: the store failed
	lanes   map[*holder]*lane
}

// deliver keeps what came and sets the error of each; called from several goroutines.
type deliver func(ctx context.Context, came []came)

// came is a want whose bytes came.
type came struct {
	i   int
	b   []byte
	err error
}

// oneByOne delivers each by itself.
func oneByOne(f func(ctx context.Context, i int, b []byte) error) deliver {
	return func(ctx context.Context, all []came) {
		for k := range all {
			all[k].err = f(ctx, all[k].i, all[k].b)
		}
	}
}

// lane is one holder's share of a pull. Only its goroutine touches it, but for
// the two channels.
type lane struct {
	p        *pull
	h        *holder
	arrivals chan arrival // holds all that can be in flight
	lied     chan lie     // the peer sent what nobody asked for
	inflight map[forgeyard.Digest]flying
	since    forgeyard.Instant // when something was first in flight after nothing was; written under session.mu

	asked forgeyard.Instant // when wants were last repeated
	idle  forgeyard.Instant // since when there was nothing for it to ask; zero: there is
	came  int64             // bytes of blocks that arrived

	flying int64     // bytes in flight
	held   []landing // small blocks that came, until a worker is free

	doubted map[int]bool     // wants of which other bytes came, and which are to be read with care; guarded by session.mu
	refused map[int]bool     // wants this holder does not have; guarded by session.mu
	late    map[int]lateness // wants that came not in time; guarded by session.mu
	open    int              // of refused, not done
}

// lateness is how often a want came not in time, and the holder's progress then.
type lateness struct {
	times    int
	progress int64
}

// lie is a peer's breach of its word about a want; without one it is about any.
type lie struct {
	wanted forgeyard.Digest
	why    string
}

// accuse tells the lane of a lie; the first is enough.
func (a *lane) accuse(l lie) {
	select {
	case a.lied <- l:
	default:
	}
}

// landing is an answer to a want that was in flight.
type landing struct {
	flying
	arrival
}

type flying struct {
	i    int
	size int64
	by   forgeyard.Instant // when it must be here
}

// fetch brings every want, or says why not. Each want is delivered once, verified
// by its digest. The digests must differ from each other.
func (s *session) fetch(ctx context.Context, wants []want, d deliver) error {
	if len(wants) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &pull{
		s: s, wants: wants, deliver: d, left: len(wants),
		index: make(map[forgeyard.Digest]int, len(wants)), pending: make([]int, len(wants)),
		flights: make([]uint8, len(wants)), owner: make([]*lane, len(wants)), done: make([]bool, len(wants)),
		lanes: map[*holder]*lane{},
	}
	workers := packWorkers
	for i, w := range wants {
		p.index[w.digest], p.pending[i] = i, i
		if w.size > smallWant {
			workers = storeWorkers
		}
	}
	p.workers = make(chan struct{}, workers)
	err := p.run(ctx)
	cancel()
	p.wg.Wait()
	return err
}

// run starts a lane for each holder, and a stage of the search whenever no lane
// can serve what is left.
func (p *pull) run(ctx context.Context) error {
	s := p.s
	for {
		s.mu.Lock()
		if p.err != nil || p.left == 0 {
			defer s.mu.Unlock()
			return p.err
		}
		serving, hope := false, false // a sibling alone is a hope
		for _, h := range s.holders {
			if !h.gone && p.lanes[h] == nil {
				p.start(ctx, h)
			}
			a := p.lanes[h]
			can := !h.gone && a != nil && p.left > a.open
			serving, hope = serving || can && !h.sibling, hope || can
		}
		asking, changed, missing, more := s.asking > 0, s.changed, p.missing(4), s.stage < stageNone
		s.mu.Unlock()
		storing := len(missing) == 0 // all is here; who sent it may be gone
		if !hope && !asking && !storing {
			if !s.advance(missing) {
				return s.failure(missing[0])
			}
			continue
		}
		var impatient <-chan time.Time
		if !serving && more && !storing {
			impatient = s.x.cfg.Clock.After(s.x.hedgeAfter())
		}
		select {
		case <-changed:
		case <-impatient:
			s.advance(missing)
		case <-ctx.Done():
			return s.ended(ctx)
		}
	}
}

// patience is how long a peer may be silent: each tier has its own deadline.
func (x *Exchange) patience(p libpeer.ID) time.Duration {
	if x.isUplink(p) {
		return x.cfg.UplinkTimeout
	}
	return x.cfg.WantTimeout
}

// hedgeAfter is how long a peer may send no byte before others take over.
func (x *Exchange) hedgeAfter() time.Duration { return x.cfg.WantTimeout / hedgeFraction }

// missing samples what is not done.
func (p *pull) missing(n int) []forgeyard.Digest {
	var out []forgeyard.Digest
	for p.undone < len(p.wants) && p.done[p.undone] {
		p.undone++
	}
	for i := p.undone; i < len(p.wants); i++ {
		if !p.done[i] {
			if out = append(out, p.wants[i].digest); len(out) == n {
				break
			}
		}
	}
	return out
}

// start gives a holder a lane. The caller holds session.mu.
func (p *pull) start(ctx context.Context, h *holder) {
	a := &lane{
		p: p, h: h, arrivals: make(chan arrival, p.s.x.cfg.Window), lied: make(chan lie, 1),
		inflight: map[forgeyard.Digest]flying{}, refused: map[int]bool{}, late: map[int]lateness{}, doubted: map[int]bool{},
	}
	p.lanes[h] = a
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		kind, why := a.run(ctx)
		a.storeRest(ctx)
		a.giveBack()
		if why != "" {
			p.s.lose(h, kind, why)
		}
	}()
}

// run takes wants and waits for their answers until the pull or the peer ends. It
// returns why the peer was given up; empty when it was not.
func (a *lane) run(ctx context.Context) (forgeyard.Kind, string) {
	x, l := a.p.s.x, a.h.link
	check := x.cfg.Clock.After(l.timeout / silenceChecksPerWindow)
	for {
		changed, err := a.refill(ctx)
		if ctx.Err() != nil {
			return 0, ""
		}
		if err != nil {
			return forgeyard.Unavailable, "wants could not be sent: " + reason(err)
		}
		select {
		case <-ctx.Done():
			return 0, ""
		case <-l.down:
			return forgeyard.Unavailable, "the connection was lost"
		case d := <-a.lied:
			return forgeyard.Corrupt, a.liar(d)
		case r := <-a.arrivals:
			a.takeAll(ctx, r)
		case a.worker() <- struct{}{}:
			a.storeHeld(ctx)
		case <-changed.session:
		case <-changed.link:
		case <-check:
			if why := a.overdue(); why != "" {
				x.silent(l.peer)
				return forgeyard.Unavailable, why
			}
			if err := a.repeat(ctx); err != nil && ctx.Err() == nil {
				return forgeyard.Unavailable, "wants could not be repeated: " + reason(err)
			}
			check = x.cfg.Clock.After(l.timeout / silenceChecksPerWindow)
		}
	}
}

// liar blames the peer for what it sent.
func (a *lane) liar(l lie) string {
	for d := range a.inflight {
		if !l.wanted.IsZero() {
			break
		}
		l.wanted = d
	}
	a.p.s.x.blame(a.h.link.peer, l.wanted, l.why)
	return l.why
}

// overdue says why the peer must be given up, or nothing.
func (a *lane) overdue() string {
	if len(a.inflight) == 0 || len(a.arrivals) > 0 {
		return "" // what is here already is only waiting for the store
	}
	x := a.p.s.x
	now := x.cfg.Clock.Now()
	last := max(forgeyard.Instant(a.h.link.lastByte.Load()), a.since)
	if quiet := now.Sub(last); quiet >= a.h.link.timeout {
		return fmt.Sprintf("sent nothing for %v", quiet.Round(time.Millisecond))
	}
	for d, f := range a.inflight {
		if now >= f.by {
			return fmt.Sprintf("withholds %s, which it was asked for and did not refuse", d.Short())
		}
	}
	return ""
}

// repeat asks again once the peer has been silent for a while. boxo's server drops
// a want for a block that it is just sending, and what it sends is lost when the
// stream is refused or belonged to a connection's earlier life; while bytes come
// nothing is repeated, so a thin line carries nothing twice.
func (a *lane) repeat(ctx context.Context) error {
	x := a.p.s.x
	now := x.cfg.Clock.Now()
	heard := max(forgeyard.Instant(a.h.link.lastByte.Load()), a.since)
	if len(a.inflight) == 0 || len(a.arrivals) > 0 || a.asked >= heard || now.Sub(heard) < a.h.link.timeout/hedgeFraction {
		return nil
	}
	a.asked = now
	x.stats.repeated.Add(int64(len(a.inflight)))
	return a.h.link.repeat(ctx, a)
}

// waits are what a lane with room waits for: more wants, or room on the link.
type waits struct{ session, link <-chan struct{} }

// refill sends wants while there is room for a worthwhile message.
func (a *lane) refill(ctx context.Context) (waits, error) {
	x, l := a.p.s.x, a.h.link
	n, bytes, changed := l.room()
	if n == 0 {
		return waits{link: changed}, nil
	}
	allowed := min(l.window(), firstBytes+2*a.came) - a.flying
	bytes = min(bytes, allowed)
	if len(a.inflight) > 0 && (n < x.cfg.Window/4 || bytes < min(l.window(), firstBytes+2*a.came)/4) {
		return waits{}, nil // its own arrivals will make room
	}
	if burst := x.paces.burstIn(a.h.uplink); burst > 0 {
		bytes = min(bytes, burst)
	}
	batch, next := a.p.next(a, n, bytes)
	if len(batch) == 0 {
		return waits{session: next}, nil
	}
	if err := a.pace(ctx, batch); err != nil {
		a.p.putBack(a, batch)
		return waits{}, err
	}
	l.mu.Lock()
	ahead := l.bytes
	l.mu.Unlock()
	for _, w := range batch {
		ahead += w.size
	}
	by := x.cfg.Clock.Now().Add(a.patience() + l.timeout + time.Duration(ahead)*time.Second/minBlockRate)
	for _, w := range batch {
		a.inflight[w.digest] = flying{a.p.index[w.digest], w.size, by}
		a.flying += w.size
	}
	rest, err := l.send(ctx, a, batch)
	for _, w := range rest {
		delete(a.inflight, w.digest)
		a.flying -= w.size
	}
	a.p.putBack(a, rest)
	return waits{link: changed}, err
}

// next takes wants for a lane, at most n and about bytes; when there is none, it
// gives a channel that is closed when that may have changed.
func (p *pull) next(a *lane, n int, bytes int64) ([]want, <-chan struct{}) {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	div, now := p.stripes(), s.x.cfg.Clock.Now()
	batch := p.pick(a, n, bytes, func(i int) bool { return div.takes(a, i, p.wants[i]) })
	for i := range batch {
		batch[i].park = a.h.sibling
	}
	if len(batch) == 0 && len(a.inflight) == 0 {
		batch = p.hedge(a, n)
		if a.idle.IsZero() {
			a.idle = now
		}
		if len(batch) == 0 && div.helps(a) && now.Sub(a.idle) >= s.x.hedgeAfter()/2 {
			batch = p.pick(a, min(n, idleBatch), bytes, func(int) bool { return true })
		}
	} else if len(batch) > 0 {
		a.idle = 0
	}
	if len(a.inflight) == 0 {
		a.since = now
	}
	for i := range batch {
		batch[i].check = a.doubted[p.index[batch[i].digest]]
	}
	return batch, s.changed
}

// pick takes pending wants that a lane may ask for. The caller holds session.mu.
func (p *pull) pick(a *lane, n int, bytes int64, may func(i int) bool) (batch []want) {
	kept := p.pending[:0]
	for at, i := range p.pending {
		if len(batch) == n || bytes <= 0 && len(batch) > 0 {
			kept = append(kept, p.pending[at:]...)
			break
		}
		switch {
		case p.done[i]:
		case a.refused[i] || !may(i):
			kept = append(kept, i)
		default:
			batch = append(batch, p.wants[i])
			p.flights[i]++
			p.owner[i] = a
			bytes -= p.wants[i].size
		}
	}
	p.pending = kept
	return batch
}

// patience is how long what the lane asks for may wait at its peer.
func (a *lane) patience() time.Duration {
	if a.h.sibling {
		return parkTime
	}
	return 0
}

// pace waits until the line may carry the wants' answers.
func (a *lane) pace(ctx context.Context, ws []want) error {
	x, n := a.p.s.x, int64(0)
	for _, w := range ws {
		n += w.size
	}
	d := x.paces.in(x.cfg.Clock.Now(), a.h.uplink, int(n))
	if d <= 0 || a.p.s.priority >= bulk.Urgent {
		return nil
	}
	select {
	case <-x.cfg.Clock.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hedge takes, for a lane that has nothing to do, what a silent peer owes. The
// caller holds session.mu.
func (p *pull) hedge(a *lane, n int) []want {
	x := p.s.x
	now := x.cfg.Clock.Now()
	slow := map[*lane]bool{}
	for _, b := range p.lanes {
		last := max(forgeyard.Instant(b.h.link.lastUse.Load()), b.since)
		if b != a && !a.h.sibling && now.Sub(last) >= x.hedgeAfter() {
			slow[b] = true
		}
	}
	if len(slow) == 0 {
		return nil
	}
	var batch []want
	for i := range p.wants {
		if len(batch) == n {
			break
		}
		if !p.done[i] && p.flights[i] == 1 && slow[p.owner[i]] && !a.refused[i] {
			p.flights[i]++
			p.owner[i] = a
			batch = append(batch, p.wants[i])
		}
	}
	x.stats.hedged.Add(int64(len(batch)))
	return batch
}

// putBack returns wants that a lane has no longer in flight.
func (p *pull) putBack(a *lane, ws []want) {
	if len(ws) == 0 {
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, w := range ws {
		p.landed(p.index[w.digest])
	}
	p.s.wake()
}

// landed takes one flight off a want and makes it pending again unless it is done
// or still in flight elsewhere. The caller holds session.mu.
func (p *pull) landed(i int) {
	p.flights[i]--
	if p.flights[i] == 0 && !p.done[i] {
		p.pending = append(p.pending, i)
	}
}

// giveBack returns all that a lane still has in flight.
func (a *lane) giveBack() {
	a.h.link.drop(a)
	var ws []want
	for d, f := range a.inflight {
		ws = append(ws, want{digest: d, size: f.size})
	}
	a.p.putBack(a, ws)
	a.inflight = nil
}

// takeAll handles an answer and those that came with it.
func (a *lane) takeAll(ctx context.Context, r arrival) {
	for {
		a.take(ctx, r)
		select {
		case r = <-a.arrivals:
		default:
			return
		}
	}
}

// take handles one answer. A block goes to the store in a goroutine of its own, small ones
// with all that came until one is free. Their room is given back only then.
func (a *lane) take(ctx context.Context, r arrival) {
	f := a.inflight[r.digest]
	delete(a.inflight, r.digest)
	a.flying -= f.size
	a.came += int64(len(r.data))
	switch {
	case r.data == nil:
		a.p.refuse(a, f.i, r.late)
		a.h.link.release(1, f.size)
	case f.size <= smallWant:
		a.held = append(a.held, landing{f, r})
	default:
		a.p.workers <- struct{}{}
		a.p.begin(ctx, a, []landing{{f, r}})
	}
}

// worker is where a lane gets one, if it has something for it.
func (a *lane) worker() chan<- struct{} {
	if len(a.held) == 0 {
		return nil
	}
	return a.p.workers
}

// storeHeld hands what the lane holds to the worker that it just got.
func (a *lane) storeHeld(ctx context.Context) {
	all := a.held
	a.held = nil
	a.p.begin(ctx, a, all)
}

// storeRest keeps what came before the lane ended.
func (a *lane) storeRest(ctx context.Context) {
	if len(a.held) > 0 {
		a.p.workers <- struct{}{}
		a.storeHeld(ctx)
	}
}

// begin starts a worker, whose place is taken.
func (p *pull) begin(ctx context.Context, a *lane, all []landing) {
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		defer func() { <-p.workers }()
		p.store(ctx, a, all)
	}()
}

// refuse notes that the lane's peer does not have a want.
func (p *pull) refuse(a *lane, i int, late bool) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if late {
		// While more came in there since, it is worth waiting for again.
		now, before := a.h.link.progress.Load(), a.late[i]
		late = before.times == 0 || before.times < maxLate && now != before.progress
		a.late[i] = lateness{before.times + 1, now}
		p.s.x.stats.late.Add(1)
	}
	if !late && !a.refused[i] {
		a.refused[i] = true
		if !p.done[i] {
			a.open++
		}
	}
	p.landed(i)
	p.s.wake()
}

// store delivers blocks unless another lane was first, and offers them to peers.
func (p *pull) store(ctx context.Context, a *lane, all []landing) {
	s := p.s
	fresh := p.fresh(all)
	if len(fresh) > 0 {
		p.deliver(ctx, fresh)
	}
	wrong := make([]bool, len(fresh))
	for k, c := range fresh {
		wrong[k] = forgeyard.KindOf(c.err) == forgeyard.Corrupt && cas.Sum(c.b) != p.wants[c.i].digest
	}
	s.mu.Lock()
	for k, c := range fresh {
		p.settle(ctx, a, c, wrong[k])
	}
	var size int64
	for _, r := range all {
		p.landed(r.i)
		size += r.size
	}
	s.wake()
	s.mu.Unlock()
	p.announce(fresh)
	for _, r := range all {
		if r.free != nil {
			r.free()
		}
	}
	a.h.link.release(len(all), size)
}

// fresh takes those that no other lane brought, and marks them so that a second copy is
// not stored too.
func (p *pull) fresh(all []landing) []came {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	out := make([]came, 0, len(all))
	for _, r := range all {
		if p.done[r.i] || p.err != nil {
			p.s.x.stats.duplicates.Add(1)
			continue
		}
		p.done[r.i] = true
		out = append(out, came{i: r.i, b: r.data})
	}
	return out
}

// settle counts what was delivered. The caller holds session.mu.
func (p *pull) settle(ctx context.Context, a *lane, c came, wrong bool) {
	switch {
	case wrong:
		p.done[c.i] = false // it is asked for elsewhere, or there again
		p.undone = min(p.undone, c.i)
		if !a.h.link.overBulk.Load() || !a.doubt(c.i) {
			a.accuse(lie{p.wants[c.i].digest, "sent other bytes than were asked for"})
		}
	case c.err != nil && p.err == nil && ctx.Err() == nil:
		p.err = forgeyard.E(p.s.op, forgeyard.Other, c.err)
	case c.err == nil:
		p.left--
		p.s.bytes += int64(len(c.b))
		for _, l := range p.lanes {
			if l.refused[c.i] {
				l.open--
			}
		}
	}
}

// doubt reports whether the peer may be asked once more for want i, of which it sent other
// bytes: who sends does not hash again what it looked at lately, so its disk may have failed
// it. Asked with care it finds that, and refuses. The caller holds session.mu.
func (a *lane) doubt(i int) bool {
	if a.doubted[i] || len(a.doubted) == maxDoubts {
		return false
	}
	a.doubted[i] = true
	a.p.s.x.stats.doubted.Add(1)
	return true
}

// announce offers what was just stored to peers who asked for it before.
func (p *pull) announce(all []came) {
	x := p.s.x
	stored := make([]blocks.Block, 0, len(all))
	for _, c := range all {
		if c.err != nil {
			continue
		}
		d := p.wants[c.i].digest
		x.bulk.Parking.Arrived(d)
		b, err := blocks.NewBlockWithCid(c.b, toCID(d))
		if err != nil {
			x.cfg.Log.Debug("a block could not be announced", "digest", d, "err", err)
			continue
		}
		stored = append(stored, b)
	}
	if err := x.server.NotifyNewBlocks(x.ctx, stored...); err != nil {
		x.cfg.Log.Debug("blocks could not be announced", "count", len(stored), "err", err)
	}
}
