package carry

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// pipeline sends appends to one peer without waiting for each answer. At most two are
// under way: who sent the second waits until the first is answered. More gain nothing: what
// waits is sent together.
//
// raft's reader is given each future before its append is made, so it waits at the
// connection and nowhere else: otherwise the sender would wake it, only for it to find
// that there is no answer yet. What follows from that:
//
//   - A connection that ends while nothing is under way ends the reader, for there is no
//     append of which it could be told.
//   - raft waits for the reader when it stops sending, and cannot tell it. So a pipeline
//     that nothing was sent on for as long as an answer may take is at its end. raft sends
//     many times in between, if only to say what is committed.
type pipeline struct {
	t     *Transport
	to    raft.ServerID
	link  *link
	ready chan raft.AppendFuture // capacity 1: the future that the reader takes next
	once  sync.Once

	mu     sync.Mutex // guards what is below, and futures until they are answered
	moved  *sync.Cond // fewer are under way, or the pipeline is closed
	free   *future    // of the next append
	under  int        // appends without an answer
	closed bool
}

// AppendEntriesPipeline implements raft.Transport.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	l, err := t.link(to)
	if err != nil {
		return nil, err
	}
	p := &pipeline{t: t, to: id, link: l, ready: make(chan raft.AppendFuture, 1)}
	p.moved = sync.NewCond(&p.mu)
	p.free = &future{p: p}
	p.ready <- p.free
	p.expire(time.Now())
	return p, nil
}

// expire lets answers that are due be waited for from now on.
func (p *pipeline) expire(now time.Time) {
	if p.t.cfg.Timeout > 0 {
		_ = p.link.conn.SetDeadline(now.Add(p.t.cfg.Timeout)) // a connection without deadlines ends with its peer
	}
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	now := time.Now()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, raft.ErrPipelineShutdown
	}
	f := p.free
	p.free = &future{p: p}
	f.q, f.r, f.at, f.after = q, r, now, p.free
	p.under++
	p.expire(now)
	p.mu.Unlock()
	if err := p.link.send(appendEntries, q); err != nil {
		_ = p.Close() // what is under way has no answer either
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.under > 1 && !p.closed {
		p.moved.Wait()
	}
	if p.closed && p.under > 1 {
		return nil, raft.ErrPipelineShutdown
	}
	return f, nil
}

// Consumer implements raft.AppendPipeline: it gives futures whose appends may still be to
// be made, and whose answers are still to be read, which their Request and Response do.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.ready }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() (err error) {
	p.once.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.moved.Broadcast()
		p.mu.Unlock()
		err = p.link.conn.Close()
	})
	return err
}

// future is an append that was sent, or will be the next to be.
type future struct {
	p     *pipeline
	once  sync.Once
	err   error
	at    time.Time // zero: it is not made yet
	q     *raft.AppendEntriesRequest
	r     *raft.AppendEntriesResponse
	after *future
}

// Error implements raft.Future: it waits for the answer.
func (f *future) Error() error {
	f.once.Do(f.await)
	return f.err
}

func (f *future) await() {
	p := f.p
	err := f.answered()
	p.mu.Lock()
	made := !f.at.IsZero()
	p.mu.Unlock()
	if !made {
		_ = p.Close() // the peer is gone, or answers what nobody asked, or nobody asks any more
		runtime.Goexit()
	}
	if err == nil {
		_, err = p.link.answer(f.r)
	}
	if err == nil {
		p.link.took(p.to, f.q, f.r)
		err = p.t.guard.Held(f.q, f.r)
	}
	if f.err = err; err != nil {
		*f.r = raft.AppendEntriesResponse{} // raft looks at nothing but this
	}
	p.mu.Lock()
	if f.r.Success {
		p.under--
		p.moved.Signal()
	}
	p.mu.Unlock()
	if !f.r.Success {
		_ = p.Close() // raft reads no further, and its sender may wait for that
	}
	p.ready <- f.after
}

// answered returns once an answer begins, or cannot come any more. Each append has moved
// the deadline: one that was set for an earlier append may be met while a later one is made.
func (f *future) answered() error {
	for {
		_, err := f.p.link.in.Peek(1)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		f.p.mu.Lock()
		again := !f.at.IsZero() && time.Since(f.at) < f.p.t.cfg.Timeout
		f.p.mu.Unlock()
		if !again {
			return err
		}
	}
}

// Response implements raft.AppendFuture: it waits for the answer. Without one it is that
// of a peer that has nothing of it.
func (f *future) Response() *raft.AppendEntriesResponse {
	_ = f.Error() // it stands in the response, as far as raft asks
	return f.r
}

// Request implements raft.AppendFuture: it waits as well, for there may be none before.
func (f *future) Request() *raft.AppendEntriesRequest {
	_ = f.Error() // as above
	return f.q
}

// Start implements raft.AppendFuture.
func (f *future) Start() time.Time {
	_ = f.Error() // as above
	return f.at
}
