package content

import (
	"context"
	"crypto/sha256"
	"os"
	"strings"
	"time"

	lukechampine "lukechampine.com/blake3"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/internal/bench/party"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
)

var hashSizes = []struct {
	name string
	size int
}{{"4KiB", 4 << 10}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}}

func otherSum(b []byte) [32]byte { return lukechampine.Sum256(b) }

func sha256Sum(b []byte) [32]byte { return sha256.Sum256(b) }

// cpuName is the machine's processor with those of its features that hashes use.
func cpuName() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "an unknown CPU"
	}
	name, has := "a CPU without a name", []string{}
	for line := range strings.Lines(string(text)) {
		k, v, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(k) {
		case "model name":
			name = strings.TrimSpace(v)
		case "flags", "Features":
			has = has[:0]
			for _, f := range strings.Fields(v) {
				switch f {
				case "sse4_1", "avx2", "avx512f", "sha_ni", "asimd", "sha2":
					has = append(has, f)
				}
			}
		}
	}
	return name + " (" + strings.Join(has, " ") + ")"
}

// hashes compares the hash function that names everything with the other library, at the
// sizes that occur: small objects, pieces of a disk read, blocks.
func (b *Bench) hashes(ctx context.Context) error {
	for _, h := range hashSizes {
		in := make([]byte, h.size)
		_, _ = (&party.Noise{X: 3}).Read(in)
		var all []float64
		for i := range b.Rounds {
			if err := ctx.Err(); err != nil {
				return err
			}
			own := perSecond(h.size, func() { _ = cas.Sum(in) })
			other := perSecond(h.size, func() { _ = otherSum(in) })
			sha := perSecond(h.size, func() { _ = sha256Sum(in) })
			b.Say("%s hashed, round %d: ours %.0f MB/s, the other library %.0f, SHA-256 %.0f, a second of CPU; %s; load %s", h.name, i+1, own/1e6, other/1e6, sha/1e6, cpuName(), report.Load())
			all = append(all, own/other)
		}
		b.Add(report.Measured("content.hash_"+h.name+"_vs_other_library", report.Ratio, 1, all).AtLeast())
	}
	return nil
}

// perSecond is how many bytes f takes in a second of CPU time: the other library uses
// several cores for a large piece, and the store has other blocks for them.
func perSecond(size int, f func()) float64 {
	n, began := 0, time.Now()
	before, _ := party.OwnUsage()
	for time.Since(began) < 200*time.Millisecond {
		f()
		n += size
	}
	after, _ := party.OwnUsage()
	return float64(n) / (after - before)
}
