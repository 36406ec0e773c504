// Package tree turns directories into content and content into directories.
//
//	Capture          a directory → files and trees in a store
//	CaptureOutputs   the declared outputs of a workload, which may be hostile
//	Materialise      a tree → a fresh directory, by reflink where the disk can
//	Walk, Closure    what a tree names, fetching trees on the way
//
// Invariants: nothing outside the captured root is ever read, whatever a workload
// does to its files meanwhile; no link that leaves the root is captured or made;
// devices, sockets and pipes are refused; every bound is hit with an error.
//
// Each step down a directory is taken by handle, one name at a time, and what was
// opened is compared with what was looked at: a file swapped for a link in between
// is an error, never followed.
//
// It keeps names, content, the exec bit and link targets, and nothing else: no owner,
// no times, no other modes. It decides nothing about what is kept; pass an owner.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// Limits bound what one call takes.
type Limits struct {
	// MaxFiles bounds files, directories and links together. 0: DefaultMaxFiles.
	MaxFiles int64
	// MaxBytes bounds the bytes of all files, each time a file occurs. 0: DefaultMaxBytes.
	MaxBytes int64
}

const (
	// DefaultMaxFiles holds a large monorepo checkout, and bounds memory to some 300 MB.
	DefaultMaxFiles = 1 << 20
	// DefaultMaxBytes is more than a job's disk usually has.
	DefaultMaxBytes = 256 << 30

	// workers is how many files are stored or written at once. Storing waits for disk
	// syncs, which many share; more than this many only raises memory, a block each.
	workers = 64

	// smallFile is up to where reading a verified block and writing it is cheaper than
	// asking for a path and cloning.
	smallFile = 128 << 10

	// gatherSize is up to which size files are read together, where the store can: it has
	// them side by side. gatherPass is how many are read in one pass, which bounds what each
	// worker has in memory, and gatherMost how many names are sorted for it.
	gatherSize = 16 << 10
	gatherPass = 64
	gatherMost = 32 << 10
)

// budget counts against Limits.
type budget struct {
	l            Limits
	files, bytes int64
}

func newBudget(l Limits) *budget {
	if l.MaxFiles <= 0 {
		l.MaxFiles = DefaultMaxFiles
	}
	if l.MaxBytes <= 0 {
		l.MaxBytes = DefaultMaxBytes
	}
	return &budget{l: l}
}

func (b *budget) take(op, path string, bytes int64) error {
	b.files++
	if b.files > b.l.MaxFiles {
		return forgeyard.Errorf(op, forgeyard.Limit, "at %q there are more than %d files, directories and links", path, b.l.MaxFiles)
	}
	if bytes > b.l.MaxBytes-b.bytes {
		return forgeyard.Errorf(op, forgeyard.Limit, "with %q (%d bytes) the files exceed %d bytes", path, bytes, b.l.MaxBytes)
	}
	b.bytes += bytes
	return nil
}

// Ref names a tree and says how much it holds.
type Ref struct {
	cas.Ref
	Files int64 // files, directories and links below the root
	Bytes int64 // of all files
}

// Getter gives the bytes of a tree object. It may fetch them first. The bytes are
// checked against the digest by whoever called it.
type Getter func(ctx context.Context, ref cas.Ref) ([]byte, error)

// Source is what Materialise reads from.
type Source interface {
	Open(ctx context.Context, d forgeyard.Digest) (cas.Object, error)
	Block(ctx context.Context, d forgeyard.Digest) ([]byte, error)
	Path(ctx context.Context, d forgeyard.Digest) (path string, release func(), err error)
}

// FromStore gets trees that are in the local store.
func FromStore(s Source) Getter {
	return func(ctx context.Context, ref cas.Ref) ([]byte, error) {
		o, err := s.Open(ctx, ref.Digest)
		if err != nil {
			return nil, err
		}
		defer func() { _ = o.Close() }() // it was only read
		if n := o.Ref().Size; n > cas.MaxTreeBytes {
			return nil, forgeyard.Errorf("tree", forgeyard.Invalid, "%s has %d bytes, so it is no tree", ref.Digest, n)
		}
		return io.ReadAll(o)
	}
}

// load gets one tree and holds it against its name.
func load(ctx context.Context, op string, get Getter, ref cas.Ref) (cas.Tree, error) {
	b, err := get(ctx, ref)
	if err != nil {
		return cas.Tree{}, fail(op, ref.Digest.String(), err)
	}
	if cas.Sum(b) != ref.Digest {
		return cas.Tree{}, forgeyard.Errorf(op, forgeyard.Corrupt, "the bytes given for tree %s are %s", ref.Digest, cas.Sum(b))
	}
	t, err := cas.DecodeTree(b)
	if err != nil {
		return cas.Tree{}, forgeyard.Errorf(op, forgeyard.Invalid, "%s is no tree: %w", ref.Digest, err)
	}
	return t, nil
}

// fail keeps a kind that is known and gives the others one, with the path.
func fail(op, path string, err error) error {
	if err == nil {
		return nil
	}
	at := strconv.Quote(path)
	var e *forgeyard.Error
	switch {
	case errors.As(err, &e) && strings.HasPrefix(e.Op, "tree "):
		return err // it was said where it happened
	case forgeyard.KindOf(err) != forgeyard.Other:
		return forgeyard.E(op, forgeyard.Other, fmt.Errorf("%s: %w", at, err))
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return forgeyard.E(op, forgeyard.Interrupted, err)
	case isNoSpace(err):
		return forgeyard.Errorf(op, forgeyard.NoSpace, "%s: %w", at, err).WithHint("free space or inodes on that disk")
	case errors.Is(err, fs.ErrNotExist):
		return forgeyard.Errorf(op, forgeyard.NotFound, "%s: %w", at, err)
	case errors.Is(err, fs.ErrPermission):
		return forgeyard.Errorf(op, forgeyard.Denied, "%s: %w", at, err)
	}
	return forgeyard.Errorf(op, forgeyard.Other, "%s: %w", at, err)
}

func invalid(op, path, format string, args ...any) error {
	return forgeyard.Errorf(op, forgeyard.Invalid, "%q %s", path, fmt.Sprintf(format, args...))
}
