package clock

import (
	"sort"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Manual is a clock for tests: it moves only when told.
type Manual struct {
	mu     sync.Mutex
	now    forgeyard.Instant
	wall   time.Time
	boot   string
	timers []manualTimer // sorted by at
}

type manualTimer struct {
	at forgeyard.Instant
	ch chan time.Time
}

// NewManual starts at one second after boot and the given wall time.
func NewManual(wall time.Time) *Manual {
	return &Manual{now: forgeyard.Instant(time.Second), wall: wall.UTC(), boot: "boot-1"}
}

// Now implements Clock.
func (m *Manual) Now() forgeyard.Instant { m.mu.Lock(); defer m.mu.Unlock(); return m.now }

// Wall implements Clock.
func (m *Manual) Wall() time.Time { m.mu.Lock(); defer m.mu.Unlock(); return m.wall }

// BootID implements Clock.
func (m *Manual) BootID() string { m.mu.Lock(); defer m.mu.Unlock(); return m.boot }

// After implements Clock.
func (m *Manual) After(d time.Duration) <-chan time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := manualTimer{at: m.now.Add(d), ch: make(chan time.Time, 1)}
	if d <= 0 {
		t.ch <- m.wall
		return t.ch
	}
	i := sort.Search(len(m.timers), func(i int) bool { return m.timers[i].at > t.at })
	m.timers = append(m.timers, manualTimer{})
	copy(m.timers[i+1:], m.timers[i:])
	m.timers[i] = t
	return t.ch
}

// Advance moves both clocks and fires what is due, in order.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now, m.wall = m.now.Add(d), m.wall.Add(d)
	for len(m.timers) > 0 && m.timers[0].at <= m.now {
		m.timers[0].ch <- m.wall
		m.timers = m.timers[1:]
	}
}

// SetWall jumps the wall clock alone, as a person or a time server would.
func (m *Manual) SetWall(t time.Time) { m.mu.Lock(); defer m.mu.Unlock(); m.wall = t.UTC() }
