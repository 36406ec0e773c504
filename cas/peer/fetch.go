package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/peer/bulk"
)

const (
	opFetch     = "cas fetch"
	opTree      = "cas fetch tree"
	opAsk       = "cas ask"
	opReplicate = "cas replicate"
)

// Fetch implements cas.Exchange.
func (x *Exchange) Fetch(ctx context.Context, ref cas.Ref, providers []string) error {
	if err := validateRef(opFetch, ref); err != nil {
		return err
	}
	end, err := x.begin()
	if err != nil {
		return err
	}
	defer end()
	s := x.newSession(ctx, opFetch, ref.Digest, providers, x.cfg.Class)
	defer s.close()
	return x.counted(s.blob(ref))
}

// FetchAny is Fetch of a blob of which only the digest is known. For a large one
// it takes a manifest on a peer's word; the store verifies the whole before it
// gets the name, and the peer that lied is blamed and another one's manifest taken.
func (x *Exchange) FetchAny(ctx context.Context, d forgeyard.Digest, providers []string) error {
	return x.Fetch(ctx, cas.Ref{Digest: d, Size: sizeUnknown(d)}, providers)
}

// sizeUnknown is the size of a ref that says nothing of it: above BlockSize and
// without manifest.
func sizeUnknown(d forgeyard.Digest) int64 {
	if d == cas.Empty() {
		return 0
	}
	return cas.BlockSize + 1
}

// claim makes one fetch at a time bring a large blob; the others wait, and then
// find it here or go on with what was verified.
func (s *session) claim(d forgeyard.Digest) (release func(), err error) {
	x := s.x
	for {
		x.mu.Lock()
		other := x.claims[d]
		if other == nil {
			mine := make(chan struct{})
			x.claims[d] = mine
			x.mu.Unlock()
			return func() {
				x.mu.Lock()
				delete(x.claims, d)
				x.mu.Unlock()
				close(mine)
			}, nil
		}
		x.mu.Unlock()
		select {
		case <-other:
		case <-s.ctx.Done():
			return nil, s.ended(s.ctx)
		}
	}
}

func (x *Exchange) counted(err error) error {
	x.stats.fetches.Add(1)
	if err != nil {
		x.stats.failed.Add(1)
	}
	return err
}

// interruption is the kind of a context's end.
func interruption(ctx context.Context) forgeyard.Kind {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return forgeyard.Unavailable
	}
	return forgeyard.Interrupted
}

// blob brings one blob, by the ref that is trusted or by what peers say of it.
func (s *session) blob(ref cas.Ref) error {
	if ref.Digest == cas.Empty() || s.x.cfg.Store.Has(s.ctx, ref.Digest) {
		return nil
	}
	switch {
	case ref.Size <= cas.BlockSize:
		return s.small([]want{{digest: ref.Digest, size: ref.Size}})
	case !ref.Manifest.IsZero():
		return s.large(ref)
	}
	return s.anyBlob(ref.Digest)
}

// small brings blobs of one block each.
func (s *session) small(wants []want) error { return s.fetch(s.ctx, wants, s.keep(wants)) }

// keep stores blobs of one block each under their names, many at once where the store can.
func (s *session) keep(wants []want) deliver {
	o := cas.PutOptions{Class: s.class}
	many, ok := s.x.cfg.Store.(cas.Many)
	if !ok {
		return oneByOne(func(ctx context.Context, i int, b []byte) error {
			o := o
			o.Expect, o.Size = wants[i].digest, int64(len(b))
			_, err := s.x.cfg.Store.Put(ctx, bytes.NewReader(b), o)
			return err
		})
	}
	return func(ctx context.Context, all []came) {
		objects := make([]cas.Small, len(all))
		for k, c := range all {
			objects[k] = cas.Small{Digest: wants[c.i].digest, Bytes: c.b}
		}
		many.PutMany(ctx, objects, o)
		for k := range all {
			all[k].err = objects[k].Err
		}
	}
}

// large brings a blob by its manifest, going on where an earlier try ended.
func (s *session) large(ref cas.Ref) error {
	release, err := s.claim(ref.Digest)
	if err != nil {
		return err
	}
	defer release()
	if s.x.cfg.Store.Has(s.ctx, ref.Digest) {
		return nil
	}
	m, err := s.manifest(ref)
	if err != nil {
		return err
	}
	part, err := s.x.cfg.Store.Partial(s.ctx, m)
	if err != nil {
		return forgeyard.E(s.op, forgeyard.Other, err)
	}
	s.x.bulk.Parking.Arrived(ref.Manifest) // the store has it now
	err = s.fill(ref.Manifest, m, part)
	if err == nil {
		if _, err = part.Commit(s.ctx, s.class); err != nil {
			err = forgeyard.E(s.op, forgeyard.Other, err)
		}
	}
	if cerr := part.Close(); err == nil && cerr != nil {
		err = forgeyard.E(s.op, forgeyard.Other, cerr)
	}
	return err
}

// manifest reads the ref's manifest, from the store or from a peer.
func (s *session) manifest(ref cas.Ref) (cas.Manifest, error) {
	enc, err := s.x.cfg.Store.Block(s.ctx, ref.Manifest)
	if err != nil {
		wants := []want{{digest: ref.Manifest, size: cas.BlockSize, priority: bulk.Structure}}
		err = s.fetch(s.ctx, wants, oneByOne(func(_ context.Context, _ int, b []byte) error {
			if cas.Sum(b) != ref.Manifest {
				return forgeyard.Errorf(s.op, forgeyard.Corrupt, "other bytes came than the manifest %s", ref.Manifest.Short())
			}
			enc = bytes.Clone(b)
			return nil
		}))
		if err != nil {
			return cas.Manifest{}, err
		}
	}
	m, err := cas.DecodeManifest(enc)
	if err != nil {
		return m, forgeyard.E(s.op, forgeyard.Invalid, fmt.Errorf("%s is not the manifest of %s: %w", ref.Manifest.Short(), ref.Digest.Short(), err))
	}
	if m.Whole != ref.Digest || m.Size != ref.Size {
		return m, forgeyard.Errorf(s.op, forgeyard.Invalid, "%s is the manifest of %s with %d bytes, not of %s with %d", ref.Manifest.Short(), m.Whole.Short(), m.Size, ref.Digest.Short(), ref.Size)
	}
	return m, nil
}

// fill brings the blocks that are missing. One block may stand at several places.
func (s *session) fill(id forgeyard.Digest, m cas.Manifest, part cas.Partial) error {
	var wants []want
	at := map[forgeyard.Digest][]int{}
	for _, i := range part.Missing() {
		b := m.Blocks[i]
		if len(at[b.Digest]) == 0 {
			wants = append(wants, want{digest: b.Digest, size: b.Size, manifest: id, index: i})
		}
		at[b.Digest] = append(at[b.Digest], i)
	}
	return s.fetch(s.ctx, wants, oneByOne(func(_ context.Context, i int, b []byte) error {
		for _, k := range at[wants[i].digest] {
			if err := part.PutBlock(k, b); err != nil {
				return err
			}
		}
		return nil
	}))
}

// anyBlob brings a blob of unknown size: whoever has it says which manifest it has.
func (s *session) anyBlob(d forgeyard.Digest) error {
	tried := map[forgeyard.Digest]bool{}
	for {
		h, err := s.nextHolder(d, tried)
		if err != nil {
			return err
		}
		m := h.answer.Manifest
		if m.IsZero() {
			return s.small([]want{{digest: d, size: cas.BlockSize}})
		}
		tried[m] = true
		ref := cas.Ref{Digest: d, Size: h.answer.Size, Manifest: m}
		if err := validateRef(s.op, ref); err != nil {
			s.disown(d, m, reason(err))
			continue
		}
		err = s.large(ref)
		switch forgeyard.KindOf(err) {
		case forgeyard.Invalid, forgeyard.Corrupt:
			s.disown(d, m, reason(err))
		case forgeyard.NotFound: // it named a manifest that nobody has
		default:
			return err
		}
		if err == nil {
			return nil
		}
	}
}

// nextHolder waits for a holder whose manifest was not tried.
func (s *session) nextHolder(d forgeyard.Digest, tried map[forgeyard.Digest]bool) (*holder, error) {
	for {
		s.mu.Lock()
		for _, h := range s.holders {
			if !h.gone && !tried[h.answer.Manifest] && !(h.sibling && h.answer.Manifest.IsZero()) {
				s.mu.Unlock()
				return h, nil
			}
		}
		asking, changed := s.asking > 0, s.changed
		s.mu.Unlock()
		if !asking {
			if !s.advance(nil) {
				return nil, s.failure(d)
			}
			continue
		}
		select {
		case <-changed:
		case <-s.x.cfg.Clock.After(s.x.hedgeAfter()):
			s.advance(nil)
		case <-s.ctx.Done():
			return nil, s.ended(s.ctx)
		}
	}
}

// disown blames every peer that named a manifest whose bytes do not add up.
func (s *session) disown(d, manifest forgeyard.Digest, why string) {
	s.mu.Lock()
	var liars []*holder
	for _, h := range s.holders {
		if !h.gone && h.answer.Manifest == manifest {
			liars = append(liars, h)
		}
	}
	s.mu.Unlock()
	for _, h := range liars {
		text := fmt.Sprintf("named %s as the manifest: %s", manifest.Short(), why)
		s.x.blame(h.info.ID, d, text)
		s.lose(h, forgeyard.Corrupt, text)
	}
}
