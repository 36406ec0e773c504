package forgeyard_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node"
)

// What is printed is what is read, and nothing else is: no shorter hex, no other case, no
// number with a sign or a leading zero.
func TestTextOfDigestsAndFences(t *testing.T) {
	const hex = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
	d, err := forgeyard.ParseDigest("b3:" + hex)
	if err != nil || d.String() != "b3:"+hex || d.Hex() != hex || d.Short() != "b3:af1349b9f5f9" {
		t.Fatalf("%s %v", d, err)
	}
	for _, bad := range []string{"", hex, "b3:", "b3:" + hex[1:], "b3:" + hex + "0", "B3:" + hex, "b3:AF" + hex[2:], "b3:zz" + hex[2:], "sha256:" + hex, "b3:" + string(make([]byte, 64)), "b3:0000000000000000000000000000000000000000000000000000000000000000"} {
		if _, err := forgeyard.ParseDigest(bad); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%.80q: %v", bad, err)
		}
	}
	f := forgeyard.Fence{Incarnation: 1, Epoch: 1<<64 - 1}
	if got, err := forgeyard.ParseFence(f.String()); err != nil || got != f {
		t.Errorf("%s: %s %v", f, got, err)
	}
	for _, bad := range []string{"", "1", "1.2", "1.2.3.4", "1..3", "+1.2.3", "01.2.3", "1.2.-3", "1.2.18446744073709551616", " 1.2.3", "1.2.3\n"} {
		if _, err := forgeyard.ParseFence(bad); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Fences are compared left to right.
func TestFenceOrder(t *testing.T) {
	order := []forgeyard.Fence{{}, {Epoch: 1}, {Epoch: 9}, {Term: 1}, {Term: 1, Epoch: 1}, {Term: 2}, {Incarnation: 1}, {Incarnation: 1, Term: 1, Epoch: 1}, {Incarnation: 2}}
	for i, a := range order {
		for k, b := range order {
			want := 0
			if i < k {
				want = -1
			} else if i > k {
				want = 1
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%s against %s: %d, want %d", a, b, got, want)
			}
		}
	}
}

// All voters name the same thing the same; two things of one entry, or of two entries,
// have two names, in the order of their birth.
func TestDerivedIDs(t *testing.T) {
	at := time.UnixMilli(1_800_000_000_000)
	seen := map[string]bool{}
	last := ""
	for index := range uint64(40) {
		for n := range uint16(5) {
			id := forgeyard.DeriveULID(at, index, n)
			if err := forgeyard.CheckULID("id", id); err != nil {
				t.Fatal(err)
			}
			if id != forgeyard.DeriveULID(at, index, n) || seen[id] || id <= last {
				t.Fatalf("index %d, %d: %s after %s", index, n, id, last)
			}
			seen[id], last = true, id
		}
	}
	for _, bad := range []string{"", "x", last[1:], last + "0", "../../etc/passwd/../../../ab", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"} {
		if err := forgeyard.CheckULID("id", bad); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseDigest(f *testing.F) {
	f.Add("b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262")
	f.Add("b3:")
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := forgeyard.ParseDigest(s); err == nil && (d.String() != s || d.IsZero()) {
			t.Fatalf("%q is read as %s", s, d)
		}
	})
}

func FuzzParseFence(f *testing.F) {
	f.Add("1.0.2")
	f.Add("..")
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := forgeyard.ParseFence(s); err == nil && v.String() != s {
			t.Fatalf("%q is read as %s", s, v)
		}
	})
}

// A text is cut between letters, and is a text whatever it was.
func TestClipKeepsLetters(t *testing.T) {
	for _, s := range []string{strings.Repeat("щ", 40), strings.Repeat("a", 40), "a" + strings.Repeat("工", 40), "ab\xff\xfecd", forgeyard.Clip(strings.Repeat("x", 50), 20)} {
		for n := range 45 {
			got := forgeyard.Clip(s, n)
			if !utf8.ValidString(got) || len(got) > n+2*len("…") && len(s) > n {
				t.Errorf("%q at %d: %q", s, n, got)
			}
		}
	}
}
