package peer

import (
	"encoding/binary"

	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

// Several nodes that bring the same thing in at once are siblings. Each of them
// takes another part of it from whoever has all, and the rest from its siblings,
// where it waits (parked) until they have it: what the holder sends once is enough
// for all. Who takes which block is a matter of arithmetic, the same at each of
// them: the one whose score with the block is highest. A sibling that leaves gives
// up its blocks and nothing else changes hands; and since a block is only ever
// waited for at somebody with a higher score, no two wait for each other.

// claimOf is how strong a claim the owner of a key has to a block. Of each row of blocks of a
// blob every owner gives each strength once, in an order of its own: left to chance alone the
// one with the most blocks had more to pass on than its line carries meanwhile.
func claimOf(key uint64, w want) uint64 {
	chance := spread(key ^ binary.BigEndian.Uint64(w.digest[:8]))
	if w.manifest.IsZero() {
		return chance
	}
	row := spread(key ^ (binary.BigEndian.Uint64(w.manifest[:8]) + uint64(w.index/claimRow)))
	strength := (uint64(w.index)*(row|1) + row>>32) % claimRow
	return strength<<(64-claimBits) | chance>>claimBits
}

// claimRow is how many blocks make a row: a power of two, so that an odd number of steps
// meets each strength once.
const (
	claimBits = 5
	claimRow  = 1 << claimBits
)

// spread makes of each number another, as if by chance.
func spread(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// keyOf spreads peer ids evenly.
func keyOf(p libpeer.ID) uint64 {
	d := cas.Sum([]byte(p))
	return binary.BigEndian.Uint64(d[:8])
}

// stripes says who takes what, over the lanes of a pull at one moment.
type stripes struct {
	self     uint64
	siblings []*lane
	whole    bool // somebody is there who is no sibling
}

// stripes divides among the lanes that are there. The caller holds session.mu.
func (p *pull) stripes() stripes {
	out := stripes{self: p.s.x.key}
	for _, a := range p.lanes {
		switch {
		case a.h.gone:
		case a.h.sibling:
			out.siblings = append(out.siblings, a)
		default:
			out.whole = true
		}
	}
	return out
}

// owner is the sibling that takes the block, or nil when it is ours.
func (s stripes) owner(w want) *lane {
	var best *lane
	most := claimOf(s.self, w)
	for _, a := range s.siblings {
		if v := claimOf(a.h.key, w); v > most {
			best, most = a, v
		}
	}
	return best
}

// takes reports whether a lane is the one that should ask for want i. At a sibling
// only that is waited for which is the sibling's to bring: what two wait for at each
// other never comes.
func (s stripes) takes(a *lane, i int, w want) bool {
	switch {
	case len(s.siblings) == 0:
		return true
	case w.priority > bulk.Content && s.whole:
		return !a.h.sibling // small, and everything waits for it
	}
	o := s.owner(w)
	if o == nil || o.refused[i] {
		return !a.h.sibling // ours to take from whoever has all
	}
	return o == a
}

// helps reports whether a lane that has long had nothing to do may ask for what is
// another's: a whole holder for all, a sibling only where there is none, and then
// for what it has already.
func (s stripes) helps(a *lane) bool { return !a.h.sibling || !s.whole }

// beginFetch lets siblings know of a session.
func (x *Exchange) beginFetch(d forgeyard.Digest, s *session) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sessions[d] == nil {
		x.sessions[d] = map[*session]struct{}{}
	}
	x.sessions[d][s] = struct{}{}
}

func (x *Exchange) endFetch(d forgeyard.Digest, s *session) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if delete(x.sessions[d], s); len(x.sessions[d]) == 0 {
		delete(x.sessions, d)
	}
}

// fetches reports whether d is being brought in here.
func (x *Exchange) fetches(d forgeyard.Digest) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.sessions[d]) > 0
}

// meetSibling tells the sessions that bring d in of a peer that does the same.
func (x *Exchange) meetSibling(p libpeer.ID, d forgeyard.Digest) {
	x.mu.Lock()
	var met []*session
	for s := range x.sessions[d] {
		met = append(met, s)
	}
	x.mu.Unlock()
	for _, s := range met {
		s.meet(p)
	}
}

// meet makes a peer that is connected a holder.
func (s *session) meet(p libpeer.ID) {
	if s.x.penalised(p) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.siblings() >= maxSiblings || s.held(p) != nil {
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		src := source{name: p.String(), info: libpeer.AddrInfo{ID: p}}
		l, err := s.x.connect(s.ctx, src.info)
		if err != nil {
			return // it came to us a moment ago; without it the others serve
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.admit(&holder{source: src, link: l, sibling: true})
		s.wake()
	}()
}

// admit adds a holder, once. The caller holds mu.
func (s *session) admit(h *holder) {
	if old := s.held(h.info.ID); old != nil {
		if old.answer == (Answer{}) {
			old.answer = h.answer // a sibling that was met before it answered
		}
		return
	}
	h.key = keyOf(h.info.ID)
	s.holders = append(s.holders, h)
}

// held gives the holder that a peer is. The caller holds mu.
func (s *session) held(p libpeer.ID) *holder {
	for _, h := range s.holders {
		if h.info.ID == p && !h.gone {
			return h
		}
	}
	return nil
}

func (s *session) siblings() (n int) {
	for _, h := range s.holders {
		if h.sibling && !h.gone {
			n++
		}
	}
	return n
}
