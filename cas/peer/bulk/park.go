package bulk

import (
	"sync"

	"github.com/forgeyard/forgeyard-node"
)

// Parking is where wants of all connections wait for objects that are on their way.
type Parking struct {
	mu      sync.Mutex
	waiting map[forgeyard.Digest]map[*ticket]struct{}
}

// ticket is one want that waits, at one connection.
type ticket struct {
	s    *serving
	name forgeyard.Digest
	it   item
}

// Arrived answers who waits for name, now that it is here.
func (p *Parking) Arrived(name forgeyard.Digest) {
	p.mu.Lock()
	ts := p.waiting[name]
	delete(p.waiting, name)
	p.mu.Unlock()
	for t := range ts {
		t.s.unpark(t)
	}
}

// Waiting is how many wants wait.
func (p *Parking) Waiting() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ts := range p.waiting {
		n += len(ts)
	}
	return n
}

func (p *Parking) add(t *ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[forgeyard.Digest]map[*ticket]struct{}{}
	}
	if p.waiting[t.name] == nil {
		p.waiting[t.name] = map[*ticket]struct{}{}
	}
	p.waiting[t.name][t] = struct{}{}
}

// remove takes a ticket away; false when it was answered already.
func (p *Parking) remove(t *ticket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ts := p.waiting[t.name]
	if _, ok := ts[t]; !ok {
		return false
	}
	if delete(ts, t); len(ts) == 0 {
		delete(p.waiting, t.name)
	}
	return true
}
