package bulk

import (
	"context"
	"sync"
)

// Pool lends buffers of one block and bounds how many bytes are out at once, over
// all connections: what arrives faster than it is stored stays in the sockets.
//
// The buffer that came back last goes out first, since the processor still has it, and they
// lie in large pages where the system has them. While none is out the garbage collector may
// take them all.
type Pool struct {
	slots chan struct{}
	idle  sync.Pool // of *shelf, when nothing is out

	mu  sync.Mutex
	now *shelf // nil while nothing is out
}

// shelf is the buffers that were made.
type shelf struct {
	free []*[maxBody]byte // the last one goes out first
	out  int
}

// NewPool bounds the large buffers that are out to n.
func NewPool(n int) *Pool {
	return &Pool{slots: make(chan struct{}, n), idle: sync.Pool{New: func() any { return &shelf{} }}}
}

// smallBuffer is up to which size a buffer is made for each frame: thousands of
// small objects must not wait for blocks.
const smallBuffer = 64 << 10

// get lends n bytes; the release must be called once. It waits for a free buffer.
func (p *Pool) get(ctx context.Context, n int) (b []byte, release func(), err error) {
	if n <= smallBuffer {
		return make([]byte, n), func() {}, nil
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	buf := p.take()
	return buf[:n], func() { p.giveBack(buf); <-p.slots }, nil
}

func (p *Pool) take() *[maxBody]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		p.now = p.idle.Get().(*shelf)
	}
	s := p.now
	if len(s.free) == 0 {
		s.free = newBuffers(min(slabBlocks, cap(p.slots)))
	}
	last := len(s.free) - 1
	buf := s.free[last]
	s.free = s.free[:last]
	s.out++
	return buf
}

func (p *Pool) giveBack(buf *[maxBody]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.now
	s.free = append(s.free, buf)
	if s.out--; s.out == 0 {
		p.idle.Put(s)
		p.now = nil
	}
}

// newBuffers makes n buffers side by side, in large pages where that goes: a block is written
// once and read three times, and in a virtual machine each small page of it that the
// processor looks up costs more than a copy from the cache.
func newBuffers(n int) []*[maxBody]byte {
	raw := make([]byte, n*maxBody+largePage)
	raw = raw[untilLargePage(raw):][:n*maxBody]
	wantLargePages(raw)
	out := make([]*[maxBody]byte, n)
	for i := range out {
		out[n-1-i] = (*[maxBody]byte)(raw[i*maxBody:]) // the first one goes out first
	}
	return out
}
