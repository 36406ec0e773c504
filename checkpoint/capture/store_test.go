//go:build unix

package capture_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// memory is a store that works, in memory: names by BLAKE3, manifests for what is larger
// than a block, verified reads, pins, and puts held for their owner. Methods that these
// tests do not reach are the nil interface's, and crash.
type memory struct {
	cas.Store
	mu    sync.Mutex
	blobs map[forgeyard.Digest][]byte
	refs  map[forgeyard.Digest]cas.Ref
	held  map[string][]forgeyard.Digest // by Put's owner
	pins  map[string]cas.Pin
	onPut func() // called before the bytes of a put are read
	fail  error  // given by every put
}

func newMemory() *memory {
	return &memory{blobs: map[forgeyard.Digest][]byte{}, refs: map[forgeyard.Digest]cas.Ref{}, held: map[string][]forgeyard.Digest{}, pins: map[string]cas.Pin{}}
}

func (s *memory) Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error) {
	if s.onPut != nil {
		s.onPut()
	}
	if s.fail != nil {
		return cas.Ref{}, s.fail
	}
	b := cas.NewManifestBuilder()
	var all bytes.Buffer
	if _, err := io.Copy(io.MultiWriter(b, &all), r); err != nil {
		return cas.Ref{}, err
	}
	ref, _, enc, err := b.Finish()
	if err != nil {
		return ref, err
	}
	if !o.Expect.IsZero() && o.Expect != ref.Digest {
		return cas.Ref{}, forgeyard.Errorf("put", forgeyard.Corrupt, "not the bytes expected")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[ref.Digest], s.refs[ref.Digest] = all.Bytes(), ref
	if !ref.Manifest.IsZero() {
		s.blobs[ref.Manifest] = enc
	}
	s.held[o.Owner] = append(s.held[o.Owner], ref.Digest)
	return ref, ctx.Err()
}

func (s *memory) Open(_ context.Context, d forgeyard.Digest) (cas.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d == cas.Empty() {
		return object{bytes.NewReader(nil), cas.Ref{Digest: d}}, nil
	}
	b, ok := s.blobs[d]
	if !ok {
		return nil, forgeyard.Errorf("open", forgeyard.NotFound, "%s is not here", d.Short())
	}
	if cas.Sum(b) != d {
		return nil, forgeyard.Errorf("open", forgeyard.Corrupt, "%s does not verify", d.Short())
	}
	return object{bytes.NewReader(b), s.refs[d]}, nil
}

func (s *memory) Pin(_ context.Context, p cas.Pin) error {
	if err := p.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins[p.Owner] = p
	return nil
}

func (s *memory) Unpin(_ context.Context, owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pins, owner)
	delete(s.held, owner)
	return nil
}

// contains looks for text in everything that was stored.
func (s *memory) contains(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.blobs {
		if strings.Contains(string(b), text) {
			return true
		}
	}
	return false
}

// flip breaks one byte of a blob, as a disk would.
func (s *memory) flip(t *testing.T, d forgeyard.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.blobs[d]) == 0 {
		t.Fatalf("%s is not here to be broken", d.Short())
	}
	s.blobs[d] = slices.Clone(s.blobs[d])
	s.blobs[d][0] ^= 1
}

type object struct {
	*bytes.Reader
	ref cas.Ref
}

func (o object) Ref() cas.Ref { return o.ref }
func (o object) Close() error { return nil }
