package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/fxamacker/cbor/v2"
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

func (u *update) putName(n cas.Name, r nameRecord) { u.put(tNames, marshal(r), nameKey(n)) }

// Bind implements cas.Names.
func (s *Store) Bind(_ context.Context, class cas.Class, bs ...cas.Binding) error {
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
	return s.fail(op, s.bind(class, bs...))
}

// bind writes what is new. The caller stands between enter and leave.
func (s *Store) bind(class cas.Class, bs ...cas.Binding) error {
	hour := hourOf(s.cfg.Clock.Wall())
	fresh := slices.DeleteFunc(slices.Clone(bs), func(b cas.Binding) bool {
		have, ok := s.nameRecord(b.Name)
		return ok && have == nameRecord{Ref: b.Ref, Hour: hour}
	})
	if len(fresh) == 0 {
		return nil
	}
	return s.write(class == cas.Durable, func(u *update) error {
		for _, b := range fresh {
			u.putName(b.Name, nameRecord{Ref: b.Ref, Hour: hour})
		}
		return nil
	})
}

func (s *Store) nameRecord(n cas.Name) (r nameRecord, ok bool) {
	k := nameKey(n)
	v, ok := s.row(tNames, k)
	if ok {
		_, r, ok = decodeName(k, v)
	}
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
	if err := s.bind(cas.Cache, stale...); err != nil {
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
		err := s.lazily(func(u *update) error {
			for _, n := range page {
				u.drop(tNames, nameKey(n))
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
	hours, err := s.nameHours(ctx, space)
	if err != nil {
		return 0, s.fail(op, err)
	}
	before, extra := trimLine(hours, hourOf(since), most)
	gone, err := s.trimNames(ctx, space, before, extra)
	return gone, s.fail(op, err)
}

// nameHours counts the names of a space by the hour of their last use: a million names are
// a few hundred numbers.
func (s *Store) nameHours(ctx context.Context, space cas.Space) (map[int64]int, error) {
	hours := map[int64]int{}
	err := s.rows(tNames, []byte{byte(space)}, nil, func(k, v []byte) bool {
		if _, r, ok := decodeName(k, v); ok {
			hours[r.Hour]++
		}
		return ctx.Err() == nil
	})
	return hours, errors.Join(err, ctx.Err())
}

// trimLine says which names go: those last used before an hour, and so many of that hour.
func trimLine(hours map[int64]int, since int64, most int) (before int64, extra int) {
	left := 0
	for h, n := range hours {
		if h >= since {
			left += n
		}
	}
	if most <= 0 || left <= most {
		return since, 0
	}
	for _, h := range slices.Sorted(maps.Keys(hours)) {
		if h < since {
			continue
		}
		if left-hours[h] <= most {
			return h, left - most
		}
		left -= hours[h]
	}
	return since, 0
}

// trimPage is how many names are in memory while they are forgotten.
const trimPage = 4096

func (s *Store) trimNames(ctx context.Context, space cas.Space, before int64, extra int) (gone int, err error) {
	var from []byte
	for {
		var page []cas.Name
		err := s.rows(tNames, []byte{byte(space)}, from, func(k, v []byte) bool {
			n, r, ok := decodeName(k, v)
			switch {
			case ok && r.Hour < before:
				page = append(page, n)
			case ok && r.Hour == before && extra > 0:
				page = append(page, n)
				extra--
			}
			return len(page) < trimPage && ctx.Err() == nil
		})
		if err = errors.Join(err, ctx.Err()); err != nil || len(page) == 0 {
			return gone, err
		}
		if err := s.unbind(page); err != nil {
			return gone, err
		}
		gone += len(page)
		from = nameKey(page[len(page)-1])
	}
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
	if err := s.noteKept(until, now, ds); err != nil {
		return nil, s.fail(op, err)
	}
	for _, d := range ds {
		if d != cas.Empty() && (s.isDying(d) || !s.present(d)) {
			missing = append(missing, d)
		}
	}
	return missing, nil
}

// noteKept writes the instant first: a collection that began before sees the row, or has
// said by then what it takes.
func (s *Store) noteKept(until, now time.Time, ds []forgeyard.Digest) error {
	at := until.Unix() + 1 // whole seconds, never too short
	var fresh []forgeyard.Digest
	for _, d := range ds {
		if until.After(now) && d != cas.Empty() && s.keptUntil(d) < at {
			fresh = append(fresh, d)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return s.lazily(func(u *update) error {
		for _, d := range fresh {
			u.put(tKept, binary.BigEndian.AppendUint64(nil, uint64(at)), d[:])
		}
		return nil
	})
}

// keptUntil gives seconds since 1970; 0: nobody was told of it.
func (s *Store) keptUntil(d forgeyard.Digest) int64 {
	v, _ := s.row(tKept, d[:])
	return decodeKept(v)
}

func decodeKept(v []byte) int64 {
	if len(v) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v))
}

func (s *Store) isDying(d forgeyard.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, dying := s.dying[d]
	return dying
}

// forgetKept drops the instants that are over.
func (s *Store) forgetKept(ctx context.Context) error {
	now := s.cfg.Clock.Wall().Unix()
	var over [][]byte
	err := s.rows(tKept, nil, nil, func(k, v []byte) bool {
		if decodeKept(v) <= now {
			over = append(over, slices.Clone(k))
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return err
	}
	for page := range slices.Chunk(over, gcPage) {
		err := s.lazily(func(u *update) error {
			for _, k := range page {
				u.drop(tKept, k)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
