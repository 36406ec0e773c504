package disk

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"
	bolt "go.etcd.io/bbolt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

var _ cas.Names = (*Store)(nil)

// nameRecord is what a name stands for.
type nameRecord struct {
	_    struct{} `cbor:",toarray"`
	Ref  cas.Ref
	Hour int64 // since 1970, when it was last used
}

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

func nameKey(n cas.Name) []byte { return append([]byte{byte(n.Space)}, n.Key[:]...) }

func (r nameRecord) binding(n cas.Name) cas.Binding {
	return cas.Binding{Name: n, Ref: r.Ref, Used: time.Unix(r.Hour*3600, 0).UTC()}
}

func decodeName(k, v []byte) (n cas.Name, r nameRecord, ok bool) {
	if len(k) != 1+len(n.Key) || cbor.Unmarshal(v, &r) != nil || r.Ref.Digest.IsZero() || r.Ref.Size < 0 {
		return n, r, false
	}
	n.Space = cas.Space(k[0])
	copy(n.Key[:], k[1:])
	return n, r, true
}

func (u *update) putName(n cas.Name, r nameRecord) error {
	return u.Bucket(bNames).Put(nameKey(n), marshal(r))
}

// Bind implements cas.Names.
func (s *Store) Bind(_ context.Context, _ cas.Class, bs ...cas.Binding) error {
	const op = "cas bind"
	for _, b := range bs {
		if b.Name.Space == 0 || b.Ref.Digest.IsZero() || b.Ref.Size < 0 {
			return forgeyard.Errorf(op, forgeyard.Invalid, "space %d and %s of %d bytes: a name needs a space, a digest and a size", b.Name.Space, b.Ref.Digest, b.Ref.Size)
		}
	}
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	return s.fail(op, s.bind(bs...))
}

// bind writes what is new. The caller stands between enter and leave.
func (s *Store) bind(bs ...cas.Binding) error {
	hour := hourOf(s.cfg.Clock.Wall())
	fresh := slices.DeleteFunc(slices.Clone(bs), func(b cas.Binding) bool {
		have, ok := s.nameRecord(b.Name)
		return ok && have == nameRecord{Ref: b.Ref, Hour: hour}
	})
	if len(fresh) == 0 {
		return nil
	}
	return s.update(func(u *update) error {
		for _, b := range fresh {
			if err := u.putName(b.Name, nameRecord{Ref: b.Ref, Hour: hour}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *Store) nameRecord(n cas.Name) (r nameRecord, ok bool) {
	_ = s.db.View(func(tx *bolt.Tx) error { // fails only when the store is closed: then nothing is here
		k := nameKey(n)
		_, r, ok = decodeName(k, tx.Bucket(bNames).Get(k))
		return nil
	})
	return r, ok
}

// Resolve implements cas.Names.
func (s *Store) Resolve(_ context.Context, names ...cas.Name) ([]cas.Binding, error) {
	const op = "cas resolve"
	leave, err := s.enter(op)
	if err != nil {
		return nil, err
	}
	defer leave()
	hour := hourOf(s.cfg.Clock.Wall())
	var out, stale []cas.Binding
	for _, n := range names {
		r, ok := s.nameRecord(n)
		if !ok {
			continue
		}
		b := r.binding(n)
		if r.Hour != hour {
			stale = append(stale, b)
			b.Used = time.Unix(hour*3600, 0).UTC()
		}
		out = append(out, b)
	}
	if err := s.bind(stale...); err != nil {
		s.log.Warn("cas: the use of names cannot be noted; they may be trimmed early", "names", len(stale), "err", err)
	}
	return out, nil
}

// Unbind implements cas.Names.
func (s *Store) Unbind(_ context.Context, names ...cas.Name) error {
	const op = "cas unbind"
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	return s.fail(op, s.unbind(names))
}

func (s *Store) unbind(names []cas.Name) error {
	for page := range slices.Chunk(names, gcPage) {
		err := s.update(func(u *update) error {
			for _, n := range page {
				if err := u.Bucket(bNames).Delete(nameKey(n)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Trim implements cas.Names.
func (s *Store) Trim(ctx context.Context, space cas.Space, since time.Time, most int) (int, error) {
	const op = "cas trim"
	leave, err := s.enter(op)
	if err != nil {
		return 0, err
	}
	defer leave()
	var all []cas.Binding
	err = s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(bNames).Cursor()
		for k, v := c.Seek([]byte{byte(space)}); len(k) > 0 && k[0] == byte(space); k, v = c.Next() {
			if n, r, ok := decodeName(k, v); ok {
				all = append(all, r.binding(n))
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return 0, s.fail(op, err)
	}
	slices.SortStableFunc(all, func(a, b cas.Binding) int { return a.Used.Compare(b.Used) })
	from := hourOf(since)
	gone, _ := slices.BinarySearchFunc(all, from, func(b cas.Binding, h int64) int { return cmp.Compare(hourOf(b.Used), h) })
	if most > 0 {
		gone = max(gone, len(all)-most)
	}
	names := make([]cas.Name, gone)
	for i, b := range all[:gone] {
		names[i] = b.Name
	}
	return gone, s.fail(op, s.unbind(names))
}

// Keep implements cas.Names.
func (s *Store) Keep(_ context.Context, until time.Time, ds ...forgeyard.Digest) (missing []forgeyard.Digest, err error) {
	const op = "cas keep"
	now := s.cfg.Clock.Wall()
	if most := now.Add(cas.MaxKeep); until.After(most) {
		return nil, forgeyard.Errorf(op, forgeyard.Invalid, "%s is more than %s away", until.UTC().Format(time.RFC3339), cas.MaxKeep).WithHint("pin what must stay longer")
	}
	leave, err := s.enter(op)
	if err != nil {
		return nil, err
	}
	defer leave()
	for _, d := range ds {
		if d == cas.Empty() {
			continue
		}
		if !s.keep(d, until, now) || !s.present(d) {
			missing = append(missing, d)
		}
	}
	return missing, nil
}

// keep notes it, unless a collection is taking the object away right now.
func (s *Store) keep(d forgeyard.Digest, until, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, dying := s.dying[d]; dying {
		return false
	}
	if until.After(now) && until.After(s.keepUntil[d]) {
		s.keepUntil[d] = until
	}
	return true
}
