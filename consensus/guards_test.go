package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

// Each guard of decision 26 has a test that runs the same story twice: without
// the guard the fault is seen, with it it is not.

// slowFirst makes the first node's clock run slow, as a paused machine's does:
// it believes that it leads for 5 s, the others need 1 s to elect another.
func slowFirst(i int, c *Config) {
	c.Timings = Timings{Heartbeat: time.Second, RPC: time.Second, Retry: 200 * time.Millisecond, Hash: time.Hour, Confirm: 300 * time.Millisecond}
	if i == 0 {
		c.Timings.Heartbeat, c.Timings.Lease = 5*time.Second, 5*time.Second
	}
}

// play695 is hashicorp/raft#695: a leader that has not noticed yet that it was
// deposed gets a heartbeat of the new term, and then a proposal.
func play695(t *testing.T, off guardsOff, after func(tn *town)) (diverged bool) {
	w := newWire(500 * time.Millisecond)
	tn := newTown(t, 3, w, slowFirst, func(_ int, c *Config) {
		c.off = off
		c.Timings.Hash = 10 * time.Second
	})
	tn.start()
	old := tn.nodes[0]
	tn.put(old, "one")
	w.isolate(old.id, true)
	leader := tn.awaitLeader(tn.without(old)...)
	raftOf := func(r *resident) *raft.Raft { in, _ := r.g.running("test"); return in.raft }
	if raftOf(old).State() != raft.Leader {
		t.Fatal("the old leader has noticed too early")
	}
	w.heal()
	for range 100_000 {
		if raftOf(old).State() != raft.Leader {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	_, err := old.g.Propose(bg, []byte("stray"))
	tn.put(leader, "two")
	last := tn.put(leader, "three")
	if after != nil {
		after(tn)
	}
	tn.awaitApplied(last, tn.nodes...)
	diverged = !slices.Equal(old.fsm.lines(), leader.fsm.lines())
	if !diverged && err == nil && !leader.fsm.has("stray") {
		t.Errorf("acknowledged and lost")
	}
	tn.stop()
	return diverged
}

func TestGuardA_HeartbeatsTakeTheOrdinaryPath(t *testing.T) {
	const tries = 40 // about every second one diverges
	bad := map[bool]int{}
	for _, guarded := range []bool{false, true} {
		for i := 0; i < tries && (guarded || bad[false] == 0); i++ {
			synctest.Test(t, func(t *testing.T) {
				if play695(t, guardsOff{heartbeats: !guarded, hash: true}, nil) {
					bad[guarded]++
				}
			})
		}
	}
	if bad[false] == 0 {
		t.Errorf("%d runs without the guard did not diverge: the test shows nothing", tries)
	}
	if bad[true] != 0 {
		t.Errorf("diverged in %d of %d runs", bad[true], tries)
	}
}

// Were there another such fault, the state hash finds it: guards a off, g on.
func TestGuardG_HealsWhatGuardAWouldHavePrevented(t *testing.T) {
	seen := 0
	for i := 0; i < 40 && seen == 0; i++ {
		synctest.Test(t, func(t *testing.T) {
			diverged := play695(t, guardsOff{heartbeats: true}, func(tn *town) {
				time.Sleep(time.Minute)
				if tn.nodes[0].saw(Diverged) {
					seen++
					until(t, "the rebuilt node", func() bool { return tn.nodes[0].saw(Rebuilt) })
				}
			})
			if diverged {
				t.Error("differs still")
			}
		})
	}
	if seen == 0 {
		t.Error("never diverged: the test shows nothing")
	}
}

// VerifyLeader is satisfied by the reply to a heartbeat of before the call.
func TestGuardD_ConfirmRefusesWhereVerifyLeaderDoesNot(t *testing.T) {
	for _, mesh := range []string{"mesh cut as well", "mesh in reach"} {
		t.Run(mesh, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(10 * time.Second)
				tn := newTown(t, 3, w, slowFirst)
				tn.start()
				old := tn.nodes[0]
				tn.put(old, "one")
				in, _ := old.g.running("test")
				time.Sleep(time.Second)
				w.mu.Lock()
				w.delay[[2]string{"n1", "n0"}], w.delay[[2]string{"n2", "n0"}] = 4*time.Second, 4*time.Second
				w.mu.Unlock()
				forced := make(chan error, 1)
				go func() { forced <- in.raft.VerifyLeader().Error() }() // sends a heartbeat now
				time.Sleep(10 * time.Millisecond)
				w.setCut("n0", "n1", true)
				w.setCut("n0", "n2", true)
				leader := tn.awaitLeader(tn.nodes[1], tn.nodes[2])
				tn.put(leader, "two")
				if mesh == "mesh in reach" {
					old.g.cfg.TermOf = func(_ context.Context, addr string) (uint64, error) {
						return tn.nodes[addr[1]-'0'].g.Term(), nil
					}
				}
				verified := make(chan error, 1)
				go func() { verified <- in.raft.VerifyLeader().Error() }()
				if i, err := old.g.Confirm(bg); forgeyard.KindOf(err) != forgeyard.Unavailable {
					t.Errorf("Confirm of a deposed leader: %d, %v", i, err)
				}
				if err := <-verified; err != nil {
					t.Errorf("VerifyLeader has been mended, or this test shows nothing: %v", err)
				}
				if old.fsm.has("two") {
					t.Error("the old leader was not behind: the test shows nothing")
				}
				<-forced
				w.heal()
				tn.awaitApplied(leader.g.Applied(), tn.nodes...)
				tn.stop()
			})
		})
	}
}

// hashicorp/raft#696: a transfer that hangs leaves the node refusing proposals.
func TestGuardB_StuckTransferRestartsRaft(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded=", guarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(time.Second)
				w.hangFor = 3 * time.Hour
				tn := newTown(t, 3, w, func(_ int, c *Config) { c.off.transfer = !guarded })
				tn.start()
				old := tn.nodes[0]
				tn.put(old, "one")
				w.mu.Lock()
				w.hang = func(_, _ string, call any) bool { _, is := call.(*raft.TimeoutNowRequest); return is }
				w.mu.Unlock()
				if err := old.g.Transfer(bg, "n1"); forgeyard.KindOf(err) != forgeyard.Unavailable {
					t.Fatalf("%v", err)
				}
				takes := func() bool {
					for _, r := range tn.nodes {
						if _, err := r.g.Propose(bg, []byte("two")); err == nil {
							return true
						}
					}
					return false
				}
				if guarded {
					until(t, "some node to take proposals", takes)
					until(t, "the restart", func() bool { return old.saw(Restarted) })
					if !old.saw(TransferStuck) {
						t.Error("nobody was told")
					}
					tn.awaitApplied(tn.awaitLeader(tn.nodes...).g.Applied(), tn.nodes...)
					tn.sameState(tn.nodes...)
				} else {
					for range 60 {
						time.Sleep(10 * time.Second)
						if takes() {
							t.Fatal("the fault is gone, or this test shows nothing")
						}
					}
				}
				tn.stop()
				time.Sleep(4 * time.Hour)
			})
		})
	}
}

// The same, when the node was deposed during the transfer and is elected again:
// raft would then refuse even the leader's first entry.
func TestGuardB_ReelectedAfterAStuckTransfer(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded=", guarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(time.Second)
				w.hangFor = 3 * time.Hour
				tn := newTown(t, 3, w, func(_ int, c *Config) { c.off.transfer = !guarded })
				tn.start()
				old := tn.nodes[0]
				w.mu.Lock()
				w.hang = func(from, _ string, call any) bool {
					_, is := call.(*raft.TimeoutNowRequest)
					return is && from == old.id
				}
				w.mu.Unlock()
				go old.g.Transfer(bg, "n1")
				time.Sleep(50 * time.Millisecond)
				w.isolate(old.id, true)
				other := tn.awaitLeader(tn.without(old)...)
				w.heal()
				tn.awaitApplied(tn.put(other, "two"), other)
				until(t, "the way back", func() bool { return old.fsm.has("two") })
				if err := other.g.Transfer(bg, old.id); err != nil {
					t.Fatal(err)
				}
				if guarded {
					until(t, "the restart", func() bool { return old.saw(TransferStuck) && old.saw(Restarted) })
					tn.put(tn.awaitLeader(tn.nodes...), "three")
				} else {
					time.Sleep(10 * time.Minute)
					for _, r := range tn.nodes {
						if r.g.IsLeader() {
							t.Errorf("%s leads: the fault is gone, or this test shows nothing", r.id)
						}
					}
				}
				tn.stop()
				time.Sleep(4 * time.Hour)
			})
		})
	}
}

// hashicorp/raft#697: a follower whose log conflicts with the snapshot at its
// very index installs it for ever.
func TestGuardC_SnapshotLoopIsBroken(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded=", guarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(time.Second)
				tn := newTown(t, 3, w, func(i int, c *Config) {
					c.off.loop = !guarded
					if i != 2 {
						c.TrailingLogs = 2
					}
				})
				tn.start()
				odd := tn.nodes[2]
				if err := tn.nodes[0].g.Transfer(bg, odd.id); err != nil {
					t.Fatal(err)
				}
				tn.awaitLeader(odd)
				w.isolate(odd.id, true)
				results := make(chan error, 60)
				for i := range 60 { // stored by odd alone
					go func() {
						_, err := odd.g.Propose(bg, fmt.Append(nil, "odd", i))
						results <- err
					}()
				}
				for range 60 {
					if err := <-results; err == nil {
						t.Fatal("committed alone")
					}
				}
				leader := tn.awaitLeader(tn.without(odd)...)
				for i := range 20 {
					tn.put(leader, fmt.Sprint("even", i))
				}
				if err := leader.g.Snapshot(bg); err != nil {
					t.Fatal(err)
				}
				var installs atomic.Int64
				w.heal()
				w.mu.Lock()
				w.hang = func(_, _ string, call any) bool {
					if _, is := call.(*raft.InstallSnapshotRequest); is {
						installs.Add(1)
					}
					return false
				}
				w.mu.Unlock()
				last := tn.put(leader, "after")
				if guarded {
					tn.awaitApplied(last, tn.nodes...)
					tn.sameState(tn.nodes...)
					until(t, "the node to vote again", func() bool { return odd.saw(Rebuilt) })
					if !odd.saw(SnapshotLoop) {
						t.Error("caught up without a loop: the test shows nothing")
					}
				} else {
					until(t, "twenty installs", func() bool { return installs.Load() >= 20 })
					if odd.fsm.has("after") {
						t.Errorf("%d installs: the fault is gone, or this test shows nothing", installs.Load())
					}
				}
				tn.stop()
			})
		})
	}
}

// hashicorp/raft#503: heartbeats go on while the leader's disk hangs.
func TestGuardE_LeaderWithAHungDiskStepsDown(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded=", guarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn := newTown(t, 3, newWire(time.Second), func(_ int, c *Config) {
					c.off.deadline = !guarded
					c.Timings.Write = 2 * time.Second
				})
				tn.start()
				old := tn.nodes[0]
				tn.put(old, "one")
				hang := make(chan struct{})
				old.fault.set(nil, hang)
				got := make(chan error, 1)
				go func() { _, err := old.g.Propose(bg, []byte("hung")); got <- err }()
				if guarded {
					leader := tn.awaitLeader(tn.without(old)...)
					tn.put(leader, "two")
					if err := <-got; forgeyard.KindOf(err) != forgeyard.Unknown {
						t.Errorf("the hung proposal: %v", err)
					}
					if !old.saw(DiskHung) || old.g.IsLeader() {
						t.Errorf("leader %v, events %v", old.g.IsLeader(), old.events)
					}
					if !old.fsm.has("one") {
						t.Error("reads of what was applied are gone")
					}
					if _, err := old.g.Propose(bg, nil); forgeyard.KindOf(err) != forgeyard.Unavailable {
						t.Errorf("%v", err)
					}
					old.fault.set(nil, nil)
					close(hang)
					until(t, "the disk to be back", func() bool { return old.saw(Restarted) })
					tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "three"), tn.nodes...)
					tn.sameState(tn.nodes...)
				} else {
					time.Sleep(10 * time.Minute)
					if id, _, _ := tn.nodes[1].g.Leader(); id != old.id {
						t.Errorf("the leader is %q: the fault is gone, or this test shows nothing", id)
					}
					old.fault.set(nil, nil)
					close(hang)
					<-got
				}
				tn.stop()
			})
		})
	}
}

// A hung disk must not hold up Close for longer than its caller wants.
func TestCloseReturnsWhileTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, newWire(time.Second))
		tn.start()
		r := tn.nodes[0]
		hang := make(chan struct{})
		r.fault.set(nil, hang)
		go r.g.Propose(bg, []byte("hung"))
		until(t, "the deadline", func() bool { return r.saw(DiskHung) })
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if err := r.g.Close(ctx); forgeyard.KindOf(err) != forgeyard.Unavailable {
			t.Errorf("%v", err)
		}
		close(hang)
		tn.stop()
	})
}

// Decision 26f: the caller was told Unknown, and the command did commit. Without it the caller
// is told that it certainly did not, and gives it again as another: it is there twice.
func TestGuardF_UnknownMayCommit(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded=", guarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { guardF_UnknownMayCommit(t, guarded) })
		})
	}
}

func guardF_UnknownMayCommit(t *testing.T, guarded bool) {
	want := forgeyard.Unavailable
	if guarded {
		want = forgeyard.Unknown
	}
	w := newWire(time.Second)
	tn := newTown(t, 3, w, func(_ int, c *Config) { c.off.unknown = !guarded })
	tn.start()
	old := tn.nodes[0]
	tn.put(old, "one")
	w.setCut("n1", "n0", true) // replies are lost, requests arrive
	w.setCut("n2", "n0", true)
	_, err := old.g.Propose(bg, []byte("lost reply"))
	if forgeyard.KindOf(err) != want {
		t.Errorf("%v", err)
	}
	w.isolate("n0", true)
	leader := tn.awaitLeader(tn.nodes[1], tn.nodes[2])
	if !leader.fsm.has("lost reply") {
		t.Error("it did not commit after all: the test shows nothing")
	}
	if forgeyard.KindOf(err) == forgeyard.Unavailable { // it certainly did not enter the log, says Propose
		tn.put(leader, "lost reply")
	}
	if n := leader.fsm.times("lost reply"); (n == 1) != guarded {
		t.Errorf("it is there %d times", n)
	}
	// Stopping with a proposal under way says Unknown as well.
	w.isolate(leader.id, true)
	got := make(chan error, 1)
	go func() { _, err := leader.g.Propose(bg, []byte("stopped")); got <- err }()
	time.Sleep(5 * time.Millisecond)
	leader.close()
	if err := <-got; forgeyard.KindOf(err) != want {
		t.Errorf("%v", err)
	}
	w.heal()
	tn.stop()
}

func TestGuardG_DivergedFollowerIsRebuilt(t *testing.T) {
	overStores(t, guardG_DivergedFollowerIsRebuilt)
}

func guardG_DivergedFollowerIsRebuilt(t *testing.T, store townOption) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded=", guarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn := newTown(t, 3, nil, store, func(_ int, c *Config) {
					c.off.hash = !guarded
					c.Timings.Hash = 10 * time.Second
				})
				tn.start()
				leader, sick := tn.nodes[0], tn.nodes[2]
				for i := range 10 {
					tn.put(leader, fmt.Sprint("x", i))
				}
				time.Sleep(time.Minute)
				for _, r := range tn.nodes {
					if r.saw(Diverged) {
						t.Fatalf("%s was called sick and is not", r.id)
					}
					if guarded && !r.saw(HashChecked) {
						t.Errorf("%s was never checked", r.id)
					}
				}
				sick.fsm.spoil()
				if !guarded {
					time.Sleep(10 * time.Minute)
					if sick.fsm.Hash() == leader.fsm.Hash() {
						t.Error("it healed by itself: the test shows nothing")
					}
					tn.stop()
					return
				}
				until(t, "quarantine", func() bool { return sick.saw(Diverged) })
				until(t, "the rebuilt node", func() bool { return sick.saw(Rebuilt) })
				tn.awaitApplied(tn.put(leader, "after"), tn.nodes...)
				tn.sameState(tn.nodes...)
				if sick.fsm.Hash() != leader.fsm.Hash() {
					t.Error("differs still")
				}
				if back := sick.fsm.wentBack; back != "" {
					t.Errorf("a reader of the state saw it go back: %s", back)
				}
				if sick.g.Suspect() {
					t.Error("it is as good as the others, and still suspect")
				}
				if _, err := os.Stat(planPath(sick.cfg.Dir)); !os.IsNotExist(err) {
					t.Errorf("the plan is still there: %v", err)
				}
				tn.stop()
			})
		})
	}
}

// Not the majority but the leader is wrong.
func TestGuardG_DivergedLeaderIsOutvoted(t *testing.T) {
	overStores(t, guardG_DivergedLeaderIsOutvoted)
}

func guardG_DivergedLeaderIsOutvoted(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store, func(_ int, c *Config) { c.Timings.Hash = 10 * time.Second })
		tn.start()
		sick := tn.nodes[0]
		tn.put(sick, "one")
		sick.fsm.spoil()
		until(t, "the leader to find out", func() bool { return sick.saw(Diverged) })
		until(t, "the rebuilt node", func() bool { return sick.saw(Rebuilt) })
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "two"), tn.nodes...)
		tn.sameState(tn.nodes...)
		for _, r := range tn.without(sick) {
			if r.saw(Diverged) {
				t.Errorf("%s believed a wrong leader", r.id)
			}
		}
		if sick.fsm.has("spoilt") {
			t.Error("the wrong state is still there")
		}
		tn.stop()
	})
}

// A leader that nobody confirms may be the one that is wrong: as long as too few of the
// others can be asked, nobody gives its state up, and as soon as enough can, the leader does.
func TestGuardG_UnconfirmedLeaderIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers sync.Map // by address
		tn := newTown(t, 3, nil, func(_ int, c *Config) {
			c.Timings.Hash = 10 * time.Second
			ask := c.HashOf
			c.HashOf = func(ctx context.Context, addr string, index uint64) ([32]byte, error) {
				if _, ok := answers.Load(addr); !ok {
					return [32]byte{}, errWire
				}
				return ask(ctx, addr, index)
			}
		})
		tn.start()
		sick := tn.nodes[0]
		tn.put(sick, "one")
		sick.fsm.spoil()
		time.Sleep(time.Minute)
		if sick.saw(HashDisputed) {
			t.Error("a dispute with nobody")
		}
		answers.Store("n1", true)
		until(t, "the dispute", func() bool { return sick.saw(HashDisputed) })
		for _, r := range tn.nodes {
			if r.saw(Diverged) || r.saw(HashChecked) {
				t.Errorf("%s was told whose state is right, and nobody could know", r.id)
			}
		}
		answers.Store("n2", true)
		until(t, "the leader to find out", func() bool { return sick.saw(Diverged) })
		until(t, "the rebuilt node", func() bool { return sick.saw(Rebuilt) })
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "two"), tn.nodes...)
		tn.sameState(tn.nodes...)
		for _, r := range tn.without(sick) {
			if r.saw(Diverged) || !r.fsm.has("one") {
				t.Errorf("%s gave up the right state", r.id)
			}
		}
		tn.stop()
	})
}

// While quarantined, a node serves nothing.
func TestQuarantineServesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, newWire(time.Second))
		tn.start()
		g := tn.nodes[0].g
		g.machine.quarantined.Store(true)
		_, e1 := g.Propose(bg, nil)
		_, e2 := g.Confirm(bg)
		e3 := g.WaitApplied(bg, 1)
		for _, err := range []error{e1, e2, e3, g.Snapshot(bg)} {
			if forgeyard.KindOf(err) != forgeyard.Unavailable || !errors.Is(err, errQuarantined) {
				t.Errorf("%v", err)
			}
		}
		g.machine.quarantined.Store(false)
		tn.stop()
	})
}

func TestWipedNodeNeitherVotesNorStands(t *testing.T) { overStores(t, wipedNodeNeitherVotesNorStands) }

func wipedNodeNeitherVotesNorStands(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store)
		tn.start()
		old, wiped := tn.nodes[0], tn.nodes[2]
		tn.put(old, "one")
		wiped.close()
		plan := &rebuildPlan{Position: position{Term: 1000, Index: 1}, Reason: "test", Wiped: true}
		if err := plan.save(wiped.cfg.Dir); err != nil {
			t.Fatal(err)
		}
		wiped.open()
		tn.awaitApplied(tn.put(old, "two"), wiped)
		if !wiped.g.Stats().Rebuilding {
			t.Error("it does not say so")
		}
		old.close()
		time.Sleep(5 * time.Minute)
		if wiped.g.IsLeader() || tn.nodes[1].g.IsLeader() {
			t.Error("a node that may lack committed entries helped to elect")
		}
		old.open()
		tn.awaitLeader(tn.nodes...)
		tn.stop()
	})
}

// A crash between the plan and the wipe goes on with the wipe.
func TestRebuildGoesOnAfterACrash(t *testing.T) { overStores(t, rebuildGoesOnAfterACrash) }

func rebuildGoesOnAfterACrash(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store, func(_ int, c *Config) { c.TrailingLogs = 2 })
		tn.start()
		leader, wiped := tn.nodes[0], tn.nodes[2]
		for i := range 30 {
			tn.put(leader, fmt.Sprint("x", i))
		}
		tn.awaitApplied(leader.g.Applied(), wiped)
		if err := errors.Join(leader.g.Snapshot(bg), wiped.g.Snapshot(bg)); err != nil {
			t.Fatal(err)
		}
		term := wiped.g.Term()
		wiped.close()
		plan := &rebuildPlan{Position: position{Term: term, Index: leader.g.Applied()}, Reason: "test", Snapshots: true}
		if err := plan.save(wiped.cfg.Dir); err != nil {
			t.Fatal(err)
		}
		wiped.open()
		if wiped.g.Term() != term {
			t.Errorf("the term is %d, it was %d: a wiped node might vote twice", wiped.g.Term(), term)
		}
		until(t, "the rebuilt node", func() bool { return wiped.saw(Rebuilt) })
		tn.awaitApplied(tn.put(leader, "after"), tn.nodes...)
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}

var errFull = &os.PathError{Op: "write", Path: "raft.db", Err: syscall.ENOSPC}

// A full disk: the leader steps down, says so, still reads, and comes back.
func TestFullDiskOfTheLeader(t *testing.T) { overStores(t, fullDiskOfTheLeader) }

func fullDiskOfTheLeader(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store)
		tn.start()
		old := tn.nodes[0]
		tn.put(old, "one")
		old.fault.set(errFull, nil)
		if _, err := old.g.Propose(bg, []byte("no room")); forgeyard.KindOf(err) != forgeyard.Unknown || !isNoSpace(err) {
			t.Errorf("%v", err)
		}
		leader := tn.awaitLeader(tn.without(old)...)
		tn.put(leader, "two")
		if !old.saw(DiskFull) || !old.fsm.has("one") {
			t.Errorf("%v", old.events)
		}
		until(t, "the instance to be down", func() bool { return old.g.Stats().State == "down" })
		if _, err := old.g.Propose(bg, nil); forgeyard.KindOf(err) != forgeyard.NoSpace {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Minute)
		old.fault.set(nil, nil)
		until(t, "the node to be back", func() bool { return old.saw(Restarted) })
		tn.awaitApplied(tn.put(leader, "three"), tn.nodes...)
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}

// Full everywhere, and in the middle of an election, where raft itself panics
// because it cannot save the term.
func TestFullDisksEverywhere(t *testing.T) { overStores(t, fullDisksEverywhere) }

func fullDisksEverywhere(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store)
		tn.start()
		old := tn.nodes[0]
		for i := range 10 {
			tn.put(old, fmt.Sprint("x", i))
		}
		tn.awaitApplied(old.g.Applied(), tn.nodes...)
		for _, r := range tn.without(old) {
			r.fault.set(errFull, nil)
		}
		old.close()
		until(t, "both to try an election and fail", func() bool { return tn.nodes[1].saw(DiskFull) || tn.nodes[2].saw(DiskFull) })
		old.fault.set(errFull, nil)
		old.open() // a node with a full disk starts all the same
		time.Sleep(time.Minute)
		for _, r := range tn.nodes {
			if !r.fsm.has("x9") && r != old {
				t.Errorf("%s no longer has what was committed", r.id)
			}
			r.fault.set(nil, nil)
		}
		leader := tn.awaitLeader(tn.nodes...)
		tn.awaitApplied(tn.put(leader, "after"), tn.nodes...)
		tn.sameState(tn.nodes...)
		if leader.fsm.count() != 11 {
			t.Errorf("%v", leader.fsm.lines())
		}
		tn.stop()
	})
}

// A write that reached the disk and then failed leaves a tail that raft does
// not know of. Unless the store is opened anew, newer entries land in front of
// it, and after a restart the node judges elections by a stale last term.
func TestFailedWriteLeavesNoTail(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		t.Run(fmt.Sprint("guarded=", guarded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn := newTown(t, 3, newWire(time.Second), func(_ int, c *Config) { c.off.tail = !guarded })
				tn.start()
				old := tn.nodes[0]
				tn.put(old, "one")
				old.fault.mu.Lock()
				old.fault.partial = true
				old.fault.mu.Unlock()
				hang := make(chan struct{})
				old.fault.set(nil, hang) // the first write waits, so that the rest forms a group
				results := make(chan error, 21)
				propose := func(i int) {
					_, err := old.g.Propose(bg, fmt.Append(nil, "tail", i))
					results <- err
				}
				go propose(0)
				synctest.Wait()
				for i := range 20 {
					go propose(1 + i)
				}
				synctest.Wait()
				old.fault.set(errors.New("input/output error"), nil)
				close(hang)
				for range 21 {
					<-results
				}
				tn.wire.isolate(old.id, true)
				old.fault.set(nil, nil)
				tn.awaitApplied(tn.put(tn.awaitLeader(tn.without(old)...), "two"), tn.without(old)...)
				tn.wire.heal()
				tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "three"), tn.nodes...)
				if ok := risingTerms(t, old.mem); ok != guarded {
					t.Errorf("terms rise along the log: %v", ok)
				}
				tn.stop()
			})
		})
	}
}

func risingTerms(t *testing.T, logs raft.LogStore) bool {
	t.Helper()
	first, _ := logs.FirstIndex()
	last, _ := logs.LastIndex()
	term := uint64(0)
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := logs.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		if l.Term < term {
			return false
		}
		term = l.Term
	}
	return true
}

// With a broken store the process goes on, in virtual years.
func TestDiskThatNeverComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, newWire(time.Second))
		tn.start()
		sick := tn.nodes[2]
		tn.put(tn.nodes[0], "one")
		sick.fault.set(errors.New("input/output error"), nil)
		tn.put(tn.nodes[0], "two")
		until(t, "the word", func() bool { return sick.saw(DiskFailed) })
		time.Sleep(10 * time.Minute)
		tn.put(tn.awaitLeader(tn.nodes[0], tn.nodes[1]), "three")
		tn.stop()
	})
}

// A program that encodes the state otherwise than the one before has other hashes, and
// nothing is wrong with its state: with versions told apart no node throws its own away,
// at a check or when it reads its own snapshot.
func TestGuardG_OtherProgramsHashesDoNotCompare(t *testing.T) {
	for _, stamped := range []bool{false, true} {
		t.Run(fmt.Sprint("stamped=", stamped), func(t *testing.T) {
			old, now := "", ""
			if stamped {
				old, now = "v1", "v2"
			}
			before, after := newStamper(old), newStamper(now)
			var h1, h2 [32]byte
			h1[0], h2[0] = 1, 2 // the same state, encoded by two programs
			wrong := after.compares(before.put(h1)) && after.put(h2) != before.put(h1)
			if wrong == stamped {
				t.Errorf("called different: %v", wrong)
			}
			if same := newStamper(old); !same.compares(before.put(h1)) || same.put(h1) != before.put(h1) || same.put(h2) == before.put(h1) {
				t.Error("one program's hashes compare, and differ with the state")
			}
		})
	}
}

// The same through a group: a node that is opened again by a newer program, whose state
// hashes differ, keeps its state and its snapshot.
func TestGuardG_UpgradeKeepsTheState(t *testing.T) {
	for _, stamped := range []bool{false, true} {
		t.Run(fmt.Sprint("stamped=", stamped), func(t *testing.T) {
			m, err := newMachine(&hashedAs{salt: 1}, nonce{1}, stampOf(stamped, "v1"), guardsOff{})
			if err != nil {
				t.Fatal(err)
			}
			var calledSick bool
			newer, err := newMachine(&hashedAs{salt: 2}, nonce{2}, stampOf(stamped, "v2"), guardsOff{})
			if err != nil {
				t.Fatal(err)
			}
			newer.onDiverged, newer.onChecked = func(uint64) { calledSick = true }, func(uint64) {}
			newer.mark(8, newer.hasher(), false)
			newer.check(frame{kind: frameCheck, index: 8, hash: m.hasher()()})
			if calledSick == stamped {
				t.Errorf("the newer program called its own state wrong: %v", calledSick)
			}
		})
	}
}

func stampOf(on bool, version string) stamper {
	if !on {
		version = ""
	}
	return newStamper(version)
}

// hashedAs is a state whose hash depends on the program that computes it.
type hashedAs struct{ salt byte }

func (hashedAs) Apply(Entry) any                 { return nil }
func (hashedAs) Snapshot() (Snapshot, error)     { return bytes.NewReader(nil), nil }
func (hashedAs) Restore(io.Reader, uint64) error { return nil }
func (hashedAs) Rebuilding(bool)                 {}
func (h hashedAs) Hasher() func() [32]byte       { return func() [32]byte { return [32]byte{h.salt} } }
