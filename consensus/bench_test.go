package consensus

import (
	"fmt"
	"sync"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// BenchmarkPropose commits 256-byte commands on three nodes in this process,
// real databases and synced writes on one disk, streams in memory.
func BenchmarkPropose(b *testing.B) {
	for _, clients := range []int{1, 16, 128} {
		for _, store := range []LogStore{BoltDB, WAL} {
			for _, batches := range []bool{false, true} {
				b.Run(fmt.Sprint("clients=", clients, "/store=", store, "/batches=", batches), func(b *testing.B) { benchPropose(b, clients, store, batches) })
			}
		}
	}
}

func benchPropose(b *testing.B, clients int, store LogStore, batches bool) {
	tn := newTown(b, 3, nil, func(_ int, c *Config) {
		c.Clock = clock.System()
		c.Timings = Timings{}
		c.LogStore = store
		c.Batches = func() bool { return batches }
	})
	tn.start()
	g, data := tn.nodes[0].g, make([]byte, 256)
	b.ResetTimer()
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for range (b.N + clients - 1 - c) / clients {
				if _, err := g.Propose(bg, data); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// BenchmarkConfirm is a renewal batch: no disk.
func BenchmarkConfirm(b *testing.B) {
	tn := newTown(b, 3, nil, func(_ int, c *Config) {
		c.Clock = clock.System()
		c.Timings = Timings{}
	})
	tn.start()
	b.ResetTimer()
	for range b.N {
		if _, err := tn.nodes[0].g.Confirm(bg); err != nil {
			b.Fatal(err)
		}
	}
}
