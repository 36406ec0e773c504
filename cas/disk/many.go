package disk

import (
	"bytes"
	"cmp"
	"context"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Lacks implements cas.Many. Objects that lie in the index have no file by which they could
// be found, so what has no row is not here; of the others Has decides.
func (s *Store) Lacks(ctx context.Context, refs []cas.Ref) (lacks []int) {
	ds := make([]forgeyard.Digest, len(refs))
	for i, r := range refs {
		ds[i] = r.Digest
	}
	here := make([]bool, len(refs))
	err := s.records(ds, func(i int, r record, ok bool) { here[i] = ok && s.has(ds[i], r) })
	if err != nil {
		s.log.Warn("cas: the index cannot be read", "table", string(tObjects), "err", err)
	}
	for i, r := range refs {
		if here[i] || r.Digest == cas.Empty() {
			continue
		}
		if err == nil && r.Size <= s.inlineMost() || !s.Has(ctx, r.Digest) {
			lacks = append(lacks, i)
		}
	}
	return lacks
}

// ReadMany implements cas.ManyReader: of objects that lie in the index. Bytes that do not match
// their name are passed over, for Block to set aside.
func (s *Store) ReadMany(ctx context.Context, names []forgeyard.Digest, check bool, f func(i int, b []byte)) {
	var known []record
	var at []int
	var keys [][]byte
	err := s.records(names, func(i int, r record, ok bool) {
		if ok && r.Inline {
			known, at, keys = append(known, r), append(at, i), append(keys, rowKey(tInline, names[i][:]))
		}
	})
	if err != nil || ctx.Err() != nil {
		return
	}
	var used []int
	_ = s.idx.Look(keys, func(k int, b []byte) { // what it could not read is read again, and then told
		d := names[at[k]]
		if b == nil || int64(len(b)) != known[k].Size || check && cas.Sum(b) != d {
			return
		}
		used = append(used, k)
		f(at[k], b)
	})
	for _, k := range used {
		s.noteUse(names[at[k]], known[k])
	}
}

// PutMany implements cas.Many. Objects that get a file of their own are put one by one.
func (s *Store) PutMany(ctx context.Context, objects []cas.Small, o cas.PutOptions) {
	const op = "cas put"
	for len(objects) > 0 {
		n, size := 0, 0
		for n < len(objects) && n < maxBatch && (n == 0 || size+len(objects[n].Bytes) <= manyBytes) {
			objects[n].Ref, objects[n].Err = cas.Ref{}, nil
			size += len(objects[n].Bytes)
			n++
		}
		err := s.pack(ctx, op, objects[:n], cas.PutOptions{Class: o.Class, Owner: o.Owner})
		for i := range objects[:n] {
			if x := &objects[i]; err != nil && x.Err == nil {
				x.Err = s.fail(op, err)
			}
		}
		objects = objects[n:]
	}
}

// pack puts objects with one commit. Its error is that of all that have none of their own.
func (s *Store) pack(ctx context.Context, op string, objects []cas.Small, o cas.PutOptions) error {
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	if o.Owner != "" {
		err = cas.ValidateOwner(o.Owner)
	}
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	var inline []*cas.Small
	var ds []forgeyard.Digest
	for i := range objects {
		x := &objects[i]
		if x.Ref, x.Err = name(op, x); x.Err != nil || x.Ref.Size == 0 {
			continue
		}
		if x.Ref.Size > s.inlineMost() {
			o.Expect, o.Size = x.Ref.Digest, x.Ref.Size
			x.Ref, x.Err = s.Put(ctx, bytes.NewReader(x.Bytes), o)
			continue
		}
		inline, ds = append(inline, x), append(ds, x.Ref.Digest)
	}
	if len(inline) == 0 {
		return nil
	}
	release, _ := s.claim(o.Owner, ds...) // the commit looks what is here when no collection runs
	defer release()
	return s.packInline(op, inline, o.Class)
}

// name names an object's bytes.
func name(op string, x *cas.Small) (cas.Ref, error) {
	if len(x.Bytes) > cas.BlockSize {
		return cas.Ref{}, forgeyard.Errorf(op, forgeyard.Limit, "%d bytes are more than the bound of %d for one among many objects", len(x.Bytes), cas.BlockSize)
	}
	d := cas.Sum(x.Bytes)
	if !x.Digest.IsZero() && d != x.Digest {
		return cas.Ref{}, forgeyard.Errorf(op, forgeyard.Corrupt, "the bytes are %s, expected was %s; nothing was kept", d, x.Digest)
	}
	return cas.Ref{Digest: d, Size: int64(len(x.Bytes))}, nil
}

// packInline puts what lies in the index.
func (s *Store) packInline(op string, xs []*cas.Small, c cas.Class) error {
	j := newJob(c)
	j.files = make([]file, len(xs))
	var size int64
	for i, x := range xs {
		j.files[i] = file{digest: x.Ref.Digest, inline: x.Bytes, size: x.Ref.Size}
		size += x.Ref.Size
	}
	res, err := s.reserve(op, size)
	if err != nil {
		return err
	}
	defer res.end()
	if err := s.submit(j); err != nil {
		return err
	}
	var here []forgeyard.Digest
	for _, f := range j.files {
		if f.skip {
			here = append(here, f.digest)
		}
	}
	return s.harden(c, here...)
}
