package spool

import (
	"encoding/json"
	"strings"
	"testing"
)

// RA-244, RA-245, CK-410: a log that has reached its bound takes no more of what programs write, holds
// nobody back, and says how much it left out; what the runner says has always a place.
func TestBoundOfALog(t *testing.T) {
	const most = 300 << 10
	s := open(t, Config{Most: most, Limit: 1 << 20})
	wrote := 0
	for i := range 200 { // far more than the spool may hold: nothing waits for a flush
		stream := Stdout
		if i%2 == 1 {
			stream = Stderr
		}
		b := []byte(strings.Repeat("x", 50_000))
		if err := s.Append(t.Context(), stream, 1, b); err != nil {
			t.Fatal(err)
		}
		wrote += len(b)
	}
	if n := s.Unflushed(); n > most+1<<10 {
		t.Errorf("%d bytes are spooled, the bound is %d", n, most)
	}
	n, err := s.EndGap(t.Context())
	if err != nil || n != s.Left() {
		t.Fatalf("%d, %d left out, %v", n, s.Left(), err)
	}
	if err := s.Event(t.Context(), 0, map[string]any{"event": "end"}); err != nil {
		t.Fatal(err)
	}
	kept, seq, agent, events := 0, uint64(1), 0, []string{}
	var gap Gap
	for f, err := range s.Tail(t.Context(), 1, false) {
		if err != nil || f.Seq != seq {
			t.Fatalf("frame %d where %d is due: %v", f.Seq, seq, err)
		}
		seq++
		switch f.Stream {
		case Agent:
			agent++
		case Structured:
			var g Gap
			if err := json.Unmarshal(f.Bytes, &g); err != nil {
				t.Fatal(err)
			}
			if events = append(events, g.Event); g.Event == "gap" {
				gap = g
			}
		default:
			kept += len(f.Bytes)
		}
	}
	if gap.Bytes == 0 || kept+int(gap.Bytes) != wrote || gap.Why != GapBound {
		t.Errorf("%d kept and %+v of %d", kept, gap, wrote)
	}
	if agent != 1 || strings.Join(events, " ") != "gap end" {
		t.Errorf("%d words of the runner, events %v", agent, events)
	}
}

// A log that is flushed while it is written fills its parts, however the looks fall: the parts
// that a job's record names hold what its bound promises, and the end is in one of them. So
// it is too where a quiet beginning has used up most of the parts.
func TestPartsOfALog(t *testing.T) {
	const parts, quiet = 30, 8
	s, st := open(t, Config{Most: 64 << 20, Parts: parts}), store(t)
	for range quiet {
		add(t, s, "now and then")
		if _, err := s.Flush(t.Context(), st); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 48<<10)
	for i := 0; s.Left() == 0; i++ {
		if err := s.Append(t.Context(), Stdout, 1, b); err != nil {
			t.Fatal(err)
		}
		if i%21 == 0 { // each MiB or so
			if _, err := s.FlushFull(t.Context(), st); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range s.Chunks()[quiet:] {
		if c.Size < fullBytes {
			t.Errorf("a part of %d bytes", c.Size)
		}
	}
	if _, err := s.EndGap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Event(t.Context(), 0, map[string]any{"event": "end"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Flush(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Chunks()); n > parts-endParts+1 || n < parts-endParts-1 || s.Flushed() != s.Last() {
		t.Errorf("%d parts of %d, %d of %d frames", n, parts, s.Flushed(), s.Last())
	}
}

// Without a bound, and within one, nothing is left out and nothing is said of it.
func TestWithinTheBound(t *testing.T) {
	for _, most := range []int64{0, 1 << 20} {
		s := open(t, Config{Most: most})
		add(t, s, strings.Repeat("x", 500_000))
		if n, err := s.EndGap(t.Context()); n != 0 || err != nil || s.Left() != 0 || len(read(t, s, 1)) != 500_000 {
			t.Errorf("bound %d: %d left out, %v", most, n, err)
		}
	}
}
