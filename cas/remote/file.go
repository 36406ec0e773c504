package remote

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

// A download lies beside its place, under a name that its digest gives, until it is whole:
//
//	absent ──begin──▶ part ──all came, hashed──▶ its place
//	                   │ ▲
//	                   └─┘ cut: the next one hashes what is here, and asks for the rest
//
// One that failed for another reason than a cut leaves nothing.

// part is how the name of a download that is on its way begins and ends.
const (
	partPrefix = ".forgeyard-"
	partSuffix = ".part"
)

// worthKeeping is from which size on a part that was cut is left for the next try: below
// it, beginning again costs less than a person sees.
const worthKeeping = 1 << 20

// File puts an object's bytes into a new file at path, verified before it has its
// name: temp, sync, rename. One that was cut goes on where it ended.
func (s *Store) File(ctx context.Context, ref cas.Ref, path string) (int64, error) {
	f, n, err := s.temp(ctx, ref)
	if err != nil {
		return n, err
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync()); err != nil {
		return n, forgeyard.E("cas get", forgeyard.Other, errors.Join(err, drop(f)))
	}
	if err := place(f, path); err != nil {
		return n, forgeyard.E("cas get", forgeyard.Other, err)
	}
	return n, nil
}

// temp receives an object into a file beside its place, verified. The caller places, lends or
// drops it, once: when its name was given up, the next one with it may be somebody else's.
func (s *Store) temp(ctx context.Context, ref cas.Ref) (*os.File, int64, error) {
	f, err := s.part(ref.Digest)
	if err != nil {
		return nil, 0, forgeyard.E("cas get", forgeyard.Other, err)
	}
	n, err := s.fill(ctx, ref, f)
	if err == nil {
		return f, n, nil
	}
	if keeps(err, f) {
		if forgeyard.KindOf(err) == forgeyard.Interrupted {
			err = errInterrupted
		}
		err = forgeyard.E("cas get", forgeyard.KindOf(err), err).WithHint("the same command goes on from there; until then %s keeps what came", f.Name())
		_ = f.Close() // what it lacks is seen when it is hashed by the next try
		return nil, n, err
	}
	_ = drop(f) // why it is of no use is told
	return nil, n, err
}

var errInterrupted = forgeyard.Errorf("", forgeyard.Interrupted, "interrupted")

// keeps reports whether a part is left for another try.
func keeps(err error, f *os.File) bool {
	kind := forgeyard.KindOf(err)
	if !strings.HasSuffix(f.Name(), partSuffix) || (kind != forgeyard.Interrupted && kind != forgeyard.Unavailable) {
		return false
	}
	st, serr := f.Stat()
	return serr == nil && st.Size() >= worthKeeping
}

// part opens the file of a download and locks it. Where somebody else is bringing the same
// thing to the same place, or others can write to what lies there, it is a file of its own,
// which no other try goes on with.
func (s *Store) part(d forgeyard.Digest) (*os.File, error) {
	name := filepath.Join(s.dir, partPrefix+d.Hex()+partSuffix)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if err != nil { // somebody else's, or a link; where no file can be made at all, this says so
		return os.CreateTemp(s.dir, partPrefix+"*")
	}
	if ours(f) && durable.TryLock(f) == nil && isAt(f, name) {
		return f, nil
	}
	_ = f.Close() // nothing was written to it
	return os.CreateTemp(s.dir, partPrefix+"*")
}

// isAt reports whether name leads to f: whoever had the lock before may have given it its
// place, or removed it.
func isAt(f *os.File, name string) bool {
	a, err := f.Stat()
	if err != nil || !a.Mode().IsRegular() {
		return false
	}
	b, err := os.Lstat(name)
	return err == nil && os.SameFile(a, b)
}

// fill brings the bytes that f lacks. What was there already is hashed like the rest; when
// the whole is wrong it may be to blame, and all of it is asked for once more.
func (s *Store) fill(ctx context.Context, ref cas.Ref, f *os.File) (int64, error) {
	h := cas.NewHasher()
	had, err := io.Copy(h, ended{ctx, f})
	if err != nil {
		return 0, forgeyard.E("cas get", forgeyard.Other, err)
	}
	if had > 0 && s.Had != nil {
		s.Had(had)
	}
	n, err := s.receive(ctx, ref, false, had, io.MultiWriter(h, f))
	if err == nil {
		err = check(ref, h)
	}
	if had == 0 || (forgeyard.KindOf(err) != forgeyard.Corrupt && forgeyard.KindOf(err) != forgeyard.Invalid) {
		return had + n, err
	}
	if s.Had != nil {
		s.Had(-had)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, forgeyard.E("cas get", forgeyard.Other, err)
	}
	if err := f.Truncate(0); err != nil {
		return 0, forgeyard.E("cas get", forgeyard.Other, err)
	}
	return s.Get(ctx, ref, false, f)
}
