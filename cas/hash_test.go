package cas_test

import (
	"encoding/hex"
	"testing"

	second "lukechampine.com/blake3"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// pattern is the input of BLAKE3's published test vectors: 0, 1, ... 250, 0, ...
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

// What b3sum prints. The last one, above a block, was computed from the
// specification by a program that shares no code with either library.
func TestSumIsB3sum(t *testing.T) {
	for _, c := range []struct {
		in   []byte
		want string
	}{
		{nil, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
		{[]byte("abc"), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"},
		{pattern(102400), "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
		{pattern(1<<20 + 12345), "7a7e1c6a800e0cfbd45304d16a3544d5d55e2a723a11fc021bf9fb45ee8c1472"},
	} {
		if got := cas.Sum(c.in); got.Hex() != c.want {
			t.Errorf("%d bytes: %s, want %s", len(c.in), got.Hex(), c.want)
		}
	}
	if cas.Empty() != cas.Sum([]byte{}) {
		t.Error("Empty is not the name of nothing")
	}
}

func TestTwoLibrariesAgree(t *testing.T) {
	in := pattern(3<<20 + 17)
	for _, n := range []int{0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 8191, 8192, 8193, 1 << 16, 1 << 20, 1<<20 + 1, len(in)} {
		want := forgeyard.Digest(second.Sum256(in[:n]))
		h := cas.NewHasher()
		for at := 0; at < n; at += 777 {
			_, _ = h.Write(in[at:min(n, at+777)])
		}
		if cas.Sum(in[:n]) != want || h.Sum() != want {
			t.Errorf("%d bytes: %s and %s, the other library says %s", n, cas.Sum(in[:n]), h.Sum(), hex.EncodeToString(want[:]))
		}
	}
}

func TestHasherGoesOnAfterSum(t *testing.T) {
	h := cas.NewHasher()
	_, _ = h.Write([]byte("a"))
	if h.Sum() != cas.Sum([]byte("a")) {
		t.Fatal("first")
	}
	_, _ = h.Write([]byte("bc"))
	if h.Sum() != cas.Sum([]byte("abc")) {
		t.Fatal("second")
	}
	h.Reset()
	if h.Sum() != cas.Empty() {
		t.Fatal("reset")
	}
}

func FuzzTwoLibraries(f *testing.F) {
	f.Add([]byte("abc"), 1)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		h := cas.NewHasher()
		cut = max(0, min(cut, len(b)))
		_, _ = h.Write(b[:cut])
		_, _ = h.Write(b[cut:])
		if want := forgeyard.Digest(second.Sum256(b)); cas.Sum(b) != want || h.Sum() != want {
			t.Fatalf("%x", b)
		}
	})
}
