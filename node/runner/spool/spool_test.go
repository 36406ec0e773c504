package spool

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

const patience = 60 * time.Second

func open(t *testing.T, cfg Config) *Spool {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "s")
	}
	if cfg.Epoch == 0 {
		cfg.Epoch = 1
	}
	cfg.Clock = clock.NewManual(time.UnixMilli(1_700_000_000_000))
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func store(t *testing.T) cas.Store {
	t.Helper()
	s, err := disk.Open(disk.Config{Dir: t.TempDir(), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func add(t *testing.T, s *Spool, text string) {
	t.Helper()
	if err := s.Append(t.Context(), Stdout, 1, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, s *Spool, from uint64) string {
	t.Helper()
	var b strings.Builder
	seq := from
	for f, err := range s.Tail(t.Context(), from, false) {
		if err != nil {
			t.Fatal(err)
		}
		if seq != 0 && f.Seq != seq {
			t.Fatalf("frame %d where %d is due", f.Seq, seq)
		}
		seq = f.Seq + 1
		b.Write(f.Bytes)
	}
	return b.String()
}

// RA-241, CK-174: from 1, no gap; across a reopen and a later epoch too.
func TestSequenceAcrossReopenAndEpochs(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	add(t, s, "a")
	add(t, s, strings.Repeat("b", MaxFrameBytes+1)) // two frames
	if s.Last() != 3 {
		t.Fatalf("last %d", s.Last())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Dir: dir})
	add(t, s, "c")
	if got := read(t, s, 1); got != "a"+strings.Repeat("b", MaxFrameBytes+1)+"c" {
		t.Fatalf("%d bytes", len(got))
	}
	next := open(t, Config{Epoch: 2, First: s.Last() + 1})
	if err := next.Event(t.Context(), 0, map[string]any{"event": "epoch"}); err != nil {
		t.Fatal(err)
	}
	for f, err := range next.Tail(t.Context(), 0, false) {
		if err != nil || f.Seq != 5 || f.Epoch != 2 || f.Stream != Structured || f.At != 1_700_000_000_000 {
			t.Fatalf("%+v %v", f, err)
		}
	}
}

// A crash tears the last frame: it is cut away and its number used again.
func TestTornTail(t *testing.T) {
	for _, cut := range []int64{1, 9, 30} {
		dir := t.TempDir()
		s := open(t, Config{Dir: dir})
		add(t, s, "one")
		add(t, s, "two")
		s.Close()
		name := filepath.Join(dir, "00000000000000000001.log")
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, st.Size()-cut); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Dir: dir})
		if s.Last() != 1 {
			t.Errorf("cut %d: last %d", cut, s.Last())
		}
		add(t, s, "TWO")
		if got := read(t, s, 1); got != "oneTWO" {
			t.Errorf("cut %d: %q", cut, got)
		}
	}
}

// Who only reads a log that was put aside changes nothing there, damaged as it may be.
func TestReadTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	for range 100 {
		add(t, s, strings.Repeat("x", MaxFrameBytes))
	}
	s.Close()
	names, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	whole := func() (n int) {
		for f, err := range Read(dir) {
			if n++; err != nil || f.Seq != uint64(n) {
				t.Fatalf("frame %d: %d %v", n, f.Seq, err)
			}
		}
		return n
	}
	if n := whole(); n != 100 || len(names) < 2 {
		t.Errorf("%d frames in %d segments", n, len(names))
	}
	st, err := os.Stat(names[0])
	if err == nil {
		err = os.Truncate(names[0], st.Size()-1)
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := whole(); n == 0 || n >= 99 {
		t.Errorf("%d frames of a torn log", n)
	}
	if now, err := os.Stat(names[0]); err != nil || now.Size() != st.Size()-1 {
		t.Errorf("it was cut: %v", err)
	}
	if l, _ := filepath.Glob(filepath.Join(dir, "*")); !slices.Equal(l, names) {
		t.Errorf("renamed: %v", l)
	}
	gone := filepath.Join(dir, "gone")
	for range Read(gone) {
		t.Error("a frame of no log")
	}
	if _, err := os.Stat(gone); !os.IsNotExist(err) {
		t.Errorf("a reader made it: %v", err)
	}
}

// A flipped byte is contained: what is before it stays, nothing wrong is shown.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	for range 100 {
		add(t, s, strings.Repeat("x", MaxFrameBytes))
	}
	s.Close()
	names, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	if len(names) < 2 {
		t.Fatalf("%d segments", len(names))
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(names[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Dir: dir})
	if s.Last() == 0 || s.Last() >= 64 {
		t.Errorf("last %d", s.Last())
	}
	if got := read(t, s, 1); strings.Trim(got, "x") != "" {
		t.Error("damaged bytes were shown")
	}
	if aside, _ := filepath.Glob(filepath.Join(dir, "*.damaged")); len(aside) != len(names)-1 {
		t.Errorf("put aside %v", aside)
	}
}

func TestTailFollows(t *testing.T) {
	s := open(t, Config{})
	got := make(chan string, 16)
	go func() {
		for f, err := range s.Tail(context.Background(), 1, true) {
			if err != nil {
				got <- err.Error()
			} else {
				got <- string(f.Bytes)
			}
		}
		close(got)
	}()
	await := func(want string) {
		t.Helper()
		select {
		case g := <-got:
			if g != want {
				t.Fatalf("%q, not %q", g, want)
			}
		case <-time.After(patience):
			t.Fatal("nothing came")
		}
	}
	add(t, s, "1")
	await("1")
	add(t, s, "2")
	await("2")
	for f, err := range s.Tail(t.Context(), 2, false) { // RA-250, RA-405, RA-514: who has the first asks for the rest
		if err != nil || f.Seq != 2 || string(f.Bytes) != "2" {
			t.Fatalf("from 2: %+v %v", f, err)
		}
	}
	s.Close()
	await("")
}

// RA-244, RA-245: a reader that stalls costs the writer neither time nor memory: what it did
// not read is on the disk (RA-447, RA-491, RA-513, RA-538, RA-558).
func TestSlowReaderNeverBlocks(t *testing.T) {
	s := open(t, Config{})
	add(t, s, "x")
	stalled := make(chan struct{})
	done := make(chan int)
	go func() {
		n := 0
		for _, err := range s.Tail(context.Background(), 1, true) {
			if err != nil {
				t.Error(err)
			}
			n++
			<-stalled
		}
		done <- n
	}()
	for range 300 {
		add(t, s, strings.Repeat("y", 30_000))
	}
	s.Close()
	close(stalled)
	if n := <-done; n != 301 {
		t.Errorf("the reader got %d frames", n)
	}
}

// RA-244, RA-245, RA-447, RA-513, RA-558: a reader stands still for an hour while nine times more
// is printed than the spool may hold. The writer is never held back, at no moment is more on
// the disk than the bound and a segment, and the reader goes on where it stood: what
// is not in the spool any more is in the store, and no frame is missing.
func TestReaderStallsForAnHour(t *testing.T) {
	const limit, hour = 8 << 20, 3600
	dir := filepath.Join(t.TempDir(), "s")
	s, st := open(t, Config{Dir: dir, Limit: limit}), store(t)
	clk := s.cfg.Clock.(*clock.Manual)
	next, stop := iter.Pull2(s.Tail(t.Context(), 1, true))
	defer stop()
	add(t, s, "0")
	first, err, ok := next()
	if !ok || err != nil || first.Seq != 1 {
		t.Fatalf("%+v %v", first, err)
	}
	line, most := strings.Repeat("y", 20_000), int64(0)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range hour { // on one goroutine: a writer that is held back waits for as long as ctx
		clk.Advance(time.Second)
		if err := s.Append(ctx, Stdout, 1, []byte(line)); err != nil {
			t.Fatal(err)
		}
		if i%60 == 59 {
			if _, err := s.FlushFull(t.Context(), st); err != nil {
				t.Fatal(err)
			}
		}
		most = max(most, sizeOf(t, dir))
	}
	if most > limit+segmentBytes {
		t.Errorf("%d bytes were on the disk at once, the bound is %d", most, limit)
	}
	last := first
	for {
		f, err, ok := next()
		if !ok {
			t.Fatal("the log is over")
		}
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.NotFound {
				t.Fatal(err)
			}
			break // it was given back meanwhile
		}
		if f.Seq != last.Seq+1 {
			t.Fatalf("frame %d follows %d", f.Seq, last.Seq)
		}
		last = f
	}
	for _, c := range s.Chunks() {
		if c.LastSeq <= last.Seq {
			continue
		}
		o, err := st.Open(t.Context(), c.Digest)
		if err != nil {
			t.Fatal(err)
		}
		for f, err := range DecodeFrames(o) {
			if err != nil || f.Seq > last.Seq+1 {
				t.Fatalf("frame %d follows %d: %v", f.Seq, last.Seq, err)
			}
			if f.Seq > last.Seq {
				last = f
			}
		}
		o.Close()
	}
	for f, err := range s.Tail(t.Context(), last.Seq+1, false) {
		if err != nil || f.Seq != last.Seq+1 {
			t.Fatalf("frame %d follows %d: %v", f.Seq, last.Seq, err)
		}
		last = f
	}
	if took := last.At.Time().Sub(first.At.Time()); last.Seq != hour+1 || took != time.Hour {
		t.Errorf("it ended with frame %d, %s after the first", last.Seq, took)
	}
}

func sizeOf(t *testing.T, dir string) (n int64) {
	t.Helper()
	l, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range l {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

func TestFlushAndChunks(t *testing.T) {
	s, st := open(t, Config{}), store(t)
	for range 40 {
		add(t, s, strings.Repeat("z", 50_000))
	}
	first, err := s.Flush(t.Context(), st)
	if err != nil || len(first) < 2 {
		t.Fatalf("%v %v", first, err)
	}
	add(t, s, "end")
	if _, err := s.Flush(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if more, err := s.Flush(t.Context(), st); err != nil || len(more) != 0 {
		t.Fatalf("nothing new, and %v %v", more, err)
	}
	seq := uint64(1)
	for _, c := range s.Chunks() {
		if c.FirstSeq != seq || c.Size > chunkBytes {
			t.Fatalf("chunk %+v starts not at %d", c, seq)
		}
		o, err := st.Open(t.Context(), c.Digest)
		if err != nil {
			t.Fatal(err)
		}
		for f, err := range DecodeFrames(o) {
			if err != nil || f.Seq != seq {
				t.Fatalf("%d %v", f.Seq, err)
			}
			seq++
		}
		o.Close()
		if c.LastSeq != seq-1 {
			t.Fatalf("%+v ended at %d", c, seq-1)
		}
	}
	if seq != 42 || s.Flushed() != 41 || s.Unflushed() > markBytes+headerSize {
		t.Errorf("%d %d %d", seq, s.Flushed(), s.Unflushed())
	}
}

// RA-409, decision 17: a full spool holds the writer back, and a flush lets it go on.
func TestFullSpoolHoldsBack(t *testing.T) {
	s, st := open(t, Config{Limit: 10 << 20}), store(t)
	ctx, cancel := context.WithCancel(t.Context())
	var err error
	n := 0
	for ; n < 1000; n++ {
		if s.Unflushed()+40_000 > 10<<20 {
			break
		}
		add(t, s, strings.Repeat("w", 40_000))
	}
	wrote := make(chan error, 1)
	go func() { wrote <- s.Append(ctx, Stdout, 1, make([]byte, 60_000)) }()
	cancel()
	if err = <-wrote; forgeyard.KindOf(err) != forgeyard.Interrupted {
		t.Fatalf("after %d frames: %v", n, err)
	}
	go func() { wrote <- s.Append(t.Context(), Stdout, 1, make([]byte, 60_000)) }()
	if _, err := s.Flush(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-wrote:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("a flush freed space and the writer still waits")
	}
	// The space was given back, and who asks for it is told where it is.
	for _, err := range s.Tail(t.Context(), 1, false) {
		if forgeyard.KindOf(err) != forgeyard.NotFound {
			t.Fatalf("%v", err)
		}
	}
	go func() { wrote <- s.Append(t.Context(), Stdout, 1, make([]byte, 11<<20)) }()
	s.Close()
	if err := <-wrote; forgeyard.KindOf(err) != forgeyard.Conflict {
		t.Fatalf("after Close: %v", err)
	}
}

// The bytes of version 1 open for ever.
func TestVersion1(t *testing.T) {
	name := filepath.Join("testdata", "version1.fylog")
	f := Frame{Seq: 7, At: 1_700_000_000_000, Stream: Stderr, Epoch: 3, Step: 2, Bytes: []byte("kept\n")}
	want := appendFrame(bytes.Clone(header), &f)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("this version writes %x", want)
	}
	for g, err := range DecodeFrames(bytes.NewReader(b)) {
		if err != nil || g.Seq != f.Seq || g.At != f.At || g.Stream != f.Stream || g.Epoch != f.Epoch || g.Step != f.Step || string(g.Bytes) != "kept\n" {
			t.Errorf("%+v %v", g, err)
		}
	}
}

// RA-474: whatever bytes come, they are frames in order, or an error.
func FuzzDecodeFrames(f *testing.F) {
	good := bytes.Clone(header)
	for i := range uint64(3) {
		good = appendFrame(good, &Frame{Seq: i + 1, Stream: Stdout, Bytes: []byte("text")})
	}
	f.Add(good)
	f.Add(good[:len(good)-2])
	long := appendFrame(bytes.Clone(good), &Frame{Seq: 4, Stream: Stdout, Bytes: bytes.Repeat([]byte("text"), 100)})
	f.Add(pack(long))
	f.Add(pack(long)[:60])
	f.Add(append(pack(long), pack(long)[headerSize:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		out := bytes.Clone(header)
		clean := true
		for fr, err := range DecodeFrames(bytes.NewReader(b)) {
			if err != nil {
				clean = false
				if forgeyard.KindOf(err) != forgeyard.Corrupt {
					t.Fatalf("%v", err)
				}
				break
			}
			out = appendFrame(out, &fr)
		}
		switch packed := bytes.HasPrefix(b, packedHeader); {
		case packed && len(out) > chunkBytes:
			t.Fatalf("unpacked to %d bytes", len(out))
		case clean && !packed && !bytes.Equal(out, b):
			t.Fatal("accepted bytes that it would not write")
		}
	})
}

func TestDecodeRefusesGaps(t *testing.T) {
	b := bytes.Clone(header)
	b = appendFrame(b, &Frame{Seq: 1, Stream: Stdout})
	b = appendFrame(b, &Frame{Seq: 3, Stream: Stdout})
	var got error
	for _, err := range DecodeFrames(bytes.NewReader(b)) {
		got = errors.Join(got, err)
	}
	if forgeyard.KindOf(got) != forgeyard.Corrupt && !strings.Contains(got.Error(), "frame 3 follows 1") {
		t.Errorf("%v", got)
	}
}

// A part of a log that is put back does not take the place of a segment that begins with it
// and has more.
func TestRestoreLeavesWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	frames := func(n uint64) []byte {
		var b []byte
		for seq := range n {
			b = appendFrame(b, &Frame{Seq: seq + 1, Stream: Stdout, Bytes: []byte("line")})
		}
		return b
	}
	count := func() (n int) {
		for _, err := range Read(dir) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	for _, n := range []uint64{9, 3} {
		if err := Restore(dir, 1, bytes.NewReader(append(bytes.Clone(header), frames(n)...))); err != nil {
			t.Fatal(err)
		}
		if got := count(); got != 9 {
			t.Errorf("after a part of %d frames %d are there", n, got)
		}
	}
}
