package consensus

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// The bytes of format 1. They are on disks: a change here needs a new version, a new kind
// of entry a place of its own.
func TestFormat1IsReadForEver(t *testing.T) {
	n := nonce{0xaa, 15: 0xbb}
	for _, c := range []struct {
		frame frame
		hex   string
	}{
		{frame{kind: frameCommand, data: []byte("job")}, "01016a6f62"},
		{frame{kind: frameBegin, from: n}, "0102aa0000000000000000000000000000bb"},
		{frame{kind: frameMark, from: n}, "0103aa0000000000000000000000000000bb"},
		{frame{kind: frameCheck, from: n, index: 0x102, hash: [32]byte{1, 31: 2}}, "0104aa0000000000000000000000000000bb00000000000001020100000000000000000000000000000000000000000000000000000000000002"},
		{frame{kind: frameBatch, batch: [][]byte{[]byte("job"), {}, {9}}}, "0105000000036a6f62000000000000000109"},
	} {
		b := reencode(c.frame)
		if got := hex.EncodeToString(b); got != c.hex {
			t.Errorf("kind %d: %s, want %s", c.frame.kind, got, c.hex)
		}
		back, err := decodeFrame(b)
		if err != nil || fmt.Sprint(back) != fmt.Sprint(c.frame) {
			t.Errorf("kind %d: %v %v", c.frame.kind, back, err)
		}
	}
	h := stateHeader{index: 7, hash: [32]byte{9}}
	const want = "4659534e0100000000000000070900000000000000000000000000000000000000000000000000000000000000"
	if got := hex.EncodeToString(h.encode()); got != want {
		t.Errorf("snapshot header %s", got)
	}
	for _, bad := range []string{"", "01", "0201", "0106", "0105", "010500", "0105000000036a6f", "01050000000000ff", "0105ffffffff", "0100", "0102aa", "0104" + hex.EncodeToString(make([]byte, 16))} {
		b, _ := hex.DecodeString(bad)
		if _, err := decodeFrame(b); forgeyard.KindOf(err) != forgeyard.Corrupt {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func reencode(f frame) []byte {
	switch f.kind {
	case frameCommand:
		return encodeCommand(f.data)
	case frameBatch:
		var batch []*proposal
		for _, data := range f.batch {
			batch = append(batch, &proposal{data: data})
		}
		return encodeBatch(batch)
	}
	return f.encode()
}

func FuzzDecodeFrame(f *testing.F) {
	f.Add(encodeCommand([]byte("x")))
	f.Add(frame{kind: frameCheck}.encode())
	f.Add(encodeBatch([]*proposal{{data: []byte("x")}, {}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeFrame(b)
		if err != nil {
			return
		}
		again := reencode(d)
		if !bytes.Equal(again, b) {
			t.Fatalf("%x came back as %x", b, again)
		}
	})
}

func FuzzDecodeStateHeader(f *testing.F) {
	f.Add(stateHeader{index: 1}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeStateHeader(b); err == nil && !bytes.Equal(h.encode(), b) {
			t.Fatalf("%x", b)
		}
	})
}

func FuzzDecodePlan(f *testing.F) {
	f.Add([]byte(`{"position":{"term":7,"index":120},"reason":"diverged","snapshots":true,"wiped":false}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := decodePlan(b); (p == nil) == (err == nil) {
			t.Fatalf("%v %v", p, err)
		}
	})
}

func TestSpoiltPlanStopsTheStart(t *testing.T) {
	dir := t.TempDir()
	if err := writeSynced(planPath(dir), []byte("{")); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Config{Dir: dir, LocalID: "a", LocalAddr: "a", FSM: &notebook{}, Layer: newExchange().port("a")})
	if forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Errorf("a node that may not vote forgot it: %v", err)
	}
}

// brittle fails its nth deletion, as a crash would end it there.
type brittle struct {
	diskStore
	left int
}

func (b *brittle) DeleteRange(lo, hi uint64) error {
	if b.left--; b.left < 0 {
		return errors.New("crash")
	}
	return b.diskStore.DeleteRange(lo, hi)
}

func TestDeleteRangeNeverLeavesAHole(t *testing.T) {
	for _, c := range []struct {
		lo, hi, left uint64
		first, last  uint64
	}{
		{1, 3000, 9, 3001, 5000},        // compaction
		{1, 3000, 1, 1025, 5000},        // compaction, cut short
		{2000, 5000, 9, 1, 1999},        // truncation
		{2000, 5000, 1, 1, 5000 - 1024}, // truncation, cut short
		{0, 9999, 99, 0, 0},             // everything
		{1, 5000, 2, 1, 5000 - 2*1024},  // everything, cut short
		{6000, 7000, 9, 1, 5000},        // nothing there
	} {
		disk, err := openBolt(filepath.Join(t.TempDir(), "raft.db"))
		if err != nil {
			t.Fatal(err)
		}
		b := &brittle{diskStore: disk, left: int(c.left)}
		cfg := Config{Timings: Timings{}.withDefaults(), Clock: bubbleClock{}}
		var g Group
		s, err := newGuardedStore(b, &cfg, &g.term, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		var logs []*raft.Log
		for i := range uint64(5000) {
			logs = append(logs, &raft.Log{Index: i + 1, Term: 1})
		}
		if err := s.StoreLogs(logs); err != nil {
			t.Fatal(err)
		}
		err = s.DeleteRange(c.lo, c.hi)
		if (err != nil) != (b.left < 0) {
			t.Errorf("%+v: %v", c, err)
		}
		first, _ := disk.FirstIndex()
		last, _ := disk.LastIndex()
		if first != c.first || last != c.last {
			t.Errorf("%+v leaves %d to %d", c, first, last)
		}
		for i := first; i > 0 && i <= last; i++ {
			if err := disk.GetLog(i, new(raft.Log)); err != nil {
				t.Fatalf("%+v: hole at %d", c, i)
			}
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

// After one failure nothing more is written.
func TestFailedStoreStaysFailed(t *testing.T) {
	mem := raft.NewInmemStore()
	fault := &diskFault{}
	cfg := Config{Timings: Timings{}.withDefaults(), Clock: bubbleClock{}}
	var g Group
	told := 0
	s, err := newGuardedStore(&faultyDisk{LogStore: mem, StableStore: mem, fault: fault}, &cfg, &g.term, func(error) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetUint64(keyCurrentTerm, 4); err != nil || g.Term() != 4 {
		t.Fatal(err, g.Term())
	}
	fault.set(errFull, nil)
	if err := s.StoreLog(&raft.Log{Index: 1}); !isNoSpace(err) {
		t.Fatal(err)
	}
	fault.set(nil, nil)
	if err := s.Set([]byte("k"), nil); !isNoSpace(err) {
		t.Errorf("a write after a failed one: %v", err)
	}
	if err := s.SetUint64(keyCurrentTerm, 4); err != nil {
		t.Errorf("the term that is on disk already: %v", err)
	}
	gone := make(chan bool)
	go func() {
		defer func() { gone <- recover() == nil }()
		s.SetUint64(keyCurrentTerm, 5)
		t.Error("raft would panic on an error and go on without one; it must see neither")
	}()
	if !<-gone || g.Term() != 4 || told != 1 {
		t.Errorf("term %d, told %d times", g.Term(), told)
	}
}
