package main

import (
	"slices"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/mesh"
)

// A node that was removed is listed while its vote counts, and another may have its name:
// nothing is sealed for it.
func TestRecipients(t *testing.T) {
	member := func(id, name, state string) *forgeyardv1.Member {
		key, err := mesh.NewIdentity()
		if err != nil {
			t.Fatal(err)
		}
		return &forgeyardv1.Member{RunnerId: id, Name: name, State: state, PeerId: key.PeerID().String()}
	}
	all := []*forgeyardv1.Member{member("R1", "bench-1", "online"), member("R2", "bench-2", "removed"), member("R3", "bench-2", "online")}
	for _, c := range []struct{ named, want []string }{
		{nil, []string{"R1", "R3"}}, {[]string{"bench-2"}, []string{"R3"}}, {[]string{"R1"}, []string{"R1"}},
	} {
		ids, keys, err := recipients(all, c.named)
		if err != nil || !slices.Equal(ids, c.want) || len(keys) != len(ids) {
			t.Errorf("%v: %v, %d keys, %v", c.named, ids, len(keys), err)
		}
	}
	for _, gone := range []string{"R2", "bench-9"} {
		if _, _, err := recipients(all, []string{gone}); forgeyard.KindOf(err) != forgeyard.NotFound {
			t.Errorf("%s: %v", gone, err)
		}
	}
}
