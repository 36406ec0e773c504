package consensus

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// foresight is a notebook that notes what it is given to prepare.
type foresight struct {
	*notebook
	mu       sync.Mutex
	prepared []string
	refuses  string
}

func (f *foresight) Prepare(e Entry) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if string(e.Data) == f.refuses {
		return false
	}
	f.prepared = append(f.prepared, string(e.Data))
	return true
}

func (f *foresight) has(data ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Equal(f.prepared, data)
}

func foreseeing(t *testing.T) (*town, []*foresight) {
	all := make([]*foresight, 3)
	tn := newTown(t, 3, newWire(time.Second))
	for i, r := range tn.nodes {
		all[i] = &foresight{}
		r.foresight = all[i]
	}
	tn.start()
	return tn, all
}

// While the leader's disk writes, its state machine prepares: what is not committed yet is
// not applied. Followers prepare nothing.
func TestALeaderPreparesWhileItWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, fsm := foreseeing(t)
		old := tn.nodes[0]
		tn.awaitApplied(tn.put(old, "one"), tn.nodes...)
		hang := make(chan struct{})
		old.fault.set(nil, hang)
		got := make(chan error, 1)
		go func() { _, err := old.g.Propose(bg, []byte("two")); got <- err }()
		until(t, "it to be prepared", func() bool { return fsm[0].has("one", "two") })
		time.Sleep(100 * time.Millisecond)
		if old.fsm.has("two") {
			t.Error("it is applied, and is not on the leader's disk")
		}
		old.fault.set(nil, nil)
		close(hang)
		if err := <-got; err != nil {
			t.Error(err)
		}
		tn.awaitApplied(tn.put(old, "three"), tn.nodes...)
		if !fsm[0].has("one", "two", "three") || !fsm[1].has() || !fsm[2].has() {
			t.Errorf("prepared: %q, %q, %q", fsm[0].prepared, fsm[1].prepared, fsm[2].prepared)
		}
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}

// Behind an entry that could not be prepared nothing is, until that one is applied: what it
// would be applied to is not known.
func TestNothingIsPreparedBehindAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, fsm := foreseeing(t)
		old := tn.nodes[0]
		tn.awaitApplied(tn.put(old, "one"), tn.nodes...)
		fsm[0].mu.Lock()
		fsm[0].refuses = "two"
		fsm[0].mu.Unlock()
		hang := make(chan struct{})
		old.fault.set(nil, hang)
		got := make(chan error, 2)
		for _, data := range []string{"two", "three"} {
			go func() { _, err := old.g.Propose(bg, []byte(data)); got <- err }()
			until(t, "it to be ahead", func() bool { return indexOf(t, old, data) > 0 })
		}
		time.Sleep(100 * time.Millisecond)
		old.fault.set(nil, nil)
		close(hang)
		if err := errors.Join(<-got, <-got); err != nil {
			t.Error(err)
		}
		tn.awaitApplied(tn.put(old, "four"), tn.nodes...)
		if !fsm[0].has("one", "four") {
			t.Errorf("prepared: %q", fsm[0].prepared)
		}
		tn.stop()
	})
}

// A leader that is deposed has prepared what is never applied, and goes on as a follower.
func TestPreparedAndLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, fsm := foreseeing(t)
		old := tn.nodes[0]
		tn.awaitApplied(tn.put(old, "one"), tn.nodes...)
		tn.wire.isolate(old.id, true)
		got := make(chan error, 1)
		go func() { _, err := old.g.Propose(bg, []byte("lost")); got <- err }()
		until(t, "it to be prepared", func() bool { return fsm[0].has("one", "lost") })
		leader := tn.awaitLeader(tn.without(old)...)
		tn.put(leader, "two")
		tn.wire.heal()
		if err := <-got; forgeyard.KindOf(err) != forgeyard.Unknown {
			t.Errorf("%v", err)
		}
		tn.awaitApplied(tn.put(leader, "three"), tn.nodes...)
		if old.fsm.has("lost") {
			t.Error("what was prepared was applied")
		}
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}
