package consensus

import (
	"testing"
	"testing/synctest"
	"time"
)

// A leader that is drained or stops in order hands over: the site is without one for far
// less than the silence that an election waits for.
func TestHandOverCostsLessThanAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		old := tn.nodes[0]
		tn.put(old, "before")
		start := time.Now()
		if err := old.g.Transfer(bg, ""); err != nil {
			t.Fatal(err)
		}
		next := tn.awaitLeader(tn.without(old)...)
		gap := time.Since(start)
		t.Logf("handed over in %v; a follower waits %v to %v before it stands", gap, quick().Heartbeat, 2*quick().Heartbeat)
		if gap >= quick().Heartbeat/2 {
			t.Fatalf("the gap is %v, no better than an election", gap)
		}
		old.close()
		tn.put(next, "after")
		tn.stop()
	})
}
