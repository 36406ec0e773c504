package consensus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// segmentLog is raft-wal with what it lacks at v0.4.0:
//
//   - Close leaves the metadata file open, and a second open in the process waits for its
//     lock for ever. We hand it the metadata store and close that ourselves.
//   - A crash after a segment was filled and before the next one was begun leaves a tail
//     that takes no entry, for ever. We notice at open, and copy the log into a new folder.
//   - A truncation seals the tail without the index that a sealed segment is read by, so the
//     log cannot be read after the next open. We read such a segment as a tail is read.
//   - A truncation that overtakes a rotation that is due spoils the log. It waits.
//   - Close gives up a rotation that is due, which leaves the same. We wait for it.
//   - GetLog still answers for entries that were removed within a segment.
//   - A rotation that fails (a full disk) is only logged; the next append then says that
//     the segment is sealed. We remember why, and say that.
//   - A crash or a full disk while a segment file is made leaves it short. We make it under
//     another name.
//
// Folders, of which wal.old and wal.new exist only while the log is copied:
//
//	wal/      segments <base index>-<id>.wal, wal-meta.db, and spare.tmp: the next segment
//	wal.new/  a copy under way: worth nothing before it is called wal
//	wal.old/  what wal was; comes back if there is no wal
type segmentLog struct {
	*wal.WAL
	dir  string
	meta *watchedMeta
	tail *tailWatch
	next *spareFile
}

// segmentBytes is preallocated for each file of the log: large enough that files are seldom
// begun, small enough that a full disk is met early and gives its space back soon.
const segmentBytes = 8 << 20

func walDir(dir string) string { return filepath.Join(dir, "wal") }

// openSegments opens or creates the log under dir, which is locked by whoever calls.
func openSegments(dir string, size int, log hclog.Logger) (*segmentLog, error) {
	if err := settleCopy(dir); err != nil {
		return nil, err
	}
	l, sealed, err := openWAL(walDir(dir), size, log)
	if err != nil || !sealed {
		return l, err
	}
	err = copyToFresh(l, dir, size, log)
	if err = errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	if err := swapIn(dir); err != nil {
		return nil, err
	}
	l, _, err = openWAL(walDir(dir), size, log)
	return l, err
}

// openWAL opens one folder and reports whether its tail takes no more entries.
func openWAL(dir string, size int, log hclog.Logger) (*segmentLog, bool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, err
	}
	l := &segmentLog{dir: dir, tail: newTailWatch(), next: &spareFile{path: filepath.Join(dir, "spare.tmp"), size: int64(size)}}
	if err := l.next.clear(); err != nil {
		return nil, false, err
	}
	l.meta = &watchedMeta{tail: l.tail}
	filer := &watchedFiler{SegmentFiler: segment.NewFiler(dir, careFS{walfs.New(), l.next}), tail: l.tail}
	var err error
	l.WAL, err = wal.Open(dir, wal.WithMetaStore(l.meta), wal.WithSegmentFiler(filer), wal.WithLogger(log), wal.WithSegmentSize(size))
	if err != nil {
		return nil, false, errors.Join(err, l.meta.Close())
	}
	return l, filer.foundSealed, nil
}

// StoreLogs says why the disk took no entry, where raft-wal knows only that it did not.
func (l *segmentLog) StoreLogs(logs []*raft.Log) error {
	err := l.WAL.StoreLogs(logs)
	if cause := l.tail.failure(); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// StoreLog implements raft.LogStore.
func (l *segmentLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// GetLog implements raft.LogStore.
func (l *segmentLog) GetLog(index uint64, e *raft.Log) error {
	first, err1 := l.FirstIndex()
	last, err2 := l.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if index < first || index > last {
		return raft.ErrLogNotFound
	}
	return l.WAL.GetLog(index, e)
}

// DeleteRange implements raft.LogStore.
func (l *segmentLog) DeleteRange(lo, hi uint64) error {
	l.tail.awaitRotation()
	if err := l.tail.failure(); err != nil {
		return err
	}
	return l.WAL.DeleteRange(lo, hi)
}

// Close gives the files back, the metadata's among them. No call may be under way.
func (l *segmentLog) Close() error {
	l.tail.awaitRotation()
	return errors.Join(l.WAL.Close(), l.meta.Close(), l.next.close())
}

// deletesAtOnce: only the metadata changes, and whole files go.
func (l *segmentLog) deletesAtOnce() bool { return true }

// probe fails unless another segment has room.
func (l *segmentLog) probe() error {
	f, err := newSegmentFile(filepath.Join(l.dir, "probe.tmp"), segmentBytes, (*os.File).WriteAt)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// copyToFresh writes every entry into a new folder.
func copyToFresh(from *segmentLog, dir string, size int, log hclog.Logger) error {
	to, _, err := openWAL(filepath.Join(dir, "wal.new"), size, log)
	if err != nil {
		return err
	}
	_, err = copyLog(to, from, nil)
	return errors.Join(err, to.Close())
}

// swapIn puts the copy in the place of the log.
func swapIn(dir string) error {
	old := filepath.Join(dir, "wal.old")
	for _, step := range []func() error{
		func() error { return syncDir(filepath.Join(dir, "wal.new")) },
		func() error { return os.Rename(walDir(dir), old) },
		func() error { return os.Rename(filepath.Join(dir, "wal.new"), walDir(dir)) },
		func() error { return syncDir(dir) },
		func() error { return os.RemoveAll(old) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// settleCopy ends a copy that a crash cut short.
func settleCopy(dir string) error {
	old := filepath.Join(dir, "wal.old")
	_, err := os.Stat(walDir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Rename(old, walDir(dir)); errors.Is(err, fs.ErrNotExist) {
			err = nil // a new node
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(old), os.RemoveAll(filepath.Join(dir, "wal.new")))
}

// tailWatch sees what raft-wal does behind its callers' backs: which segment is the tail,
// and why the next one could not be begun.
type tailWatch struct {
	mu    sync.Mutex
	moved *sync.Cond
	tail  types.SegmentWriter // nil: found full at open, and no rotation is due
	err   error               // the first failure
}

func newTailWatch() *tailWatch {
	w := &tailWatch{}
	w.moved = sync.NewCond(&w.mu)
	return w
}

func (w *tailWatch) begun(s types.SegmentWriter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tail = s
	w.moved.Broadcast()
}

func (w *tailWatch) failed(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.moved.Broadcast()
	return err
}

func (w *tailWatch) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// awaitRotation returns when a full tail has a successor, or cannot get one.
func (w *tailWatch) awaitRotation() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && w.tail != nil {
		if full, _, err := w.tail.Sealed(); err != nil || !full {
			return
		}
		w.moved.Wait()
	}
}

type watchedMeta struct {
	metadb.BoltMetaDB
	tail   *tailWatch
	commit func(types.PersistentState) error // nil: the database's; what tests replace
}

// CommitState implements types.MetaStore.
func (m *watchedMeta) CommitState(s types.PersistentState) error {
	commit := m.BoltMetaDB.CommitState
	if m.commit != nil {
		commit = m.commit
	}
	if err := commit(s); err != nil {
		return m.tail.failed(err)
	}
	return nil
}

type watchedFiler struct {
	types.SegmentFiler
	tail        *tailWatch
	foundSealed bool
}

// Create implements types.SegmentFiler.
func (f *watchedFiler) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := f.SegmentFiler.Create(info)
	if err != nil {
		return nil, f.tail.failed(err)
	}
	f.tail.begun(w)
	return w, nil
}

// Open implements types.SegmentFiler.
func (f *watchedFiler) Open(info types.SegmentInfo) (types.SegmentReader, error) {
	if info.IndexStart != 0 {
		return f.SegmentFiler.Open(info)
	}
	w, err := f.SegmentFiler.RecoverTail(info)
	if err != nil {
		return nil, err
	}
	return cutSegment{w, info.MaxIndex}, nil
}

// cutSegment is a former tail whose end was truncated: its file holds more than the log.
type cutSegment struct {
	types.SegmentReader
	last uint64
}

// GetLog implements types.SegmentReader.
func (c cutSegment) GetLog(index uint64) (*types.PooledBuffer, error) {
	if index > c.last {
		return nil, types.ErrNotFound
	}
	return c.SegmentReader.GetLog(index)
}

// RecoverTail implements types.SegmentFiler.
func (f *watchedFiler) RecoverTail(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := f.SegmentFiler.RecoverTail(info)
	if err != nil {
		return nil, err
	}
	if f.foundSealed, _, err = w.Sealed(); err == nil && !f.foundSealed {
		f.tail.begun(w)
	}
	return w, err
}

// careFS makes segment files whole or not at all.
type careFS struct {
	*walfs.FS
	next *spareFile
}

// Create implements types.VFS.
func (c careFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if !strings.HasSuffix(name, ".wal") {
		return nil, fmt.Errorf("segment file %q does not end in .wal", name)
	}
	path := filepath.Join(dir, name)
	if !c.next.take(path, int64(size)) {
		f, err := newSegmentFile(path+".tmp", int64(size), (*os.File).WriteAt)
		if err == nil {
			err = errors.Join(f.Close(), os.Rename(path+".tmp", path))
		}
		if err != nil {
			return nil, err
		}
	}
	if err := syncDir(dir); err != nil {
		return nil, err
	}
	return c.OpenWriter(dir, name)
}

// OpenWriter implements types.VFS.
func (c careFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	// What is read from it now counts as stored, and writes sync their own bytes alone. A
	// process that was killed between a write and its sync may have left an entry that the
	// system has and the disk does not.
	if err := f.Sync(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return segmentFile{f, c.next}, nil
}

// segmentFile is a segment that is written to. Its space, its length and what was in its
// place before are there already, so a write waits for its data, and for more only where an
// entry made it longer.
type segmentFile struct {
	*os.File
	next *spareFile
}

// WriteAt implements types.WritableFile: what it wrote is on the disk. A commit is one write.
func (f segmentFile) WriteAt(b []byte, at int64) (int, error) {
	if at > f.next.size/2 {
		f.next.prepare()
	}
	return writeThrough(f.File, b, at)
}

// Sync implements types.WritableFile.
func (f segmentFile) Sync() error { return nil }

func writeThenSync(f *os.File, b []byte, at int64) (int, error) {
	n, err := f.WriteAt(b, at)
	if err == nil {
		err = f.Sync()
	}
	return n, err
}

// zeroes is a piece of a new segment: small, as the log's own writes may wait behind it.
var zeroes = make([]byte, 128<<10)

// newSegmentFile makes a file that has its space, or none. Its zeroes are written: a file
// system notes of space that was only allocated when it is first used, and that note is
// what the sync of an entry would wait for.
func newSegmentFile(path string, size int64, write func(*os.File, []byte, int64) (int, error)) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = allocate(f, size)
	for at := int64(0); at < size && err == nil; at += int64(len(zeroes)) {
		_, err = write(f, zeroes[:min(int64(len(zeroes)), size-at)], at)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	// Its length is on the disk before its name is: a sync need not wait for that again.
	if err := f.Sync(); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}
