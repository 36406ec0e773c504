package bulk

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"math"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Handler takes what a peer answers. The calls come from one goroutine, in the
// order of the frames; while one lasts, nothing more is read.
type Handler interface {
	// Block hands over bytes that the peer says are name's; nobody verified them.
	// release must be called once they are not needed any more.
	Block(name forgeyard.Digest, b []byte, release func())
	// Refused says that the peer will not send name.
	Refused(name forgeyard.Digest, r Reason)
	// Alive says that the peer lives although what is parked did not come, and how
	// many bytes came in at it so far.
	Alive(progress int64)
	// Lied says that the peer answered what it cannot have been asked.
	Lied(name forgeyard.Digest, why string)
	// Heard is told whenever bytes came; block says that they belong to one.
	Heard(n int, block bool)
}

// Block is one thing to ask for.
type Block struct {
	Name     forgeyard.Digest
	Size     int64            // of it, or a bound on it
	Manifest forgeyard.Digest // of the blob whose block Index it is; zero: it is asked for by its name
	Index    int
}

// Terms are those of several wants.
type Terms struct {
	Priority Priority
	Park     time.Duration
	Check    bool
}

// Client asks one peer over one connection. Safe for concurrent use.
type Client struct {
	conn Conn
	on   Handler
	pool *Pool
	dog  watchdog

	wmu sync.Mutex // one writer at a time; taken before mu, never under it
	out []byte

	inBlock bool // of the reader: what comes now is a block's bytes

	mu      sync.Mutex
	nextID  uint32
	open    map[uint32]*asked
	where   map[forgeyard.Digest]key // of what is open
	unasked int64
}

// asked is one want that is open.
type asked struct {
	first  uint32
	blocks []Block // an answered one has no name
	left   int
}

// NewClient makes a client that asks nothing yet. Run must be called.
func NewClient(c Conn, on Handler, pool *Pool, clk clock.Clock, stall time.Duration) *Client {
	return &Client{
		conn: c, on: on, pool: pool, dog: watchdog{clk: clk, stall: stall},
		open: map[uint32]*asked{}, where: map[forgeyard.Digest]key{},
	}
}

// maxRun bounds one want, so that a cancel or a higher priority has something to act on.
const maxRun = 64

// Ask wants blocks, none of which may be open already. Neighbours of one blob
// travel as one range.
func (c *Client) Ask(blocks []Block, t Terms) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.out = c.out[:0]
	c.mu.Lock()
	for len(blocks) > 0 {
		n := run(blocks)
		c.ask(blocks[:n:n], t)
		blocks = blocks[n:]
	}
	c.mu.Unlock()
	return c.flush()
}

// run is how many of the blocks make one range.
func run(blocks []Block) int {
	first := blocks[0]
	if first.Manifest.IsZero() {
		return 1
	}
	n := 1
	for n < len(blocks) && n < maxRun && blocks[n].Manifest == first.Manifest && blocks[n].Index == first.Index+n {
		n++
	}
	return n
}

// ask opens one want. The caller holds wmu and mu.
func (c *Client) ask(blocks []Block, t Terms) {
	c.nextID++
	w := Want{ID: c.nextID, Name: blocks[0].Name, Priority: t.Priority, Park: t.Park, Check: t.Check}
	if !blocks[0].Manifest.IsZero() {
		w.Name, w.First, w.Count = blocks[0].Manifest, uint32(blocks[0].Index), uint32(len(blocks))
	}
	a := &asked{first: w.First, blocks: append([]Block(nil), blocks...), left: len(blocks)}
	c.open[w.ID] = a
	for i, b := range blocks {
		c.where[b.Name] = key{w.ID, w.First + uint32(i)}
	}
	c.out = w.append(c.out)
}

// Cancel takes wants back. What is under way may still come and is dropped.
func (c *Client) Cancel(names []forgeyard.Digest) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.out = c.out[:0]
	c.mu.Lock()
	for _, d := range names {
		if k, ok := c.where[d]; ok {
			c.close(k)
			c.out = appendCancel(c.out, k.id, k.index, 1)
		}
	}
	c.mu.Unlock()
	return c.flush()
}

// close takes a block off the open ones and gives it. The caller holds mu.
func (c *Client) close(k key) (b Block, ok bool) {
	a := c.open[k.id]
	if a == nil || k.index < a.first || int(k.index-a.first) >= len(a.blocks) {
		return b, false
	}
	p := &a.blocks[k.index-a.first]
	if p.Name.IsZero() {
		return b, false
	}
	b, *p = *p, Block{}
	delete(c.where, b.Name)
	if a.left--; a.left == 0 {
		delete(c.open, k.id)
	}
	return b, true
}

// flush writes what has gathered. The caller holds wmu.
func (c *Client) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	c.dog.bound(&c.dog.write, len(c.out))
	defer c.dog.write.Store(0)
	_, err := c.conn.Write(c.out)
	return c.dog.why(err)
}

// Run reads answers until the connection or ctx ends; it always returns why.
func (c *Client) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.dog.run(ctx, c.conn) })
	err := c.read(ctx)
	cancel()
	wg.Wait()
	return c.dog.why(err)
}

// heard counts the bytes of a connection as they come.
type heard struct{ c *Client }

func (h heard) Read(b []byte) (int, error) {
	n, err := h.c.conn.Read(b)
	if n > 0 {
		h.c.on.Heard(n, h.c.inBlock)
	}
	return n, err
}

func (c *Client) read(ctx context.Context) error {
	r := bufio.NewReaderSize(heard{c}, readBuffer)
	for {
		if _, err := r.Peek(1); err != nil {
			return err
		}
		c.dog.bound(&c.dog.read, headSize)
		h, err := readHead(r)
		if err == nil {
			err = c.take(ctx, r, h)
		}
		if err != nil {
			return err
		}
		c.dog.read.Store(0)
	}
}

func (c *Client) take(ctx context.Context, r *bufio.Reader, h head) error {
	switch h.kind {
	case kindBlock:
		return c.block(ctx, r, h)
	case kindRefuse:
		var b [refuseSize]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		c.refused(h, &b)
		return nil
	case kindAlive:
		var b [aliveSize]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		c.on.Alive(int64(binary.BigEndian.Uint64(b[:]) & math.MaxInt64))
		return nil
	}
	return forgeyard.Errorf(op, forgeyard.Invalid, "a frame of kind %d is not a server's to send", h.kind)
}

// block takes one block's bytes and hands them on if they were asked for.
func (c *Client) block(ctx context.Context, r *bufio.Reader, h head) error {
	c.mu.Lock()
	b, ok := c.close(key{h.id, h.index})
	known := h.id <= c.nextID
	if !ok {
		c.unasked += int64(h.size)
	}
	unasked := c.unasked
	c.mu.Unlock()
	switch {
	case !known || unasked > maxUnasked:
		return forgeyard.Errorf(op, forgeyard.Corrupt, "block %d of want %d was never asked for", h.index, h.id)
	case ok && int64(h.size) > b.Size:
		c.on.Lied(b.Name, "sent more bytes than the block has")
		ok = false
	}
	c.inBlock = true
	defer func() { c.inBlock = false }()
	c.dog.bound(&c.dog.read, int(h.size))
	if !ok {
		_, err := r.Discard(int(h.size))
		return err
	}
	// Waiting for a buffer is our own doing, not the peer's.
	c.dog.read.Store(0)
	buf, release, err := c.pool.get(ctx, int(h.size))
	if err != nil {
		return err
	}
	c.dog.bound(&c.dog.read, int(h.size))
	if _, err := io.ReadFull(r, buf); err != nil {
		release()
		return err
	}
	c.dog.read.Store(0)
	c.on.Block(b.Name, buf, release)
	return nil
}

func (c *Client) refused(h head, body *[refuseSize]byte) {
	count, reason := parseRefuse(body)
	var names []forgeyard.Digest
	c.mu.Lock()
	for i := range min(count, MaxOpen) {
		if b, ok := c.close(key{h.id, h.index + i}); ok {
			names = append(names, b.Name)
		}
	}
	c.mu.Unlock()
	for _, d := range names {
		c.on.Refused(d, reason)
	}
}
