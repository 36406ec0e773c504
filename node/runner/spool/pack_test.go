package spool

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
)

// frames reads a chunk of the store.
func frames(t *testing.T, st cas.Store, c job.LogChunk) (text string, first, last uint64) {
	t.Helper()
	o, err := st.Open(t.Context(), c.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for f, err := range DecodeFrames(o) {
		if err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = f.Seq
		}
		text, last = text+string(f.Bytes), f.Seq
	}
	return text, first, last
}

// RA-054, RA-247: a log is stored packed where all can read it, part by part with the same
// numbers and the same words; before that, and where packing brings nothing, as it stands.
func TestPackedParts(t *testing.T) {
	all := false
	s, st := open(t, Config{Pack: func() bool { return all }}), store(t)
	flush := func() job.LogChunk {
		t.Helper()
		got, err := s.Flush(t.Context(), st)
		if err != nil || len(got) != 1 {
			t.Fatalf("%v %v", got, err)
		}
		return got[0]
	}
	words := func(from int) (text string) {
		for i := range 2000 {
			line := fmt.Sprintf("[%d] compiling package number %d\n", from+i, i)
			add(t, s, line)
			text += line
		}
		return text
	}
	for i, c := range []struct {
		all   bool
		write func() string
		small bool
	}{
		{false, func() string { return words(0) }, false},
		{true, func() string { return words(5000) }, true},
		{true, func() string { b := make([]byte, 50_000); _, _ = rand.Read(b); add(t, s, string(b)); return string(b) }, false},
	} {
		all = c.all
		want, next := c.write(), s.Flushed()+1
		k := flush()
		text, first, last := frames(t, st, k)
		if text != want || first != next || first != k.FirstSeq || last != k.LastSeq || last != s.Last() {
			t.Errorf("part %d: frames %d to %d of %+v, %d bytes of %d", i, first, last, k, len(text), len(want))
		}
		if small := k.Size < int64(len(want))/4; small != c.small {
			t.Errorf("part %d: %d bytes for %d", i, k.Size, len(want))
		}
	}
}

// The bytes of version 2 open for ever. What zstd writes today may be other bytes.
func TestVersion2(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "version2.fylog"))
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(7)
	for f, err := range DecodeFrames(bytes.NewReader(b)) {
		if err != nil || f.Seq != seq || f.At != 1_700_000_000_000 || f.Stream != Stderr || f.Epoch != 3 || f.Step != 2 || string(f.Bytes) != "kept\n" {
			t.Errorf("%+v %v", f, err)
		}
		seq++
	}
	if seq != 27 {
		t.Errorf("the last frame is %d", seq-1)
	}
}

func version2() []byte {
	b := bytes.Clone(header)
	for i := range uint64(20) {
		b = appendFrame(b, &Frame{Seq: 7 + i, At: 1_700_000_000_000, Stream: Stderr, Epoch: 3, Step: 2, Bytes: []byte("kept\n")})
	}
	return pack(b)
}

// RA-474: a packed part that was damaged, cut, or made to unfold without end is corrupt, and no
// segment is ever packed.
func TestPackedIsChecked(t *testing.T) {
	good := version2()
	kindOf := func(b []byte) (kind forgeyard.Kind, frames int) {
		for _, err := range DecodeFrames(bytes.NewReader(b)) {
			if err != nil {
				return forgeyard.KindOf(err), frames
			}
			frames++
		}
		return 0, frames
	}
	if kind, n := kindOf(good); kind != 0 || n != 20 {
		t.Fatalf("%v after %d", kind, n)
	}
	for i := headerSize; i < len(good); i++ {
		b := bytes.Clone(good)
		b[i] ^= 0x10
		if kind, n := kindOf(b); kind != forgeyard.Corrupt && (kind != 0 || n != 20) {
			t.Errorf("byte %d damaged: %v after %d frames", i, kind, n)
		}
		if kind, _ := kindOf(good[:i]); i > headerSize && kind != forgeyard.Corrupt {
			t.Errorf("cut at %d: %v", i, kind)
		}
	}
	e, err := zstd.NewWriter(nil, zstd.WithWindowSize(packWindow))
	if err != nil {
		t.Fatal(err)
	}
	var bomb []byte
	for i := range uint64(40) {
		bomb = appendFrame(bomb, &Frame{Seq: i + 1, Stream: Stdout, Bytes: make([]byte, MaxFrameBytes)})
	}
	if kind, n := kindOf(e.EncodeAll(bomb, bytes.Clone(packedHeader))); kind != forgeyard.Corrupt || n > chunkBytes/MaxFrameBytes {
		t.Errorf("a bomb: %v after %d frames", kind, n)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%020d.log", 7)), good, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := open(t, Config{Dir: dir}); s.Last() != 0 {
		t.Errorf("a packed segment was read up to %d", s.Last())
	}
	if l, err := filepath.Glob(filepath.Join(dir, "*.damaged")); err != nil || len(l) != 1 || !strings.HasSuffix(l[0], ".log.damaged") {
		t.Errorf("%v %v", l, err)
	}
}
