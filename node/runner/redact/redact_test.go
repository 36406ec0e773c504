package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"testing/iotest"
)

const pin = "s3cr+t/pin&%"

func through(s *Set, pieces ...string) string {
	var b bytes.Buffer
	w := NewWriter(&b, s)
	for _, p := range pieces {
		if n, err := w.Write([]byte(p)); err != nil || n != len(p) {
			panic(fmt.Sprint(n, err))
		}
	}
	if err := w.Flush(); err != nil {
		panic(err)
	}
	return b.String()
}

// RA-248: a value is taken out of a log in every spelling that is looked for, wherever it
// stands.
func TestSpellings(t *testing.T) {
	s := New(Value{"PIN", []byte(pin + "\n")})
	for name, text := range map[string]string{
		"as it is": pin, "hex": hex.EncodeToString([]byte(pin)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(pin))),
		"query": url.QueryEscape(pin), "path": url.PathEscape(pin), "json": fmt.Sprintf(`s3cr+t/pin\u0026%%`),
		"base64": base64.StdEncoding.EncodeToString([]byte(pin)), "base64 of the file": base64.StdEncoding.EncodeToString([]byte(pin + "\n")),
		"base64url": base64.URLEncoding.EncodeToString([]byte(pin)),
	} {
		got := through(s, "before "+text+" after\n")
		if got != "before [redacted PIN] after\n" {
			t.Errorf("%s: %q", name, got)
		}
	}
	for n := range 7 { // in the middle of a longer text
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", n) + pin + "yy"))
		if got := through(s, text); !strings.Contains(got, "[redacted PIN]") {
			t.Errorf("after %d bytes: %q", n, got)
		}
	}
}

// RA-248: base64 in lines, as coreutils and openssl write it, is the value still: of the value
// alone nothing but a short end is left, and in the midst of other text no line stays whole.
func TestBrokenBase64(t *testing.T) {
	raw := make([]byte, 100)
	for i := range raw {
		raw[i] = byte(i*167 + 13)
	}
	s := New(Value{"KEY", raw})
	lines := func(enc *base64.Encoding, b []byte, width int) string {
		var out strings.Builder
		for text := enc.EncodeToString(b); text != ""; text = text[min(width, len(text)):] {
			out.WriteString(text[:min(width, len(text))] + "\n")
		}
		return out.String()
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		for width, want := range map[int]string{76: strings.Repeat("[redacted KEY]\n", 2), 64: strings.Repeat("[redacted KEY]\n", 2) + lines(enc, raw, 64)[130:]} {
			if got := through(s, lines(enc, raw, width)); got != want {
				t.Errorf("%d wide: %q, not %q", width, got, want)
			}
			for before := range 100 {
				text := lines(enc, append(bytes.Repeat([]byte{'x'}, before), append(raw, "and more"...)...), width)
				if name, err := s.In(strings.NewReader(text)); name != "KEY" || err != nil {
					t.Errorf("%d wide, after %d bytes: %q %v", width, before, name, err)
				}
			}
		}
	}
}

// RA-248: the programs that break it do so where it is looked for.
func TestProgramsThatBreak(t *testing.T) {
	raw := bytes.Repeat([]byte("a key of 100 bytes, "), 5)
	s := New(Value{"KEY", raw})
	for _, argv := range [][]string{{"base64"}, {"base64", "-w64"}, {"openssl", "base64"}} {
		if _, err := exec.LookPath(argv[0]); err != nil {
			t.Logf("no %s here", argv[0])
			continue
		}
		c := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		c.Stdin = bytes.NewReader(raw)
		text, err := c.Output()
		if err != nil {
			t.Errorf("%v: %v", argv, err)
			continue
		}
		if got := through(s, string(text)); strings.Count(got, "[redacted KEY]\n") != 2 || strings.Contains(got, "YSBrZXkg") {
			t.Errorf("%v: %q of %q", argv, got, text)
		}
		if name, err := s.In(bytes.NewReader(text)); name != "KEY" || err != nil {
			t.Errorf("%v: %q %v", argv, name, err)
		}
	}
}

func TestLinesOfAKey(t *testing.T) {
	s := New(Value{"KEY", []byte("-----BEGIN X-----\nMIIBlongline1\nMIIBlongline2\nab\n")})
	got := through(s, "MIIBlongline2\nand ab\nMIIBlongline1 x")
	if got != "[redacted KEY]\nand ab\n[redacted KEY] x" {
		t.Errorf("%q", got)
	}
}

// RA-249: what is too short to be looked for is not, and says so nowhere: no promise is made.
func TestShortValuesStay(t *testing.T) {
	s := New(Value{"N", []byte("12345")})
	if got := through(s, "12345"); got != "12345" || !s.IsZero() {
		t.Errorf("%q", got)
	}
}

// A value that comes in pieces is found, and nothing waits that is the beginning of none.
func TestPieces(t *testing.T) {
	s := New(Value{"PIN", []byte("abcabcabd")})
	var b bytes.Buffer
	w := NewWriter(&b, s)
	for _, c := range []struct{ in, out string }{
		{"prompt> ", "prompt> "}, {"abcab", "prompt> "}, {"c", "prompt> "}, {"abd!", "prompt> [redacted PIN]!"}, {"abcX", "prompt> [redacted PIN]!abcX"},
	} {
		if _, err := w.Write([]byte(c.in)); err != nil || b.String() != c.out {
			t.Fatalf("after %q: %q (%v), not %q", c.in, b.String(), err, c.out)
		}
	}
}

func TestWipe(t *testing.T) {
	s := New(Value{"PIN", []byte(pin)})
	kept := s.needles[0].text
	s.Wipe()
	if !bytes.Equal(kept, make([]byte, len(kept))) || !s.IsZero() || through(s, pin) != pin {
		t.Error("the value is still there")
	}
}

func TestIn(t *testing.T) {
	s := New(Value{"PIN", []byte(pin)}, Value{"LONG", []byte(strings.Repeat("z", 100) + "!")})
	for text, want := range map[string]string{
		"nothing": "", "x" + pin: "PIN", strings.Repeat("z", 200): "", strings.Repeat("z", 70_000) + "!" + pin: "LONG", strings.Repeat("y", 65_530) + pin: "PIN",
	} {
		got, err := s.In(iotest.OneByteReader(strings.NewReader(text)))
		all, err2 := s.In(strings.NewReader(text))
		if got != want || all != want || err != nil || err2 != nil {
			t.Errorf("%.20q: %q and %q, not %q (%v %v)", text, got, all, want, err, err2)
		}
	}
}

// slow is the twin: the whole text at once, the longest needle at each place.
func slow(s *Set, t []byte) []byte {
	var out []byte
	for len(t) > 0 {
		hit := false
		for _, n := range s.needles {
			if bytes.HasPrefix(t, n.text) {
				out, t, hit = append(out, n.word...), t[len(n.text):], true
				break
			}
		}
		if !hit {
			out, t = append(out, t[0]), t[1:]
		}
	}
	return out
}

// FuzzWriter holds the stream against its twin, whatever pieces it comes in.
func FuzzWriter(f *testing.F) {
	f.Add([]byte("a token=s3cret in it"), []byte("s3cret"), []byte("token=s3"), []byte{1, 3})
	f.Add([]byte("aaaaaaaaaaab"), []byte("aaaaaab"), []byte("aaaaaa"), []byte{4, 6})
	f.Add([]byte("xabcabcabdx"), []byte("abcabd"), []byte("cabcab"), []byte{2})
	f.Add([]byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("long"), 20))[3:70]), bytes.Repeat([]byte("long"), 20), []byte("bG9uZ2xv"), []byte{7})
	f.Fuzz(func(t *testing.T, text, one, two, sizes []byte) {
		s := New(Value{"A", one}, Value{"B", two})
		var pieces []string
		for i, left := 0, text; len(left) > 0; i++ {
			n := len(left)
			if len(sizes) > 0 {
				n = min(n, int(sizes[i%len(sizes)])%8+1)
			}
			pieces, left = append(pieces, string(left[:n])), left[n:]
		}
		want := string(slow(s, text))
		if got := through(s, pieces...); got != want {
			t.Fatalf("%q of %q, not %q", got, text, want)
		}
		if got := s.Text(string(text)); got != want {
			t.Fatalf("whole: %q, not %q", got, want)
		}
		name, err := s.In(iotest.HalfReader(bytes.NewReader(text)))
		if err != nil || (name != "") != (want != string(text)) {
			t.Fatalf("%q is found in %q, which becomes %q: %v", name, text, want, err)
		}
	})
}

// BenchmarkWriter is what a log pays for 16 secrets, and for none.
func BenchmarkWriter(b *testing.B) {
	line := bytes.Repeat([]byte("2026-11-30T12:00:00Z compile step 17 of 300: ok, 12.5 ms\n"), 1100)[:60_000]
	for _, n := range []int{0, 1, 16} {
		var vs []Value
		for i := range n {
			vs = append(vs, Value{fmt.Sprint("S", i), fmt.Appendf(nil, "%d-a-rather-long-token-%d", i*7919, i)})
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := NewWriter(discard{}, New(vs...))
			b.SetBytes(int64(len(line)))
			for b.Loop() {
				if _, err := w.Write(line); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
