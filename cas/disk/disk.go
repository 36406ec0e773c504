// Package disk keeps content on a local filesystem.
//
//	blobs/aa/bb/<hex>.<generation>   whole blobs, 0444, manifests and trees among them
//	index/                           pebble: what is here, objects of at most 16 KiB, block → range,
//	                                 partial bitmaps, names, what stays for a while, what went and why
//	pins/<hex>                       one pin a file: who keeps what
//	partial/<hex of the manifest>    sparse file of a blob on its way in
//	quarantine/                      what failed its check, each with a .reason
//	tmp/                             writes in flight; emptied when the store opens
//	ballast                          given up when a full disk stops a collection
//	lock                             flock: one process a store
//
// A write goes data → file sync → rename → directory sync → index, so an object
// is under its name whole or not at all (C01, C09). What the index says of files can be
// made again from them: a blob that it lost is found by its path, hashed and indexed at
// first use, and a partial is hashed again. Objects of at most 16 KiB have no file: of a
// damaged index each row that hashes to its name is taken over, and the rest is fetched
// again; until the pinned trees among it are here no collection runs. Pins are files of
// their own: a lost index must not let a collection take what is kept.
//
// A file is looked at when it is asked for, never at start. One that is missing,
// short or wrong is moved to quarantine and reported as NotFound or Corrupt;
// whoever asked fetches it again.
//
// Goroutines: one committer for each open store. It owns the step from rename to
// index, for many puts at once, and ends with Close.
//
// Locks, outermost first: pinMu, partialMu, a partial's mu, healMu, commitMu, mu.
//
// What it does not do: fetch, decide what is kept, or know what a job is.
package disk

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk/index"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/durable"
)

var (
	_ cas.Store       = (*Store)(nil)
	_ cas.BlockReader = (*Store)(nil)
	_ cas.BlockOpener = (*Store)(nil)
	_ cas.Holder      = (*Store)(nil)
	_ cas.Many        = (*Store)(nil)
	_ cas.ManyReader  = (*Store)(nil)
)

// Config says where a store is and what it may use.
type Config struct {
	// Dir is the store's folder; it is made when missing. It must be on one filesystem.
	Dir string
	// Limit bounds the bytes of content, partial blobs included. 0: only the disk bounds it.
	Limit int64
	// Reserve is how many bytes of the disk stay free for others. 0: 2 % of the disk, at
	// most 256 MiB. Negative: none, and then a put can take the disk's last byte.
	Reserve int64
	// ReserveInodes is the same for inodes. 0: 1 % of them, at most 4096. Negative: none.
	ReserveInodes int64
	// Inline is up to which size objects lie in the index and not in a file of their own.
	// 0: 16 KiB. Negative: none do.
	Inline int64
	// NoSync leaves syncing to the kernel, for tests and throw-away stores. Zero syncs.
	// With it a power cut may cost what was acknowledged as Durable.
	NoSync bool
	// Log gets what was healed, quarantined and removed. Nil: nothing is logged.
	Log *slog.Logger
	// Clock gives wall time for Stored and pin expiry. Nil: the machine's.
	Clock clock.Clock

	power syncer // nil: the machine's disk
	files vfs.FS // of the index; nil: the machine's
}

// syncer makes what was written survive a power cut.
type syncer interface {
	path(string) error   // the bytes of a file, or the names in a folder
	file(*os.File) error // the bytes of an open file
	all(*os.File) error  // the whole filesystem of an open file, where there is such a call
}

type machine struct{}

func (machine) path(p string) error   { return syncPath(p) }
func (machine) file(f *os.File) error { return f.Sync() }
func (machine) all(f *os.File) error  { return syncAll(f) }

// Store is a cas.Store in a folder.
type Store struct {
	cfg  Config
	log  *slog.Logger
	lock *os.File
	idx  *index.DB

	session uint64                  // this opening of the store
	unsaid  atomic.Pointer[opening] // what the next update tells the index of it
	clean   bool                    // the last one was closed
	lost    bool                    // under gcMu: the index was lost, and no collection has found all that is pinned since

	jobs      chan *job
	committed chan struct{} // closed when the committer has ended

	pinMu     sync.Mutex // guards pins and fresh pins; held by a collection for one page at a time
	pins      map[string]cas.Pin
	freshPins []cas.Pin // pinned since the running collection marked
	pinEpoch  uint64    // grows with each change of pins
	badPins   []string  // pin files that could not be read

	partialMu sync.Mutex // guards opening, closing and removing partials
	partials  map[forgeyard.Digest]*partialState

	healMu   sync.Mutex // one heal at a time
	gcMu     sync.Mutex // one collection at a time
	commitMu sync.Mutex // held from rename to index, and from index to unlink
	gen      uint64     // under commitMu: the last generation given

	syncedDirs map[[2]byte]struct{} // under commitMu: blob folders whose own names were synced by us

	mu      sync.Mutex // guards what follows
	closed  bool
	closing sync.WaitGroup                           // puts that may still send a job
	busy    map[forgeyard.Digest]int                 // in use by a put or a path: not collected
	dying   map[forgeyard.Digest]struct{}            // being collected right now: as good as absent
	holds   map[string]map[forgeyard.Digest]struct{} // kept for an owner until he pins or unpins
	held    map[forgeyard.Digest]int                 // how many owners hold it
	used    map[forgeyard.Digest]int64               // the hour in which it was last used, where the index does not have it yet
	fresh   map[forgeyard.Digest]location            // verified blocks of partials that the index does not have yet
	vouched map[forgeyard.Digest]vouched             // whose bytes were seen to be right, when, and in which file
	seen    map[forgeyard.Digest]*seen               // the same of blobs whose blocks were only partly looked at
	space   space
	objects int64
	commits uint64 // grows with each change of objects
	pinned  pinnedBytes
}

// Open opens or makes the store in c.Dir. A store that another process has open
// gives Conflict.
func Open(c Config) (*Store, error) {
	if c.Dir == "" || c.Limit < 0 {
		return nil, forgeyard.Errorf("cas open", forgeyard.Invalid, "dir %q must be set and limit %d must not be negative", c.Dir, c.Limit)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.power == nil {
		c.power = machine{}
	}
	s := &Store{
		cfg: c, log: c.Log, jobs: make(chan *job, maxBatch), committed: make(chan struct{}),
		pins: map[string]cas.Pin{}, partials: map[forgeyard.Digest]*partialState{},
		busy: map[forgeyard.Digest]int{}, dying: map[forgeyard.Digest]struct{}{},
		holds: map[string]map[forgeyard.Digest]struct{}{}, held: map[forgeyard.Digest]int{},
		used: map[forgeyard.Digest]int64{}, syncedDirs: map[[2]byte]struct{}{},
		fresh: map[forgeyard.Digest]location{}, vouched: map[forgeyard.Digest]vouched{}, seen: map[forgeyard.Digest]*seen{},
	}
	if err := s.open(); err != nil {
		s.abandon()
		return nil, err
	}
	go s.commitLoop()
	return s, nil
}

func (s *Store) open() error {
	const op = "cas open"
	for _, d := range []string{"", blobsDir, pinsDir, partialDir, quarantineDir, tmpDir} {
		if err := os.MkdirAll(filepath.Join(s.cfg.Dir, d), 0o700); err != nil {
			return s.fail(op, err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(s.cfg.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return s.fail(op, err)
	}
	s.lock = lock
	if err := durable.TryLock(lock); err != nil {
		return forgeyard.Errorf(op, forgeyard.Conflict, "store %s is open in another process: %w", s.cfg.Dir, err).WithHint("one process a store: stop the other one, or give this one its own folder")
	}
	if err := s.emptyTmp(); err != nil {
		return s.fail(op, err)
	}
	if err := s.writeEmptyBlob(); err != nil {
		return s.fail(op, err)
	}
	if err := s.openIndex(); err != nil {
		return err
	}
	if err := s.loadPins(); err != nil {
		return err
	}
	s.space.init(s.cfg, s.askDisk())
	s.fillBallast()
	return nil
}

// emptyTmp removes what a killed process left. It holds only writes in flight.
func (s *Store) emptyTmp() error {
	dir := filepath.Join(s.cfg.Dir, tmpDir)
	es, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range es {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// writeEmptyBlob makes the one file that Path gives for the empty object.
func (s *Store) writeEmptyBlob() error {
	f, err := os.OpenFile(s.emptyPath(), os.O_RDONLY|os.O_CREATE, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}

func (s *Store) abandon() {
	if s.idx != nil {
		_ = s.idx.Close() // nothing was acknowledged yet
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

// Close waits for the writes in flight, notes that the stop was clean, and lets
// another process have the store. It is idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.closing.Wait()
	close(s.jobs)
	<-s.committed

	s.partialMu.Lock()
	var errs []error
	for _, p := range s.partials {
		errs = append(errs, p.shut())
	}
	s.partialMu.Unlock()
	errs = append(errs, s.saveUsed(), s.markClean(), s.idx.Close(), s.lock.Close())
	return s.fail("cas close", errors.Join(errs...))
}

// enter registers work that may send a job; leave must be called after it.
func (s *Store) enter(op string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, forgeyard.Errorf(op, forgeyard.Unavailable, "store %s is closed", s.cfg.Dir)
	}
	s.closing.Add(1)
	return s.closing.Done, nil
}

// claim keeps the digests from being collected until release, and for the owner,
// when there is one, until he pins or unpins. It reports whether a collection is
// taking one of them away right now: then what the index says of it is over.
func (s *Store) claim(owner string, ds ...forgeyard.Digest) (release func(), dying bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		if _, ok := s.dying[d]; ok {
			dying = true
		}
		s.busy[d]++
		if owner != "" {
			s.hold(owner, d)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, d := range ds {
			if s.busy[d]--; s.busy[d] <= 0 {
				delete(s.busy, d)
			}
		}
	}, dying
}

// Hold implements cas.Holder.
func (s *Store) Hold(owner string, ds ...forgeyard.Digest) error {
	const op = "cas hold"
	leave, err := s.enter(op)
	if err != nil {
		return err
	}
	defer leave()
	if err := cas.ValidateOwner(owner); err != nil {
		return err
	}
	release, dying := s.claim(owner, ds...)
	release()
	if dying {
		return forgeyard.Errorf(op, forgeyard.Unavailable, "%s is being collected at this moment", ds[0].Short()).WithHint("try again: from now on it is kept")
	}
	return nil
}

func (s *Store) hold(owner string, d forgeyard.Digest) {
	m := s.holds[owner]
	if m == nil {
		m = map[forgeyard.Digest]struct{}{}
		s.holds[owner] = m
	}
	if _, ok := m[d]; !ok {
		m[d] = struct{}{}
		s.held[d]++
	}
}

// unhold ends what the owner held by his puts.
func (s *Store) unhold(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.holds[owner] {
		if s.held[d]--; s.held[d] <= 0 {
			delete(s.held, d)
		}
	}
	delete(s.holds, owner)
}

// fail gives an error its operation and kind. A full disk names the place and what to do.
func (s *Store) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	var e *forgeyard.Error
	switch {
	case errors.As(err, &e):
		return err
	case isNoSpace(err):
		return forgeyard.Errorf(op, forgeyard.NoSpace, "the disk of %s is full: %w", s.cfg.Dir, err).WithHint("free space there, unpin what is no longer needed, or run `forgeyard-node cas gc`")
	case isInterrupted(err):
		return forgeyard.E(op, forgeyard.Interrupted, err)
	}
	return forgeyard.E(op, forgeyard.Other, err)
}

// closeQuiet closes what was only read, or what is about to be removed.
func closeQuiet(c io.Closer) { _ = c.Close() }
