package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fxamacker/cbor/v2"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/forgeyard/forgeyard-node"
)

// The index was one file of bbolt before it was a folder of pebble. A store that has such
// a file is converted when it is opened, once: the rows are the same, but for the record.
// The file goes when all of it is in the new index; a kill on the way begins anew. A file
// that cannot be read goes to quarantine, and the blobs tell what they hold.

// oldRecord is the record of that index.
type oldRecord struct {
	_         struct{} `cbor:",toarray"`
	Size      int64
	Gen       uint64
	Stored    int64
	Session   uint64
	Synced    bool
	Manifests []forgeyard.Digest
}

func (r oldRecord) record() record {
	return record{Size: r.Size, Gen: r.Gen, Stored: r.Stored, Used: r.Stored / 3600e9, Synced: r.Synced, Manifests: r.Manifests}
}

// oldTables are its buckets, in the order of their conversion; the counters come last.
var oldTables = []struct {
	bucket string
	row    func(u *update, k, v []byte)
}{
	{"objects", func(u *update, k, v []byte) {
		var r oldRecord
		if cbor.Unmarshal(v, &r) == nil { // a damaged one is found again by its file
			u.put(tObjects, r.record().encode(), k)
		}
	}},
	{"blocks", func(u *update, k, v []byte) { u.put(tBlocks, v, k) }},
	{"manifests", func(u *update, k, v []byte) { u.put(tManifests, v, k) }},
	{"partials", func(u *update, k, v []byte) { u.put(tPartials, v, k) }},
	{"names", func(u *update, k, v []byte) { u.put(tNames, v, k) }},
	{"meta", func(u *update, k, v []byte) { u.put(tMeta, v, k) }},
}

// convertOld brings an index of the older kind into the open one, and reports whether
// there was one that could be read.
func (s *Store) convertOld() (bool, error) {
	path := filepath.Join(s.cfg.Dir, oldIndexFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	err := s.convert(path)
	if err != nil && (isNoSpace(err) || errors.Is(err, berrors.ErrTimeout) || errors.Is(err, fs.ErrPermission)) {
		return false, err
	}
	if err != nil {
		aside := filepath.Join(s.cfg.Dir, quarantineDir, fmt.Sprintf("index.db.%d", s.cfg.Clock.Wall().UnixNano()))
		s.log.Error("cas: the older index is unreadable; it is set aside and the files tell what they hold", "file", path, "err", err, "moved", aside)
		return false, os.Rename(path, aside)
	}
	if err := os.Remove(path); err != nil {
		return false, err
	}
	s.log.Info("cas: the index was converted", "dir", s.cfg.Dir)
	return true, s.syncDir(s.cfg.Dir)
}

// convert copies all rows. bbolt panics on some broken pages; that is a broken input to
// us, not a broken belief.
func (s *Store) convert(path string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: convertTimeout, ReadOnly: true})
	if err != nil {
		return err
	}
	defer closeQuiet(db)
	return db.View(func(tx *bolt.Tx) error {
		for _, t := range oldTables {
			if b := tx.Bucket([]byte(t.bucket)); b != nil {
				if err := s.convertTable(b, t.row); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (s *Store) convertTable(b *bolt.Bucket, row func(*update, []byte, []byte)) error {
	c := b.Cursor()
	for k, v := c.First(); k != nil; {
		err := s.update(func(u *update) error {
			for n := 0; k != nil && n < convertPage; n++ {
				row(u, k, v)
				k, v = c.Next()
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
