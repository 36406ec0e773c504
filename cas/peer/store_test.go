package peer

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// memStore is a cas.Store in memory: it verifies as a store must, and a partial
// survives whoever wrote it. What the exchange does not call is left out.
type memStore struct {
	cas.Store // calls of the rest crash

	mu       sync.Mutex
	blobs    map[forgeyard.Digest][]byte
	refs     map[forgeyard.Digest]cas.Ref
	blocks   map[forgeyard.Digest][]byte
	partials map[forgeyard.Digest]*memPartial
	pins     map[string]cas.Pin
	corrupt  map[forgeyard.Digest]bool // bytes that are answered as zeros
	full     bool                      // no space
	stored   func(n int)               // told of each arrival, outside mu
	puts     int                       // blobs and blocks that were written
}

func newStore() *memStore {
	return &memStore{
		blobs: map[forgeyard.Digest][]byte{}, refs: map[forgeyard.Digest]cas.Ref{}, blocks: map[forgeyard.Digest][]byte{},
		partials: map[forgeyard.Digest]*memPartial{}, pins: map[string]cas.Pin{}, corrupt: map[forgeyard.Digest]bool{},
	}
}

func (s *memStore) notFound(d forgeyard.Digest) error {
	return forgeyard.Errorf("mem", forgeyard.NotFound, "%s is not here", d.Short())
}

func (s *memStore) Put(_ context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return cas.Ref{}, err
	}
	mb := cas.NewManifestBuilder()
	_, _ = mb.Write(b)
	ref, m, enc, err := mb.Finish()
	if err != nil {
		return ref, err
	}
	if !o.Expect.IsZero() && o.Expect != ref.Digest {
		return ref, forgeyard.Errorf("mem", forgeyard.Corrupt, "%s expected", o.Expect.Short())
	}
	s.mu.Lock()
	if s.full {
		s.mu.Unlock()
		return ref, forgeyard.Errorf("mem", forgeyard.NoSpace, "the store is full at %d objects", len(s.blobs))
	}
	s.keep(ref, b, enc, m)
	s.puts++
	stored := s.stored
	s.mu.Unlock()
	if stored != nil {
		stored(len(b))
	}
	return ref, nil
}

// keep holds mu.
func (s *memStore) keep(ref cas.Ref, b, enc []byte, m cas.Manifest) {
	s.blobs[ref.Digest], s.refs[ref.Digest] = b, ref
	if enc == nil {
		s.blocks[ref.Digest] = b
		return
	}
	s.blocks[ref.Manifest], s.blobs[ref.Manifest] = enc, enc
	s.refs[ref.Manifest] = cas.Ref{Digest: ref.Manifest, Size: int64(len(enc))}
	for i, at := range m.Offsets() {
		s.blocks[m.Blocks[i].Digest] = b[at : at+m.Blocks[i].Size]
	}
}

type memObject struct {
	*bytes.Reader
	ref cas.Ref
}

func (memObject) Close() error    { return nil }
func (o memObject) Ref() cas.Ref  { return o.ref }
func (s *memStore) lock() func()  { s.mu.Lock(); return s.mu.Unlock }
func (s *memStore) size() (n int) { defer s.lock()(); return len(s.blobs) }
func (s *memStore) writes() int   { defer s.lock()(); return s.puts }
func (s *memStore) forget(d forgeyard.Digest) {
	defer s.lock()()
	delete(s.blobs, d)
	delete(s.blocks, d)
	delete(s.refs, d)
}

func (s *memStore) Open(_ context.Context, d forgeyard.Digest) (cas.Object, error) {
	defer s.lock()()
	b, ok := s.blobs[d]
	if !ok {
		return nil, s.notFound(d)
	}
	return memObject{bytes.NewReader(b), s.refs[d]}, nil
}

func (s *memStore) Block(_ context.Context, d forgeyard.Digest) ([]byte, error) {
	defer s.lock()()
	b, ok := s.blocks[d]
	if !ok {
		return nil, s.notFound(d)
	}
	if s.corrupt[d] {
		return make([]byte, len(b)), nil
	}
	return bytes.Clone(b), nil
}

func (s *memStore) BlockSize(_ context.Context, d forgeyard.Digest) (int64, error) {
	defer s.lock()()
	b, ok := s.blocks[d]
	if !ok {
		return 0, s.notFound(d)
	}
	return int64(len(b)), nil
}

func (s *memStore) Has(_ context.Context, d forgeyard.Digest) bool {
	defer s.lock()()
	_, ok := s.blobs[d]
	return ok
}

func (s *memStore) Stat(_ context.Context, d forgeyard.Digest) (cas.Info, error) {
	defer s.lock()()
	if ref, ok := s.refs[d]; ok {
		return cas.Info{Ref: ref, Complete: true, Have: ref.Size}, nil
	}
	if p := s.partials[d]; p != nil {
		return cas.Info{Ref: p.ref, Have: p.have}, nil
	}
	return cas.Info{}, s.notFound(d)
}

type memPartial struct {
	s    *memStore
	m    cas.Manifest
	ref  cas.Ref
	enc  []byte
	got  [][]byte
	have int64
}

func (s *memStore) Partial(_ context.Context, m cas.Manifest) (cas.Partial, error) {
	enc, err := m.Encode()
	if err != nil {
		return nil, err
	}
	defer s.lock()()
	p := s.partials[m.Whole]
	if ref := (cas.Ref{Digest: m.Whole, Size: m.Size, Manifest: cas.Sum(enc)}); p == nil || p.ref != ref {
		p = &memPartial{s: s, m: m, enc: enc, got: make([][]byte, len(m.Blocks)), ref: ref}
		s.partials[m.Whole] = p
	}
	s.blocks[p.ref.Manifest] = enc
	return p, nil
}

func (p *memPartial) Missing() (out []int) {
	defer p.s.lock()()
	for i, b := range p.got {
		if b == nil {
			out = append(out, i)
		}
	}
	return out
}

func (p *memPartial) PutBlock(i int, b []byte) error {
	if cas.Sum(b) != p.m.Blocks[i].Digest {
		return forgeyard.Errorf("mem", forgeyard.Corrupt, "block %d", i)
	}
	b = bytes.Clone(b) // the caller goes on with its own
	p.s.mu.Lock()
	if p.got[i] == nil {
		p.have += int64(len(b))
		p.s.puts++
	}
	p.got[i] = b
	p.s.blocks[p.m.Blocks[i].Digest] = b
	stored := p.s.stored
	p.s.mu.Unlock()
	if stored != nil {
		stored(len(b))
	}
	return nil
}

func (p *memPartial) Commit(context.Context, cas.Class) (cas.Ref, error) {
	if n := len(p.Missing()); n > 0 {
		return cas.Ref{}, forgeyard.Errorf("mem", forgeyard.Conflict, "%d blocks are missing", n)
	}
	defer p.s.lock()()
	whole := bytes.Join(p.got, nil)
	delete(p.s.partials, p.m.Whole)
	if cas.Sum(whole) != p.m.Whole {
		return cas.Ref{}, forgeyard.Errorf("mem", forgeyard.Corrupt, "%s: the blocks match and the whole does not", p.m.Whole.Short())
	}
	p.s.keep(p.ref, whole, p.enc, p.m)
	return p.ref, nil
}

func (p *memPartial) Close() error { return nil }

func (s *memStore) Pin(_ context.Context, p cas.Pin) error {
	if err := p.Validate(); err != nil {
		return err
	}
	defer s.lock()()
	s.pins[p.Owner] = p
	return nil
}

func (s *memStore) Unpin(_ context.Context, owner string) error {
	defer s.lock()()
	delete(s.pins, owner)
	return nil
}

func (s *memStore) owners() (out []string) {
	defer s.lock()()
	for o := range s.pins {
		out = append(out, o)
	}
	return out
}

// put stores bytes and names them.
func (s *memStore) put(t testing.TB, b []byte) cas.Ref {
	t.Helper()
	ref, err := s.Put(t.Context(), bytes.NewReader(b), cas.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// tree stores a directory.
func (s *memStore) tree(t testing.TB, entries ...cas.Entry) (cas.Ref, cas.Entry) {
	t.Helper()
	tr := cas.Tree{Entries: entries}
	tr.Sort()
	enc, err := tr.Encode()
	if err != nil {
		t.Fatal(err)
	}
	ref := s.put(t, enc)
	return ref, cas.Entry{Kind: cas.Dir, Digest: ref.Digest, Size: ref.Size, Manifest: ref.Manifest}
}

func file(name string, r cas.Ref) cas.Entry {
	return cas.Entry{Name: name, Kind: cas.File, Digest: r.Digest, Size: r.Size, Manifest: r.Manifest}
}

func named(name string, e cas.Entry) cas.Entry { e.Name = name; return e }

// noise makes n bytes that differ for each seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	x := seed*0x9E3779B97F4A7C15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}
