package consensus

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/types"
	"go.etcd.io/bbolt"

	"github.com/forgeyard/forgeyard-node"
)

var errMetaTest = errors.New("cut short by the test")

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// overStores runs a story over each log store, with real files.
func overStores(t *testing.T, story func(t *testing.T, store townOption)) {
	t.Helper()
	for _, k := range []LogStore{BoltDB, WAL} {
		t.Run(string(k), func(t *testing.T) { story(t, func(_ int, c *Config) { c.LogStore = k }) })
	}
}

// entries are logs first to last as raft writes them.
func entries(first, last uint64) (out []*raft.Log) {
	for i := first; i <= last; i++ {
		out = append(out, &raft.Log{Index: i, Term: 1 + i/100, Type: raft.LogCommand, Data: fmt.Append(nil, "entry ", i, strings.Repeat("x", int(i%977))), AppendedAt: time.Unix(1_800_000_000, int64(i)).UTC()})
	}
	return out
}

func holds(t *testing.T, l raft.LogStore, first, last uint64) {
	t.Helper()
	f, err1 := l.FirstIndex()
	n, err2 := l.LastIndex()
	if err := errors.Join(err1, err2); err != nil || f != first || n != last {
		t.Fatalf("it holds %d to %d, not %d to %d: %v", f, n, first, last, err)
	}
	for _, want := range entries(first, last) {
		var got raft.Log
		if err := l.GetLog(want.Index, &got); err != nil || string(got.Data) != string(want.Data) || got.Term != want.Term {
			t.Fatalf("entry %d is %+v: %v", want.Index, got, err)
		}
	}
}

func openTestDisk(t *testing.T, dir string, want LogStore) diskStore {
	t.Helper()
	d, err := openDisk(dir, want, newHCLog(quiet()))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A new directory gets what is asked for, and one that has a log keeps it where it is.
func TestLogStaysWhereItIs(t *testing.T) {
	for _, c := range []struct{ first, then LogStore }{{BoltDB, WAL}, {WAL, BoltDB}, {WAL, WAL}, {BoltDB, BoltDB}} {
		dir := t.TempDir()
		if k, err := LogStoreOf(dir); err != nil || k != "" {
			t.Errorf("an empty directory holds a log in %q: %v", k, err)
		}
		d := openTestDisk(t, dir, c.first)
		if err := errors.Join(d.StoreLogs(entries(1, 50)), d.SetUint64(keyCurrentTerm, 7), d.Close()); err != nil {
			t.Fatal(err)
		}
		d = openTestDisk(t, dir, c.then)
		holds(t, d, 1, 50)
		if term, err := d.GetUint64(keyCurrentTerm); err != nil || term != 7 {
			t.Errorf("term %d: %v", term, err)
		}
		if k, err := LogStoreOf(dir); err != nil || k != c.first {
			t.Errorf("the log of %q is in %q: %v", c.first, k, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A directory of a program that knew only boltdb has no log-store file.
func TestOldDirectoryStaysInBolt(t *testing.T) {
	dir := t.TempDir()
	b, err := openBolt(stablePath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.StoreLogs(entries(3, 60)), b.Close()); err != nil {
		t.Fatal(err)
	}
	d := openTestDisk(t, dir, WAL)
	holds(t, d, 3, 60)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(placePath(dir)); !os.IsNotExist(err) {
		t.Errorf("something was written beside an old log: %v", err)
	}
}

// A program that knows only boltdb must not take a log in wal/ for an empty one: it would
// vote without what it had acknowledged.
func TestOldProgramRefusesALogInWAL(t *testing.T) {
	dir := t.TempDir()
	d := openTestDisk(t, dir, WAL)
	if err := errors.Join(d.StoreLogs(entries(1, 9)), d.SetUint64(keyCurrentTerm, 7), d.Close()); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: dir, LocalID: "a", LocalAddr: "a", FSM: &notebook{}, Layer: newExchange().port("a"), openStore: openBolt}
	if g, err := Open(cfg); err == nil {
		g.Close(bg)
		t.Fatal("it started")
	}
}

// Decision 25: raft-wal's own Close keeps its metadata file locked; ours does not.
func TestWALReopensInOneProcess(t *testing.T) {
	dir := t.TempDir()
	for i := range uint64(5) {
		d := openTestDisk(t, dir, WAL)
		if err := d.StoreLogs(entries(1+10*i, 10+10*i)); err != nil {
			t.Fatal(err)
		}
		holds(t, d, 1, 10+10*i)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// The library alone leaves it locked: this shows what our Close is for.
	plain := t.TempDir()
	w, err := wal.Open(plain)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(filepath.Join(plain, "wal-meta.db"), 0o600, &bbolt.Options{Timeout: 10 * time.Millisecond})
	if err == nil {
		db.Close()
		t.Error("raft-wal closes its metadata by itself now: our own close may go")
	}
}

// A crash after a segment was filled and before the next was begun: raft-wal alone takes
// no entry any more after such a crash.
func TestFullTailIsMendedAtOpen(t *testing.T) {
	fill := func(t *testing.T, dir string) (last uint64) {
		l, sealed, err := openWAL(walDir(dir), segmentBytes, newHCLog(quiet()))
		if err != nil || sealed {
			t.Fatal(sealed, err)
		}
		l.meta.commit = func(types.PersistentState) error { return errMetaTest } // the rotation that follows the filling never is
		big := entries(1, 1)[0]
		for i := uint64(1); ; i++ {
			big.Index, big.Data = i, make([]byte, MaxCommand)
			if err := l.StoreLogs([]*raft.Log{big}); err != nil {
				if !errors.Is(err, errMetaTest) {
					t.Errorf("the error does not say why: %v", err)
				}
				last = i - 1
				break
			}
			if i > 20 {
				t.Fatal("the segment never fills")
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return last
	}
	next := func(last uint64) []*raft.Log { return []*raft.Log{{Index: last + 1, Term: 9, Data: []byte("next")}} }
	t.Run("alone", func(t *testing.T) {
		dir := t.TempDir()
		last := fill(t, dir)
		l, sealed, err := openWAL(walDir(dir), segmentBytes, newHCLog(quiet()))
		if err != nil || !sealed {
			t.Fatal(sealed, err)
		}
		if err := l.StoreLogs(next(last)); err == nil {
			t.Error("raft-wal mends a full tail by itself now: our copy may go")
		}
		l.Close()
	})
	t.Run("mended", func(t *testing.T) {
		dir := t.TempDir()
		last := fill(t, dir)
		l, err := openSegments(dir, segmentBytes, newHCLog(quiet()))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := l.LastIndex(); got != last {
			t.Errorf("the log ends at %d, it had %d", got, last)
		}
		if err := errors.Join(l.StoreLogs(next(last)), l.Close()); err != nil {
			t.Error(err)
		}
		if l, err = openSegments(dir, segmentBytes, newHCLog(quiet())); err != nil {
			t.Fatal(err)
		}
		if got, _ := l.LastIndex(); got != last+1 {
			t.Errorf("the log ends at %d", got)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for i, left := range []string{"wal.new", "wal.old", "both, and no wal"} {
		t.Run("crash with "+left, func(t *testing.T) {
			dir := t.TempDir()
			l, err := openSegments(dir, segmentBytes, newHCLog(quiet()))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(l.StoreLogs(entries(1, 30)), l.Close()); err != nil {
				t.Fatal(err)
			}
			if i != 1 {
				err = errors.Join(err, os.MkdirAll(filepath.Join(dir, "wal.new"), 0o700))
			}
			if i == 1 {
				err = errors.Join(err, os.MkdirAll(filepath.Join(dir, "wal.old"), 0o700))
			}
			if i == 2 {
				err = errors.Join(err, os.Rename(walDir(dir), filepath.Join(dir, "wal.old")))
			}
			if err != nil {
				t.Fatal(err)
			}
			if l, err = openSegments(dir, segmentBytes, newHCLog(quiet())); err != nil {
				t.Fatal(err)
			}
			holds(t, l, 1, 30)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if list, _ := filepath.Glob(filepath.Join(dir, "wal.*")); len(list) != 0 {
				t.Errorf("left behind: %v", list)
			}
		})
	}
}

// A segment file that was cut short while it was made is as good as none.
func TestShortSegmentFile(t *testing.T) {
	dir := t.TempDir()
	d := openTestDisk(t, dir, WAL)
	if err := errors.Join(d.StoreLogs(entries(1, 20)), d.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(walDir(dir), "00000000000000000021-0000000000000001.wal.tmp"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	d = openTestDisk(t, dir, WAL)
	holds(t, d, 1, 20)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func logDir(t *testing.T, k LogStore, first, last uint64) string {
	t.Helper()
	dir := t.TempDir()
	d := openTestDisk(t, dir, k)
	if err := errors.Join(d.StoreLogs(entries(first, last)), d.SetUint64(keyCurrentTerm, 7), d.Set([]byte("LastVoteCand"), []byte("n1")), d.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func checkMoved(t *testing.T, dir string, where LogStore, first, last uint64) {
	t.Helper()
	d := openTestDisk(t, dir, DefaultLogStore)
	holds(t, d, first, last)
	term, err1 := d.GetUint64(keyCurrentTerm)
	vote, err2 := d.Get([]byte("LastVoteCand"))
	if err := errors.Join(err1, err2); err != nil || term != 7 || string(vote) != "n1" {
		t.Errorf("term %d, vote %q: %v", term, vote, err)
	}
	if err := errors.Join(d.StoreLogs(entries(last+1, last+5)), d.Close()); err != nil {
		t.Error(err)
	}
	if k, err := LogStoreOf(dir); err != nil || where != "" && k != where {
		t.Errorf("the log is in %q, not %q: %v", k, where, err)
	}
}

func TestMoveLog(t *testing.T) {
	for _, to := range []LogStore{BoltDB, WAL} {
		from := map[LogStore]LogStore{BoltDB: WAL, WAL: BoltDB}[to]
		for _, span := range [][2]uint64{{1, 3000}, {4001, 4100}} {
			dir := logDir(t, from, span[0], span[1])
			m, err := MoveLog(dir, to, nil)
			if err != nil || m != (Moved{from, to, span[1] - span[0] + 1}) {
				t.Fatalf("%+v %v", m, err)
			}
			if again, err := MoveLog(dir, to, nil); err != nil || again.Entries != 0 || again.From != to {
				t.Errorf("again: %+v %v", again, err)
			}
			checkMoved(t, dir, to, span[0], span[1])
			if _, err := os.Stat(walDir(dir)); os.IsNotExist(err) != (to == BoltDB) {
				t.Errorf("wal/ after a move to %s: %v", to, err)
			}
			if info, err := os.Stat(stablePath(dir)); to == WAL && (err != nil || info.Size() > 256<<10) {
				t.Errorf("raft.db still has %d bytes: %v", info.Size(), err)
			}
		}
	}
}

func TestMoveLogRefusals(t *testing.T) {
	if _, err := MoveLog(t.TempDir(), WAL, nil); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Errorf("no log: %v", err)
	}
	dir := logDir(t, BoltDB, 1, 10)
	d := openTestDisk(t, dir, BoltDB)
	if _, err := MoveLog(dir, WAL, nil); forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Errorf("while it is open: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	checkMoved(t, dir, "", 1, 10)
}

func TestPlaceFormat(t *testing.T) {
	for _, c := range []struct {
		p    logPlace
		want string
	}{
		{logPlace{Log: WAL}, `{"log":"wal"}`},
		{logPlace{Log: BoltDB, Moving: WAL}, `{"log":"boltdb","moving":"wal"}`},
		{logPlace{Log: WAL, Left: BoltDB}, `{"log":"wal","left":"boltdb"}`},
	} {
		dir := t.TempDir()
		if err := c.p.save(dir); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(placePath(dir))
		back, known, err2 := readPlace(dir)
		if err != nil || err2 != nil || string(b) != c.want || back != c.p || !known {
			t.Errorf("%+v is %s and came back as %+v: %v %v", c.p, b, back, err, err2)
		}
	}
	for _, bad := range []string{``, `{}`, `{"log":"tape"}`, `{"log":"wal","moving":"wal"}`, `{"log":"wal","moving":"boltdb","left":"boltdb"}`, `{"log":"wal","more":1}`} {
		if p, err := decodePlace([]byte(bad)); forgeyard.KindOf(err) != forgeyard.Corrupt {
			t.Errorf("%s: %+v %v", bad, p, err)
		}
	}
	if _, err := ParseLogStore("tape"); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Error(err)
	}
}

func FuzzDecodePlace(f *testing.F) {
	f.Add([]byte(`{"log":"boltdb","moving":"wal"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePlace(b)
		if err == nil && (p.Log == "" || p.Log == p.Moving || p.Log == p.Left) {
			t.Fatalf("%+v", p)
		}
	})
}

// The first group of a directory is in the default store, over a restart too.
func TestGroupOnEachStore(t *testing.T) {
	overStores(t, func(t *testing.T, store townOption) {
		synctest.Test(t, func(t *testing.T) {
			tn := newTown(t, 3, nil, store, batching, func(_ int, c *Config) { c.TrailingLogs = 2 })
			tn.start()
			leader, away := tn.nodes[0], tn.nodes[2]
			for _, c := range names("a", 40) {
				tn.put(leader, c)
			}
			away.close()
			for _, c := range names("b", 40) {
				tn.put(leader, c)
			}
			if err := leader.g.Snapshot(bg); err != nil {
				t.Fatal(err)
			}
			away.open() // by snapshot: its log begins anew
			tn.awaitApplied(tn.put(leader, "after"), tn.nodes...)
			tn.sameState(tn.nodes...)
			for _, r := range tn.nodes {
				r.close()
			}
			for _, r := range tn.nodes {
				r.open()
			}
			leader = tn.awaitLeader(tn.nodes...)
			tn.awaitApplied(tn.put(leader, "again"), tn.nodes...)
			tn.sameState(tn.nodes...)
			if k, err := LogStoreOf(leader.cfg.Dir); err != nil || k != leader.cfg.LogStore {
				t.Errorf("the log is in %q: %v", k, err)
			}
			tn.stop()
		})
	})
}

// Guard (e) and "reopening after a failed write" over real files: the leader's disk hangs,
// then a write reaches it and fails all the same.
func TestGuardsOnEachStore(t *testing.T) {
	overStores(t, func(t *testing.T, store townOption) {
		synctest.Test(t, func(t *testing.T) {
			tn := newTown(t, 3, nil, store, func(_ int, c *Config) { c.Timings.Write = 2 * time.Second })
			tn.start()
			old := tn.nodes[0]
			tn.put(old, "one")
			hang := make(chan struct{})
			old.fault.set(nil, hang)
			got := make(chan error, 1)
			go func() { _, err := old.g.Propose(bg, []byte("hung")); got <- err }()
			leader := tn.awaitLeader(tn.without(old)...)
			tn.put(leader, "two")
			if err := <-got; forgeyard.KindOf(err) != forgeyard.Unknown || !old.saw(DiskHung) {
				t.Errorf("%v, events %v", err, old.events)
			}
			old.fault.set(nil, nil)
			close(hang)
			until(t, "the disk to be back", func() bool { return old.saw(Restarted) })
			leader = tn.awaitLeader(tn.nodes...)
			tn.awaitApplied(tn.put(leader, "three"), tn.nodes...)

			leader.fault.mu.Lock()
			leader.fault.partial = true
			leader.fault.mu.Unlock()
			leader.fault.set(errors.New("input/output error"), nil)
			for _, c := range names("tail", 5) {
				if _, err := leader.g.Propose(bg, []byte(c)); err == nil {
					t.Error("a failed write was acknowledged")
				}
			}
			next := tn.awaitLeader(tn.without(leader)...)
			tn.put(next, "four")
			leader.fault.set(nil, nil)
			tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "five"), tn.nodes...)
			tn.sameState(tn.nodes...)
			tn.stop()
			d := openTestDisk(t, leader.cfg.Dir, leader.cfg.LogStore)
			if !risingTerms(t, d) {
				t.Error("a tail of before stands behind newer entries")
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// What a range's deletion leaves in segments: no hole, and nothing that was deleted.
func TestSegmentsDeleteRange(t *testing.T) {
	for _, c := range []struct{ lo, hi, first, last uint64 }{
		{1, 3000, 3001, 5000}, // compaction
		{2000, 5000, 1, 1999}, // truncation
		{0, 9999, 0, 0},       // everything
		{6000, 7000, 1, 5000}, // nothing there
	} {
		d := openTestDisk(t, t.TempDir(), WAL)
		cfg := Config{Timings: Timings{}.withDefaults(), Clock: bubbleClock{}}
		var g Group
		s, err := newGuardedStore(d, &cfg, &g.term, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		if !s.IsMonotonic() {
			t.Error("raft is not told that the log may have no hole")
		}
		if err := errors.Join(s.StoreLogs(entries(1, 5000)), s.DeleteRange(c.lo, c.hi)); err != nil {
			t.Fatal(err)
		}
		if c.first > 0 {
			holds(t, s, c.first, c.last)
		}
		for _, i := range []uint64{c.lo, c.hi} {
			if err := s.GetLog(i, new(raft.Log)); i > 0 && (i < c.first || i > c.last) && !errors.Is(err, raft.ErrLogNotFound) {
				t.Errorf("%+v: entry %d is there still: %v", c, i, err)
			}
		}
		if err := s.StoreLogs(entries(max(c.last, 7000)+1, 7010)); c.last == 0 && err != nil {
			t.Errorf("an empty log does not begin anywhere: %v", err)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

// The log in segments against the plainest twin there is, through appends, truncations,
// compactions, closings and crashes: a crash is a copy of the files while they are open.
func TestSegmentsAgainstATwin(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 3))
		dir := t.TempDir()
		twin := map[uint64]*raft.Log{}
		first, last := uint64(0), uint64(0)
		open := func() *segmentLog {
			l, err := openSegments(dir, 16<<10, newHCLog(quiet()))
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			return l
		}
		check := func(l *segmentLog, after string) {
			t.Helper()
			f, err1 := l.FirstIndex()
			n, err2 := l.LastIndex()
			if errors.Join(err1, err2) != nil || n != last || last > 0 && f != first {
				t.Fatalf("seed %d, after %s: it holds %d to %d, not %d to %d (%v %v)", seed, after, f, n, first, last, err1, err2)
			}
			for i := first; i <= last && last > 0; i++ {
				var got raft.Log
				if err := l.GetLog(i, &got); err != nil || string(got.Data) != string(twin[i].Data) || got.Term != twin[i].Term {
					t.Fatalf("seed %d, after %s: entry %d of %d to %d: %v", seed, after, i, first, last, err)
				}
			}
		}
		l := open()
		for range 60 {
			what := [...]string{"append", "append", "append", "truncation", "compaction", "wipe", "closing", "crash"}[r.IntN(8)]
			var err error
			switch {
			case what == "append":
				var logs []*raft.Log
				at := last + 1
				if last == 0 {
					at = 1 + r.Uint64N(100)
					first = at
				}
				for i := range 1 + r.Uint64N(30) {
					e := &raft.Log{Index: at + i, Term: r.Uint64N(1 << 40), Data: make([]byte, r.IntN(600))}
					logs, twin[e.Index], last = append(logs, e), e, e.Index
				}
				err = l.StoreLogs(logs)
			case what == "truncation" && last > first:
				cut := first + 1 + r.Uint64N(last-first)
				err, last = l.DeleteRange(cut, last), cut-1
			case what == "compaction" && last > first:
				cut := first + r.Uint64N(last-first)
				err, first = l.DeleteRange(first, cut), cut+1
			case what == "wipe" && last > 0 && r.IntN(4) == 0:
				err, last = l.DeleteRange(first, last), 0
			case what == "closing":
				err = l.Close()
				l = open()
			case what == "crash":
				copied := t.TempDir()
				l.tail.awaitRotation() // files that change meanwhile cannot be copied as one
				err = os.CopyFS(walDir(copied), os.DirFS(walDir(dir)))
				l.Close()
				dir = copied
				l = open()
			}
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed, what, err)
			}
			check(l, what)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
