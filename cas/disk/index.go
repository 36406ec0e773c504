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

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk/index"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// The index's tables. They lie on disks: append only.
const (
	tMeta      index.Table = 'm' // name → 8 bytes big-endian: bytes, objects, gen, session, clean, lost
	tObjects   index.Table = 'o' // whole digest → record
	tInline    index.Table = 'i' // whole digest → the bytes of a small object
	tBlocks    index.Table = 'b' // block digest + container → location; the container is a whole digest, or the manifest's while the blob is partial
	tManifests index.Table = 'f' // manifest digest → whole digest; only manifests that were proved
	tPartials  index.Table = 'p' // manifest digest → partialRecord
	tNames     index.Table = 'n' // space + key → nameRecord; may outlive its object
	tKept      index.Table = 'k' // whole digest → 8 bytes big-endian: seconds since 1970, until when it stays for whoever was told that it is here
	tGone      index.Table = 't' // whole digest → tombstone
)

func rowKey(t index.Table, parts ...[]byte) []byte {
	k := make([]byte, 1, 1+2*forgeyard.DigestSize)
	k[0] = byte(t)
	for _, p := range parts {
		k = append(k, p...)
	}
	return k
}

// record is what the index knows of a whole object.
type record struct {
	Size      int64
	Gen       uint64
	Stored    int64              // wall time in nanoseconds, for people
	Used      int64              // hours since 1970: what eviction goes by
	Synced    bool               // data and name were synced before this record was
	Inline    bool               // the bytes are in the index, there is no file
	Manifests []forgeyard.Digest // proved ones; the first is the one that Put makes, where there is one
}

// recordWire is a record as it lies in the index.
type recordWire struct {
	_         struct{} `cbor:",toarray"`
	Size      int64
	Gen       uint64
	Stored    int64
	Used      int64
	Flags     uint8
	Manifests []forgeyard.Digest
}

const (
	flagSynced = 1 << iota
	flagInline
)

func (r record) encode() []byte {
	w := recordWire{Size: r.Size, Gen: r.Gen, Stored: r.Stored, Used: r.Used, Manifests: r.Manifests}
	if r.Synced {
		w.Flags |= flagSynced
	}
	if r.Inline {
		w.Flags |= flagInline
	}
	return marshal(w)
}

func decodeRecord(v []byte) (record, bool) {
	var w recordWire
	if cbor.Unmarshal(v, &w) != nil || w.Size < 0 || w.Size > cas.MaxBlobSize || w.Flags > flagSynced|flagInline {
		return record{}, false
	}
	return record{
		Size: w.Size, Gen: w.Gen, Stored: w.Stored, Used: w.Used, Manifests: w.Manifests,
		Synced: w.Flags&flagSynced != 0, Inline: w.Flags&flagInline != 0,
	}, true
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

func decodePartial(v []byte) (p partialRecord, ok bool) {
	if cbor.Unmarshal(v, &p) != nil || p.Size < 0 || p.Have < 0 || p.Have > p.Size || len(p.Bits) > cas.MaxBlocks/8 {
		return partialRecord{}, false
	}
	return p, true
}

func (p partialRecord) has(i int) bool { return i/8 < len(p.Bits) && p.Bits[i/8]&(1<<(i%8)) != 0 }

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

// openIndex opens the index and starts a session. An index that cannot be opened goes to
// quarantine and a new one begins: the files tell what they hold, and the small objects
// are taken out of what can still be read of the old one.
func (s *Store) openIndex() error {
	const op = "cas open"
	dir := filepath.Join(s.cfg.Dir, indexDir)
	blobs, err := os.ReadDir(filepath.Join(s.cfg.Dir, blobsDir))
	if err != nil {
		return s.fail(op, err)
	}
	_, err = os.Stat(dir)
	made := errors.Is(err, fs.ErrNotExist)
	o := index.Options{Dir: dir, FS: s.cfg.files, NoSync: s.cfg.NoSync, Log: s.log}
	var aside string
	if s.idx, err = index.Open(o); err != nil && !isNoSpace(err) && !errors.Is(err, fs.ErrPermission) {
		aside = filepath.Join(s.cfg.Dir, quarantineDir, fmt.Sprintf("index.%d", s.cfg.Clock.Wall().UnixNano()))
		s.log.Error("cas: the index is unreadable; it is set aside and made again from the files", "dir", s.cfg.Dir, "err", err, "moved", aside)
		if err := os.Rename(dir, aside); err != nil {
			return s.fail(op, err)
		}
		s.idx, err = index.Open(o)
	}
	if err != nil {
		return s.fail(op, err)
	}
	converted, err := s.convertOld()
	if err != nil {
		return s.fail(op, err)
	}
	if aside != "" {
		if err := s.salvage(aside); err != nil {
			return s.fail(op, err)
		}
	}
	return s.fail(op, s.startSession(aside != "" || (made && len(blobs) > 0 && !converted)))
}

// startSession notes that the store is open. After a loss it says so, until a collection
// has found all that is pinned. A full disk takes no note: then the store is open to be
// read and collected, and the first update that finds room brings the note with it.
func (s *Store) startSession(lost bool) error {
	last, err := s.meta("session")
	clean, err2 := s.meta("clean")
	gen, err3 := s.meta("gen")
	used, err4 := s.meta("bytes")
	objects, err5 := s.meta("objects")
	was, err6 := s.meta("lost")
	if err := errors.Join(err, err2, err3, err4, err5, err6); err != nil {
		return err
	}
	s.clean = last == 0 || clean == 1
	s.session, s.gen = last+1, gen
	s.space.used, s.objects = int64(used), int64(objects)
	s.lost = lost || was == 1
	if !s.clean {
		s.log.Info("cas: the last stop was not a clean one", "dir", s.cfg.Dir)
	}
	s.unsaid.Store(&opening{session: s.session, lost: lost})
	err = s.update(func(*update) error { return nil })
	if isNoSpace(err) {
		s.log.Error("cas: the disk is full; what is stored can be read, and nothing new goes in before there is room", "dir", s.cfg.Dir, "err", err)
		return nil
	}
	return err
}

// opening is what the index has to hear of an opening of the store.
type opening struct {
	session uint64
	lost    bool
}

func (o *opening) say(u *update) {
	if o == nil || u.meta("session") == o.session {
		return // another update of the same moment has said it, and what changed since stands
	}
	if o.lost {
		u.setMeta("lost", 1)
	}
	u.setMeta("session", o.session)
	u.setMeta("clean", 0)
}

func (s *Store) meta(name string) (uint64, error) {
	v, ok, err := s.idx.Get(rowKey(tMeta, []byte(name)))
	if !ok || len(v) != 8 {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), err
}

func (s *Store) markClean() error {
	return s.update(func(u *update) error { u.setMeta("clean", 1); return nil })
}

// update is an index transaction that keeps the counters. Its errors are kept until the
// end, where they undo all of it.
type update struct {
	b              *index.Batch
	err            error
	bytes, objects int64
}

func (u *update) get(t index.Table, parts ...[]byte) ([]byte, bool) {
	v, ok, err := u.b.Get(rowKey(t, parts...))
	u.err = errors.Join(u.err, err)
	return v, ok
}

func (u *update) put(t index.Table, v []byte, parts ...[]byte) {
	u.err = errors.Join(u.err, u.b.Put(rowKey(t, parts...), v))
}

func (u *update) drop(t index.Table, parts ...[]byte) {
	u.err = errors.Join(u.err, u.b.Delete(rowKey(t, parts...)))
}

func (u *update) meta(name string) uint64 {
	if v, ok := u.get(tMeta, []byte(name)); ok && len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (u *update) setMeta(name string, v uint64) {
	u.put(tMeta, binary.BigEndian.AppendUint64(nil, v), []byte(name))
}

// update runs f in one synced transaction. Without an error the counters in the index and
// in memory have moved together.
func (s *Store) update(f func(*update) error) error { return s.write(true, f) }

// lazily is update for what may be lost with the power or the process.
func (s *Store) lazily(f func(*update) error) error { return s.write(false, f) }

func (s *Store) write(synced bool, f func(*update) error) error {
	var u update
	var o *opening
	err := s.idx.Update(synced, func(b *index.Batch) error {
		u = update{b: b}
		o = s.unsaid.Load()
		o.say(&u)
		if err := f(&u); err != nil {
			return err
		}
		if u.bytes != 0 || u.objects != 0 {
			u.setMeta("bytes", uint64(max(0, int64(u.meta("bytes"))+u.bytes)))
			u.setMeta("objects", uint64(max(0, int64(u.meta("objects"))+u.objects)))
		}
		return u.err
	})
	if err != nil {
		return err
	}
	s.unsaid.CompareAndSwap(o, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space.used, s.objects = max(0, s.space.used+u.bytes), max(0, s.objects+u.objects)
	s.commits++
	return nil
}

func (u *update) record(d forgeyard.Digest) (record, bool) {
	v, ok := u.get(tObjects, d[:])
	if !ok {
		return record{}, false
	}
	return decodeRecord(v)
}

func (u *update) putRecord(d forgeyard.Digest, r record) { u.put(tObjects, r.encode(), d[:]) }

// addBlocks says where each block of a proved manifest is. A block that occurs
// twice in a blob needs one place only.
func (u *update) addBlocks(m cas.Manifest, container forgeyard.Digest) {
	for i, off := range m.Offsets() {
		l := location{off: off, size: m.Blocks[i].Size}
		u.put(tBlocks, l.encode(), m.Blocks[i].Digest[:], container[:])
	}
}

func (u *update) dropBlocks(m cas.Manifest, container forgeyard.Digest) {
	for _, bl := range m.Blocks {
		u.drop(tBlocks, bl.Digest[:], container[:])
	}
}

// dropObject forgets an object of the given generation, and reports whether it was
// there. manifests are those of the record that could still be read; the entries of
// blocks that none of them names stay and lead nowhere, which readers expect.
func (u *update) dropObject(d forgeyard.Digest, gen uint64, manifests []cas.Manifest) (record, bool) {
	r, ok := u.record(d)
	if !ok || r.Gen != gen {
		return record{}, false
	}
	for _, m := range manifests {
		u.dropBlocks(m, d)
	}
	for _, m := range r.Manifests {
		u.drop(tManifests, m[:])
	}
	if r.Inline {
		u.drop(tInline, d[:])
	}
	u.drop(tObjects, d[:])
	u.bytes, u.objects = u.bytes-r.Size, u.objects-1
	return r, true
}

// row reads one row. A store that is closed, or an index that cannot be read, has none.
func (s *Store) row(t index.Table, parts ...[]byte) ([]byte, bool) {
	v, ok, err := s.idx.Get(rowKey(t, parts...))
	if err != nil {
		s.log.Warn("cas: the index cannot be read", "table", string(t), "err", err)
	}
	return v, ok && err == nil
}

// rows gives the rows of a table whose keys begin with prefix, from the key from on; the
// keys that f sees are without the table's byte.
func (s *Store) rows(t index.Table, prefix, from []byte, f func(k, v []byte) bool) error {
	return s.idx.Scan(rowKey(t, prefix), rowKey(t, from), func(k, v []byte) bool { return f(k[1:], v) })
}

func (s *Store) record(d forgeyard.Digest) (record, bool) {
	v, ok := s.row(tObjects, d[:])
	if !ok {
		return record{}, false
	}
	return decodeRecord(v)
}

// records looks up many records at once. The order is not that of the digests.
func (s *Store) records(ds []forgeyard.Digest, f func(i int, r record, ok bool)) error {
	keys := make([][]byte, len(ds))
	for i := range ds {
		keys[i] = rowKey(tObjects, ds[i][:])
	}
	return s.idx.Look(keys, func(i int, v []byte) {
		if v == nil {
			f(i, record{}, false)
			return
		}
		r, ok := decodeRecord(v)
		f(i, r, ok)
	})
}

func (s *Store) wholeOf(manifest forgeyard.Digest) (whole forgeyard.Digest, ok bool) {
	v, ok := s.row(tManifests, manifest[:])
	copy(whole[:], v)
	return whole, ok && len(v) == forgeyard.DigestSize
}

// locations lists the places where a block is said to be.
func (s *Store) locations(block forgeyard.Digest) (out []location) {
	err := s.rows(tBlocks, block[:], nil, func(k, v []byte) bool {
		if l, ok := decodeLocation(k[forgeyard.DigestSize:], v); ok {
			out = append(out, l)
		}
		return true
	})
	if err != nil {
		s.log.Warn("cas: the index cannot be read", "block", block, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.fresh[block]; ok {
		out = append(out, l)
	}
	return out
}

func (s *Store) partialRecord(id forgeyard.Digest) (partialRecord, bool) {
	v, ok := s.row(tPartials, id[:])
	if !ok {
		return partialRecord{}, false
	}
	return decodePartial(v)
}

// partialRecords lists the blobs on their way in.
func (s *Store) partialRecords() map[forgeyard.Digest]partialRecord {
	out := map[forgeyard.Digest]partialRecord{}
	err := s.rows(tPartials, nil, nil, func(k, v []byte) bool {
		var d forgeyard.Digest
		if p, ok := decodePartial(v); ok && len(k) == len(d) {
			copy(d[:], k)
			out[d] = p
		}
		return true
	})
	if err != nil {
		s.log.Warn("cas: the index cannot be read", "table", "partials", "err", err)
	}
	return out
}

func (s *Store) stored(r record) time.Time { return time.Unix(0, r.Stored).UTC() }
