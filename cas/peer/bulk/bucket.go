package bulk

import (
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Bucket bounds a rate: bytes a second, with a burst of one tenth of a second but
// at least one block, so that a block never waits for a bucket that cannot hold it.
// The nil bucket bounds nothing. It is told the time and safe for concurrent use.
type Bucket struct {
	rate, burst float64

	mu   sync.Mutex
	have float64 // may be negative: what was taken ahead
	at   forgeyard.Instant
}

// NewBucket makes a full bucket; a rate of zero or less is no bound.
func NewBucket(rate int64) *Bucket {
	if rate <= 0 {
		return nil
	}
	burst := max(float64(rate)/10, maxBody)
	return &Bucket{rate: float64(rate), burst: burst, have: burst}
}

// Take takes n bytes and says how long to wait before using them. Who takes
// later waits longer, so the order is kept.
func (b *Bucket) Take(now forgeyard.Instant, n int) time.Duration {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at != 0 && now > b.at {
		b.have = min(b.burst, b.have+now.Sub(b.at).Seconds()*b.rate)
	}
	b.at = max(b.at, now)
	b.have -= float64(n)
	if b.have >= 0 {
		return 0
	}
	return time.Duration(-b.have / b.rate * float64(time.Second))
}

// Burst is how many bytes may go at once; zero: no bound.
func (b *Bucket) Burst() int64 {
	if b == nil {
		return 0
	}
	return int64(b.burst)
}
