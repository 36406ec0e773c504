// Package index keeps the rows of a store in a pebble database.
//
// It decides how rows are written together, what a full disk does to them, and how they
// are got back from a damaged folder. What a row means is for whoever owns the store.
//
//	one writer at a time   Update: a batch, all of it or none
//	readers                never wait for a writer
//	synced                 the batch and all before it survive a power cut
//	not synced             a kill may lose it too, for a log is written in blocks; what is
//	                       left is what came first
//
// pebble ends the process when its log cannot be written, because its pipeline cannot go
// on then. A full disk must not end ours: the database is cut off from its files (gate.go),
// given up, and opened again by the next update, which replays the log up to the last
// whole batch. What an update that failed had in it is either all there or not at all, so
// whoever gets an error asks before he believes either.
//
// Goroutines: those of pebble, one compaction at a time.
package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Format is the version of pebble's files that we write. A newer one is chosen by hand,
// because an older program cannot read what it left.
const Format = pebble.FormatColumnarBlocks

// The bounds of memory and files. The cache holds the filters of some ten million rows
// less than whole; what is left to the kernel's page cache costs a read of memory.
const (
	cacheBytes    = 16 << 20
	memTableBytes = 4 << 20
	openFiles     = 128

	// syncBytes is how much of a table is written before its disk hears of it. Where pebble
	// knows no other way (all but ext4) that is a sync, and a table from memory needs only the
	// one at its end: 20,000 objects of 4 KiB on a busy xfs took 1.26 s of CPU in place of 1.40.
	syncBytes = memTableBytes

	probeBytes = 64 << 10 // more than one batch of usual size

	retryPause = 50 * time.Millisecond // between two tries to make a table
)

// Table is the first byte of a row's key. Tables are append-only: they lie on disks.
type Table byte

// Options say where an index is.
type Options struct {
	Dir    string
	FS     vfs.FS // nil: the machine's
	NoSync bool   // no update is synced: for tests and throw-away stores
	Log    *slog.Logger
}

// DB is an open index.
type DB struct {
	o Options

	mu    sync.Mutex   // one writer; outside of open
	open  sync.RWMutex // readers hold it; exchanging the database excludes them
	db    *pebble.DB   // nil: could not be opened again
	gate  *gate
	ended bool

	readOnly bool // the disk had no room to open it for more
}

// Open opens or makes an index. One that is there and finds no room on the disk is opened
// to be read, and the first update that finds room opens it for more.
func Open(o Options) (*DB, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &DB{o: o}
	err := d.start(false)
	if err != nil && (!isFull(err) || d.startReadOnly(err) != nil) {
		return nil, err
	}
	return d, nil
}

// start opens the database behind a gate of its own. To read only, it replays the log in
// memory and writes nothing, which a full disk allows.
func (d *DB) start(readOnly bool) (err error) {
	g := &gate{FS: d.o.FS, waits: true}
	defer func() {
		if r := recover(); r != nil { // a broken file is a broken input to us, not a broken belief
			err = fmt.Errorf("%v", r)
		}
		if err != nil {
			g.shut(err)
		}
	}()
	cache := pebble.NewCache(cacheBytes)
	defer cache.Unref()
	o := &pebble.Options{
		FS: g, Cache: cache, MemTableSize: memTableBytes, MaxOpenFiles: openFiles,
		FormatMajorVersion: Format, Logger: logger{d.o.Log, g},
		BytesPerSync: syncBytes, L0CompactionThreshold: 2, L0StopWritesThreshold: 1000, MemTableStopWritesThreshold: 4,
		NoSyncOnClose: d.o.NoSync, ReadOnly: readOnly,
	}
	o.Experimental.FileCacheShards = 1
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	o.EventListener = &pebble.EventListener{
		BackgroundError: func(err error) {
			d.o.Log.Warn("index: work in the background failed; it is tried again", "err", err)
			g.failed(err)
		},
		WriteStallBegin: func(pebble.WriteStallBeginInfo) { g.stall(true) },
		WriteStallEnd:   func() { g.stall(false) },
	}
	db, err := pebble.Open(d.o.Dir, o)
	if err != nil {
		return err
	}
	if err := g.failure(); err != nil {
		go abandon(db)
		return err
	}
	g.stall(false)
	d.db, d.gate = db, g
	return nil
}

// abandon closes a database that is cut off from its files. It may never come back.
func abandon(db *pebble.DB) {
	defer func() { _ = recover() }() // it has nothing any more that could be harmed
	_ = db.Close()
}

// view runs f on the open database.
func (d *DB) view(f func(*pebble.DB) error) error {
	d.open.RLock()
	defer d.open.RUnlock()
	if d.db == nil {
		return errors.New("the index is closed")
	}
	return f(d.db)
}

// Get gives a row's value, which the caller owns.
func (d *DB) Get(key []byte) (v []byte, ok bool, err error) {
	err = d.view(func(db *pebble.DB) error {
		v, ok, err = get(db, key)
		return err
	})
	return v, ok, err
}

func get(r pebble.Reader, key []byte) ([]byte, bool, error) {
	v, c, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return bytes.Clone(v), true, c.Close()
}

// Look gives the rows of many keys: f gets each key's position and its value, which it must
// not keep, and nil where there is no row. The order is that of the keys. One by one each row
// would pay for a way through all tables of the database.
func (d *DB) Look(keys [][]byte, f func(i int, v []byte)) error {
	if len(keys) == 0 {
		return nil
	}
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(keys[a], keys[b]) })
	return d.view(func(db *pebble.DB) error {
		it, err := db.NewIter(nil)
		if err != nil {
			return err
		}
		for _, i := range order {
			var v []byte
			if it.SeekPrefixGE(keys[i]) && bytes.Equal(it.Key(), keys[i]) {
				if v, err = it.ValueAndErr(); err != nil {
					break
				}
			}
			f(i, v)
		}
		return errors.Join(err, it.Error(), it.Close())
	})
}

// Scan gives the rows whose keys begin with prefix, from the key from on, in order, until
// f says no. f must not keep the slices and must not write to the index.
func (d *DB) Scan(prefix, from []byte, f func(k, v []byte) bool) error {
	return d.view(func(db *pebble.DB) error { return scan(db, prefix, from, f) })
}

func scan(r pebble.Reader, prefix, from []byte, f func(k, v []byte) bool) error {
	lower := prefix
	if bytes.Compare(from, lower) > 0 {
		lower = from
	}
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: after(prefix)})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(err, it.Close())
		}
		if !f(it.Key(), v) {
			break
		}
	}
	return errors.Join(it.Error(), it.Close())
}

// after is the first key that comes after all with the prefix; nil: there is none.
func after(prefix []byte) []byte {
	out := bytes.Clone(prefix)
	for i := len(out) - 1; i >= 0; i-- {
		if out[i]++; out[i] != 0 {
			return out[:i+1]
		}
	}
	return nil
}

// Batch is what one update has written so far. It reads its own writes.
type Batch struct{ b *pebble.Batch }

// Get gives a row's value as it will be.
func (b *Batch) Get(key []byte) ([]byte, bool, error) { return get(b.b, key) }

// Scan is DB.Scan over the rows as they will be.
func (b *Batch) Scan(prefix, from []byte, f func(k, v []byte) bool) error {
	return scan(b.b, prefix, from, f)
}

// Put writes a row.
func (b *Batch) Put(key, value []byte) error { return b.b.Set(key, value, nil) }

// Delete removes a row, if it is there.
func (b *Batch) Delete(key []byte) error { return b.b.Delete(key, nil) }

// Update runs f and writes what it put, all or nothing. Without synced a power cut
// or a kill may lose it. An error of the disk comes back as it is.
func (d *DB) Update(synced bool, f func(*Batch) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ready(); err != nil {
		return err
	}
	b := d.db.NewIndexedBatch()
	if err := f(&Batch{b}); err != nil {
		return errors.Join(err, b.Close())
	}
	how := pebble.NoSync
	if synced && !d.o.NoSync {
		how = pebble.Sync
	}
	return d.apply(b, how)
}

// apply writes a batch. It waits for room in memory, but not longer than the disk takes
// what memory holds: see gate.failed.
func (d *DB) apply(b *pebble.Batch, how *pebble.WriteOptions) error {
	err := try(func() error { return d.db.Apply(b, how) })
	if err == nil {
		err = d.gate.failure()
	}
	if err != nil {
		d.gate.shut(err) // the database and its log may not agree any more, and it may keep the batch
		return err
	}
	return b.Close()
}

// try makes an error of a panic: a broken file is a broken input to us.
func try(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return f()
}

// ready sees that the database is alive and that the disk takes writes. A database that
// waits for room to flush its memory would make the writer wait with it. Under mu.
func (d *DB) ready() error {
	if d.ended {
		return errors.New("the index is closed")
	}
	if d.db != nil && (d.readOnly || d.gate.failure() == nil) {
		if err := d.gate.probe(d.o.Dir); err != nil || !d.readOnly {
			return err
		}
	}
	if d.db != nil && !d.readOnly {
		d.o.Log.Error("index: it cannot go on and is opened again", "dir", d.o.Dir, "err", d.gate.failure())
	}
	return d.again()
}

// again opens the database anew. Where it cannot be written, it can still be read.
func (d *DB) again() error {
	d.open.Lock()
	defer d.open.Unlock()
	if d.db != nil {
		go abandon(d.db)
		d.db = nil
	}
	err := d.start(false)
	d.readOnly = false
	if err == nil {
		return nil
	}
	return errors.Join(err, d.startReadOnly(err))
}

// startReadOnly opens what could not be opened to be written, which is why.
func (d *DB) startReadOnly(why error) error {
	d.readOnly = true
	if err := d.start(true); err != nil {
		return err
	}
	d.gate.refuse(why)
	return nil
}

// Flush writes what is in memory to tables, so that the log's space comes back.
func (d *DB) Flush() error {
	return d.view(func(db *pebble.DB) error { return db.Flush() })
}

// Compact gives back the space of what was deleted in a table. It takes long on a large one.
func (d *DB) Compact(ts ...Table) error {
	return d.view(func(db *pebble.DB) error {
		for _, t := range ts {
			if err := db.Compact(context.Background(), []byte{byte(t)}, []byte{byte(t) + 1}, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// DiskBytes is what the index takes on the disk.
func (d *DB) DiskBytes() (n int64) {
	_ = d.view(func(db *pebble.DB) error { n = int64(db.Metrics().DiskSpaceUsage()); return nil }) // closed: nothing
	return n
}

// Close ends the index. It is idempotent.
func (d *DB) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open.Lock()
	defer d.open.Unlock()
	d.ended = true
	if d.db == nil {
		return nil
	}
	db, g := d.db, d.gate
	d.db = nil
	if err := g.failure(); err != nil {
		go abandon(db)
		return err
	}
	return errors.Join(try(db.Close), g.failure()) // it panics about an iterator that was left open
}

// logger hears what pebble says. What it calls fatal shuts the gate.
type logger struct {
	log *slog.Logger
	g   *gate
}

// Infof implements pebble.Logger.
func (l logger) Infof(format string, args ...any) {
	l.log.Debug("index", "say", fmt.Sprintf(format, args...))
}

// Errorf implements pebble.Logger.
func (l logger) Errorf(format string, args ...any) {
	l.log.Warn("index", "say", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger. It returns, and the database behind the gate is over.
func (l logger) Fatalf(format string, args ...any) {
	for _, a := range args {
		if err, ok := a.(error); ok {
			l.g.shut(fmt.Errorf("the index cannot go on: %w", err))
			return
		}
	}
	l.g.shut(fmt.Errorf(format, args...))
}
