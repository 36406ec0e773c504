package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/forgeyard/forgeyard-node"
)

// gone says why an object is not here any more. It is stored: append only.
type gone uint8

const (
	goneCollected gone = 1 // nothing kept it, at a collection
	goneEvicted   gone = 2 // nothing kept it, and room was wanted
	goneDamaged   gone = 3 // its bytes were wrong, or its file was gone
)

func (g gone) String() string {
	switch g {
	case goneCollected:
		return "collected: nothing kept it"
	case goneEvicted:
		return "evicted: nothing kept it and the store was above its mark"
	case goneDamaged:
		return "set aside: it was damaged or its file was gone"
	}
	return "gone for a reason that this version does not know"
}

// tombstone is what stays of an object: enough to answer who asks where it went.
type tombstone struct {
	_    struct{} `cbor:",toarray"`
	At   int64    // seconds since 1970
	Why  gone
	Size int64
	Used int64 // hours since 1970, when it was last used
}

func (s *Store) tombstone(r record, why gone) tombstone {
	return tombstone{At: s.cfg.Clock.Wall().Unix(), Why: why, Size: r.Size, Used: r.Used}
}

func (u *update) bury(d forgeyard.Digest, t tombstone) { u.put(tGone, marshal(t), d[:]) }

func decodeGone(v []byte) (t tombstone, ok bool) {
	return t, cbor.Unmarshal(v, &t) == nil && t.Size >= 0 && t.Why != 0
}

// forgetGone keeps the tombstones of the last maxGoneAge, and of those no more than
// maxGone: which go first is by their names, so by chance.
func (s *Store) forgetGone(ctx context.Context) error {
	from := s.cfg.Clock.Wall().Add(-maxGoneAge).Unix()
	var over [][]byte
	n := 0
	err := s.rows(tGone, nil, nil, func(k, v []byte) bool {
		if t, ok := decodeGone(v); !ok || t.At < from || n >= maxGone {
			over = append(over, bytes.Clone(k))
		} else {
			n++
		}
		return ctx.Err() == nil
	})
	if err != nil || len(over) == 0 {
		return err
	}
	return s.lazily(func(u *update) error {
		for _, k := range over {
			u.drop(tGone, k)
		}
		return nil
	})
}

// Gone tells when an object went and why.
type Gone struct {
	At, Used time.Time
	Why      string
	Size     int64
}

// String says it to a person.
func (g Gone) String() string {
	return fmt.Sprintf("%s, at %s; last used %s", g.Why, g.At.Format(time.RFC3339), g.Used.Format("2006-01-02 15:00"))
}

// Lost names up to most objects, in the order of the names and after one, that were damaged
// and set aside, and that nobody has brought again since, for as long as that is remembered.
func (s *Store) Lost(ctx context.Context, after forgeyard.Digest, most int) (out []forgeyard.Digest, err error) {
	var from []byte
	if !after.IsZero() {
		from = after[:]
	}
	var damaged []forgeyard.Digest // of which some are here again: not asked in the scan, which holds the index
	err = s.rows(tGone, nil, from, func(k, v []byte) bool {
		var d forgeyard.Digest
		if t, ok := decodeGone(v); ok && t.Why == goneDamaged && copy(d[:], k) == len(k) && d != after {
			damaged = append(damaged, d)
		}
		return ctx.Err() == nil
	})
	for _, d := range damaged {
		if len(out) < most && !s.present(d) {
			out = append(out, d)
		}
	}
	return out, s.fail("cas lost", errors.Join(err, ctx.Err()))
}

// Gone answers for an object that is not here. ok is false when it never was, or when
// that is too long ago to be remembered.
func (s *Store) Gone(d forgeyard.Digest) (g Gone, ok bool) {
	v, ok := s.row(tGone, d[:])
	if !ok {
		return g, false
	}
	t, ok := decodeGone(v)
	return Gone{At: time.Unix(t.At, 0).UTC(), Used: time.Unix(t.Used*3600, 0).UTC(), Why: t.Why.String(), Size: t.Size}, ok
}
