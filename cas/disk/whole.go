package disk

import (
	"context"
	"io"
	"os"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// parts is the hash of the whole by what each of its blocks is to it, as far as they came in
// this opening. They may come in any order. What is noted was compared with its block's name
// while it was in memory. Under the partial's mu.
type parts struct {
	of    []cas.Part
	known []bool
}

func newParts(n int) *parts { return &parts{of: make([]cas.Part, n), known: make([]bool, n)} }

func (q *parts) note(i int, part cas.Part) { q.of[i], q.known[i] = part, true }

// matches compares a block with its name, and gives its part where parts are counted.
func (p *partialState) matches(i int, b []byte) (part cas.Part, ok bool) {
	want := p.m.Blocks[i]
	if int64(len(b)) != want.Size {
		return part, false
	}
	if p.parts == nil {
		return part, cas.Sum(b) == want.Digest
	}
	d, part := cas.SumAt(b, p.offs[i])
	return part, d == want.Digest
}

// stamp notes the file's own time after our write, or distrusts the file.
func (p *partialState) stamp(f *os.File) {
	st, err := f.Stat()
	if err != nil {
		p.forgetHashes()
		return
	}
	p.wrote = st.ModTime()
}

// distrust begins again when somebody else wrote to the file: all of it is read.
func (p *partialState) distrust(f *os.File) {
	if st, err := f.Stat(); err != nil || !st.ModTime().Equal(p.wrote) {
		p.forgetHashes()
	}
}

func (p *partialState) forgetHashes() {
	p.whole = rolling{busy: p.whole.busy}
	if p.parts != nil {
		clear(p.parts.known)
	}
}

// unhash begins again where a block is lost.
func (p *partialState) unhash(i int) {
	p.whole.lost(i)
	if p.parts != nil {
		p.parts.known[i] = false
	}
}

// hashed reports whether the hash of the whole has block i.
func (p *partialState) hashed(i int) bool {
	if p.parts != nil {
		return p.parts.known[i]
	}
	return i < p.whole.next
}

// readRest hashes what the hash of the whole has not, and names the blocks that are not what
// they were. With them there is no whole.
func (p *partialState) readRest(ctx context.Context) (damaged []int, err error) {
	buf := blockPool.Get().(*[]byte)
	defer blockPool.Put(buf)
	p.distrust(p.f)
	for i, b := range p.m.Blocks {
		if p.hashed(i) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		data := (*buf)[:b.Size]
		if _, err := p.f.ReadAt(data, p.offs[i]); err != nil && err != io.EOF {
			return nil, err
		}
		part, ok := p.matches(i, data)
		switch {
		case !ok:
			damaged = append(damaged, i)
		case p.parts != nil:
			p.parts.note(i, part)
		case len(damaged) == 0:
			p.whole.take(data)
		}
	}
	return damaged, nil
}

// sum names the whole, of which every block was hashed.
func (p *partialState) sum() forgeyard.Digest {
	if p.parts != nil {
		return cas.Join(p.parts.of)
	}
	return p.whole.sum()
}

// rolling is the hash of the whole, as far as its blocks came in order: then the end
// of a transfer does not wait for all of it to be read again. Under the partial's mu.
//
// What it took was compared with its block's name while it was in memory. Blocks
// that came before this opening were not, and are looked at before it goes past them.
type rolling struct {
	h    *cas.Hasher
	next int  // the first block that it has not taken
	busy bool // somebody hashes the next one
}

func (r *rolling) take(b []byte) {
	r.begin()
	_, _ = r.h.Write(b) // never fails
	r.next++
}

func (r *rolling) begin() {
	if r.h == nil {
		r.h = cas.NewHasher()
	}
}

func (r *rolling) sum() forgeyard.Digest {
	if r.h == nil {
		return cas.Empty()
	}
	return r.h.Sum()
}

// lost begins again when a block is lost that was taken.
func (r *rolling) lost(i int) {
	if i < r.next {
		*r = rolling{busy: r.busy}
	}
}

// follow takes block i, which is written, if its turn is near: the blocks before it are
// being written or were taken. The hash goes on without mu.
func (p *partialState) follow(i int, b []byte) {
	p.catchUp()
	for r := &p.whole; r.next < i && (r.busy || p.near(r.next)); {
		p.turn.Wait()
	}
	if p.whole.next == i && !p.whole.busy {
		p.absorb(func() ([]byte, bool) { return b, true })
		p.catchUp()
	}
}

// catchUp reads back blocks that came before their turn, a few at once; what is left the
// commit reads.
func (p *partialState) catchUp() {
	if !p.behind() {
		return
	}
	buf := blockPool.Get().(*[]byte)
	defer blockPool.Put(buf)
	for n := 0; n < maxCatchUp && p.behind(); n++ {
		f, b, off := p.f, p.m.Blocks[p.whole.next], p.offs[p.whole.next]
		ok := p.absorb(func() ([]byte, bool) {
			data := (*buf)[:b.Size]
			_, err := f.ReadAt(data, off)
			return data, err == nil && cas.Sum(data) == b.Digest
		})
		if !ok {
			return // the commit finds it, and says so
		}
	}
}

// near reports whether block i is on its way into the file, or is there and about to be
// taken by who wrote it.
func (p *partialState) near(i int) bool {
	_, ok := p.writing[i]
	return ok
}

// behind reports whether the next block of the whole is in the file and nobody has it in
// memory.
func (p *partialState) behind() bool {
	i := p.whole.next
	return p.f != nil && !p.whole.busy && i < len(p.have) && p.have[i] && !p.near(i)
}

// absorb hashes the next block of the whole, if get has it.
func (p *partialState) absorb(get func() ([]byte, bool)) bool {
	p.whole.begin()
	h := p.whole.h
	p.whole.busy = true
	p.mu.Unlock()
	b, ok := get()
	if ok {
		_, _ = h.Write(b) // never fails
	}
	p.mu.Lock()
	p.whole.busy = false
	if ok && p.whole.h == h { // else it begins again
		p.whole.next++
	}
	p.turn.Broadcast()
	return ok
}
