package cacheapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// OpenAny opens a blob of which a client says 64 hex digits and neither function nor size,
// as HTTP caches do. SHA-256 is tried first: it is what they mean, as a rule.
func (c *Cache) OpenAny(ctx context.Context, h [32]byte) (cas.Object, error) {
	if h == emptySHA256 || h == emptyBLAKE3 {
		return nothing{bytes.NewReader(nil)}, nil
	}
	if o, err := c.openAnyHere(ctx, h); forgeyard.KindOf(err) != forgeyard.NotFound {
		if err == nil {
			c.Stats.Hits.Add(1)
		}
		return o, err
	}
	if c.cfg.Peers != nil {
		name := cas.Name{Space: cas.SpaceSHA256, Key: h}
		for _, cl := range c.cfg.Peers.Lookup(ctx, []cas.Name{name}) {
			id := ID{Func: SHA256, Hash: h, Size: cl.Ref.Size}
			if err := c.fetchAlias(ctx, id, []Claim{cl}); fatal(err) {
				return nil, err
			}
		}
		if o, err := c.openAnyHere(ctx, h); err == nil {
			c.Stats.PeerHits.Add(1)
			return o, nil
		}
		if err := c.cfg.Peers.Fetch(ctx, cas.Ref{Digest: h, Size: -1}, ""); fatal(err) {
			return nil, err
		}
		if o, err := c.openAnyHere(ctx, h); err == nil {
			c.Stats.PeerHits.Add(1)
			return o, nil
		}
	}
	c.Stats.Misses.Add(1)
	return nil, forgeyard.Errorf("build cache", forgeyard.NotFound, "no member has these bytes")
}

func (c *Cache) openAnyHere(ctx context.Context, h [32]byte) (cas.Object, error) {
	bound, err := c.cfg.Names.Resolve(ctx, cas.Name{Space: cas.SpaceSHA256, Key: h})
	if err != nil {
		return nil, err
	}
	for _, d := range []forgeyard.Digest{refOf(bound), h} {
		if d.IsZero() {
			continue
		}
		gone, err := c.keep(ctx, []cas.Ref{{Digest: d}})
		if err != nil {
			return nil, err
		}
		if len(gone) == 0 {
			return c.cfg.Store.Open(ctx, d)
		}
	}
	return nil, forgeyard.Errorf("build cache", forgeyard.NotFound, "the bytes are not here")
}

func refOf(bound []cas.Binding) forgeyard.Digest {
	if len(bound) == 0 {
		return forgeyard.Digest{}
	}
	return bound[0].Ref.Digest
}

// nothing is the open empty object.
type nothing struct{ *bytes.Reader }

func (nothing) Ref() cas.Ref { return cas.Ref{Digest: cas.Empty()} }
func (nothing) Close() error { return nil }

// PutAny keeps bytes whose SHA-256 or BLAKE3 is h.
func (c *Cache) PutAny(ctx context.Context, h [32]byte, r io.Reader, size int64) error {
	owner, release := c.hold()
	defer release()
	in := &either{r: r, want: h, sha: sha256.New(), b3: cas.NewHasher()}
	ref, err := c.cfg.Store.Put(ctx, in, cas.PutOptions{Class: cas.Cache, Size: max(0, size), Owner: owner})
	if in.err != nil {
		return in.err
	}
	if err != nil {
		return err
	}
	if in.isSHA {
		if err := c.cfg.Names.Bind(ctx, cas.Cache, cas.Binding{Name: cas.Name{Space: cas.SpaceSHA256, Key: h}, Ref: ref}); err != nil {
			return err
		}
	}
	if _, err := c.keep(ctx, []cas.Ref{ref}); err != nil {
		return err
	}
	c.Stats.Writes.Add(1)
	c.Stats.BytesWritten.Add(ref.Size)
	return nil
}

// either passes bytes on and fails at their end unless one of two functions gives want.
type either struct {
	r     io.Reader
	want  [32]byte
	sha   hash.Hash
	b3    *cas.Hasher
	isSHA bool
	err   error
}

func (e *either) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	_, _ = e.sha.Write(b[:n]) // a hash never fails
	_, _ = e.b3.Write(b[:n])
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	e.isSHA = [32]byte(e.sha.Sum(nil)) == e.want
	if !e.isSHA && [32]byte(e.b3.Sum()) != e.want {
		e.err = forgeyard.Errorf("build cache", forgeyard.Invalid, "the bytes have neither as SHA-256 nor as BLAKE3 the hash in the path")
		return n, e.err
	}
	return n, io.EOF
}
