package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Salvage gives the rows of one table that can still be read in the files of a database
// that cannot be opened: every table file and every log is read for itself. The same key
// may come more than once, from before and after it was written anew or deleted, so this
// is for rows that prove themselves. It reports what it had to pass over.
func Salvage(fs vfs.FS, dir string, t Table, f func(k, v []byte) error) (passed error, err error) {
	names, err := fs.List(dir)
	if err != nil {
		return err, nil
	}
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(dir, name)
		var damage error
		switch {
		case strings.HasSuffix(name, ".sst"):
			damage, err = salvageTable(fs, path, t, f)
		case strings.HasSuffix(name, ".log"):
			damage, err = salvageLog(fs, path, t, f)
		}
		if err != nil {
			return passed, err
		}
		if damage != nil {
			passed = errors.Join(passed, fmt.Errorf("%s: %w", path, damage))
		}
	}
	return passed, nil
}

// wrong turns a panic of a decoder into an error: a broken file is a broken input.
func wrong(damage *error) {
	if r := recover(); r != nil {
		*damage = fmt.Errorf("%v", r)
	}
}

func salvageTable(fs vfs.FS, path string, t Table, f func(k, v []byte) error) (damage, err error) {
	defer wrong(&damage)
	file, err := fs.Open(path)
	if err != nil {
		return err, nil
	}
	readable, err := sstable.NewSimpleReadable(file)
	if err != nil {
		return errors.Join(err, file.Close()), nil
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	if err != nil {
		return errors.Join(err, readable.Close()), nil
	}
	defer func() { _ = r.Close() }() // it was only read
	it, err := r.NewIter(sstable.NoTransforms, []byte{byte(t)}, []byte{byte(t) + 1}, sstable.AssertNoBlobHandles)
	if err != nil {
		return err, nil
	}
	defer func() { _ = it.Close() }() // it was only read
	for kv := it.First(); kv != nil; kv = it.Next() {
		v, _, err := kv.Value(nil)
		if err != nil {
			return err, nil
		}
		if err := f(kv.K.UserKey, v); err != nil {
			return nil, err
		}
	}
	return it.Error(), nil
}

func salvageLog(fs vfs.FS, path string, t Table, f func(k, v []byte) error) (damage, err error) {
	defer wrong(&damage)
	file, err := fs.Open(path)
	if err != nil {
		return err, nil
	}
	defer func() { _ = file.Close() }()                 // it was only read
	name, _, _ := strings.Cut(filepath.Base(path), "-") // the log of one number may be in several files
	number, err := strconv.ParseUint(strings.TrimSuffix(name, ".log"), 10, 32)
	if err != nil {
		return err, nil
	}
	log := readerOf(record.NewReader, file, number)
	for {
		entry, err := log.Next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return err, nil // what comes after a torn entry was never acknowledged
		}
		b, err := io.ReadAll(entry)
		if err != nil {
			return err, nil
		}
		if err := salvageBatch(b, t, f); err != nil {
			return nil, err
		}
	}
}

// readerOf is open(r, n), where the type of n has no name outside of its module.
func readerOf[N ~uint64](open func(io.Reader, N) *record.Reader, r io.Reader, n uint64) *record.Reader {
	return open(r, N(n))
}

func salvageBatch(b []byte, t Table, f func(k, v []byte) error) error {
	if len(b) < batchrepr.HeaderLen {
		return nil
	}
	for r := batchrepr.Read(b); ; {
		_, k, v, ok, err := r.Next()
		if !ok || err != nil {
			return nil // the rest of a batch that is no batch
		}
		if bytes.HasPrefix(k, []byte{byte(t)}) {
			if err := f(k, v); err != nil {
				return err
			}
		}
	}
}
