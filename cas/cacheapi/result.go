package cacheapi

import (
	"bytes"
	"context"
	"io"

	repb "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Result gives the result of an action with all that it names here and kept, or NotFound:
// from this node, else from a member, whose blobs are then fetched.
func (c *Cache) Result(ctx context.Context, action cas.Name, f Function) (*repb.ActionResult, error) {
	var out *repb.ActionResult
	_, err := c.find(ctx, action, MaxResult, func(ctx context.Context, ref cas.Ref) error {
		b, err := c.readRef(ctx, ref)
		if err != nil {
			return err
		}
		if out, err = DecodeResult(b, f); err != nil {
			return err
		}
		return c.complete(ctx, out, f)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// SetResult binds an action to a result. One that names what is not here, and not at a
// member either, gives Missing.
func (c *Cache) SetResult(ctx context.Context, action cas.Name, f Function, r *repb.ActionResult) error {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return forgeyard.E("action result", forgeyard.Invalid, err)
	}
	if len(b) > MaxResult {
		return forgeyard.Errorf("action result", forgeyard.Invalid, "%d bytes are more than %d: leave files out of it, by digest", len(b), MaxResult)
	}
	if r, err = DecodeResult(b, f); err != nil {
		return err
	}
	if err := c.complete(ctx, r, f); err != nil {
		return err
	}
	return c.bindValue(ctx, action, bytes.NewReader(b), int64(len(b)))
}

// DecodeResult reads an ActionResult and refuses one with a digest that cannot be.
func DecodeResult(b []byte, f Function) (*repb.ActionResult, error) {
	r := &repb.ActionResult{}
	if err := proto.Unmarshal(b, r); err != nil {
		return nil, forgeyard.E("action result", forgeyard.Invalid, err)
	}
	_, _, err := closure(r, f)
	return r, err
}

// LooksLikeResult reports whether a value that came without a type is an action result:
// a message of that type to the last bit. ccache's and sccache's own values are not.
func LooksLikeResult(b []byte) (*repb.ActionResult, bool) {
	r := &repb.ActionResult{}
	if len(b) == 0 || proto.Unmarshal(b, r) != nil || len(r.ProtoReflect().GetUnknown()) > 0 {
		return nil, false
	}
	blobs, trees, err := closure(r, SHA256)
	return r, err == nil && len(blobs)+len(trees) > 0
}

// closure lists the blobs that a result names, and those of them that are Tree messages,
// which name more.
func closure(r *repb.ActionResult, f Function) (blobs, trees []ID, err error) {
	add := func(to *[]ID, d *repb.Digest) {
		if d == nil || err != nil {
			return
		}
		var id ID
		if id, err = ParseID(f, d.Hash, d.SizeBytes); err == nil {
			*to = append(*to, id)
		}
	}
	for _, x := range r.OutputFiles {
		if x.GetDigest() == nil {
			return nil, nil, forgeyard.Errorf("action result", forgeyard.Invalid, "output file %q has no digest", forgeyard.Clip(x.GetPath(), 80))
		}
		add(&blobs, x.Digest)
	}
	for _, x := range r.OutputDirectories {
		if x.GetTreeDigest() == nil && x.GetRootDirectoryDigest() == nil {
			return nil, nil, forgeyard.Errorf("action result", forgeyard.Invalid, "output directory %q has no digest", forgeyard.Clip(x.GetPath(), 80))
		}
		add(&trees, x.GetTreeDigest())
		add(&blobs, x.GetRootDirectoryDigest())
	}
	add(&blobs, r.StdoutDigest)
	add(&blobs, r.StderrDigest)
	if err == nil && len(blobs)+len(trees) > MaxClosure {
		err = tooMany()
	}
	return blobs, trees, err
}

func tooMany() error {
	return forgeyard.Errorf("action result", forgeyard.Limit, "it names more than %d blobs", MaxClosure)
}

// Missing is the error of a result whose closure cannot be completed.
type Missing struct{ IDs []ID }

func (m *Missing) Error() string {
	s := "what the result names is not here: " + m.IDs[0].String()
	if len(m.IDs) > 1 {
		s += " and others"
	}
	return s
}

// incomplete is a Conflict that carries what is missing.
func incomplete(ids []ID) error {
	return forgeyard.E("action result", forgeyard.Conflict, &Missing{ids})
}

// complete makes all that a result names local and kept.
func (c *Cache) complete(ctx context.Context, r *repb.ActionResult, f Function) error {
	blobs, trees, err := closure(r, f)
	if err != nil {
		return err
	}
	missing, err := c.Bring(ctx, append(append([]ID(nil), trees...), blobs...))
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return incomplete(missing)
	}
	inside, err := c.insideTrees(ctx, trees, f, MaxClosure-len(blobs)-len(trees))
	if err != nil || len(inside) == 0 {
		return err
	}
	if missing, err = c.Bring(ctx, inside); err != nil {
		return err
	}
	if len(missing) > 0 {
		return incomplete(missing)
	}
	return nil
}

// insideTrees lists the files of Tree messages, each once. Their directories are in the
// message itself.
func (c *Cache) insideTrees(ctx context.Context, trees []ID, f Function, room int) ([]ID, error) {
	seen := map[ID]bool{}
	var out []ID
	for _, id := range trees {
		b, err := c.Read(ctx, id, MaxTreeMessage)
		if err != nil {
			return nil, err
		}
		t := &repb.Tree{}
		if err := proto.Unmarshal(b, t); err != nil {
			return nil, forgeyard.Errorf("action result", forgeyard.Invalid, "%v is no Tree: %w", id, err)
		}
		for _, d := range append([]*repb.Directory{t.GetRoot()}, t.GetChildren()...) {
			files, err := filesOf(d, f)
			if err != nil {
				return nil, err
			}
			for _, x := range files {
				if !seen[x] {
					seen[x] = true
					out = append(out, x)
				}
			}
			if len(out) > room {
				return nil, tooMany()
			}
		}
	}
	return out, nil
}

func filesOf(d *repb.Directory, f Function) ([]ID, error) {
	var out []ID
	for _, x := range d.GetFiles() {
		id, err := ParseID(f, x.GetDigest().GetHash(), x.GetDigest().GetSizeBytes())
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

// find gives the blob for which a name stands, here or at a member, once accept has
// nothing against it. A blob that is not accepted is not given, and another member is
// tried; what accept says is told when nothing else is found.
func (c *Cache) find(ctx context.Context, name cas.Name, most int64, accept func(context.Context, cas.Ref) error) (cas.Ref, error) {
	bound, err := c.cfg.Names.Resolve(ctx, name)
	if err != nil {
		return cas.Ref{}, err
	}
	last := error(forgeyard.Errorf("build cache", forgeyard.NotFound, "nothing is cached under that key"))
	if len(bound) == 1 {
		gone, err := c.keep(ctx, []cas.Ref{bound[0].Ref})
		if err != nil {
			return cas.Ref{}, err
		}
		if len(gone) == 0 {
			if last = accept(ctx, bound[0].Ref); last == nil {
				c.Stats.Hits.Add(1)
				return bound[0].Ref, nil
			}
		}
	}
	if fatal(last) || c.cfg.Peers == nil {
		return cas.Ref{}, c.miss(last)
	}
	for _, cl := range c.cfg.Peers.Lookup(ctx, []cas.Name{name}) {
		if cl.Ref.Size > most {
			continue
		}
		err := c.take(ctx, cl, accept)
		if err == nil {
			c.Stats.PeerHits.Add(1)
			return cl.Ref, nil
		}
		if forgeyard.KindOf(err) == forgeyard.Invalid {
			c.Stats.FalseClaims.Add(1)
			c.cfg.Peers.Blame(cl.Provider, err.Error())
		}
		if last = err; fatal(err) {
			break
		}
	}
	return cas.Ref{}, c.miss(last)
}

// fatal reports whether it is of no use to look elsewhere.
func fatal(err error) bool {
	k := forgeyard.KindOf(err)
	return k == forgeyard.NoSpace || k == forgeyard.Interrupted
}

// miss turns what was wrong with the candidates into NotFound: to a client a result that
// is not complete is none.
func (c *Cache) miss(err error) error {
	if fatal(err) {
		return err
	}
	c.Stats.Misses.Add(1)
	switch forgeyard.KindOf(err) {
	case forgeyard.NotFound:
		return err
	case forgeyard.Conflict:
		c.Stats.Incomplete.Add(1)
	}
	return &forgeyard.Error{Op: "build cache", Kind: forgeyard.NotFound, Err: err}
}

// take brings what a member says a name stands for.
func (c *Cache) take(ctx context.Context, cl Claim, accept func(context.Context, cas.Ref) error) error {
	if err := c.cfg.Peers.Fetch(ctx, cl.Ref, cl.Provider); err != nil {
		return err
	}
	gone, err := c.keep(ctx, []cas.Ref{cl.Ref})
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		return forgeyard.Errorf("build cache", forgeyard.NotFound, "%s went away while it was fetched", cl.Ref.Digest)
	}
	if err := accept(ctx, cl.Ref); err != nil {
		return err
	}
	return c.cfg.Names.Bind(ctx, cas.Cache, cl.Binding)
}

// Value opens what a client put under its own key, here or at a member. What is an action
// result to the last bit is held to the same promise as one: its closure is here.
func (c *Cache) Value(ctx context.Context, name cas.Name) (cas.Object, error) {
	ref, err := c.find(ctx, name, cas.MaxBlobSize, func(ctx context.Context, ref cas.Ref) error {
		if ref.Size > MaxResult {
			return nil
		}
		b, err := c.readRef(ctx, ref)
		if err != nil {
			return err
		}
		r, ok := LooksLikeResult(b)
		if !ok {
			return nil
		}
		if err = c.complete(ctx, r, SHA256); forgeyard.KindOf(err) == forgeyard.Conflict {
			err = c.complete(ctx, r, BLAKE3) // over HTTP nobody says which it is
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.cfg.Store.Open(ctx, ref.Digest)
}

// SetValue puts a value under a client's own key. Size is -1 when it is not known.
func (c *Cache) SetValue(ctx context.Context, name cas.Name, r io.Reader, size int64) error {
	return c.bindValue(ctx, name, r, size)
}

// Forget unbinds a client's own key on this node. Other members keep theirs.
func (c *Cache) Forget(ctx context.Context, name cas.Name) error {
	return c.cfg.Names.Unbind(ctx, name)
}

func (c *Cache) bindValue(ctx context.Context, name cas.Name, r io.Reader, size int64) error {
	owner, release := c.hold()
	defer release()
	ref, err := c.cfg.Store.Put(ctx, r, cas.PutOptions{Class: cas.Cache, Size: max(0, size), Owner: owner})
	if err != nil {
		return err
	}
	if size >= 0 && ref.Size != size {
		return forgeyard.Errorf("build cache", forgeyard.Invalid, "%d bytes came, %d were announced", ref.Size, size)
	}
	if _, err := c.keep(ctx, []cas.Ref{ref}); err != nil {
		return err
	}
	if err := c.cfg.Names.Bind(ctx, cas.Cache, cas.Binding{Name: name, Ref: ref}); err != nil {
		return err
	}
	c.Stats.Writes.Add(1)
	c.Stats.BytesWritten.Add(ref.Size)
	return nil
}

// readRef reads a whole small blob of this store.
func (c *Cache) readRef(ctx context.Context, ref cas.Ref) ([]byte, error) {
	if ref.Size > MaxResult {
		return nil, forgeyard.Errorf("action result", forgeyard.Invalid, "%d bytes are more than %d", ref.Size, MaxResult)
	}
	if ref.Size == 0 {
		return nil, nil
	}
	o, err := c.cfg.Store.Open(ctx, ref.Digest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Close() }() // only read
	return io.ReadAll(io.LimitReader(o, MaxResult+1))
}

// Claims answers another member: for which whole blobs of this node names stand.
func (c *Cache) Claims(ctx context.Context, names []cas.Name) ([]cas.Binding, error) {
	if len(names) > maxAsked {
		return nil, forgeyard.Errorf("build cache", forgeyard.Limit, "%d names are more than %d in one question", len(names), maxAsked)
	}
	bound, err := c.cfg.Names.Resolve(ctx, names...)
	if err != nil {
		return nil, err
	}
	refs := make([]cas.Ref, len(bound))
	for i, b := range bound {
		refs[i] = b.Ref
	}
	gone, err := c.keep(ctx, refs) // the member is about to fetch them
	if err != nil {
		return nil, err
	}
	out := bound[:0]
	for _, b := range bound {
		if !gone[b.Ref.Digest] {
			out = append(out, b)
		}
	}
	return out, nil
}
