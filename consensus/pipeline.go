package consensus

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// pipelines are the open ones of a transport. raft's sender can be left waiting in
// AppendEntries for ever: its reader ends at the first answer that is no success, and
// with nobody to read, the sender's next call but one finds the pipeline full. Then that
// follower gets no entries for as long as this node leads, and raft never stops, since
// closing the connection wakes nobody there. So an append that takes longer than an
// exchange may closes its pipeline, as closing the transport does: raft falls back to
// single calls and opens another.
type pipelines struct {
	mu     sync.Mutex         // guards what is below
	open   []*guardedPipeline // in the order in which they came
	closed bool
}

type guardedPipeline struct {
	raft.AppendPipeline
	of    *pipelines
	limit time.Duration
}

// guard takes charge of a new pipeline.
func (p *pipelines) guard(inner raft.AppendPipeline, limit time.Duration) (raft.AppendPipeline, error) {
	g := &guardedPipeline{AppendPipeline: inner, of: p, limit: limit}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = inner.Close()
		return nil, raft.ErrTransportShutdown
	}
	p.open = append(p.open, g)
	return g, nil
}

// close ends all, and whoever waits in one.
func (p *pipelines) close() {
	p.mu.Lock()
	open := p.open
	p.open, p.closed = nil, true
	p.mu.Unlock()
	for _, g := range open {
		_ = g.AppendPipeline.Close()
	}
}

// AppendEntries implements raft.AppendPipeline.
func (g *guardedPipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	late := time.AfterFunc(g.limit, func() { _ = g.AppendPipeline.Close() })
	defer late.Stop()
	return g.AppendPipeline.AppendEntries(q, r)
}

// Close implements raft.AppendPipeline.
func (g *guardedPipeline) Close() error {
	g.of.mu.Lock()
	g.of.open = slices.DeleteFunc(g.of.open, func(o *guardedPipeline) bool { return o == g })
	g.of.mu.Unlock()
	return g.AppendPipeline.Close()
}
