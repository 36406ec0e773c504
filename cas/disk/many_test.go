package disk

import (
	"bytes"
	"context"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// C02: of objects that are read together, one whose bytes in the index are not its own, one
// whose bytes are too few and one whose bytes are gone are passed over, and cost the others
// nothing; by itself each is an error.
func TestC02DamagedAmongMany(t *testing.T) {
	ctx := context.Background()
	s, err := Open(Config{Dir: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	objects := make([]cas.Small, 20)
	names := make([]forgeyard.Digest, len(objects))
	for i := range objects {
		objects[i].Bytes = bytes.Repeat([]byte{byte(i + 1)}, 100)
		names[i] = cas.Sum(objects[i].Bytes)
	}
	s.PutMany(ctx, objects, cas.PutOptions{})
	err = s.update(func(u *update) error {
		u.put(tInline, bytes.Repeat([]byte{9}, 100), names[3][:])
		u.put(tInline, objects[4].Bytes[:50], names[4][:])
		u.drop(tInline, names[5][:])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	given := map[int]bool{}
	s.ReadMany(ctx, names, true, func(i int, b []byte) {
		if given[i] = true; cas.Sum(b) != names[i] {
			t.Errorf("object %d: wrong bytes were given", i)
		}
	})
	for i, d := range names {
		bad := i >= 3 && i <= 5
		if given[i] == bad {
			t.Errorf("object %d: given %v, damaged %v", i, given[i], bad)
		}
		if _, err := s.Block(ctx, d); (err != nil) != bad {
			t.Errorf("object %d by itself: %v", i, err)
		}
	}
}
