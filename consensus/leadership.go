package consensus

import "sync"

// Leadership says whether this node leads, and in which term.
type Leadership struct {
	IsLeader bool
	Term     uint64
}

// leadershipBoard keeps the latest word and hands it to whoever subscribed. A
// slow reader misses intermediate states, never the last one.
type leadershipBoard struct {
	onChange func(Leadership)

	mu     sync.Mutex
	now    Leadership
	closed bool
	subs   []chan Leadership
}

func (b *leadershipBoard) get() Leadership {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *leadershipBoard) set(l Leadership) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || l == b.now || !l.IsLeader && !b.now.IsLeader {
		return
	}
	b.now = l
	b.onChange(l)
	for _, ch := range b.subs {
		select {
		case <-ch: // the word it has not read yet is out of date
		default:
		}
		ch <- l
	}
}

func (b *leadershipBoard) subscribe() <-chan Leadership {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch := make(chan Leadership, 1)
	ch <- b.now
	if b.closed {
		close(ch)
		return ch
	}
	b.subs = append(b.subs, ch)
	return ch
}

func (b *leadershipBoard) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, ch := range b.subs {
		close(ch)
	}
	b.subs = nil
}

// LeaderChanges returns a new subscription: the present state at once, then
// the latest after each change; closed by Close. IsLeader is true only when
// everything of before is applied here. Subscribe once per consumer, for the
// life of the group.
func (g *Group) LeaderChanges() <-chan Leadership { return g.leadership.subscribe() }

func (g *Group) onLeadership(l Leadership) {
	kind := LeadershipLost
	if l.IsLeader {
		kind = LeadershipGained
	}
	g.events.put(Event{Kind: kind, Term: l.Term})
}
