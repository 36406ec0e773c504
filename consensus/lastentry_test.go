package consensus

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// unreadable is a log whose entries cannot be read any more.
type unreadable struct{ diskStore }

func (unreadable) GetLog(uint64, *raft.Log) error { return errors.New("input/output error") }

// A log whose end cannot be read is an error, not an empty log that every other one beats:
// a forced recovery stops at it (E31).
func TestLastEntryIsNotGuessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := votersOf(t, 1)
		g := tn.nodes[0].g
		if _, last, err := g.LastEntry(); err != nil || last == 0 {
			t.Fatalf("%d %v", last, err)
		}
		good := g.in.store.disk
		g.in.store.disk = unreadable{good}
		_, last, err := g.LastEntry()
		_, tail := g.Tail(0)
		g.in.store.disk = good
		if err == nil || tail == nil {
			t.Errorf("ends at %d: %v, %v", last, err, tail)
		}
	})
}
