package index

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// gate stands between one opening of the database and its files. Once it is shut nothing
// of that opening can write any more, so that another may begin while the first one still
// runs down. It also remembers that the disk was full.
//
// pebble ends the process when it cannot change to a new log: it panics at a place where
// Go cannot recover. So a log's file never fails here. The gate is shut instead, and what
// pebble still writes to that log goes nowhere; whoever updates is told, because Update
// looks at the gate before it says that all is well.
type gate struct {
	vfs.FS

	mu    sync.Mutex
	err   error // why it is shut
	full  bool  // a write found the disk full, and none has succeeded since
	waits bool  // somebody waits until memory is flushed: a writer, or the opening
	drain bool  // shut, and what is written goes nowhere, so that who waits comes back
}

func (g *gate) shut(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
}

// stall hears that somebody waits for a flush, or does no more.
func (g *gate) stall(waits bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits = waits
}

// failed hears that a flush or a compaction failed. pebble tries again at once and for
// ever, and who waits for it would wait as long.
func (g *gate) failed(err error) {
	g.mu.Lock()
	g.drain = g.drain || g.waits
	drain := g.drain
	g.mu.Unlock()
	if drain {
		g.shut(fmt.Errorf("the index cannot flush its memory: %w", err))
	}
}

// refuse shuts a gate that nothing was written through, for the reason that another had.
func (g *gate) refuse(err error) {
	g.shut(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.full = isFull(err)
}

func (g *gate) drains() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drain
}

func (g *gate) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// try runs one operation that changes files, and hears what the disk says.
func (g *gate) try(f func() error) error {
	if err := g.failure(); err != nil {
		if g.drains() {
			return nil
		}
		return err
	}
	err := f()
	g.mu.Lock()
	defer g.mu.Unlock()
	if isFull(err) {
		g.full = true
	}
	return err
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// probe asks the disk again after it was full.
func (g *gate) probe(dir string) error {
	g.mu.Lock()
	full := g.full
	g.mu.Unlock()
	if !full {
		return nil
	}
	path := filepath.Join(dir, "probe")
	f, err := g.FS.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, probeBytes))
	if err = errors.Join(err, f.Close(), g.FS.Remove(path)); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.full = false
	return nil
}

// Lock implements vfs.FS. The store has one lock for all its files.
func (g *gate) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// Unwrap implements vfs.FS.
func (g *gate) Unwrap() vfs.FS { return g.FS }

// opened puts a file that can be written behind the gate.
func (g *gate) opened(name string, open func() (vfs.File, error)) (vfs.File, error) {
	var f vfs.File
	err := g.try(func() (err error) { f, err = open(); return err })
	if err != nil && !isLog(name) {
		time.Sleep(retryPause) // a flush or a compaction: pebble tries again at once
		return nil, err
	}
	if err != nil {
		g.shut(err)
	}
	if f == nil {
		f, err = vfs.NewMem().Create("nowhere", vfs.WriteCategoryUnspecified)
	}
	if isLog(name) {
		return logFile{gated{File: f, g: g}}, err
	}
	return gated{File: f, g: g}, err
}

func isLog(name string) bool { return filepath.Ext(name) == ".log" }

// Create implements vfs.FS.
func (g *gate) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.opened(name, func() (vfs.File, error) { return g.FS.Create(name, c) })
}

// OpenReadWrite implements vfs.FS.
func (g *gate) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return g.opened(name, func() (vfs.File, error) { return g.FS.OpenReadWrite(name, c, o...) })
}

// ReuseForWrite implements vfs.FS.
func (g *gate) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return g.opened(to, func() (vfs.File, error) { return g.FS.ReuseForWrite(from, to, c) })
}

// Link implements vfs.FS.
func (g *gate) Link(from, to string) error {
	return g.try(func() error { return g.FS.Link(from, to) })
}

// Remove implements vfs.FS.
func (g *gate) Remove(name string) error { return g.try(func() error { return g.FS.Remove(name) }) }

// RemoveAll implements vfs.FS.
func (g *gate) RemoveAll(name string) error {
	return g.try(func() error { return g.FS.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (g *gate) Rename(from, to string) error {
	return g.try(func() error { return g.FS.Rename(from, to) })
}

// MkdirAll implements vfs.FS.
func (g *gate) MkdirAll(dir string, perm os.FileMode) error {
	return g.try(func() error { return g.FS.MkdirAll(dir, perm) })
}

// gated is a file that can be written.
type gated struct {
	vfs.File
	g *gate
}

// Write implements io.Writer.
func (f gated) Write(p []byte) (n int, err error) {
	n = len(p) // where it goes nowhere
	err = f.g.try(func() (err error) { n, err = f.File.Write(p); return err })
	return n, err
}

// WriteAt implements io.WriterAt.
func (f gated) WriteAt(p []byte, off int64) (n int, err error) {
	n = len(p)
	err = f.g.try(func() (err error) { n, err = f.File.WriteAt(p, off); return err })
	return n, err
}

// Preallocate implements vfs.File. A small disk has better use for the room.
func (f gated) Preallocate(int64, int64) error { return nil }

// Sync implements vfs.File.
func (f gated) Sync() error { return f.g.try(f.File.Sync) }

// SyncData implements vfs.File.
func (f gated) SyncData() error { return f.g.try(f.File.SyncData) }

// SyncTo implements vfs.File.
func (f gated) SyncTo(n int64) (full bool, err error) {
	err = f.g.try(func() (err error) { full, err = f.File.SyncTo(n); return err })
	return full, err
}

// logFile is a gated file of the log: what fails shuts the gate and is told there.
type logFile struct{ gated }

func (f logFile) tell(err error) {
	if err != nil {
		f.g.shut(err)
	}
}

// Write implements io.Writer.
func (f logFile) Write(p []byte) (int, error) {
	_, err := f.gated.Write(p)
	f.tell(err)
	return len(p), nil
}

// Sync implements vfs.File.
func (f logFile) Sync() error { f.tell(f.gated.Sync()); return nil }

// SyncData implements vfs.File.
func (f logFile) SyncData() error { f.tell(f.gated.SyncData()); return nil }

// SyncTo implements vfs.File.
func (f logFile) SyncTo(n int64) (bool, error) {
	full, err := f.gated.SyncTo(n)
	f.tell(err)
	return full || err != nil, nil
}

// Close implements vfs.File.
func (f logFile) Close() error { f.tell(f.File.Close()); return nil }
