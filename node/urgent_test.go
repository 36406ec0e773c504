package node

import (
	"testing"

	"github.com/forgeyard/forgeyard-node/cas"
)

// What is fetched for a checkpoint's pin overtakes, and for no other's.
func TestCheckpointPins(t *testing.T) {
	for owner, want := range map[string]bool{
		checkpointPin("J1", cas.Empty()): true, "job/J1/outputs": false, "person/me/x": false, "attempt/J1/checkpoint/1": false, "job/checkpoint/": false, "": false,
	} {
		if isCheckpointPin(owner) != want {
			t.Errorf("%q", owner)
		}
	}
}
