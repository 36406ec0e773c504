package bulk

import (
	"bufio"
	"container/heap"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Source is what is served. Every error is "not here" to who asked.
type Source interface {
	// Block reads an object of at most one block, or a block of a larger one, into
	// buf, which has room for it. With check set it must be verified.
	Block(ctx context.Context, name forgeyard.Digest, buf []byte, check bool) (int, error)
	// Manifest reads a manifest.
	Manifest(ctx context.Context, name forgeyard.Digest) (cas.Manifest, error)
}

// Opener is a Source that gives some blocks piece by piece: those that need no verifying,
// unless they are asked for with check.
type Opener interface {
	// Open gives nil for any other block, and for what is not here.
	Open(name forgeyard.Digest) cas.Pieces
}

// Many is a Source that reads many small objects at once: neither verified nor all of them.
// f must not keep the bytes; what it is not given is read one by one.
type Many interface {
	Many(ctx context.Context, names []forgeyard.Digest, f func(i int, b []byte))
}

// Server answers the wants of peers. Its fields do not change once it serves.
type Server struct {
	Source  Source
	Parking *Parking
	Clock   clock.Clock
	// Stall is how long a peer may take for a frame besides what its size needs.
	Stall time.Duration
	// Progress is how many bytes came in here, of whatever is being fetched.
	Progress func() int64
	// Pace says how long to wait before n bytes may be sent; nil: no bound.
	Pace func(n int) time.Duration
	// Sent is told of each block that went out, refused of each that did not; may be nil.
	Sent    func(bytes int)
	Refused func(Reason)
}

// item is what remains of one want: its next block, and those after it.
type item struct {
	w    Want
	at   uint32           // of the range, the next block
	name forgeyard.Digest // of one block of a range that stands alone; else zero
	seq  uint64
	by   forgeyard.Instant // until when it may be parked; zero: not at all

	alone bool // it was not found side by side with others
}

// key is one block of one want.
type key struct{ id, index uint32 }

// serving is one connection. Goroutines: the one of Serve reads, another writes, a
// third is the watchdog; all end with Serve.
type serving struct {
	*Server
	conn Conn
	dog  watchdog
	w    *bufio.Writer // of the writer alone
	buf  []byte        // of the writer alone: a head, that ends at lead, and a block or a piece of one

	manifests []kept // of the writer alone, most recent first
	some      []item // of the writer alone: wants that are answered together
	frames    []byte // of the writer alone: their blocks, each behind room for its head

	mu     sync.Mutex // guards what follows; never held together with Parking's
	queue  queue
	seq    uint64
	open   map[key]struct{} // wanted and not answered
	parked map[*ticket]struct{}
	small  []byte        // refusals to be written
	ready  chan struct{} // something was added; capacity 1
}

type kept struct {
	name forgeyard.Digest
	m    cas.Manifest
}

// Serve answers one connection until it ends, which is an error unless the other
// end closed it between two frames, or ctx ended.
func (s *Server) Serve(ctx context.Context, c Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := &serving{
		Server: s, conn: c, dog: watchdog{clk: s.Clock, stall: s.Stall}, w: bufio.NewWriterSize(c, writeBuffer), buf: make([]byte, lead+maxBody),
		open: map[key]struct{}{}, parked: map[*ticket]struct{}{}, ready: make(chan struct{}, 1),
	}
	defer v.leave()
	var wg sync.WaitGroup
	wg.Go(func() { v.dog.run(ctx, c) })
	var werr error
	wg.Go(func() {
		defer cancel()
		werr = v.write(ctx)
	})
	err := v.read()
	ended := ctx.Err() != nil
	cancel()
	wg.Wait()
	if ended && werr != nil {
		err = werr
	}
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		return nil
	}
	return v.dog.why(err)
}

// leave takes back what is parked.
func (v *serving) leave() {
	v.mu.Lock()
	ts := v.parked
	v.parked, v.queue = nil, nil
	v.mu.Unlock()
	for t := range ts {
		v.Parking.remove(t)
	}
}

// read takes wants and cancels until the connection ends.
func (v *serving) read() error {
	r := bufio.NewReaderSize(v.conn, readBuffer)
	for {
		if _, err := r.Peek(1); err != nil {
			return err
		}
		v.dog.bound(&v.dog.read, headSize)
		h, err := readHead(r)
		if err == nil {
			err = v.take(r, h)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		v.dog.read.Store(0)
	}
}

func (v *serving) take(r io.Reader, h head) error {
	switch h.kind {
	case kindWant:
		var b [wantSize]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		w, err := parseWant(h, &b)
		if err != nil {
			return err
		}
		return v.want(w)
	case kindCancel:
		var b [cancelSize]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		v.cancel(h.id, h.index, be32(b))
		return nil
	}
	return forgeyard.Errorf(op, forgeyard.Invalid, "a frame of kind %d is not a client's to send", h.kind)
}

// want queues a want, or refuses what is too much.
func (v *serving) want(w Want) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.signal()
	if len(v.open)+w.blocks() > MaxOpen {
		v.refuse(w.ID, w.First, uint32(w.blocks()), Busy)
		return nil
	}
	for i := range uint32(w.blocks()) {
		k := key{w.ID, w.First + i}
		if _, twice := v.open[k]; twice {
			return forgeyard.Errorf(op, forgeyard.Invalid, "want %d was used twice", w.ID)
		}
		v.open[k] = struct{}{}
	}
	it := item{w: w, seq: v.seq}
	if w.Park > 0 {
		it.by = v.Clock.Now().Add(w.Park)
	}
	v.seq++
	heap.Push(&v.queue, it)
	return nil
}

// cancel ends blocks of a want; those that are not open are answered already.
func (v *serving) cancel(id, index, count uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range min(count, MaxOpen) {
		delete(v.open, key{id, index + i})
	}
}

// signal wakes the writer.
func (v *serving) signal() {
	select {
	case v.ready <- struct{}{}:
	default:
	}
}

// refuse answers blocks with a reason. The caller holds mu.
func (v *serving) refuse(id, index, count uint32, r Reason) {
	v.small = appendRefuse(v.small, id, index, count, r)
	if v.Refused != nil {
		v.Refused(r)
	}
}

// refuseOpen refuses those of the blocks that are still open.
func (v *serving) refuseOpen(id, index, count uint32, r Reason) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := index; i < index+count; i++ {
		if v.answered(key{id, i}) {
			v.refuse(id, i, 1, r)
		}
	}
}

// answered takes a block off the open ones; false when it was cancelled. The
// caller holds mu.
func (v *serving) answered(k key) bool {
	_, ok := v.open[k]
	delete(v.open, k)
	return ok
}

func (v *serving) unpark(t *ticket) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.parked[t]; ok {
		delete(v.parked, t)
		heap.Push(&v.queue, t.it)
		v.signal()
	}
}

// queue gives the highest priority first, then the oldest want.
type queue []item

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].w.Priority != q[j].w.Priority {
		return q[i].w.Priority > q[j].w.Priority
	}
	return q[i].seq < q[j].seq
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(item)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	it := old[len(old)-1]
	old[len(old)-1] = item{}
	*q = old[:len(old)-1]
	return it
}
