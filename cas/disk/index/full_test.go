package index

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// smallDisk is a disk in memory that is full from some write on, until it is given room.
type smallDisk struct {
	vfs.FS
	only string       // the kind of files that find no room; empty: all
	left atomic.Int64 // writes that still succeed

	refused chan struct{} // told of a write that found no room; may be nil
}

func (s *smallDisk) take(name string) error {
	if (s.only == "" || filepath.Ext(name) == s.only) && s.left.Add(-1) < 0 {
		select {
		case s.refused <- struct{}{}:
		default:
		}
		return fmt.Errorf("write: %w", syscall.ENOSPC)
	}
	return nil
}

func (s *smallDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := s.take(name); err != nil {
		return nil, err
	}
	f, err := s.FS.Create(name, c)
	return smallFile{f, s, name}, err
}

func (s *smallDisk) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.ReuseForWrite(from, to, c)
	return smallFile{f, s, to}, err
}

type smallFile struct {
	vfs.File
	s    *smallDisk
	name string
}

func (f smallFile) Write(p []byte) (int, error) {
	if err := f.s.take(f.name); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// TestFullAtEveryWrite (C11): wherever the disk ends, each update ends, done or with what
// the disk said; what was acknowledged is read while it is full, and when there is room
// updates succeed without a restart.
func TestFullAtEveryWrite(t *testing.T) {
	for _, c := range []struct {
		only      string
		most, by  int64
		whatFails string
	}{
		{"", 250, 9, "all"},
		{".sst", 60, 7, "tables"}, // the log takes updates until memory is full
	} {
		t.Run(c.whatFails, func(t *testing.T) {
			for n := int64(1); n < c.most; n += c.by {
				fullFrom(t, &smallDisk{FS: vfs.NewMem(), only: c.only}, n)
			}
		})
	}
}

func fullFrom(t *testing.T, s *smallDisk, n int64) {
	const large = 1 << 40
	value := make([]byte, 256<<10)
	s.left.Store(large)
	d, err := Open(Options{Dir: "i", FS: s})
	must(t, err)
	s.left.Store(n)
	acked := map[int]bool{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range 100 { // more than all memories hold
			err := d.Update(i%2 == 0, func(b *Batch) error { return b.Put(key(i), value) })
			if err == nil && i%2 == 0 {
				acked[i] = true
			}
			if err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("full at write %d, update %d: %v", n, i, err)
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatalf("full at write %d: an update hangs", n)
	}
	there := func(when string) {
		for i := range acked {
			if _, ok, err := d.Get(key(i)); !ok || err != nil {
				t.Errorf("full at write %d, %s: row %d was acknowledged and is gone: %v", n, when, i, err)
			}
		}
	}
	there("while it is full")
	s.left.Store(large)
	must(t, d.Update(true, func(b *Batch) error { return b.Put([]byte("last"), value) }))
	there("with room again")
	must(t, d.Close())
}

// TestC14CompactionOnAFullDisk: a rewrite that finds the disk full at any write of its
// tables leaves every row as it was: they are read while there is no room, and after the power went
// in that moment. With room again it is done. What it rewrites goes only once the new is whole.
func TestC14CompactionOnAFullDisk(t *testing.T) {
	met := 0
	for n := int64(0); n < 40; n += 3 {
		if rewrittenWhenFull(t, n) {
			met++
		}
	}
	if met == 0 {
		t.Error("no rewrite met the full disk, so this shows nothing")
	}
}

func rewrittenWhenFull(t *testing.T, n int64) (met bool) {
	const rows, size, large = 60, 64 << 10, 1 << 40
	mem := vfs.NewCrashableMem()
	s := &smallDisk{FS: mem, only: ".sst", refused: make(chan struct{}, 1)}
	s.left.Store(large)
	d, err := Open(Options{Dir: "i", FS: s})
	must(t, err)
	for round := range 2 { // each row twice, so that there is something to rewrite
		for i := range rows {
			must(t, d.Update(true, func(b *Batch) error { return b.Put(key(i), bytes.Repeat([]byte{byte(i + round)}, size)) }))
		}
	}
	same := func(d *DB, when string) {
		t.Helper()
		for i := range rows {
			if v, ok, err := d.Get(key(i)); !ok || err != nil || len(v) != size || v[0] != byte(i+1) {
				t.Fatalf("full at write %d, %s: row %d: %v %v", n, when, i, ok, err)
			}
		}
	}
	rewrite := func() error {
		return d.view(func(db *pebble.DB) error { return db.Compact(t.Context(), key(0), key(rows), false) })
	}
	s.left.Store(n)
	ended := make(chan error, 1)
	go func() { ended <- rewrite() }()
	select {
	case <-s.refused:
		met = true
	case err := <-ended:
		must(t, err)
	case <-time.After(30 * time.Second):
		t.Fatalf("full at write %d: neither done nor refused", n)
	}
	same(d, "while it is full")
	cut, err := Open(Options{Dir: "i", FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	must(t, err)
	same(cut, "after a power cut")
	must(t, cut.Close())
	s.left.Store(large)
	if met {
		if err := <-ended; err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("full at write %d: %v", n, err)
		}
	}
	must(t, rewrite())
	same(d, "rewritten")
	must(t, d.Close())
	return met
}
