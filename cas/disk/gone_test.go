package disk

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/castest"
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

// What comes again is gone no more: of what is put, alone or among many, the tombstones go, and
// those of others stay.
func TestPutEndsTombstones(t *testing.T) {
	s, err := Open(Config{Dir: t.TempDir(), NoSync: true, Reserve: -1, ReserveInodes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	all := [][]byte{[]byte("small"), []byte("among many"), make([]byte, 100_000), []byte("stays away")}
	err = s.update(func(u *update) error {
		for _, b := range all {
			u.bury(cas.Sum(b), s.tombstone(record{Size: int64(len(b))}, goneDamaged))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	castest.Put(t, s, all[0])
	castest.Put(t, s, all[2])
	castest.Put(t, s, []byte("never was here"))
	many := []cas.Small{{Bytes: all[1]}, {Bytes: []byte("nor was this")}}
	s.PutMany(t.Context(), many, cas.PutOptions{})
	if many[0].Err != nil || many[1].Err != nil {
		t.Fatal(many[0].Err, many[1].Err)
	}
	for i, b := range all {
		d := cas.Sum(b)
		if _, gone := s.row(tGone, d[:]); gone != (i == 3) {
			t.Errorf("object %d has a tombstone: %v", i, gone)
		}
	}
}
