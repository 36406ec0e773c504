package cas

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// chunks cuts all of b, from a reader's window that holds Most bytes.
func chunks(c Chunking, b []byte) (out [][]byte) {
	for len(b) > 0 {
		n := c.Next(b[:min(len(b), c.Most)])
		out = append(out, b[:n])
		b = b[n:]
	}
	return out
}

// The published vectors: somebody else's chunks of the same file are these.
func TestFastCDCVectors(t *testing.T) {
	picture, err := os.ReadFile("testdata/fastcdc/akashita.jpg")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("testdata/fastcdc/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, at, n := chunks(Chunking{4096, 16384, 65535}, picture), 0, 0
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		if n == len(got) {
			t.Fatalf("%d chunks, more are published", n)
		}
		if line := fmt.Sprintf("%d %d %x", at, len(got[n]), sha256.Sum256(got[n])); line != s.Text() {
			t.Errorf("chunk %d is %s, published is %s", n, line, s.Text())
		}
		at += len(got[n])
		n++
	}
	if n == 0 || n != len(got) {
		t.Errorf("%d chunks, %d are published", len(got), n)
	}
}

func random(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

// An insertion in the middle costs the chunks around it; blocks of one size all change
// from there on.
func TestChunksSurviveAnInsertion(t *testing.T) {
	was := random(1, 64<<20)
	is := append(append(append([]byte(nil), was[:20<<20]...), "a few bytes more"...), was[20<<20:]...)
	had := map[[32]byte]bool{}
	for _, c := range chunks(ByContent, was) {
		had[Sum(c)] = true
	}
	all, fresh := 0, 0
	for _, c := range chunks(ByContent, is) {
		all++
		if !had[Sum(c)] {
			fresh++
		}
	}
	if all < 64 || fresh > 3 {
		t.Errorf("%d of %d chunks are new", fresh, all)
	}
}

// Whatever the bytes, chunks keep their bounds, lose nothing, and are the same for everybody.
func FuzzChunks(f *testing.F) {
	f.Add(random(2, 5000), byte(6))
	f.Add(bytes.Repeat([]byte{0}, 9000), byte(8))
	f.Fuzz(func(t *testing.T, b []byte, log byte) {
		avg := 64 << (log % 10)
		c := Chunking{avg / 4, avg, avg * 4}
		got := chunks(c, b)
		if !bytes.Equal(bytes.Join(got, nil), b) {
			t.Fatal("bytes are lost")
		}
		for i, k := range got {
			if len(k) == 0 || len(k) > c.Most || len(k) < c.Least && i < len(got)-1 {
				t.Fatalf("chunk %d of %d has %d bytes", i, len(got), len(k))
			}
		}
	})
}

func BenchmarkChunks(b *testing.B) {
	data := random(3, 64<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		chunks(ByContent, data)
	}
}
