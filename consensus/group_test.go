package consensus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

var bg = context.Background()

func TestLeaderDiesAndNothingIsLost(t *testing.T) { overStores(t, leaderDiesAndNothingIsLost) }

func leaderDiesAndNothingIsLost(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store)
		tn.start()
		old := tn.nodes[0]
		for i := range 20 {
			res, err := old.g.Propose(bg, []byte(fmt.Sprint("a", i)))
			if err != nil || res.Value != i+1 {
				t.Fatalf("%+v %v", res, err)
			}
		}
		old.close()
		leader := tn.awaitLeader(tn.without(old)...)
		last := tn.put(leader, "after")
		tn.awaitApplied(last, tn.without(old)...)
		tn.sameState(tn.without(old)...)
		if leader.fsm.count() != 21 {
			t.Fatalf("%v", leader.fsm.lines())
		}
		old.open() // comes back behind
		tn.awaitApplied(last, tn.nodes...)
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}

func TestAllRestartFromDisk(t *testing.T) { overStores(t, allRestartFromDisk) }

func allRestartFromDisk(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store)
		tn.start()
		for i := range 10 {
			tn.put(tn.nodes[0], fmt.Sprint("before", i))
		}
		for _, r := range tn.nodes {
			r.close()
		}
		for _, r := range tn.nodes {
			r.open()
		}
		leader := tn.awaitLeader(tn.nodes...)
		for i := range 2 { // each has had the two appends then by which it knows what is new
			tn.awaitApplied(tn.put(leader, fmt.Sprint("settles", i)), tn.nodes...)
		}
		last := tn.put(leader, "after")
		tn.awaitApplied(last, tn.nodes...)
		tn.sameState(tn.nodes...)
		for _, r := range tn.nodes {
			// E02: all comes back from disk; what was there before is not live.
			if e, ok := r.fsm.find("before9"); !ok || e.Live {
				t.Errorf("%s: %+v %v", r.id, e, ok)
			}
			if e, _ := r.fsm.find("after"); !e.Live {
				t.Errorf("%s: an entry proposed after the start is live: %+v", r.id, e)
			}
		}
		tn.stop()
	})
}

func TestLiveIsFalseForWhatWasMissed(t *testing.T) { overStores(t, liveIsFalseForWhatWasMissed) }

func liveIsFalseForWhatWasMissed(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store)
		tn.start()
		away := tn.nodes[2]
		away.close()
		for i := range 5 {
			tn.put(tn.nodes[0], fmt.Sprint("missed", i))
		}
		time.Sleep(5 * time.Minute)
		away.open()
		until(t, "catching up", func() bool { return away.fsm.has("missed4") })
		time.Sleep(time.Second)
		tn.awaitApplied(tn.put(tn.nodes[0], "fresh"), away)
		if e, _ := away.fsm.find("missed4"); e.Live {
			t.Error("committed minutes before this process opened, and called live")
		}
		if e, _ := away.fsm.find("fresh"); !e.Live {
			t.Error("committed just now, and not live")
		}
		if e, _ := tn.nodes[0].fsm.find("missed4"); !e.Live {
			t.Error("the leader proposed it itself, and it is not live")
		}
		tn.stop()
	})
}

func TestFollowerCatchesUpBySnapshot(t *testing.T) { overStores(t, followerCatchesUpBySnapshot) }

func followerCatchesUpBySnapshot(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store, func(_ int, c *Config) { c.TrailingLogs = 2 })
		tn.start()
		leader, away := tn.nodes[0], tn.nodes[2]
		away.close()
		for i := range 50 {
			tn.put(leader, fmt.Sprint("x", i))
		}
		if err := leader.g.Snapshot(bg); err != nil {
			t.Fatal(err)
		}
		last := tn.put(leader, "tail")
		away.open()
		tn.awaitApplied(last, tn.nodes...)
		tn.sameState(tn.nodes...)
		if s := away.g.Stats(); s.SnapshotIndex == 0 {
			t.Fatalf("the log was not shortened, the test shows nothing: %+v", s)
		}
		// and again from its own snapshot
		away.close()
		away.open()
		tn.awaitApplied(last, away)
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}

// Neither writing the state nor its hash keeps Apply waiting, however long they take.
func TestSnapshotDoesNotStopApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, nil)
		tn.start()
		r := tn.nodes[0]
		tn.put(r, "one")
		gate := make(chan struct{})
		r.fsm.mu.Lock()
		r.fsm.gate = gate
		r.fsm.mu.Unlock()
		done := make(chan error)
		go func() { done <- r.g.Snapshot(bg) }()
		synctest.Wait()
		tn.put(r, "while it is written")
		r.g.proposeMark()
		synctest.Wait()
		tn.put(r, "while it is hashed")
		close(gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		tn.stop()
	})
}

func TestMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		leader := tn.nodes[0]
		four := tn.add(3)
		four.open()
		if err := leader.g.AddNonvoter(bg, four.id, four.id); err != nil {
			t.Fatal(err)
		}
		last := tn.put(leader, "for four")
		tn.awaitApplied(last, four)
		until(t, "the follower's progress", func() bool {
			for _, f := range leader.g.Stats().Followers {
				if f.ID == four.id {
					return f.Known && f.Lag == 0 && !f.Voter
				}
			}
			return false
		})
		if err := leader.g.Promote(bg, four.id); err != nil {
			t.Fatal(err)
		}
		if err := leader.g.Remove(bg, "n1"); err != nil {
			t.Fatal(err)
		}
		if err := leader.g.Demote(bg, "n2"); err != nil {
			t.Fatal(err)
		}
		until(t, "everyone to know", func() bool {
			m := four.g.Members()
			return len(m) == 3 && fmt.Sprint(m) == "[{n0 n0 true} {n2 n2 false} {n3 n3 true}]"
		})
		if err := leader.g.Promote(bg, "nobody"); forgeyard.KindOf(err) != forgeyard.NotFound {
			t.Errorf("%v", err)
		}
		// A leader that removes itself steps down, and the other voter leads.
		if err := leader.g.Remove(bg, leader.id); err != nil {
			t.Fatal(err)
		}
		tn.put(tn.awaitLeader(four), "by four alone")
		if leader.g.IsLeader() {
			t.Error("removed, and still leading")
		}
		tn.stop()
	})
}

func TestFollowerRefusesAndNamesTheLeader(t *testing.T) {
	overStores(t, followerRefusesAndNamesTheLeader)
}

func followerRefusesAndNamesTheLeader(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store)
		tn.start()
		_, err := tn.nodes[1].g.Propose(bg, []byte("x"))
		var nl *NotLeader
		if forgeyard.KindOf(err) != forgeyard.Unavailable || !errors.As(err, &nl) || nl.LeaderID != "n0" || nl.LeaderAddr != "n0" {
			t.Errorf("%v", err)
		}
		if _, err := tn.nodes[1].g.Confirm(bg); forgeyard.KindOf(err) != forgeyard.Unavailable || !errors.As(err, &nl) || nl.LeaderID != "n0" {
			t.Errorf("%v", err)
		}
		if _, err := tn.nodes[0].g.Propose(bg, make([]byte, MaxCommand+1)); forgeyard.KindOf(err) != forgeyard.Limit {
			t.Errorf("%v", err)
		}
		if err := tn.nodes[0].g.Bootstrap(bg); forgeyard.KindOf(err) != forgeyard.Conflict {
			t.Errorf("%v", err)
		}
		again := tn.nodes[0].cfg
		again.FSM, again.Layer = &notebook{}, tn.x.port("elsewhere")
		if _, err := Open(again); forgeyard.KindOf(err) != forgeyard.Conflict {
			t.Errorf("two processes on one directory: %v", err)
		}
		tn.stop()
		if _, err := tn.nodes[0].closedGroup(t).Propose(bg, nil); forgeyard.KindOf(err) != forgeyard.Unavailable {
			t.Errorf("%v", err)
		}
	})
}

func (r *resident) closedGroup(t *testing.T) *Group {
	r.open()
	g := r.g
	r.close()
	return g
}

func TestConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		leader := tn.nodes[0]
		last := tn.put(leader, "x")
		before := leader.g.Stats().LastIndex
		index, err := leader.g.Confirm(bg)
		if err != nil || index < last {
			t.Fatalf("%d %v, put was %d", index, err, last)
		}
		if err := leader.g.ReadBarrier(bg); err != nil {
			t.Fatal(err)
		}
		if after := leader.g.Stats().LastIndex; after != before {
			t.Errorf("a confirmation with all voters in reach wrote to the log: %d, then %d", before, after)
		}
		tn.x.isolate(leader.id, true)
		// It still thinks it leads; the very first call must refuse.
		if !leader.g.IsLeader() {
			t.Fatal("stepped down before the test began")
		}
		if i, err := leader.g.Confirm(bg); forgeyard.KindOf(err) != forgeyard.Unavailable {
			t.Fatalf("confirmed %d behind a partition: %v", i, err)
		}
		tn.x.isolate(leader.id, false)
		tn.stop()
	})
}

// Half of the voters is no majority: of two, neither proves anything by itself.
func TestConfirmTakesMoreThanHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 2, nil)
		tn.start()
		leader := tn.nodes[0]
		if _, err := leader.g.Confirm(bg); err != nil {
			t.Fatal(err)
		}
		tn.x.isolate(leader.id, true)
		if !leader.g.IsLeader() {
			t.Fatal("stepped down before the test began")
		}
		if i, err := leader.g.Confirm(bg); forgeyard.KindOf(err) != forgeyard.Unavailable {
			t.Errorf("one of two confirmed %d: %v", i, err)
		}
		tn.x.isolate(leader.id, false)
		tn.stop()
	})
}

func TestConfirmFallsBackToAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, func(_ int, c *Config) {
			c.TermOf = func(context.Context, string) (uint64, error) { return 0, errors.New("no such call") }
		})
		tn.start()
		leader := tn.nodes[0]
		before := leader.g.Stats().LastIndex
		index, err := leader.g.Confirm(bg)
		if err != nil || index != before+1 {
			t.Fatalf("%d %v; the log ended at %d", index, err, before)
		}
		tn.stop()
	})
}

// A round that is under way proves nothing to one who comes later.
func TestConfirmRoundsAreSharedOnlyFromTheirStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan chan struct{})
		tn := newTown(t, 3, nil)
		tn.start()
		leader := tn.nodes[0]
		leader.g.cfg.TermOf = func(ctx context.Context, addr string) (uint64, error) {
			release := make(chan struct{})
			select {
			case asked <- release:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			<-release
			return leader.g.Term(), nil
		}
		results := make(chan string, 3)
		confirm := func(name string) {
			_, err := leader.g.Confirm(bg)
			results <- fmt.Sprint(name, err)
		}
		go confirm("first")
		r1, r2 := <-asked, <-asked
		go confirm("late")
		go confirm("late")
		synctest.Wait()
		close(r1)
		close(r2)
		if got := <-results; got != "first<nil>" {
			t.Fatal(got)
		}
		r3, r4 := <-asked, <-asked // one new round for both
		close(r3)
		close(r4)
		if a, b := <-results, <-results; a != "late<nil>" || b != a {
			t.Fatal(a, b)
		}
		tn.stop()
	})
}

func TestSingleVoterServesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, nil)
		tn.start()
		tn.put(tn.nodes[0], "x")
		tn.nodes[0].close()
		begin := time.Now()
		tn.nodes[0].open()
		tn.awaitLeader(tn.nodes[0])
		if _, err := tn.nodes[0].g.Confirm(bg); err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d > 50*time.Millisecond {
			t.Errorf("a sole voter waited %v for a leader that cannot be there", d)
		}
		tn.stop()
	})
}

func TestLeaderChangesKeepTheLastState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		leader := tn.nodes[0]
		ch := leader.g.LeaderChanges()
		if err := leader.g.Transfer(bg, "n1"); err != nil {
			t.Fatal(err)
		}
		tn.awaitLeader(tn.nodes[1])
		synctest.Wait()
		// Nobody read meanwhile: what waits is the last state.
		if l := <-ch; l.IsLeader {
			t.Fatalf("%+v", l)
		}
		fresh := tn.nodes[1].g.LeaderChanges()
		if l := <-fresh; !l.IsLeader || l.Term != tn.nodes[1].g.Term() {
			t.Fatalf("%+v", l)
		}
		tn.stop()
		if _, ok := <-ch; ok {
			if _, ok = <-ch; ok {
				t.Error("not closed by Close")
			}
		}
	})
}

func TestChangedNeverMissesAnApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, nil)
		tn.start()
		r := tn.nodes[0]
		seen := make(chan int)
		go func() {
			for {
				changed := r.g.Changed()
				if n := r.fsm.count(); n == 100 {
					seen <- n
					return
				}
				<-changed
			}
		}()
		for i := range 100 {
			tn.put(r, fmt.Sprint(i))
		}
		<-seen
		tn.stop()
	})
}

func TestHalfWrittenSnapshotsAreCleared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, nil)
		tn.start()
		r := tn.nodes[0]
		r.close()
		half := filepath.Join(snapshotDir(r.cfg.Dir), "3-4-5.tmp")
		if err := os.MkdirAll(half, 0o700); err != nil {
			t.Fatal(err)
		}
		r.open()
		if _, err := os.Stat(half); !os.IsNotExist(err) {
			t.Errorf("%v", err)
		}
		tn.stop()
	})
}

func TestBadConfigIsRefused(t *testing.T) {
	good := Config{Dir: t.TempDir(), LocalID: "a", LocalAddr: "a", FSM: &notebook{}, Layer: newExchange().port("a")}
	for name, spoil := range map[string]func(*Config){
		"no directory":             func(c *Config) { c.Dir = "" },
		"no id":                    func(c *Config) { c.LocalID = "" },
		"no address":               func(c *Config) { c.LocalAddr = "" },
		"no state machine":         func(c *Config) { c.FSM = nil },
		"no layer":                 func(c *Config) { c.Layer = nil },
		"lease above heartbeat":    func(c *Config) { c.Timings.Lease = time.Hour },
		"election under heartbeat": func(c *Config) { c.Timings.Election = 10 * time.Millisecond },
	} {
		c := good
		spoil(&c)
		if _, err := Open(c); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Decision 26f: what may commit later is Unknown, what certainly never entered
// the log is Unavailable.
func TestProposalErrorKinds(t *testing.T) {
	g := &Group{leadership: &leadershipBoard{}}
	for err, want := range map[error]forgeyard.Kind{
		raft.ErrNotLeader:                    forgeyard.Unavailable,
		raft.ErrLeadershipTransferInProgress: forgeyard.Unavailable,
		raft.ErrEnqueueTimeout:               forgeyard.Unavailable,
		raft.ErrLeadershipLost:               forgeyard.Unknown,
		raft.ErrRaftShutdown:                 forgeyard.Unknown,
		raft.ErrAbortedByRestore:             forgeyard.Unknown,
		context.DeadlineExceeded:             forgeyard.Unknown,
		context.Canceled:                     forgeyard.Unknown,
		errStopped:                           forgeyard.Unknown,
		errWriteHung:                         forgeyard.Unknown,
		errors.New("input/output error"):     forgeyard.Unknown,
	} {
		if got := forgeyard.KindOf(g.proposalError("propose", err)); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}
