package consensus

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// A follower's word does not count before the leader's own disk has the entry. Were it to,
// a client would be told of a command that a power loss at the leader leaves on one disk.
func TestNothingCommitsAheadOfTheLeadersDisk(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded=", guarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn := newTown(t, 3, newWire(time.Second), func(_ int, c *Config) { c.off.ahead = !guarded })
				tn.start()
				old, witness, other := tn.nodes[0], tn.nodes[1], tn.nodes[2]
				tn.awaitApplied(tn.put(old, "one"), tn.nodes...)
				tn.wire.isolate(other.id, true)
				hang := make(chan struct{})
				old.fault.set(errors.New("no power"), hang)
				got := make(chan error, 1)
				go func() { _, err := old.g.Propose(bg, []byte("two")); got <- err }()
				until(t, "the follower to have it", func() bool { last, _ := witness.mem.LastIndex(); return last == indexOf(t, old, "two") })
				time.Sleep(500 * time.Millisecond)
				told := len(got) == 1
				if told == guarded {
					t.Errorf("answered while the leader's disk hangs: %v", told)
				}
				// The power goes: what hangs never reaches the leader's disk, and the one that
				// has the entry is cut off.
				tn.wire.isolate(old.id, true)
				tn.wire.isolate(witness.id, true)
				close(hang)
				until(t, "the leader to be down", func() bool { return old.saw(DiskFailed) })
				if err := <-got; told != (err == nil) || !told && forgeyard.KindOf(err) != forgeyard.Unknown {
					t.Errorf("told %v", err)
				}
				old.close()
				old.fault.set(nil, nil)
				old.open()
				tn.wire.heal()
				tn.wire.isolate(witness.id, true)
				leader := tn.awaitLeader(old, other)
				tn.awaitApplied(tn.put(leader, "three"), old, other)
				if leader.fsm.has("two") {
					t.Error("the entry is there: no power was lost, and this test shows nothing")
				}
				tn.stop()
			})
		})
	}
}

// indexOf is where the leader's log has a command, on its disk or ahead of it.
func indexOf(t *testing.T, r *resident, data string) uint64 {
	t.Helper()
	r.g.mu.Lock()
	s := r.g.in.store
	r.g.mu.Unlock()
	last, err := s.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for i := last; i > 0; i-- {
		var l raft.Log
		if err := s.GetLog(i, &l); err == nil && slices.Equal(l.Data, encodeCommand([]byte(data))) {
			return i
		}
	}
	return 0
}

// The leader's disk is slow, its followers' are not: they have an entry before it has.
func TestFollowersWriteWhileTheLeaderDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, newWire(time.Second))
		tn.start()
		old := tn.nodes[0]
		tn.awaitApplied(tn.put(old, "one"), tn.nodes...)
		hang := make(chan struct{})
		old.fault.set(nil, hang)
		got := make(chan error, 1)
		go func() { _, err := old.g.Propose(bg, []byte("two")); got <- err }()
		until(t, "both followers to have it", func() bool {
			a, _ := tn.nodes[1].mem.LastIndex()
			b, _ := tn.nodes[2].mem.LastIndex()
			own, _ := old.mem.LastIndex()
			return a == own+1 && b == own+1
		})
		old.fault.set(nil, nil)
		close(hang)
		if err := <-got; err != nil {
			t.Error(err)
		}
		tn.awaitApplied(old.g.Applied(), tn.nodes...)
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}

// Who has entries ahead and is deposed says nothing in the newer term before it has them:
// neither that it has entries, nor whom it votes for.
func TestDeposedLeaderSettlesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, newWire(time.Second), func(_ int, c *Config) { c.Timings.Write = time.Hour })
		tn.start()
		old := tn.nodes[0]
		tn.awaitApplied(tn.put(old, "one"), tn.nodes...)
		led := old.g.Term()
		hang := make(chan struct{})
		old.fault.set(nil, hang)
		got := make(chan error, 1)
		go func() { _, err := old.g.Propose(bg, []byte("two")); got <- err }()
		until(t, "the followers to have it", func() bool { last, _ := tn.nodes[1].mem.LastIndex(); return last == indexOf(t, old, "two") })
		tn.wire.isolate(old.id, true)
		leader := tn.awaitLeader(tn.without(old)...)
		tn.wire.heal()
		three := tn.put(leader, "three")
		time.Sleep(10 * time.Second)
		if old.g.Term() != led || old.g.Applied() >= three {
			t.Errorf("term %d of %d, applied %d of %d, with an entry that its disk does not have", old.g.Term(), led, old.g.Applied(), three)
		}
		if f := follower(leader, old.id); f.Known && f.Lag == 0 {
			t.Errorf("the new leader was told that it has everything: %+v", f)
		}
		old.fault.set(nil, nil)
		close(hang)
		if err := <-got; forgeyard.KindOf(err) != forgeyard.Unknown {
			t.Errorf("%v", err)
		}
		tn.awaitApplied(tn.put(leader, "four"), tn.nodes...)
		tn.sameState(tn.nodes...)
		if !risingTerms(t, old.mem) || !old.fsm.has("two") {
			t.Error("the old leader's log is not the others'")
		}
		tn.stop()
	})
}

func follower(leader *resident, id string) FollowerStats {
	for _, f := range leader.g.Stats().Followers {
		if f.ID == id {
			return f
		}
	}
	return FollowerStats{}
}

// A sole voter is its own majority: raft hears that an entry is stored when it is.
func TestSoleVoterWritesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 2, newWire(time.Second))
		tn.start()
		one, two := tn.nodes[0], tn.nodes[1]
		tn.awaitApplied(tn.put(one, "of two"), tn.nodes...)
		// While there are two, the entry that takes the second's vote waits for what is ahead,
		// and for itself.
		hang := make(chan struct{})
		one.fault.set(nil, hang)
		got := make(chan error, 2)
		go func() { _, err := one.g.Propose(bg, []byte("ahead")); got <- err }()
		until(t, "the second to have it", func() bool { last, _ := two.mem.LastIndex(); return last == indexOf(t, one, "ahead") })
		go func() { got <- one.g.Demote(bg, two.id) }()
		time.Sleep(time.Second)
		before, _ := one.mem.LastIndex()
		if len(got) > 0 || len(one.g.voters()) != 2 {
			t.Errorf("%d answered, voters %v, while the disk hangs", len(got), one.g.voters())
		}
		one.fault.set(nil, nil)
		close(hang)
		for range 2 {
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
		if last, _ := one.mem.LastIndex(); last < before+2 {
			t.Errorf("the disk has %d entries more", last-before)
		}
		hang = make(chan struct{})
		one.fault.set(nil, hang)
		go func() { _, err := one.g.Propose(bg, []byte("alone")); got <- err }()
		time.Sleep(time.Second)
		if len(got) > 0 || one.fsm.has("alone") || indexOf(t, one, "alone") != 0 {
			t.Error("a sole voter has committed what its disk does not have")
		}
		one.fault.set(nil, nil)
		close(hang)
		if err := <-got; err != nil {
			t.Error(err)
		}
		tn.stop()
	})
}

// aheadStore is a store that goes ahead with everything.
func aheadStore(t *testing.T, fault *diskFault, disk diskStore) (s *guardedStore, broken *[]error) {
	t.Helper()
	cfg := Config{Timings: Timings{Write: 2 * time.Second}.withDefaults(), Clock: bubbleClock{}}
	broken = &[]error{}
	var g Group
	s, err := newGuardedStore(&faultyDisk{LogStore: disk, StableStore: disk, fault: fault}, &cfg, &g.term, func(err error) { *broken = append(*broken, err) })
	if err != nil {
		t.Fatal(err)
	}
	yes := func() bool { return true }
	s.ahead.may.Store(&yes)
	return s, broken
}

// recordingDisk remembers in which order it was asked for what.
type recordingDisk struct {
	*raft.InmemStore
	mu   sync.Mutex
	asks []string
}

func (d *recordingDisk) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asks = append(d.asks, fmt.Sprintf(format, args...))
}

func (d *recordingDisk) StoreLogs(l []*raft.Log) error {
	d.note("store %d-%d", l[0].Index, l[len(l)-1].Index)
	return d.InmemStore.StoreLogs(l)
}

func (d *recordingDisk) DeleteRange(lo, hi uint64) error {
	d.note("delete %d-%d", lo, hi)
	return d.InmemStore.DeleteRange(lo, hi)
}

func (d *recordingDisk) SetUint64(k []byte, v uint64) error {
	d.note("set %s %d", k, v)
	return d.InmemStore.SetUint64(k, v)
}

func (d *recordingDisk) Close() error { return nil }

func storeOne(t *testing.T, s *guardedStore, index uint64, kind raft.LogType) {
	t.Helper()
	if err := s.StoreLog(&raft.Log{Index: index, Term: 1, Type: kind, Data: []byte{byte(index)}}); err != nil {
		t.Fatal(err)
	}
}

// Reads see what is ahead; what comes meanwhile is written together; all else waits.
func TestAheadIsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, fault, hang := &recordingDisk{InmemStore: raft.NewInmemStore()}, &diskFault{}, make(chan struct{})
		s, _ := aheadStore(t, fault, disk)
		fault.set(nil, hang)
		for i := uint64(1); i <= 4; i++ {
			storeOne(t, s, i, raft.LogCommand)
			synctest.Wait()
		}
		first, err1 := s.FirstIndex()
		last, err2 := s.LastIndex()
		if err := errors.Join(err1, err2); err != nil || first != 1 || last != 4 {
			t.Errorf("%d to %d, %v", first, last, err)
		}
		var l raft.Log
		if err := s.GetLog(3, &l); err != nil || l.Data[0] != 3 {
			t.Errorf("%v %v", l, err)
		}
		if err := s.GetLog(5, &l); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("an entry that nobody stored: %v", err)
		}
		var done sync.WaitGroup
		waits := func(what string, f func() error) {
			over := make(chan struct{})
			done.Go(func() {
				defer close(over)
				if err := f(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
			time.Sleep(time.Second / 5)
			select {
			case <-over:
				t.Errorf("%s did not wait", what)
			default:
			}
		}
		waits("a follower's word", func() error { return s.settled(3) })
		waits("a new term", func() error { return s.SetUint64(keyCurrentTerm, 2) })
		waits("a truncation", func() error { return s.DeleteRange(4, 4) })
		if err := s.settled(0); err != nil {
			t.Errorf("what is not ahead: %v", err)
		}
		fault.set(nil, nil)
		close(hang)
		done.Wait()
		slices.Sort(disk.asks[2:]) // the last two came at once
		if want := []string{"store 1-1", "store 2-4", "delete 4-4", "set CurrentTerm 2"}; !slices.Equal(disk.asks, want) {
			t.Errorf("the disk was asked for %q", disk.asks)
		}
		disk.asks = nil
		hang = make(chan struct{})
		fault.set(nil, hang)
		storeOne(t, s, 4, raft.LogCommand)
		waits("a change of the voters", func() error { return s.StoreLog(&raft.Log{Index: 5, Term: 1, Type: raft.LogConfiguration}) })
		fault.set(nil, nil)
		close(hang)
		done.Wait()
		if want := []string{"store 4-4", "store 5-5"}; !slices.Equal(disk.asks, want) {
			t.Errorf("the disk was asked for %q", disk.asks)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
}

// A leader does not run ahead of its disk without end.
func TestAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault, hang := &diskFault{}, make(chan struct{})
		s, _ := aheadStore(t, fault, &recordingDisk{InmemStore: raft.NewInmemStore()})
		fault.set(nil, hang)
		for i := uint64(1); i <= maxAhead; i++ {
			storeOne(t, s, i, raft.LogCommand)
		}
		over := make(chan struct{})
		go func() { storeOne(t, s, maxAhead+1, raft.LogCommand); close(over) }()
		synctest.Wait()
		select {
		case <-over:
			t.Errorf("%d entries are ahead", maxAhead+1)
		default:
		}
		fault.set(nil, nil)
		close(hang)
		<-over
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
}

// A write that fails, or does not end, condemns the store, and whoever waits is told.
func TestAheadFails(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprint("hangs=", hangs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, fault, hang := raft.NewInmemStore(), &diskFault{}, make(chan struct{})
				s, broken := aheadStore(t, fault, &recordingDisk{InmemStore: mem})
				want := error(errFull)
				fault.set(errFull, nil)
				if hangs {
					want = errWriteHung
					fault.set(nil, hang)
				}
				storeOne(t, s, 1, raft.LogCommand)
				storeOne(t, s, 2, raft.LogCommand)
				began := time.Now()
				if err := s.settled(2); !errors.Is(err, want) || hangs != (time.Since(began) == 2*time.Second) {
					t.Errorf("%v after %s", err, time.Since(began))
				}
				fault.set(nil, nil)
				if err := s.StoreLog(&raft.Log{Index: 3, Term: 1}); !errors.Is(err, want) {
					t.Errorf("an entry after the failed one: %v", err)
				}
				if err := s.DeleteRange(1, 1); !errors.Is(err, want) {
					t.Errorf("a truncation after it: %v", err)
				}
				close(hang)
				if err := s.close(); err != nil {
					t.Error(err)
				}
				if len(*broken) != 1 || !errors.Is((*broken)[0], want) {
					t.Errorf("the group was told %v", *broken)
				}
			})
		})
	}
}
