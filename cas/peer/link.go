package peer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipfs/boxo/bitswap/message"
	pb "github.com/ipfs/boxo/bitswap/message/pb"
	bsnetwork "github.com/ipfs/boxo/bitswap/network"
	"github.com/libp2p/go-libp2p/core/network"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// want is one block that is wanted.
type want struct {
	digest   forgeyard.Digest
	size     int64            // bytes, or a bound on them where they are not known
	manifest forgeyard.Digest // of the blob that it is a block of; zero: it stands alone
	index    int              // there
	priority bulk.Priority
	park     bool // where it is asked for it is waited for
	check    bool // other bytes came from there before: it is to be read with care
}

// arrival is a peer's answer to a want.
type arrival struct {
	digest forgeyard.Digest
	data   []byte // nil: the peer refused
	free   func() // when set, called once data is not needed any more; the bytes are then not verified
	late   bool   // of a refusal: it did not come there in time
}

// link is all that is wanted from one peer over one connection, by all lanes. It
// lives until the connection ends, so that what comes late is still known.
type link struct {
	x       *Exchange
	peer    libpeer.ID
	timeout time.Duration // how long the peer may be silent

	lastByte atomic.Int64  // forgeyard.Instant of the last byte from the peer
	lastUse  atomic.Int64  // the same of the last byte of a block, or of progress that it reported
	progress atomic.Int64  // what came in at it, by its own word
	down     chan struct{} // closed when the connection is gone
	once     sync.Once

	sendMu sync.Mutex // serialises messages; taken before mu, never under it
	sender bsnetwork.MessageSender
	bulk   *bulk.Client // once dialled
	plain  bool         // it speaks bitswap only

	overBulk atomic.Bool // bulk is set

	mu      sync.Mutex
	waiting map[forgeyard.Digest][]*lane // in flight, by whom; len ≤ Window
	used    int                          // wants in flight or being stored, over all lanes
	bytes   int64                        // of them
	changed chan struct{}                // closed and replaced when room appears
	recent  map[forgeyard.Digest]struct{}
	ring    []forgeyard.Digest // recent, oldest at next
	next    int
	cancels []forgeyard.Digest // to be taken back with the next message
}

// linkTo gives the link to a peer if there is one.
func (x *Exchange) linkTo(p libpeer.ID) *link {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.links[p]
}

// connect dials the peer if needed, within its tier's time, and gives its link.
func (x *Exchange) connect(ctx context.Context, info libpeer.AddrInfo) (*link, error) {
	timeout := x.patience(info.ID)
	ctx, cancel := x.within(ctx, timeout)
	defer cancel()
	if x.cfg.Host.Network().Connectedness(info.ID) != network.Connected {
		if err := x.cfg.Host.Connect(ctx, info); err != nil {
			return nil, cause(ctx, err)
		}
	}
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil, context.Canceled
	}
	l := x.links[info.ID]
	if l == nil {
		l = &link{
			x: x, peer: info.ID, timeout: timeout, down: make(chan struct{}), changed: make(chan struct{}),
			waiting: map[forgeyard.Digest][]*lane{}, recent: map[forgeyard.Digest]struct{}{},
		}
		x.links[info.ID] = l
	}
	x.mu.Unlock()
	// The connection may have ended before the link was there to be told.
	if x.cfg.Host.Network().Connectedness(info.ID) != network.Connected {
		(*receiver)(x).PeerDisconnected(info.ID)
	}
	return l, nil
}

// cause prefers why ctx ended to what that looked like.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

func (l *link) touch() {
	now := int64(l.x.cfg.Clock.Now())
	l.lastByte.Store(now)
	l.lastUse.Store(now)
}

// fail ends the link: every lane on it learns that.
func (l *link) fail() {
	l.once.Do(func() { close(l.down) })
}

// room is how many more wants and bytes may be outstanding, and a channel that is
// closed when that changes. One want always fits on an idle link.
func (l *link) room() (n int, bytes int64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes = l.x.cfg.Window-l.used, l.window()-l.bytes
	if l.used > 0 && bytes <= 0 {
		n = 0
	}
	return n, bytes, l.changed
}

// send registers wants for a lane and asks the peer for them. Between room and
// send another lane may have taken the room; what no longer fits is given back.
func (l *link) send(ctx context.Context, a *lane, batch []want) (rest []want, err error) {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	overBulk, err := l.dial(ctx)
	if err != nil {
		return batch, err
	}
	m := message.New(false)
	var asked []want
	l.mu.Lock()
	for i, w := range batch {
		if l.used >= l.x.cfg.Window {
			rest = batch[i:]
			break
		}
		l.used++
		l.bytes += w.size
		first := len(l.waiting[w.digest]) == 0
		l.waiting[w.digest] = append(l.waiting[w.digest], a)
		if first {
			asked = append(asked, w)
		}
	}
	if !overBulk {
		for i, w := range asked {
			m.AddEntry(toCID(w.digest), int32(MaxWindow-i), pb.Message_Wantlist_Block, true)
		}
		l.cancelInto(m)
	}
	sent := len(batch) - len(rest)
	used := int64(l.used)
	l.mu.Unlock()
	l.x.stats.outstanding.Add(int64(sent))
	raise(&l.x.stats.mostOutstanding, used)
	if overBulk {
		return rest, l.askBulk(a, asked)
	}
	return rest, l.transmit(ctx, m)
}

// repeat asks again for what a lane still waits for.
func (l *link) repeat(ctx context.Context, a *lane) error {
	l.sendMu.Lock()
	defer l.sendMu.Unlock()
	if l.bulk != nil {
		return nil // nothing is lost on it without the connection
	}
	m := message.New(false)
	l.mu.Lock()
	for d := range a.inflight {
		if slices.Contains(l.waiting[d], a) {
			m.AddEntry(toCID(d), 1, pb.Message_Wantlist_Block, true)
		}
	}
	l.mu.Unlock()
	return l.transmit(ctx, m)
}

// cancelInto adds what is no longer wanted by anybody. The caller holds mu.
func (l *link) cancelInto(m message.BitSwapMessage) {
	for _, d := range l.cancels {
		if len(l.waiting[d]) == 0 {
			m.Cancel(toCID(d))
		}
	}
	l.cancels = nil
}

// transmit sends a message on the link's one stream. The caller holds sendMu.
func (l *link) transmit(ctx context.Context, m message.BitSwapMessage) error {
	if m.Empty() {
		return nil
	}
	if l.sender == nil {
		opts := &bsnetwork.MessageSenderOpts{MaxRetries: 2, SendTimeout: l.timeout, SendErrorBackoff: l.timeout / 100}
		s, err := l.x.net.NewMessageSender(ctx, l.peer, opts)
		if err != nil {
			return err
		}
		l.sender = s
	}
	return l.sender.SendMsg(ctx, m)
}

// receive hands blocks and refusals to the lanes that wait for them. It never
// blocks: a lane's channel holds as much as can be in flight.
func (l *link) receive(m message.BitSwapMessage) {
	blocks, refused := m.Blocks(), m.DontHaves()
	if len(blocks) == 0 && len(refused) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range blocks {
		d, ok := fromCID(b.Cid())
		l.x.stats.blocksIn.Add(1)
		lanes := l.waiting[d]
		if !ok || len(lanes) == 0 {
			l.unasked(d)
			continue
		}
		l.answered(d)
		for _, a := range lanes {
			a.arrivals <- arrival{digest: d, data: b.RawData()}
		}
	}
	for _, c := range refused {
		d, ok := fromCID(c)
		lanes := l.waiting[d]
		if !ok || len(lanes) == 0 {
			continue
		}
		l.x.stats.refusals.Add(1)
		l.answered(d)
		l.cancels = append(l.cancels, d) // the peer remembers what it refused
		for _, a := range lanes {
			a.arrivals <- arrival{digest: d}
		}
	}
}

// unasked judges a block that nobody waits for. If it was never asked for, its
// bytes are an answer to something else: bitswap names a block by what came, so
// wrong bytes carry a name of their own and would otherwise vanish.
func (l *link) unasked(d forgeyard.Digest) {
	if _, known := l.recent[d]; known {
		l.x.stats.duplicates.Add(1)
		return
	}
	told := map[*lane]bool{}
	for _, lanes := range l.waiting {
		for _, a := range lanes {
			if !told[a] {
				told[a] = true
				a.accuse(lie{why: fmt.Sprintf("sent other bytes than were asked for (%s)", d.Short())})
			}
		}
	}
}

// answered moves a digest from waiting to recent.
func (l *link) answered(d forgeyard.Digest) {
	delete(l.waiting, d)
	l.remember(d)
}

func (l *link) remember(d forgeyard.Digest) {
	if _, known := l.recent[d]; known {
		return
	}
	l.recent[d] = struct{}{}
	if len(l.ring) < recentDigests {
		l.ring = append(l.ring, d)
		return
	}
	delete(l.recent, l.ring[l.next])
	l.ring[l.next] = d
	l.next = (l.next + 1) % recentDigests
}

// release gives back the room of wants whose answers are stored or refused.
func (l *link) release(n int, size int64) {
	l.mu.Lock()
	l.used -= n
	l.bytes -= size
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	l.x.stats.outstanding.Add(-int64(n))
}

// drop takes back all that a lane still has in flight, answered or not.
func (l *link) drop(a *lane) {
	if len(a.inflight) == 0 {
		return
	}
	l.mu.Lock()
	for d, f := range a.inflight {
		l.used--
		l.bytes -= f.size
		lanes, asked := l.waiting[d]
		if lanes = slices.DeleteFunc(slices.Clone(lanes), func(b *lane) bool { return b == a }); len(lanes) > 0 {
			l.waiting[d] = lanes
		} else if asked {
			l.answered(d)
			l.cancels = append(l.cancels, d)
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	l.x.stats.outstanding.Add(-int64(len(a.inflight)))
	l.takeBack()
}

// takeBack tells the peer what is no longer wanted, if it still listens.
func (l *link) takeBack() {
	select {
	case <-l.down:
		return
	default:
	}
	end, err := l.x.begin()
	if err != nil {
		return
	}
	go func() {
		defer end()
		ctx, cancel := l.x.within(l.x.ctx, l.timeout)
		defer cancel()
		l.sendMu.Lock()
		defer l.sendMu.Unlock()
		if err := l.cancelNow(ctx); err != nil {
			l.x.cfg.Log.Debug("wants could not be taken back", "peer", l.peer, "err", err)
		}
	}()
}
