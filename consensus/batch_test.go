package consensus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

func batching(_ int, c *Config) { c.Batches = func() bool { return true } }

// held makes the leader's disk wait, so that what is proposed meanwhile gathers. The
// returned function lets it go on and returns each command's answer.
func held(t *testing.T, r *resident, commands ...string) (release func() map[string]answer) {
	t.Helper()
	hang := make(chan struct{})
	r.fault.set(nil, hang)
	type named struct {
		name string
		answer
	}
	got := make(chan named, len(commands))
	for _, c := range commands {
		go func() {
			res, err := r.g.Propose(bg, []byte(c))
			got <- named{c, answer{res, err}}
		}()
		synctest.Wait() // they come in this order
	}
	return func() map[string]answer {
		r.fault.set(nil, nil)
		close(hang)
		all := map[string]answer{}
		for range commands {
			a := <-got
			all[a.name] = a.answer
		}
		return all
	}
}

func names(prefix string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%s%03d", prefix, i))
	}
	return out
}

// What waits while entries are under way goes together, each command has its own result,
// and every node applies the commands one at a time in the same order.
func TestWaitingProposalsShareAnEntry(t *testing.T) {
	for _, on := range []bool{false, true} {
		t.Run(fmt.Sprint("on=", on), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn := newTown(t, 3, newWire(time.Second), func(_ int, c *Config) { c.Batches = func() bool { return on } })
				tn.start()
				leader := tn.nodes[0]
				before := leader.g.Stats().LastIndex
				const n = 50
				answers := held(t, leader, names("c", n)...)()
				last := uint64(0)
				for i, name := range names("c", n) {
					a := answers[name]
					if a.err != nil {
						t.Fatalf("%s: %v", name, a.err)
					}
					if e, ok := leader.fsm.find(name); !ok || e.Index != a.Index || !e.Live {
						t.Errorf("%s: applied as %+v %v, answered %d", name, e, ok, a.Index)
					}
					if on && a.Value != i+1 { // the notebook answers with its length
						t.Errorf("%s: its answer is %v", name, a.Value)
					}
					last = max(last, a.Index)
				}
				if entries := leader.g.Stats().LastIndex - before; on == (entries == n) {
					t.Errorf("%d commands made %d entries", n, entries)
				}
				if e, c := leader.g.Batches(); on && (c != n || e >= n/2) || !on && c != 0 {
					t.Errorf("%d commands in %d entries", c, e)
				}
				tn.awaitApplied(last, tn.nodes...)
				tn.sameState(tn.nodes...)
				tn.stop()
			})
		})
	}
}

// A batch is bounded by count and by bytes, and a command that is larger than a batch
// may be goes alone.
func TestBatchesAreBounded(t *testing.T) {
	var b batcher
	add := func(n, size int) {
		for range n {
			b.waiting = append(b.waiting, &proposal{data: make([]byte, size)})
		}
	}
	sizes := func() (out []int) {
		b.senders = 1
		for p := b.take(); p != nil; p = b.take() {
			if size := len(encodeBatch(p)); len(p) > 1 && size > maxBatchBytes {
				t.Errorf("a batch of %d commands has %d bytes", len(p), size)
			}
			out = append(out, len(p))
			entry := []byte{1}
			b.depart(entry, p)
			b.land(entry)
		}
		if b.senders != 0 || b.flying != 0 {
			t.Errorf("%d senders and %d commands are under way", b.senders, b.flying)
		}
		return out
	}
	for _, c := range []struct {
		n, size int
		want    string
	}{
		{1, 10, "[1]"},
		{maxBatch + 1, 10, "[256 1]"},
		{3, MaxCommand, "[1 1 1]"},
		{5, maxBatchBytes / 2, "[1 1 1 1 1]"},
		{5, maxBatchBytes/2 - frameHeader - batchItem, "[2 2 1]"},
		{2, 0, "[2]"},
	} {
		if add(c.n, c.size); fmt.Sprint(sizes()) != c.want {
			t.Errorf("%d commands of %d bytes do not go as %s", c.n, c.size, c.want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, newWire(time.Second), batching)
		tn.start()
		in, err := tn.nodes[0].g.running("test")
		if err != nil {
			t.Fatal(err)
		}
		in.batch.mu.Lock()
		in.batch.waiting = make([]*proposal, maxWaiting)
		in.batch.mu.Unlock()
		if _, err := tn.nodes[0].g.Propose(bg, nil); forgeyard.KindOf(err) != forgeyard.Unavailable || !strings.Contains(fmt.Sprint(err), "16384") {
			t.Errorf("%v", err)
		}
		in.batch.mu.Lock()
		in.batch.waiting = nil
		in.batch.mu.Unlock()
		tn.stop()
	})
}

// A few callers do not wait for each other; beside many, one sender takes all that waits.
func TestManyGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, newWire(time.Second), batching)
		tn.start()
		leader := tn.nodes[0]
		before := leader.g.Stats().LastIndex
		release := held(t, leader, names("c", 40)...)
		if entries := leader.g.Stats().LastIndex - before; entries != 2 {
			t.Errorf("%d entries are under way", entries)
		}
		release()
		if e, c := leader.g.Batches(); c != 40 || e != 3 {
			t.Errorf("%d commands in %d entries", c, e)
		}
		in, err := leader.g.running("test")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if b := &in.batch; b.senders != 0 || b.flying != 0 || len(b.waiting) != 0 {
			t.Errorf("afterwards: %d senders, %d under way, %d wait", b.senders, b.flying, len(b.waiting))
		}
		tn.stop()
	})
}

// A caller that gives up: what did not leave yet certainly is not in the log; what left may
// be, and its companions are answered all the same.
func TestGivingUpWhileGathering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, newWire(time.Second), batching)
		tn.start()
		leader := tn.nodes[0]
		ctx, giveUp := context.WithCancel(bg)
		errs := make(chan error, 2)
		hang := make(chan struct{})
		leader.fault.set(nil, hang)
		propose := func(ctx context.Context, name string) {
			_, err := leader.g.Propose(ctx, []byte(name))
			errs <- err
		}
		go propose(ctx, "left")
		synctest.Wait()
		go func() { leader.g.Propose(bg, []byte("second")) }() // the second sender's
		synctest.Wait()
		go propose(ctx, "waits")
		synctest.Wait()
		giveUp()
		kinds := map[forgeyard.Kind]int{}
		for range 2 {
			kinds[forgeyard.KindOf(<-errs)]++
		}
		if kinds[forgeyard.Unknown] != 1 || kinds[forgeyard.Unavailable] != 1 {
			t.Errorf("%v", kinds)
		}
		leader.fault.set(nil, nil)
		close(hang)
		tn.awaitApplied(tn.put(leader, "after"), tn.nodes...)
		if leader.fsm.has("waits") || !leader.fsm.has("left") || !leader.fsm.has("second") {
			t.Errorf("%v", leader.fsm.lines())
		}
		tn.stop()
	})
}

// An entry that fails is answered to each of its commands, and to those behind it.
func TestFailedBatchIsAnsweredToAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, newWire(time.Second), batching)
		tn.start()
		old := tn.nodes[0]
		hang := make(chan struct{})
		// Also the first write fails: two senders may bring all commands into it.
		old.fault.set(errors.New("input/output error"), hang)
		errs := make(chan error, 20)
		for i := range 20 {
			go func() { _, err := old.g.Propose(bg, fmt.Append(nil, "x", i)); errs <- err }()
		}
		synctest.Wait()
		close(hang)
		for range 20 {
			if k := forgeyard.KindOf(<-errs); k != forgeyard.Unknown && k != forgeyard.Unavailable {
				t.Errorf("a command of a failed entry is answered with %v", k)
			}
		}
		old.fault.set(nil, nil)
		leader := tn.awaitLeader(tn.nodes...)
		tn.awaitApplied(tn.put(leader, "after"), tn.nodes...)
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}

// A log that was begun without batches goes on with them, and replays after a restart and
// from a snapshot.
func TestOldLogGoesOnWithBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		on := false
		tn := newTown(t, 3, nil, func(_ int, c *Config) { c.Batches = func() bool { return on } })
		tn.start()
		leader := tn.nodes[0]
		for _, c := range names("old", 10) {
			tn.put(leader, c)
		}
		on = true
		for _, a := range held(t, leader, names("new", 30)...)() {
			if a.err != nil {
				t.Fatal(a.err)
			}
		}
		tn.awaitApplied(leader.g.Applied(), tn.nodes...)
		tn.sameState(tn.nodes...)
		want := leader.fsm.count()
		restart := func() {
			for _, r := range tn.nodes {
				r.close()
			}
			for _, r := range tn.nodes {
				r.open()
			}
			leader = tn.awaitLeader(tn.nodes...)
			tn.awaitApplied(leader.g.Applied(), tn.nodes...)
			tn.sameState(tn.nodes...)
			if leader.fsm.count() != want {
				t.Fatalf("%d commands, there were %d", leader.fsm.count(), want)
			}
		}
		restart()
		if err := leader.g.Snapshot(bg); err != nil {
			t.Fatal(err)
		}
		restart()
		tn.stop()
	})
}

// The state machine may not be handed half an entry twice: what an instance has applied is
// skipped as a whole by the next one.
func TestBatchIsAppliedOnceOverARestart(t *testing.T) {
	fsm := &notebook{}
	m, err := newMachine(fsm, nonce{1}, stamper{}, guardsOff{})
	if err != nil {
		t.Fatal(err)
	}
	entry := &raft.Log{Index: 5, Term: 2, Type: raft.LogCommand, Data: encodeBatch([]*proposal{{data: []byte("a")}, {data: []byte("b")}})}
	first := m.ApplyBatch([]*raft.Log{entry})
	again := m.ApplyBatch([]*raft.Log{entry})
	if fmt.Sprint(first) != "[[1 2]]" || fmt.Sprint(again) != "[<nil>]" || fmt.Sprint(fsm.lines()) != "[5/a 5/b]" {
		t.Errorf("%v, then %v: %v", first, again, fsm.lines())
	}
}

// Many that renew at once share a few confirmations, and none of it is in the log.
func TestConcurrentConfirmsShareRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		leader := tn.nodes[0]
		last := tn.put(leader, "x")
		var asked atomic.Int64
		real := leader.g.cfg.TermOf
		leader.g.cfg.TermOf = func(ctx context.Context, addr string) (uint64, error) {
			asked.Add(1)
			return real(ctx, addr)
		}
		before := leader.g.Stats().LastIndex
		const n = 1000
		errs := make(chan error, n)
		for range n {
			go func() {
				index, err := leader.g.Confirm(bg)
				if err == nil && index < last {
					err = fmt.Errorf("confirmed at %d, %d was committed", index, last)
				}
				errs <- err
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		if k := asked.Load(); k > 8 { // two peers a round; at most the one under way and the next
			t.Errorf("%d confirmations asked peers %d times", n, k)
		}
		if after := leader.g.Stats().LastIndex; after != before {
			t.Errorf("the log went from %d to %d", before, after)
		}
		tn.stop()
	})
}
