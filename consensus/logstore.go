package consensus

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/bbolt"

	"github.com/forgeyard/forgeyard-node"
)

// LogStore names what keeps a node's log on its disk. Terms and votes are in raft.db
// (boltdb) whichever it is.
type LogStore string

// Log stores. The names stand in files: append only.
const (
	BoltDB LogStore = "boltdb" // in raft.db too
	WAL    LogStore = "wal"    // segment files in wal/, raft-wal
)

// DefaultLogStore is what a new data dir gets.
const DefaultLogStore = WAL

// ParseLogStore reads a name; empty is the default.
func ParseLogStore(s string) (LogStore, error) {
	switch k := LogStore(s); k {
	case "":
		return DefaultLogStore, nil
	case BoltDB, WAL:
		return k, nil
	}
	return "", forgeyard.Errorf("log store", forgeyard.Invalid, "%q is no log store: boltdb and wal are there", forgeyard.Clip(s, 40))
}

// logPlace is the file that says where the log is, and what is being done about it:
//
//	<dir>/log-store   {"log":"boltdb","moving":"wal"}
//
// Without the file the log is in boltdb. It is replaced whole and synced, so its replacing
// is the instant at which the log has moved:
//
//	{log: a} ─▶ {log: a, moving: b} ─▶ copy, verify ─▶ {log: b, left: a} ─▶ clear a ─▶ {log: b}
//
// A crash before that instant leaves a half copy, which is cleared; one after it leaves
// the old log, which is cleared as well.
type logPlace struct {
	Log    LogStore `json:"log"`
	Moving LogStore `json:"moving,omitempty"` // a copy under way, worth nothing yet
	Left   LogStore `json:"left,omitempty"`   // still holds what moved on
}

func placePath(dir string) string  { return filepath.Join(dir, "log-store") }
func stablePath(dir string) string { return filepath.Join(dir, "raft.db") }

func decodePlace(b []byte) (logPlace, error) {
	var p logPlace
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, forgeyard.E("log store", forgeyard.Corrupt, err)
	}
	for _, k := range []LogStore{p.Log, p.Moving, p.Left} {
		if k != "" && k != BoltDB && k != WAL {
			return p, forgeyard.Errorf("log store", forgeyard.Corrupt, "%q is not known to this program", forgeyard.Clip(string(k), 40)).
				WithHint("a newer program wrote it: upgrade this node")
		}
	}
	if p.Log == "" || p.Moving == p.Log || p.Left == p.Log || p.Moving != "" && p.Left != "" {
		return p, forgeyard.Errorf("log store", forgeyard.Corrupt, "the log is in %q, moving to %q, left %q: that cannot be", p.Log, p.Moving, p.Left)
	}
	return p, nil
}

// readPlace tells where the log is; known is false for a directory that holds none.
func readPlace(dir string) (p logPlace, known bool, err error) {
	b, err := readSmall(placePath(dir), maxMarker)
	if b == nil && err == nil {
		_, err = os.Stat(stablePath(dir))
		if errors.Is(err, fs.ErrNotExist) {
			return p, false, nil
		}
		return logPlace{Log: BoltDB}, true, err
	}
	if err != nil {
		return p, false, err
	}
	p, err = decodePlace(b)
	return p, true, err
}

func (p logPlace) save(dir string) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return replaceFile(placePath(dir), b)
}

// LogStoreOf tells which store holds the log of a node's directory; empty if it holds none.
func LogStoreOf(dir string) (LogStore, error) {
	p, _, err := readPlace(dir)
	return p.Log, err
}

// openDisk opens what keeps the log, the term and the vote. A new directory gets want; one
// that has a log keeps it where it is.
func openDisk(dir string, want LogStore, log hclog.Logger) (diskStore, error) {
	p, known, err := readPlace(dir)
	if err != nil {
		return nil, err
	}
	if !known {
		// Said before there is a database: a crash in between leaves a new directory.
		if p = (logPlace{Log: want}); p.Log != BoltDB {
			err = p.save(dir)
		}
	}
	if err == nil {
		p, err = p.settle(dir)
	}
	if err != nil {
		return nil, err
	}
	return openPlaced(dir, p.Log, log)
}

func openPlaced(dir string, at LogStore, log hclog.Logger) (diskStore, error) {
	if at == WAL {
		if err := onBolt(dir, putTombstone); err != nil {
			return nil, err
		}
	}
	stable, err := openBolt(stablePath(dir)) // its lock guards the whole directory
	if err != nil || at != WAL {
		return stable, err
	}
	segments, err := openSegments(dir, segmentBytes, log)
	if err != nil {
		return nil, errors.Join(err, stable.Close())
	}
	return &splitStore{segmentLog: segments, stable: stable}, nil
}

// settle ends a move that a crash cut short, by going back or by finishing it.
func (p logPlace) settle(dir string) (logPlace, error) {
	half := cmp.Or(p.Moving, p.Left)
	if half == "" {
		return p, nil
	}
	if err := clearLog(dir, half); err != nil {
		return p, err
	}
	p = logPlace{Log: p.Log}
	return p, p.save(dir)
}

// splitStore keeps the log in segments, and terms and votes in boltdb.
type splitStore struct {
	*segmentLog
	stable diskStore
}

func (s *splitStore) Set(k, v []byte) error              { return s.stable.Set(k, v) }
func (s *splitStore) Get(k []byte) ([]byte, error)       { return s.stable.Get(k) }
func (s *splitStore) SetUint64(k []byte, v uint64) error { return s.stable.SetUint64(k, v) }
func (s *splitStore) GetUint64(k []byte) (uint64, error) { return s.stable.GetUint64(k) }
func (s *splitStore) Close() error                       { return errors.Join(s.segmentLog.Close(), s.stable.Close()) }

// A program from before wal/ knows only raft.db. Were the log there simply empty, it would
// take the node's log for lost and vote all the same. So what stands in its place there is
// an entry at the last index of all that no program can read: an old one refuses to start.
var (
	boltLogs     = []byte("logs") // raft-boltdb's own bucket
	tombstoneKey = binary.BigEndian.AppendUint64(nil, 1<<64-1)
	tombstone    = []byte("the log is in wal/ and this program is too old for it")
)

// onBolt runs one transaction on raft.db, which nobody may have open.
func onBolt(dir string, f func(*bbolt.Tx) error) error {
	db, err := bbolt.Open(stablePath(dir), 0o600, boltOptions())
	if err != nil {
		return err
	}
	return errors.Join(db.Update(f), db.Close())
}

func putTombstone(tx *bbolt.Tx) error {
	b, err := tx.CreateBucketIfNotExists(boltLogs)
	if err != nil || bytes.Equal(b.Get(tombstoneKey), tombstone) {
		return err
	}
	return b.Put(tombstoneKey, tombstone)
}

func dropTombstone(tx *bbolt.Tx) error { return tx.Bucket(boltLogs).Delete(tombstoneKey) }

// clearLog removes the log from a store that is not its place. It is idempotent.
func clearLog(dir string, k LogStore) error {
	if k == BoltDB {
		return clearBolt(dir)
	}
	for _, name := range []string{"wal", "wal.new", "wal.old"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

// clearBolt leaves the terms and votes, in a file of their size: boltdb itself never gives
// space back.
func clearBolt(dir string) error {
	err := onBolt(dir, func(tx *bbolt.Tx) error {
		if tx.Bucket(boltLogs) != nil {
			if err := tx.DeleteBucket(boltLogs); err != nil {
				return err
			}
		}
		return putTombstone(tx)
	})
	if err != nil {
		return err
	}
	small := stablePath(dir) + ".tmp"
	if err := os.Remove(small); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := compactBolt(small, stablePath(dir)); err != nil {
		return err
	}
	if err := os.Rename(small, stablePath(dir)); err != nil {
		return err
	}
	return syncDir(dir)
}

func compactBolt(to, from string) error {
	src, err := bbolt.Open(from, 0o600, boltOptions())
	if err != nil {
		return err
	}
	dst, err := bbolt.Open(to, 0o600, boltOptions())
	if err != nil {
		return errors.Join(err, src.Close())
	}
	err = bbolt.Compact(dst, src, 1<<20)
	if err == nil {
		err = dst.Sync()
	}
	return errors.Join(err, dst.Close(), src.Close())
}
