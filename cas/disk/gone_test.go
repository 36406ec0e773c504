package disk

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// The list of what is lost holds the index while it is read, and whoever exchanges the index
// waits for that: so nothing asks the index a second time meanwhile.
func TestLostWaitsForNobody(t *testing.T) {
	s, err := Open(Config{Dir: t.TempDir(), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	err = s.update(func(u *update) error {
		for i := range 5000 {
			u.bury(cas.Sum(binary.LittleEndian.AppendUint64(nil, uint64(i))), s.tombstone(record{Size: 1}, goneDamaged))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			lost, err := s.Lost(context.Background(), forgeyard.Digest{}, 5000)
			if err != nil {
				return // it is closed
			}
			if len(lost) != 5000 {
				t.Errorf("%d are lost", len(lost))
			}
			if n == 0 {
				close(begun)
			}
		}
	}()
	<-begun
	closed := make(chan error, 1)
	go func() { closed <- s.idx.Close() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the list and the closing wait for each other")
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	_ = s.Close() // its index is closed already; after a failure above it would not end
}
