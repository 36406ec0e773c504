package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fxamacker/cbor/v2"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// The index's buckets.
//
//	meta       name → 8 bytes big-endian: bytes, objects, gen, session, suspect, clean
//	objects    whole digest → record
//	blocks     block digest + container → location; the container is a whole digest,
//	           or the manifest's while the blob is partial
//	manifests  manifest digest → whole digest; only manifests that were proved
//	partials   manifest digest → partialRecord
//	names      space + key → nameRecord; may outlive its object
var (
	bMeta      = []byte("meta")
	bObjects   = []byte("objects")
	bBlocks    = []byte("blocks")
	bManifests = []byte("manifests")
	bPartials  = []byte("partials")
	bNames     = []byte("names")
)

// record is what the index knows of a whole blob.
type record struct {
	_         struct{} `cbor:",toarray"`
	Size      int64
	Gen       uint64
	Stored    int64              // wall time in nanoseconds, for people
	Session   uint64             // in which its bytes were last known to match
	Synced    bool               // data and name were synced before this record was
	Manifests []forgeyard.Digest // proved ones; the first is the one that Put makes, where there is one
}

func (r record) ref(d forgeyard.Digest) cas.Ref {
	ref := cas.Ref{Digest: d, Size: r.Size}
	if len(r.Manifests) > 0 {
		ref.Manifest = r.Manifests[0]
	}
	return ref
}

func (r record) hasManifest(m forgeyard.Digest) bool {
	for _, have := range r.Manifests {
		if have == m {
			return true
		}
	}
	return m.IsZero()
}

// partialRecord is what the index knows of a blob on its way in. A set bit says
// that the block was verified and its bytes were synced before the bit.
type partialRecord struct {
	_     struct{} `cbor:",toarray"`
	Whole forgeyard.Digest
	Size  int64
	Have  int64 // bytes of the set bits
	Bits  []byte
}

// location is where the bytes of a block are.
type location struct {
	container forgeyard.Digest
	partial   bool
	off, size int64
}

func (l location) encode() []byte {
	b := make([]byte, 17)
	if l.partial {
		b[0] = 1
	}
	binary.BigEndian.PutUint64(b[1:], uint64(l.off))
	binary.BigEndian.PutUint64(b[9:], uint64(l.size))
	return b
}

func decodeLocation(container, v []byte) (location, bool) {
	var l location
	if len(container) != forgeyard.DigestSize || len(v) != 17 {
		return l, false
	}
	copy(l.container[:], container)
	l.partial = v[0] == 1
	l.off, l.size = int64(binary.BigEndian.Uint64(v[1:])), int64(binary.BigEndian.Uint64(v[9:]))
	return l, l.off >= 0 && l.size > 0 && l.size <= cas.BlockSize
}

func blockKey(block, container forgeyard.Digest) []byte {
	return append(block[:len(block):len(block)], container[:]...)
}

var encMode = newEncMode()

func newEncMode() cbor.EncMode {
	m, err := cbor.EncOptions{Time: cbor.TimeRFC3339NanoUTC}.EncMode()
	invariant.NoError(err, "the CBOR options are valid")
	return m
}

func marshal(v any) []byte {
	b, err := encMode.Marshal(v)
	invariant.NoError(err, "an index record can be encoded")
	return b
}

// openIndex opens the index and starts a session. An index that cannot be opened
// goes to quarantine and a new one begins: the files tell everything again.
func (s *Store) openIndex() error {
	path := filepath.Join(s.cfg.Dir, indexFile)
	db, err := openBolt(path, s.cfg.NoSync)
	if err != nil && !errors.Is(err, berrors.ErrTimeout) && !isNoSpace(err) && !errors.Is(err, fs.ErrPermission) {
		aside := filepath.Join(s.cfg.Dir, quarantineDir, fmt.Sprintf("index.%d", s.cfg.Clock.Wall().UnixNano()))
		s.log.Error("cas: the index is unreadable; it is set aside and made again from the files", "dir", s.cfg.Dir, "err", err, "moved", aside)
		if err := os.Rename(path, aside); err != nil {
			return s.fail("cas open", err)
		}
		db, err = openBolt(path, s.cfg.NoSync)
	}
	if err != nil {
		return s.fail("cas open", err)
	}
	s.db = db
	return s.fail("cas open", s.startSession())
}

// openBolt opens or makes the file. bbolt panics on some broken pages; that is a
// broken input to us, not a broken belief.
func openBolt(path string, noSync bool) (db *bolt.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			db, err = nil, fmt.Errorf("%v", r)
		}
	}()
	db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: indexTimeout, NoSync: noSync, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, b := range [][]byte{bMeta, bObjects, bBlocks, bManifests, bPartials, bNames} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		closeQuiet(db)
		return nil, err
	}
	return db, nil
}

func (s *Store) startSession() error {
	err := s.db.Update(func(tx *bolt.Tx) error {
		m := tx.Bucket(bMeta)
		last, clean := metaGet(m, "session"), metaGet(m, "clean") == 1
		s.suspect = metaGet(m, "suspect")
		if !clean {
			s.suspect = last
		}
		s.session, s.gen = last+1, metaGet(m, "gen")
		s.space.used, s.objects = int64(metaGet(m, "bytes")), int64(metaGet(m, "objects"))
		return errors.Join(metaPut(m, "session", s.session), metaPut(m, "suspect", s.suspect), metaPut(m, "clean", 0))
	})
	if err == nil && s.suspect == s.session-1 && s.session > 1 {
		s.log.Info("cas: the last stop was not a clean one", "dir", s.cfg.Dir)
	}
	return err
}

func (s *Store) markClean() error {
	return s.db.Update(func(tx *bolt.Tx) error { return metaPut(tx.Bucket(bMeta), "clean", 1) })
}

func metaGet(b *bolt.Bucket, key string) uint64 {
	if v := b.Get([]byte(key)); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func metaPut(b *bolt.Bucket, key string, v uint64) error {
	return b.Put([]byte(key), binary.BigEndian.AppendUint64(nil, v))
}

// update is an index transaction that keeps the counters.
type update struct {
	*bolt.Tx
	bytes, objects int64
}

// update runs f in one transaction. Without an error the counters in the index and
// in memory have moved together.
func (s *Store) update(f func(*update) error) error {
	var u update
	err := s.db.Update(func(tx *bolt.Tx) error {
		u = update{Tx: tx}
		if err := f(&u); err != nil {
			return err
		}
		m := tx.Bucket(bMeta)
		bytes, objects := int64(metaGet(m, "bytes"))+u.bytes, int64(metaGet(m, "objects"))+u.objects
		return errors.Join(metaPut(m, "bytes", uint64(max(0, bytes))), metaPut(m, "objects", uint64(max(0, objects))))
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space.used, s.objects = max(0, s.space.used+u.bytes), max(0, s.objects+u.objects)
	s.commits++
	return nil
}

func (u *update) record(d forgeyard.Digest) (record, bool) { return getRecord(u.Tx, d) }

func getRecord(tx *bolt.Tx, d forgeyard.Digest) (record, bool) {
	var r record
	v := tx.Bucket(bObjects).Get(d[:])
	if v == nil || cbor.Unmarshal(v, &r) != nil {
		return record{}, false
	}
	return r, true
}

func (u *update) putRecord(d forgeyard.Digest, r record) error {
	return u.Bucket(bObjects).Put(d[:], marshal(r))
}

// addBlocks says where each block of a proved manifest is. A block that occurs
// twice in a blob needs one place only.
func (u *update) addBlocks(m cas.Manifest, container forgeyard.Digest) error {
	b := u.Bucket(bBlocks)
	for i, off := range m.Offsets() {
		l := location{off: off, size: m.Blocks[i].Size}
		if err := b.Put(blockKey(m.Blocks[i].Digest, container), l.encode()); err != nil {
			return err
		}
	}
	return nil
}

func (u *update) dropBlocks(m cas.Manifest, container forgeyard.Digest) error {
	b := u.Bucket(bBlocks)
	for _, bl := range m.Blocks {
		if err := b.Delete(blockKey(bl.Digest, container)); err != nil {
			return err
		}
	}
	return nil
}

// dropObject forgets a blob of the given generation, and reports whether it was
// there. manifests are those of the record that could still be read; the entries of
// blocks that none of them names stay and lead nowhere, which readers expect.
func (u *update) dropObject(d forgeyard.Digest, gen uint64, manifests []cas.Manifest) (record, bool, error) {
	r, ok := u.record(d)
	if !ok || r.Gen != gen {
		return record{}, false, nil
	}
	for _, m := range manifests {
		if err := u.dropBlocks(m, d); err != nil {
			return r, false, err
		}
	}
	for _, m := range r.Manifests {
		if err := u.Bucket(bManifests).Delete(m[:]); err != nil {
			return r, false, err
		}
	}
	u.bytes, u.objects = u.bytes-r.Size, u.objects-1
	return r, true, u.Bucket(bObjects).Delete(d[:])
}

func (s *Store) record(d forgeyard.Digest) (r record, ok bool) {
	_ = s.db.View(func(tx *bolt.Tx) error { // fails only when the store is closed: then nothing is here
		r, ok = getRecord(tx, d)
		return nil
	})
	return r, ok
}

func (s *Store) wholeOf(manifest forgeyard.Digest) (whole forgeyard.Digest, ok bool) {
	_ = s.db.View(func(tx *bolt.Tx) error {
		v := tx.Bucket(bManifests).Get(manifest[:])
		ok = len(v) == forgeyard.DigestSize
		copy(whole[:], v)
		return nil
	})
	return whole, ok
}

// locations lists the places where a block is said to be.
func (s *Store) locations(block forgeyard.Digest) (out []location) {
	_ = s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(bBlocks).Cursor()
		for k, v := c.Seek(block[:]); len(k) > forgeyard.DigestSize && string(k[:forgeyard.DigestSize]) == string(block[:]); k, v = c.Next() {
			if l, ok := decodeLocation(k[forgeyard.DigestSize:], v); ok {
				out = append(out, l)
			}
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.fresh[block]; ok {
		out = append(out, l)
	}
	return out
}

// partialRecords lists the blobs on their way in.
func (s *Store) partialRecords() map[forgeyard.Digest]partialRecord {
	out := map[forgeyard.Digest]partialRecord{}
	_ = s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bPartials).ForEach(func(k, v []byte) error {
			var (
				d forgeyard.Digest
				p partialRecord
			)
			if len(k) == len(d) && cbor.Unmarshal(v, &p) == nil {
				copy(d[:], k)
				out[d] = p
			}
			return nil
		})
	})
	return out
}

func (s *Store) stored(r record) time.Time { return time.Unix(0, r.Stored).UTC() }
