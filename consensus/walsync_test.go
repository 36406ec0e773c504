package consensus

import (
	"testing"

	"github.com/hashicorp/raft"
)

// BenchmarkAppend is one entry of 256 bytes, synced.
func BenchmarkAppend(b *testing.B) {
	for _, k := range []LogStore{BoltDB, WAL} {
		b.Run(string(k), func(b *testing.B) {
			d, err := openDisk(b.TempDir(), k, newHCLog(quiet()))
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			data := make([]byte, 256)
			b.ResetTimer()
			for i := range b.N {
				if err := d.StoreLog(&raft.Log{Index: uint64(i + 1), Term: 1, Data: data}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
