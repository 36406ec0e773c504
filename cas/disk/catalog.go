package disk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

var _ cas.Catalog = (*Store)(nil)

// Alias implements cas.Catalog.
func (s *Store) Alias(ctx context.Context, sha cas.SHA256) (forgeyard.Digest, error) {
	const op = "cas alias"
	if sha == sha256.Sum256(nil) {
		return cas.Empty(), nil
	}
	var d forgeyard.Digest
	_ = s.db.View(func(tx *bolt.Tx) error { // fails only when the store is closed: then nothing is here
		copy(d[:], tx.Bucket(bAliases).Get(sha[:]))
		return nil
	})
	if d.IsZero() || !s.Has(ctx, d) {
		return forgeyard.Digest{}, forgeyard.Errorf(op, forgeyard.NotFound, "no object with SHA-256 %s is in the local store", sha)
	}
	return d, nil
}

// AddAlias implements cas.Catalog.
func (s *Store) AddAlias(ctx context.Context, d forgeyard.Digest) (cas.SHA256, error) {
	const op = "cas alias"
	leave, err := s.enter(op)
	if err != nil {
		return cas.SHA256{}, err
	}
	defer leave()
	o, err := s.Open(ctx, d)
	if err != nil {
		return cas.SHA256{}, err
	}
	defer closeQuiet(o)
	h := sha256.New()
	if _, err := io.Copy(h, readUntil{ctx, o}); err != nil {
		return cas.SHA256{}, s.fail(op, err)
	}
	sha := cas.SHA256(h.Sum(nil))
	if o.Ref().Size == 0 {
		return sha, nil
	}
	return sha, s.fail(op, s.saveAlias(sha, d))
}

// readUntil ends a long read with its context.
type readUntil struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (r readUntil) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func (s *Store) saveAlias(sha cas.SHA256, d forgeyard.Digest) error {
	var have []byte
	_ = s.db.View(func(tx *bolt.Tx) error { // as above
		have = append(have, tx.Bucket(bAliases).Get(sha[:])...)
		return nil
	})
	if bytes.Equal(have, d[:]) {
		return nil
	}
	return s.update(func(u *update) error { return u.Bucket(bAliases).Put(sha[:], d[:]) })
}

// Touch implements cas.Catalog.
func (s *Store) Touch(_ context.Context, until time.Time, ds ...forgeyard.Digest) (missing []forgeyard.Digest, err error) {
	const op = "cas touch"
	now := s.cfg.Clock.Wall()
	if most := now.Add(cas.MaxTouch); until.After(most) {
		return nil, forgeyard.Errorf(op, forgeyard.Invalid, "%s is more than %s away", until.UTC().Format(time.RFC3339), cas.MaxTouch).WithHint("pin what must stay longer")
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
		if !s.touch(d, until, now) || !s.present(d) {
			missing = append(missing, d)
		}
	}
	return missing, nil
}

// touch notes it, unless a collection is taking the object away right now.
func (s *Store) touch(d forgeyard.Digest, until, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, dying := s.dying[d]; dying {
		return false
	}
	if until.After(now) && until.After(s.touched[d]) {
		s.touched[d] = until
	}
	return true
}

// PutAction implements cas.Catalog.
func (s *Store) PutAction(_ context.Context, key, value []byte) error {
	const op = "cas put action"
	if err := checkActionKey(op, key); err != nil {
		return err
	}
	if len(value) > cas.MaxActionBytes {
		return forgeyard.Errorf(op, forgeyard.Limit, "%d bytes are more than the bound of %d for one action", len(value), cas.MaxActionBytes).WithHint("put them as an object and keep its digest")
	}
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	res, err := s.reserve(op, int64(len(value)))
	if err != nil {
		return err
	}
	defer res.end()
	return s.fail(op, s.update(func(u *update) error { return u.Bucket(bActions).Put(key, value) }))
}

// Action implements cas.Catalog.
func (s *Store) Action(_ context.Context, key []byte) ([]byte, error) {
	const op = "cas action"
	if err := checkActionKey(op, key); err != nil {
		return nil, err
	}
	var value []byte
	found := false
	_ = s.db.View(func(tx *bolt.Tx) error { // fails only when the store is closed: then nothing is here
		v := tx.Bucket(bActions).Get(key)
		value, found = append([]byte{}, v...), v != nil
		return nil
	})
	if !found {
		return nil, forgeyard.Errorf(op, forgeyard.NotFound, "no action %s is in the local store", forgeyard.Clip(fmt.Sprintf("%x", key), 80))
	}
	return value, nil
}

// DropAction implements cas.Catalog.
func (s *Store) DropAction(_ context.Context, key []byte) error {
	const op = "cas drop action"
	if err := checkActionKey(op, key); err != nil {
		return err
	}
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	return s.fail(op, s.update(func(u *update) error { return u.Bucket(bActions).Delete(key) }))
}

func checkActionKey(op string, key []byte) error {
	if len(key) == 0 || len(key) > cas.MaxActionKey {
		return forgeyard.Errorf(op, forgeyard.Invalid, "a key of %d bytes is not in [1, %d]", len(key), cas.MaxActionKey)
	}
	return nil
}
