package consensus

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// fullPipeline is raft's own when its reader has ended: nothing but Close frees a sender.
type fullPipeline struct {
	once   sync.Once
	closed chan struct{}
}

func newFullPipeline() *fullPipeline { return &fullPipeline{closed: make(chan struct{})} }

func (p *fullPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-p.closed
	return nil, raft.ErrPipelineShutdown
}
func (p *fullPipeline) Consumer() <-chan raft.AppendFuture { return nil }
func (p *fullPipeline) Close() error                       { p.once.Do(func() { close(p.closed) }); return nil }

func TestPipelineThatNobodyReadsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all pipelines
		p, err := all.guard(newFullPipeline(), 3*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := p.AppendEntries(nil, nil); !errors.Is(err, raft.ErrPipelineShutdown) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("given up after %s", took)
		}
	})
}

func TestClosingTheTransportFreesWhoWaitsInAPipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all pipelines
		p, err := all.guard(newFullPipeline(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		freed := make(chan error)
		go func() { _, err := p.AppendEntries(nil, nil); freed <- err }()
		synctest.Wait()
		all.close()
		if err := <-freed; !errors.Is(err, raft.ErrPipelineShutdown) {
			t.Errorf("%v", err)
		}
		if _, err := all.guard(newFullPipeline(), time.Hour); !errors.Is(err, raft.ErrTransportShutdown) {
			t.Errorf("a pipeline after the end: %v", err)
		}
	})
}
