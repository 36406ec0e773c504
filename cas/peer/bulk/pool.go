package bulk

import (
	"context"
	"sync"
)

// Pool lends buffers of one block and bounds how many bytes are out at once, over
// all connections: what arrives faster than it is stored stays in the sockets.
type Pool struct {
	slots chan struct{}
	free  sync.Pool
}

// NewPool bounds the large buffers that are out to n.
func NewPool(n int) *Pool {
	return &Pool{slots: make(chan struct{}, n), free: sync.Pool{New: func() any { b := make([]byte, maxBody); return &b }}}
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
	buf := p.free.Get().(*[]byte)
	return (*buf)[:n], func() { p.free.Put(buf); <-p.slots }, nil
}
