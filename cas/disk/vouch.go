package disk

import (
	"context"
	"os"

	"github.com/forgeyard/forgeyard-node"
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
