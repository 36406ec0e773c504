package disk

import (
	"context"
	"io"
	"os"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// vouched says that the bytes of a blob were those of its name, when, and what the file
// looked like then.
//
// A write through the filesystem, by whoever and however it is hidden, changes the file's
// print, so it is noticed at the next use. Damage below the filesystem does not: that is
// found when the look is older than vouchFor, and by a scrub. Looks are not kept across a
// stop, clean or not: the first use in a process's life reads the bytes.
type vouched struct {
	gen   uint64
	print print
	at    forgeyard.Instant
}

// vouch sees that an open blob is what its name says, unless it was seen lately and
// nobody touched the file since. What is wrong is quarantined.
func (s *Store) vouch(ctx context.Context, op string, d forgeyard.Digest, r record, f *os.File) error {
	p, ok := printOf(f)
	if ok && s.vouches(d, r.Gen, p) {
		return nil
	}
	got, err := hashFile(ctx, f)
	if err != nil {
		return s.fail(op, err)
	}
	if got != d {
		return s.corrupt(op, d, r.Gen, "the bytes do not match the name")
	}
	if again, still := printOf(f); ok && still && again == p { // else somebody wrote while it was read
		s.noteVouched(d, vouched{gen: r.Gen, print: p})
	}
	return nil
}

func (s *Store) vouches(d forgeyard.Digest, gen uint64, p print) bool {
	now := s.cfg.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.vouched[d]
	return ok && v.gen == gen && v.print == p && now.Sub(v.at) < vouchFor
}

func (s *Store) noteVouched(d forgeyard.Digest, v vouched) {
	v.at = s.cfg.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remember(d, v)
}

// remember keeps a look. The caller holds mu.
func (s *Store) remember(d forgeyard.Digest, v vouched) {
	if len(s.vouched) >= maxVouched {
		clear(s.vouched) // they are looked at once more
	}
	s.vouched[d] = v
}

// vouchPlaced remembers a blob that was hashed on its way here and has its name now.
func (s *Store) vouchPlaced(d forgeyard.Digest, gen uint64, path string) {
	f, err := os.Open(path)
	if err != nil {
		return // it is looked at when it is used
	}
	defer closeQuiet(f)
	if p, ok := printOf(f); ok {
		s.noteVouched(d, vouched{gen: gen, print: p})
	}
}

// seen says which blocks of a large blob were compared with their names, for who sends
// it block by block. When all were, the blob is vouched for.
type seen struct {
	vouched
	blocks []bool // by offset, a block each
	left   int
}

// look is one block's place in a file as it was before the block was read.
type look struct {
	blob  forgeyard.Digest
	at    vouched // without the moment
	block int     // -1: its place is not that of a whole block
	of    int     // blocks of the blob
	known bool    // the block was seen to be right, and nobody touched the file since
}

// lookAt looks at an open blob before one of its blocks is read.
func (s *Store) lookAt(l location, r record, f *os.File) look {
	out := look{blob: l.container, block: -1}
	p, ok := printOf(f)
	if l.partial || !ok {
		return out
	}
	out.at = vouched{gen: r.Gen, print: p}
	if end := l.off + l.size; l.off%cas.BlockSize == 0 && end <= r.Size && (l.size == cas.BlockSize || end == r.Size) {
		out.block, out.of = int(l.off/cas.BlockSize), int((r.Size+cas.BlockSize-1)/cas.BlockSize)
	}
	out.known = s.vouches(l.container, r.Gen, p)
	if out.known || out.block < 0 {
		return out
	}
	now := s.cfg.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.seen[l.container]
	out.known = v != nil && v.gen == r.Gen && v.print == p && now.Sub(v.at) < vouchFor && v.blocks[out.block]
	return out
}

// saw remembers that the block of a look was right, unless somebody wrote to the file
// while it was read.
func (s *Store) saw(l look, f *os.File) {
	if again, ok := printOf(f); l.block < 0 || !ok || again != l.at.print {
		return
	}
	now := s.cfg.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.seen[l.blob]
	if v == nil || v.gen != l.at.gen || v.print != l.at.print || now.Sub(v.at) >= vouchFor {
		if len(s.seen) >= maxSeen {
			clear(s.seen)
		}
		v = &seen{vouched: l.at, blocks: make([]bool, l.of), left: l.of}
		v.at = now
		s.seen[l.blob] = v
	}
	if v.blocks[l.block] {
		return
	}
	v.blocks[l.block] = true
	if v.left--; v.left > 0 {
		return
	}
	delete(s.seen, l.blob)
	s.remember(l.blob, v.vouched)
}

// OpenBlock implements cas.BlockOpener.
func (s *Store) OpenBlock(d forgeyard.Digest) cas.Pieces {
	if _, ok := s.record(d); ok {
		return nil // a blob of its own, and a small one
	}
	for _, l := range s.locations(d) {
		if l.partial {
			continue
		}
		r, ok := s.record(l.container)
		if !ok {
			continue
		}
		f, err := os.Open(s.blobPath(l.container, r.Gen))
		if err != nil {
			continue // who reads the block finds out why
		}
		if s.lookAt(l, r, f).known {
			s.noteUse(l.container, r)
			return &pieces{s: s, f: f, l: l}
		}
		closeQuiet(f)
	}
	return nil
}

// pieces is a block that was seen to be right, in a file that nobody touched since.
type pieces struct {
	s *Store
	f *os.File
	l location
}

func (p *pieces) Size() int64 { return p.l.size }

// ReadAt implements cas.Pieces. A file that does not give what it had is looked at anew.
func (p *pieces) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off > p.l.size {
		return 0, io.EOF
	}
	n, err := p.f.ReadAt(b[:min(int64(len(b)), p.l.size-off)], p.l.off+off)
	if err != nil {
		p.s.forgetLooks(p.l.container)
		return n, p.s.fail("cas block", err)
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (p *pieces) Close() error { return p.f.Close() }

// forgetLooks makes the next use of a blob compare its bytes.
func (s *Store) forgetLooks(d forgeyard.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.vouched, d)
	delete(s.seen, d)
}
