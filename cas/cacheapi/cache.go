package cacheapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// Store is what a cache needs of the content store.
type Store interface {
	Put(ctx context.Context, r io.Reader, o cas.PutOptions) (cas.Ref, error)
	Open(ctx context.Context, d forgeyard.Digest) (cas.Object, error)
	Has(ctx context.Context, d forgeyard.Digest) bool
	BlockSize(ctx context.Context, d forgeyard.Digest) (int64, error)
	Unpin(ctx context.Context, owner string) error
}

// Claim is a member's word for what a name stands.
type Claim struct {
	cas.Binding
	Provider string // the member
}

// Peers are the other members of the site. Every call ends within a deadline of its own.
type Peers interface {
	// Lookup asks all of them for what names stand, and gives what they said in time: no
	// answer is no error.
	Lookup(ctx context.Context, names []cas.Name) []Claim
	// Fetch makes a blob local, verified by its digest: from the provider first, where
	// one is named, then from whoever has it. A ref of which only the digest is known has
	// Size -1.
	Fetch(ctx context.Context, ref cas.Ref, provider string) error
	// Blame notes that a member's claim was false.
	Blame(provider, why string)
}

// Config binds a Cache. Store, Names, Dir and Keep are required.
type Config struct {
	Store Store
	Names cas.Names
	// Peers fill misses. Nil: a miss is a miss.
	Peers Peers
	// Dir holds uploads that are on their way. It is made when missing.
	Dir string
	// Keep is how long content stays from the moment that a client was told it is there.
	// Too short, and a long build finds at its end what it was promised gone.
	Keep time.Duration
	// Free is how many bytes an upload may take of the disk; nil: no bound but the disk's.
	Free func() (int64, error)
	// Clock tells the time for Keep; nil: the system's.
	Clock clock.Clock
	// Log gets what people need to know; nil: silent.
	Log *slog.Logger
}

// Cache answers build clients out of a store and a site. It is safe for concurrent use.
type Cache struct {
	cfg     Config
	uploads uploads
	owners  atomic.Uint64
	Stats   Stats
}

// New makes a cache.
func New(cfg Config) (*Cache, error) {
	if cfg.Store == nil || cfg.Names == nil || cfg.Dir == "" || cfg.Keep <= 0 {
		return nil, forgeyard.Errorf("build cache", forgeyard.Invalid, "a store, names, a folder and a time to keep are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{cfg: cfg}
	return c, c.uploads.open(cfg)
}

// Stats counts what was asked and what came of it, since the start.
type Stats struct {
	Hits, PeerHits, Misses  atomic.Int64 // content, results and values that were read
	Writes                  atomic.Int64
	BytesRead, BytesWritten atomic.Int64
	FalseClaims, Incomplete atomic.Int64 // members' words that were wrong; results whose closure was not to be had
}

// until is when a promise of this moment ends: a little later than was said, so that what
// is asked for again and again is noted once in a while and not each time.
func (c *Cache) until() time.Time {
	return c.cfg.Clock.Wall().Add(c.cfg.Keep + keepGrain).Truncate(keepGrain)
}

// local finds the blobs of ids here, with a zero ref for what is not known or has another
// size. It promises nothing: keep does.
func (c *Cache) local(ctx context.Context, ids []ID) ([]cas.Ref, error) {
	out := make([]cas.Ref, len(ids))
	var names []cas.Name
	at := map[cas.Name][]int{}
	for i, id := range ids {
		switch {
		case id.Empty():
			out[i] = cas.Ref{Digest: cas.Empty()}
		case id.Func == BLAKE3:
			if d := forgeyard.Digest(id.Hash); c.sizeHere(ctx, d) == id.Size {
				out[i] = cas.Ref{Digest: d, Size: id.Size}
			}
		default:
			n := cas.Name{Space: cas.SpaceSHA256, Key: id.Hash}
			if at[n] == nil {
				names = append(names, n)
			}
			at[n] = append(at[n], i)
		}
	}
	if len(names) == 0 {
		return out, nil
	}
	bound, err := c.cfg.Names.Resolve(ctx, names...)
	if err != nil {
		return nil, err
	}
	for _, b := range bound {
		for _, i := range at[b.Name] {
			if b.Ref.Size == ids[i].Size {
				out[i] = b.Ref
			}
		}
	}
	return out, nil
}

// sizeHere is the size of a whole blob of this store, -1 when it is not here.
func (c *Cache) sizeHere(ctx context.Context, d forgeyard.Digest) int64 {
	if !c.cfg.Store.Has(ctx, d) {
		return -1
	}
	if n, err := c.cfg.Store.BlockSize(ctx, d); err == nil {
		return n
	}
	o, err := c.cfg.Store.Open(ctx, d)
	if err != nil {
		return -1
	}
	defer func() { _ = o.Close() }() // only read
	return o.Ref().Size
}

// Missing lists which of ids are not here. Those that it does not list are kept from now
// on, so that a plan which counts on them holds (C08). Members are not asked: what they
// have may be gone with them.
func (c *Cache) Missing(ctx context.Context, ids []ID) ([]ID, error) {
	refs, err := c.local(ctx, ids)
	if err != nil {
		return nil, err
	}
	gone, err := c.keep(ctx, refs)
	if err != nil {
		return nil, err
	}
	var out []ID
	for i, r := range refs {
		if r.Digest.IsZero() || gone[r.Digest] {
			out = append(out, ids[i])
		}
	}
	return out, nil
}

// keep holds refs from collection and says which are gone.
func (c *Cache) keep(ctx context.Context, refs []cas.Ref) (map[forgeyard.Digest]bool, error) {
	ds := make([]forgeyard.Digest, 0, len(refs))
	for _, r := range refs {
		if !r.Digest.IsZero() && r.Digest != cas.Empty() {
			ds = append(ds, r.Digest)
		}
	}
	gone := map[forgeyard.Digest]bool{}
	if len(ds) == 0 {
		return gone, nil
	}
	missing, err := c.cfg.Names.Keep(ctx, c.until(), ds...)
	for _, d := range missing {
		gone[d] = true
	}
	return gone, err
}

// Bring makes of ids what the other members have local and kept, and returns what is
// still missing after that.
func (c *Cache) Bring(ctx context.Context, ids []ID) ([]ID, error) {
	missing, err := c.Missing(ctx, ids)
	if err != nil || len(missing) == 0 || c.cfg.Peers == nil {
		return missing, err
	}
	if err := c.fetch(ctx, missing); err != nil {
		return missing, err
	}
	return c.Missing(ctx, missing)
}

// fetch brings what members have. That nobody has something is no error.
func (c *Cache) fetch(ctx context.Context, ids []ID) error {
	claims := c.claims(ctx, ids)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fetchesAtOnce)
	for _, id := range ids {
		g.Go(func() error {
			var err error
			if id.Func == BLAKE3 {
				err = c.cfg.Peers.Fetch(ctx, cas.Ref{Digest: id.Hash, Size: id.Size}, "")
			} else {
				err = c.fetchAlias(ctx, id, claims[id.Hash])
			}
			if k := forgeyard.KindOf(err); k == forgeyard.NoSpace || k == forgeyard.Limit || k == forgeyard.Interrupted {
				return err
			}
			return nil // it is still missing, which the caller sees
		})
	}
	return g.Wait()
}

// claims asks members for what SHA-256 names stand.
func (c *Cache) claims(ctx context.Context, ids []ID) map[[32]byte][]Claim {
	var names []cas.Name
	asked := map[[32]byte]bool{}
	for _, id := range ids {
		if id.Func == SHA256 && !asked[id.Hash] {
			asked[id.Hash] = true
			names = append(names, cas.Name{Space: cas.SpaceSHA256, Key: id.Hash})
		}
	}
	out := map[[32]byte][]Claim{}
	for len(names) > 0 {
		n := min(len(names), maxAsked)
		for _, cl := range c.cfg.Peers.Lookup(ctx, names[:n]) {
			out[cl.Name.Key] = append(out[cl.Name.Key], cl)
		}
		names = names[n:]
	}
	return out
}

// fetchAlias brings bytes that members say have a SHA-256, and believes their hash alone.
func (c *Cache) fetchAlias(ctx context.Context, id ID, claims []Claim) error {
	err := error(forgeyard.Errorf("build cache", forgeyard.NotFound, "no member has %v", id))
	for _, cl := range claims {
		if cl.Ref.Size != id.Size {
			continue // other bytes of that hash cannot be; the client's size decides below
		}
		if err = c.cfg.Peers.Fetch(ctx, cl.Ref, cl.Provider); err != nil {
			continue
		}
		if err = c.verify(ctx, id, cl.Ref); err == nil {
			return c.cfg.Names.Bind(ctx, cas.Cache, cas.Binding{Name: cl.Name, Ref: cl.Ref})
		}
		if forgeyard.KindOf(err) == forgeyard.Corrupt {
			c.Stats.FalseClaims.Add(1)
			c.cfg.Peers.Blame(cl.Provider, err.Error())
		}
	}
	return err
}

// verify hashes a local blob by the client's function.
func (c *Cache) verify(ctx context.Context, id ID, ref cas.Ref) error {
	o, err := c.cfg.Store.Open(ctx, ref.Digest)
	if err != nil {
		return err
	}
	defer func() { _ = o.Close() }() // only read
	h := sha256.New()
	n, err := io.Copy(h, o)
	if err != nil {
		return err
	}
	if n != id.Size || [32]byte(h.Sum(nil)) != id.Hash {
		return forgeyard.Errorf("build cache", forgeyard.Corrupt, "%s was given for %v and is not", ref.Digest, id)
	}
	return nil
}

// Open opens a blob, fetching it from a member when it is not here.
func (c *Cache) Open(ctx context.Context, id ID) (cas.Object, error) {
	if o, err := c.openLocal(ctx, id); forgeyard.KindOf(err) != forgeyard.NotFound && forgeyard.KindOf(err) != forgeyard.Corrupt {
		if err == nil {
			c.Stats.Hits.Add(1)
		}
		return o, err
	}
	if _, err := c.Bring(ctx, []ID{id}); err != nil {
		return nil, err
	}
	o, err := c.openLocal(ctx, id)
	if err != nil {
		c.Stats.Misses.Add(1)
		return nil, err
	}
	c.Stats.PeerHits.Add(1)
	return o, nil
}

func (c *Cache) openLocal(ctx context.Context, id ID) (cas.Object, error) {
	refs, err := c.local(ctx, []ID{id})
	if err != nil {
		return nil, err
	}
	gone, err := c.keep(ctx, refs)
	if err != nil {
		return nil, err
	}
	if d := refs[0].Digest; !d.IsZero() && !gone[d] {
		return c.cfg.Store.Open(ctx, d)
	}
	return nil, forgeyard.Errorf("build cache", forgeyard.NotFound, "%v is not here", id)
}

// Read reads a whole small blob, fetching it from a member when it is not here.
func (c *Cache) Read(ctx context.Context, id ID, most int64) ([]byte, error) {
	if id.Size > most {
		return nil, forgeyard.Errorf("build cache", forgeyard.Limit, "%v has more than %d bytes", id, most)
	}
	o, err := c.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Close() }() // only read
	b := make([]byte, id.Size)
	if _, err := io.ReadFull(o, b); err != nil {
		return nil, err
	}
	c.Stats.BytesRead.Add(id.Size)
	return b, nil
}

// hold makes an owner under which a put keeps its bytes until they are kept by time.
func (c *Cache) hold() (owner string, release func()) {
	owner = fmt.Sprintf("build-cache/%d", c.owners.Add(1))
	return owner, func() {
		if err := c.cfg.Store.Unpin(context.Background(), owner); err != nil {
			c.cfg.Log.Warn("a build cache's hold could not be ended", "owner", owner, "err", err)
		}
	}
}

// Put keeps bytes under the name that the client gives them, if it is theirs. Others give
// Invalid and leave nothing.
func (c *Cache) Put(ctx context.Context, id ID, r io.Reader) error {
	if err := id.check(); err != nil {
		return err
	}
	if id.Empty() {
		return expectEnd(id, r)
	}
	owner, release := c.hold()
	defer release()
	o := cas.PutOptions{Class: cas.Cache, Size: id.Size, Owner: owner}
	in := &checked{r: r, left: id.Size, id: id}
	if id.Func == SHA256 {
		in.sha = sha256.New()
	} else {
		o.Expect = id.Hash
	}
	ref, err := c.cfg.Store.Put(ctx, in, o)
	if err != nil {
		return in.explain(err)
	}
	if id.Func == SHA256 {
		if err := c.cfg.Names.Bind(ctx, cas.Cache, cas.Binding{Name: cas.Name{Space: cas.SpaceSHA256, Key: id.Hash}, Ref: ref}); err != nil {
			return err
		}
	}
	if _, err := c.keep(ctx, []cas.Ref{ref}); err != nil {
		return err
	}
	c.Stats.Writes.Add(1)
	c.Stats.BytesWritten.Add(id.Size)
	return nil
}

func expectEnd(id ID, r io.Reader) error {
	var b [1]byte
	if n, err := io.ReadFull(r, b[:]); n > 0 {
		return wrongBytes(id, "there are bytes")
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func wrongBytes(id ID, why string) error {
	return forgeyard.Errorf("build cache", forgeyard.Invalid, "the bytes are not %v: %s", id, why)
}

// checked passes bytes on and fails at their end unless they are those of the id.
type checked struct {
	r    io.Reader
	sha  hash.Hash // nil: the store checks
	left int64
	id   ID
	err  error // the verdict
}

func (c *checked) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if c.left -= int64(n); c.left < 0 {
		c.err = wrongBytes(c.id, "there are more")
		return 0, c.err
	}
	if c.sha != nil {
		_, _ = c.sha.Write(b[:n]) // a hash never fails
	}
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if c.left > 0 {
		c.err = wrongBytes(c.id, fmt.Sprintf("%d are missing", c.left))
		return n, c.err
	}
	if c.sha != nil && [32]byte(c.sha.Sum(nil)) != c.id.Hash {
		c.err = wrongBytes(c.id, "they have another hash")
		return n, c.err
	}
	return n, io.EOF
}

// explain gives the client's fault where it is the client's.
func (c *checked) explain(err error) error {
	if c.err != nil {
		return c.err
	}
	if forgeyard.KindOf(err) == forgeyard.Corrupt {
		return wrongBytes(c.id, "they have another hash")
	}
	return err
}
