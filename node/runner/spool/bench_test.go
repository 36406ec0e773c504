package spool

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/internal/clock"
)

// BenchmarkLog is what a log passes through on its way (RA-464): 1 MiB is framed, summed,
// written and brought into the store.
func BenchmarkLog(b *testing.B) {
	st, err := disk.Open(disk.Config{Dir: b.TempDir(), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	s, err := Open(Config{Dir: filepath.Join(b.TempDir(), "s"), Epoch: 1, Clock: clock.System()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	line := bytes.Repeat([]byte("what a compiler says of each file\n"), MaxFrameBytes/34)
	b.SetBytes(16 * int64(len(line)))
	for b.Loop() {
		for range 16 {
			if err := s.Append(b.Context(), Stdout, 1, line); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := s.FlushFull(b.Context(), st); err != nil {
			b.Fatal(err)
		}
	}
}
