package capture

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// pieces gives a reader's bytes in pieces of the sizes that a fuzzer chose.
type pieces struct {
	b, sizes []byte
	i        int
}

func (p *pieces) Read(q []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	k := len(p.b)
	if len(p.sizes) > 0 {
		k = int(p.sizes[p.i%len(p.sizes)])%8 + 1
		p.i++
	}
	k = copy(q, p.b[:min(k, len(p.b))])
	p.b = p.b[k:]
	return k, nil
}

// FuzzScanner holds the scanner against its slow twin, bytes.Contains over the whole
// (K16), whatever pieces the bytes come in; and what it passes on is what came in.
func FuzzScanner(f *testing.F) {
	f.Add([]byte("a token=s3cret in it"), []byte("s3cret"), []byte("other"), []byte{1, 3})
	f.Add([]byte("s3crs3cret"), []byte("s3cret"), []byte("crs3"), []byte{4, 6})
	f.Add([]byte("nothing"), []byte("noth\r\n"), []byte{}, []byte{2})
	f.Fuzz(func(t *testing.T, text, one, two, sizes []byte) {
		n := newNeedles([][]byte{one, two})
		want := false
		for _, s := range n {
			want = want || bytes.Contains(text, s)
		}
		s := newScanner(&pieces{b: text, sizes: sizes}, n)
		out, err := io.ReadAll(s)
		if s.found != want || errors.Is(err, errSecret) != want {
			t.Fatalf("found %v, want %v in %q for %q", s.found, want, text, n)
		}
		if !want && !bytes.Equal(out, text) {
			t.Fatalf("passed on %q of %q", out, text)
		}
		for _, secret := range n {
			if bytes.Contains(out, secret) {
				t.Fatalf("gave the secret away: %q", out)
			}
		}
	})
}

func TestScannerPassesErrors(t *testing.T) {
	s := newScanner(iotest.DataErrReader(iotest.TimeoutReader(bytes.NewReader([]byte("abcdefgh")))), newNeedles([][]byte{[]byte("zzzz")}))
	if _, err := io.ReadAll(s); err != nil && !errors.Is(err, iotest.ErrTimeout) {
		t.Fatal(err)
	}
}
