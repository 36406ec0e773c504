package blake3

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	zeebo "github.com/zeebo/blake3"
)

// pattern is the input of BLAKE3's published test vectors: 0, 1, ... 250, 0, ...
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

// Published vectors (the first 32 bytes of each).
func TestPublishedVectors(t *testing.T) {
	for n, want := range map[int]string{
		0:      "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
		102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
	} {
		if got := Sum256(pattern(n)); hex.EncodeToString(got[:]) != want {
			t.Errorf("%d bytes: %x, want %s", n, got, want)
		}
	}
}

// At every size around which the code forks, at once and in pieces, it is what the other
// library computes.
func TestSizes(t *testing.T) {
	in := pattern(3<<20 + 1024)
	sizes := []int{1000 * ChunkSize, 1000*ChunkSize + 1, len(in)}
	for _, n := range []int{0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 127, 128, 129, 256, 257, 300, 512} {
		for _, more := range []int{-1025, -1, 0, 1, 63, 64, 65, 1023} {
			if size := n*ChunkSize + more; size >= 0 {
				sizes = append(sizes, size)
			}
		}
	}
	for _, n := range sizes {
		want := zeebo.Sum256(in[:n])
		if got := Sum256(in[:n]); got != want {
			t.Fatalf("%d bytes: %x, want %x", n, got, want)
		}
		for _, step := range []int{777, unit, unit + 1, 100_000, 1 << 20} {
			var h Hasher
			for at := 0; at < n; at += step {
				_, _ = h.Write(in[at:min(n, at+step)])
			}
			for range 2 { // it changes nothing
				if got := h.Sum(); got != want {
					t.Fatalf("%d bytes by %d: %x, want %x", n, step, got, want)
				}
			}
		}
	}
}

// The kernel that is used here is the plain one, for counters of every size.
func TestKernels(t *testing.T) {
	if !Wide() {
		t.Log("nothing is compared: this CPU has no AVX-512, and TestSizes holds the plain kernel against the other library")
		return
	}
	r := rand.New(rand.NewPCG(1, 2))
	in := make([]byte, unit)
	for range 50 {
		for i := range in {
			in[i] = byte(r.Uint32())
		}
		var wide, plain level
		counter := (r.Uint64() >> r.IntN(60)) &^ (lanes - 1)
		at := r.IntN(maxChunks/lanes) * lanes
		chunks(in, counter, &wide, at)
		chunksPlain(in, counter, &plain, at)
		if wide != plain {
			t.Fatalf("chunks from %d differ", counter)
		}
		for i := range wide {
			for k := range wide[i] {
				wide[i][k] = r.Uint32()
			}
		}
		plain = wide
		at = r.IntN(maxChunks/lanes/2) * lanes
		parents(&wide, at)
		parentsPlain(&plain, at)
		if wide != plain {
			t.Fatalf("parents at %d differ", at)
		}
	}
}

// The parts of a whole, made in any order, are its hash, and each comes with that of its bytes.
func TestParts(t *testing.T) {
	in := pattern(9*64*ChunkSize + 3*ChunkSize)
	for _, per := range []int{1, 16, 32, 64} {
		size := per * ChunkSize
		for _, n := range []int{size + 1, 2 * size, 2*size + 1, 3*size - 1, 4 * size, 5*size + 17*ChunkSize%size + 3, 7*size + size/2, len(in)} {
			var parts []Part
			for at := 0; at < n; at += size {
				b := in[at:min(n, at+size)]
				sum, part := SumAt(b, uint64(at/ChunkSize))
				if sum != zeebo.Sum256(b) {
					t.Fatalf("the part at %d of %d bytes has another name than its bytes", at, n)
				}
				parts = append(parts, part)
			}
			if got, want := Join(parts), zeebo.Sum256(in[:n]); got != want {
				t.Fatalf("%d parts of %d chunks over %d bytes: %x, want %x", len(parts), per, n, got, want)
			}
		}
	}
	// A number that needs more than 32 bits, as it is far inside a large whole.
	b := in[:5*unit+7]
	_, got := SumAt(b, 1<<40)
	h := tree{first: 1 << 40}
	rest := b[h.whole(b):]
	if n := h.top(rest); got != n.chain() {
		t.Fatal("the number of a chunk is cut")
	}
}

func FuzzSum(f *testing.F) {
	f.Add([]byte("abc"), 1, 40)
	f.Fuzz(func(t *testing.T, b []byte, cut, times int) {
		for range max(0, min(times, 100)) {
			b = append(b, b[:min(len(b), 4096)]...)
		}
		var h Hasher
		cut = max(0, min(cut, len(b)))
		_, _ = h.Write(b[:cut])
		_, _ = h.Write(b[cut:])
		if want := zeebo.Sum256(b); Sum256(b) != want || h.Sum() != want {
			t.Fatalf("%d bytes, cut at %d", len(b), cut)
		}
	})
}

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20} {
		in := pattern(n)
		for name, f := range map[string]func([]byte) [32]byte{"ours": Sum256, "zeebo": zeebo.Sum256} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, n>>10), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f(in)
				}
			})
		}
	}
}

// Both hashes of a block: one after the other, and together.
func BenchmarkBoth(b *testing.B) {
	in := pattern(256 << 20)
	const size = 1 << 20
	var h Hasher
	for name, f := range map[string]func(p []byte){
		"apart": func(p []byte) { Sum256(p); _, _ = h.Write(p) }, "together": func(p []byte) { SumAt(p, 1<<10) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			for at := 0; b.Loop(); at = (at + size) % len(in) {
				f(in[at : at+size])
			}
		})
	}
}
