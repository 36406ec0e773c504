package node

import (
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// backlog counts results that have ended here and wait for the site's answer. They are on
// disk and are tried for ever (E13); this is what a person is shown of them.
type backlog struct {
	mu    sync.Mutex // guards since
	since map[forgeyard.LeaseID]forgeyard.Instant
}

func newBacklog() *backlog { return &backlog{since: map[forgeyard.LeaseID]forgeyard.Instant{}} }

// add notes that a result waits from now on, if it did not already.
func (b *backlog) add(id forgeyard.LeaseID, now forgeyard.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.since[id]; !ok {
		b.since[id] = now
	}
}

func (b *backlog) answered(id forgeyard.LeaseID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.since, id)
}

// waiting is how many wait, and the oldest for how long.
func (b *backlog) waiting(now forgeyard.Instant) (n int, oldest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.since {
		oldest = max(oldest, now.Sub(at))
	}
	return len(b.since), oldest
}
