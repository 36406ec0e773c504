package carry

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// pipeline sends appends to one peer without waiting for each answer. At most two are
// under way: the sender gives each to the reader, which takes the next one when it has
// read the answer to the last. More gain nothing: what waits is sent together.
type pipeline struct {
	t    *Transport
	link *link
	sent chan raft.AppendFuture
	once sync.Once
	quit chan struct{}
}

// AppendEntriesPipeline implements raft.Transport.
func (t *Transport) AppendEntriesPipeline(_ raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	l, err := t.link(to)
	if err != nil {
		return nil, err
	}
	return &pipeline{t: t, link: l, sent: make(chan raft.AppendFuture), quit: make(chan struct{})}, nil
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	f := &future{p: p, at: time.Now(), q: q, r: r}
	if p.t.cfg.Timeout > 0 {
		_ = p.link.conn.SetWriteDeadline(f.at.Add(p.t.cfg.Timeout)) // a connection without deadlines ends with its peer
	}
	if err := p.link.send(appendEntries, q); err != nil {
		_ = p.Close() // what is under way has no answer either
		return nil, err
	}
	select {
	case p.sent <- f:
		return f, nil
	case <-p.quit:
		return nil, raft.ErrPipelineShutdown
	}
}

// Consumer implements raft.AppendPipeline: it gives appends whose answers are still to be
// read, which their Response does.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.sent }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() (err error) {
	p.once.Do(func() {
		close(p.quit)
		err = p.link.conn.Close()
	})
	return err
}

// future is an append that was sent.
type future struct {
	p    *pipeline
	at   time.Time
	q    *raft.AppendEntriesRequest
	r    *raft.AppendEntriesResponse
	once sync.Once
	err  error
}

// Error implements raft.Future.
func (f *future) Error() error {
	f.once.Do(func() {
		if f.p.t.cfg.Timeout > 0 {
			_ = f.p.link.conn.SetReadDeadline(time.Now().Add(f.p.t.cfg.Timeout)) // as above
		}
		_, f.err = f.p.link.answer(f.r)
		if f.err == nil {
			f.err = f.p.t.guard.Held(f.q, f.r)
		}
		if f.err != nil {
			*f.r = raft.AppendEntriesResponse{} // raft looks at nothing but this
		}
		if !f.r.Success {
			_ = f.p.Close() // raft reads no further, and its sender may wait for that
		}
	})
	return f.err
}

// Response implements raft.AppendFuture: it waits for the answer. Without one it is that
// of a peer that has nothing of it.
func (f *future) Response() *raft.AppendEntriesResponse {
	_ = f.Error() // it stands in the response, as far as raft asks
	return f.r
}

// Start implements raft.AppendFuture.
func (f *future) Start() time.Time { return f.at }

// Request implements raft.AppendFuture.
func (f *future) Request() *raft.AppendEntriesRequest { return f.q }
