package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus/roll"
)

// image is a node's directory at an instant.
func (r *resident) image() string {
	r.town.t.Helper()
	to := filepath.Join(r.town.t.TempDir(), "image")
	if err := os.CopyFS(to, os.DirFS(r.cfg.Dir)); err != nil {
		r.town.t.Fatal(err)
	}
	return to
}

// putBack makes an image the directory of a node that is closed.
func (r *resident) putBack(image string) {
	r.town.t.Helper()
	if err := errors.Join(os.RemoveAll(r.cfg.Dir), os.CopyFS(r.cfg.Dir, os.DirFS(image))); err != nil {
		r.town.t.Fatal(err)
	}
}

func (r *resident) restart() {
	r.town.t.Helper()
	r.close()
	r.open()
}

// refuses waits until one node refuses another, which knows it.
func (tn *town) refuses(a, b *resident) (why roll.Reason) {
	tn.t.Helper()
	until(tn.t, a.id+" refuses "+b.id, func() bool {
		refused, _ := a.g.Refusals()
		_, by := b.g.Refusals()
		if len(refused) != 1 || len(by) == 0 || refused[0].Member != b.id {
			return false
		}
		why = refused[0].Verdict.Reason
		return a.saw(VoterRefused) && b.saw(VoteDisowned)
	})
	return why
}

// noBoots switches the guard off.
func noBoots(_ int, c *Config) { c.off.boots = true }

// forgetful is a town in which the third node acknowledged something to the first that the
// second has not heard of. Then the first is away, and the third has an old disk.
func forgetful(t *testing.T, o ...townOption) (tn *town, whole, deaf, old *resident) {
	tn = newTown(t, 3, nil, o...)
	tn.start()
	whole, deaf, old = tn.nodes[0], tn.nodes[1], tn.nodes[2]
	tn.awaitApplied(tn.put(whole, "one"), tn.nodes...)
	old.close()
	image := old.image()
	old.open()
	tn.awaitApplied(tn.put(whole, "two"), tn.nodes...)
	time.Sleep(5 * time.Second) // it has made itself known
	tn.x.isolate(deaf.id, true)
	tn.awaitApplied(tn.put(whole, "three"), old)
	whole.close()
	old.close()
	old.putBack(image)
	tn.x.isolate(deaf.id, false)
	old.open()
	return tn, whole, deaf, old
}

// A voter whose disk is put back as it was earlier would elect a leader that lacks what it
// had acknowledged. The others know that it began once more since, and do not hear it.
func TestAnOldDiskDoesNotVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, whole, deaf, old := forgetful(t)
		if why := tn.refuses(deaf, old); why != roll.Twin {
			t.Errorf("it is refused as %d", why)
		}
		time.Sleep(5 * time.Minute)
		if deaf.g.IsLeader() || old.g.IsLeader() {
			t.Error("a node that had forgotten what it acknowledged helped to elect")
		}
		whole.open()
		leader := tn.awaitLeader(whole, deaf)
		tn.awaitApplied(tn.put(leader, "four"), whole, deaf)
		if !deaf.fsm.has("three") {
			t.Error("what was acknowledged is lost")
		}
		tn.sameState(whole, deaf)
		for range 3 { // nor when it begins again, and again
			old.restart()
			tn.refuses(leader, old)
		}
		leader.restart() // that it is refused is remembered
		tn.awaitLeader(whole, deaf)
		tn.refuses(leader, old)
		tn.stop()
	})
}

// Without the guard what was acknowledged is lost.
func TestWithoutAskingAnOldDiskVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, whole, deaf, old := forgetful(t, noBoots)
		leader := tn.awaitLeader(deaf, old)
		tn.awaitApplied(tn.put(leader, "four"), deaf, old)
		if deaf.fsm.has("three") || old.fsm.has("three") {
			t.Error("it was not lost: this story shows nothing")
		}
		whole.open()
		time.Sleep(time.Minute)
		tn.stop()
	})
}

// The image is of the very process that was the last: only what it acknowledged tells.
func TestADiskThatIsBehindIsRefused(t *testing.T) {
	for _, committed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			tn := newTown(t, 3, nil)
			tn.start()
			leader, deaf, old := tn.nodes[0], tn.nodes[1], tn.nodes[2]
			tn.awaitApplied(tn.put(leader, "one"), tn.nodes...)
			image := old.image()
			tn.awaitApplied(tn.put(leader, "two"), old)
			if committed {
				time.Sleep(5 * time.Second)
				leader.restart() // what it knows is on its disk; another leads
				if tn.awaitLeader(tn.nodes...) == old {
					if err := old.g.Transfer(bg, deaf.id); err != nil {
						t.Fatal(err)
					}
				}
			}
			old.close()
			old.putBack(image)
			old.open()
			if why := tn.refuses(tn.nodes[0], old); why != roll.Behind {
				t.Errorf("committed %v: it is refused as %d", committed, why)
			}
			tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "three"), tn.nodes[0], deaf)
			tn.stop()
		})
	}
}

// Two processes from one disk, at the same time: only one of them is heard, and both sides
// say so.
func TestTwoOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		leader, first := tn.nodes[0], tn.nodes[2]
		tn.awaitApplied(tn.put(leader, "one"), tn.nodes...)
		first.close()
		image := first.image()
		first.open()
		tn.awaitApplied(tn.put(leader, "two"), tn.nodes...)
		time.Sleep(5 * time.Second)
		second := tn.add(2)
		second.cfg.Dir = image
		second.open() // calls for the name come here now
		if why := tn.refuses(leader, second); why != roll.Twin {
			t.Errorf("it is refused as %d", why)
		}
		if _, by := first.g.Refusals(); len(by) > 0 {
			t.Errorf("the first is refused: %+v", by)
		}
		three := tn.put(leader, "three")
		tn.awaitApplied(three, leader, tn.nodes[1])
		time.Sleep(time.Minute)
		if second.g.Applied() >= three {
			t.Error("it takes entries")
		}
		if term, err := second.g.Promised(); forgeyard.KindOf(err) != forgeyard.Denied {
			t.Errorf("it helps a leader to confirm: %d, %v", term, err)
		}
		tn.stop()
	})
}

// lab is a town of copies of these nodes, which know each other and nobody else.
func (tn *town) lab(of ...*resident) *town {
	tn.t.Helper()
	for _, r := range tn.nodes {
		r.close()
	}
	lab := newTown(tn.t, len(of), nil)
	for i, r := range of {
		lab.nodes[i].cfg.Dir = r.image()
	}
	for _, r := range append(tn.nodes, lab.nodes...) {
		r.open()
	}
	return lab
}

// joins lets what a town calls reach another town's nodes, where they have the same names.
func (tn *town) joins(other *town) {
	for addr, p := range other.x.ports {
		tn.x.isolate(addr, true)
		tn.x.isolate(addr, false)
		tn.x.mu.Lock()
		tn.x.ports[addr] = p
		tn.x.mu.Unlock()
	}
}

// Most of a site was copied, and the copies have met. When they reach the originals, these
// do not listen to what copies say of them.
func TestCopiesSilenceNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		tn.awaitApplied(tn.put(tn.nodes[0], "one"), tn.nodes...)
		lab := tn.lab(tn.nodes[:2]...)
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "two"), tn.nodes...)
		lab.awaitApplied(lab.put(lab.awaitLeader(lab.nodes...), "of the copies"), lab.nodes...)
		time.Sleep(5 * time.Second) // each original is known to the others
		lab.joins(tn)
		until(t, "the copies are refused", func() bool {
			refused := 0
			for _, r := range lab.nodes {
				if _, by := r.g.Refusals(); len(by) > 0 {
					refused++
				}
			}
			return refused == len(lab.nodes)
		})
		time.Sleep(time.Minute)
		for _, r := range tn.nodes {
			if _, by := r.g.Refusals(); len(by) > 0 {
				t.Errorf("%s listens to a copy: %+v", r.id, by)
			}
		}
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "three"), tn.nodes...)
		tn.sameState(tn.nodes...)
		lab.stop()
		tn.stop()
	})
}

// claims is what the next process of a node says to another, with a log that ends there.
func (r *resident) claims(to *resident, index uint64) roll.Hello {
	to.g.boots.mu.Lock()
	known := to.g.boots.known[r.id]
	to.g.boots.mu.Unlock()
	b := roll.Boot{Number: known.Number + 1, Chain: []uint64{7, known.Nonce}}
	return roll.Hello{Claim: roll.Claim{ID: r.id, Boot: b, Lineage: r.g.Lineage(), Term: r.g.Term(), Index: index}}
}

// A process that cannot write down that it began says no hello, and acknowledges entries.
// When it says hello, with the end of the log as it was when it began to, those are not held
// against it.
func TestWhatIsAcknowledgedBeforeAHelloIsNotHeldAgainstIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		leader, full := tn.nodes[0], tn.nodes[2]
		before := tn.put(leader, "one")
		tn.awaitApplied(before, tn.nodes...)
		full.close()
		full.fault.keep(keyOwnBoots)
		full.open()
		tn.awaitApplied(tn.put(leader, "two"), full)
		c := leader.g.boots.meet(full.claims(leader, before))
		if c == nil || !c.verdict.OK() {
			t.Errorf("it is judged by what came before its hello: %+v", c)
		}
		tn.stop()
	})
}

// A process that is not known to most voters yet does not stand for a lost leader: nobody
// would get its calls, and the other voter would have yielded its turn to it.
func TestWhoIsNotKnownDoesNotStandForALostLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		tn.awaitApplied(tn.put(tn.nodes[0], "one"), tn.nodes...)
		time.Sleep(5 * time.Second)
		r := tn.nodes[1]
		in := r.g.present()
		w := in.trans.loss
		l, ok := w.leader()
		w.mu.Lock()
		w.lost, w.yielded = &l, nil
		w.mu.Unlock()
		if !ok || !w.may(l) {
			t.Errorf("it is known, and may not stand: %+v", l)
		}
		w.mu.Lock()
		w.lost, w.yielded = &l, nil
		w.mu.Unlock()
		r.g.boots.mu.Lock()
		r.g.boots.welcome = map[string]bool{}
		r.g.boots.mu.Unlock()
		if w.may(l) {
			t.Error("nobody knows it, and it would stand")
		}
		tn.stop()
	})
}

// twin is what another process says that has the number of a node's present one.
func (r *resident) twin(to *resident) roll.Hello {
	h := r.claims(to, r.g.Applied())
	h.Claim.Boot = roll.Boot{Number: h.Claim.Boot.Number - 1, Chain: []uint64{7}}
	return h
}

// What a node knows of others it knows on a full disk too, where it cannot write down that
// it began. That a refused process comes again is no news to write down.
func TestAFullDiskForgetsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		r, other := tn.nodes[1], tn.nodes[2]
		tn.awaitApplied(tn.put(tn.nodes[0], "one"), tn.nodes...)
		h := other.twin(r)
		if c := r.g.boots.meet(h); c == nil || c.verdict.Reason != roll.Twin {
			t.Fatalf("%+v", c)
		}
		time.Sleep(5 * time.Second)
		r.g.boots.meet(h)
		r.g.boots.mu.Lock()
		if r.g.boots.unsaved == someoneIsNew {
			t.Error("each call of a refused process is written down")
		}
		r.g.boots.mu.Unlock()
		r.close()
		r.fault.keep(keyOwnBoots)
		r.open()
		h.Claim.Boot = h.Claim.Boot.Next(8)
		if c := r.g.boots.meet(h); c == nil || c.verdict.Reason != roll.Twin {
			t.Errorf("a refused process is welcome: %+v", c)
		}
		tn.stop()
	})
}

// Whoever calls itself what it likes fills nobody's book; and a book that cannot be read
// keeps no node from starting.
func TestABookKeepsNoNodeFromStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		r := tn.nodes[1]
		tn.awaitApplied(tn.put(tn.nodes[0], "one"), tn.nodes...)
		h := tn.nodes[2].claims(r, 1)
		for i := range roll.MaxRecords + 1 {
			h.Claim.ID = fmt.Sprintf("x%d", i)
			r.g.boots.meet(h)
		}
		r.g.boots.mu.Lock()
		if n := len(r.g.boots.known); n > len(tn.nodes) {
			t.Errorf("%d nodes are known", n)
		}
		r.g.boots.mu.Unlock()
		r.restart()
		if err := r.g.present().store.setAside(keyBook, []byte("no book")); err != nil {
			t.Fatal(err)
		}
		r.fault.keep(keyBook)
		r.close()
		r.fault.keep(nil)
		r.open()
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "two"), tn.nodes...)
		tn.stop()
	})
}

// warnings counts what is said to operators.
type warnings struct {
	slog.Handler
	n atomic.Int32
}

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "cannot be written down") {
		w.n.Add(1)
	}
	return nil
}

// A full disk is tried once a second, and spoken of once.
func TestAFullDiskIsTriedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &warnings{Handler: slog.DiscardHandler}
		tn := newTown(t, 3, nil)
		tn.start()
		full := tn.nodes[2]
		tn.awaitApplied(tn.put(tn.nodes[0], "one"), tn.nodes...)
		full.close()
		full.fault.keep(keyOwnBoots)
		full.cfg.Log = slog.New(loud{w})
		full.open()
		time.Sleep(10 * time.Second)
		full.fault.mu.Lock()
		if n := full.fault.tries; n < 5 || n > 11 {
			t.Errorf("it was tried %d times in ten seconds", n)
		}
		full.fault.mu.Unlock()
		if n := w.n.Load(); n != 1 {
			t.Errorf("it was said %d times", n)
		}
		tn.stop()
	})
}

// loud passes all on.
type loud struct{ *warnings }

func (loud) Enabled(context.Context, slog.Level) bool { return true }
func (l loud) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l loud) WithGroup(string) slog.Handler          { return l }

// All restart at once, killed at any moment, again and again: nobody is refused.
func TestNobodyIsRefusedWhoKeptItsDisk(t *testing.T) { overStores(t, nobodyIsRefused) }

func nobodyIsRefused(t *testing.T, store townOption) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, store, func(_ int, c *Config) { c.TrailingLogs = 2 })
		tn.start()
		for round := range 6 {
			leader := tn.awaitLeader(tn.nodes...)
			for i := range 8 {
				_, _ = leader.g.Propose(bg, []byte{byte(round), byte(i)}) // it may lose its office
			}
			if err := leader.g.Snapshot(bg); err != nil {
				t.Fatal(err)
			}
			for i, r := range tn.nodes {
				if round%2 == 0 || i == round%3 {
					r.restart()
				}
			}
		}
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "end"), tn.nodes...)
		time.Sleep(10 * time.Second)
		for _, r := range tn.nodes {
			if refused, by := r.g.Refusals(); len(refused)+len(by) > 0 {
				t.Errorf("%s: refuses %+v, is refused by %+v", r.id, refused, by)
			}
		}
		tn.stop()
	})
}

// A node of the version before says no hello, and works with the others as ever.
func TestHellosAreNotAskedOfOlderNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil, func(i int, c *Config) { c.off.boots = i == 1 })
		tn.start()
		for _, r := range tn.nodes {
			r.close()
		}
		for _, r := range tn.nodes[:2] { // one of each is a majority
			r.open()
		}
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes[:2]...), "two"), tn.nodes[:2]...)
		tn.nodes[2].open()
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes...), "three"), tn.nodes...)
		tn.stop()
	})
}

// A full disk does not keep a node from starting; it votes when it could write that it has.
func TestAStartThatCannotBeWrittenDownDoesNotVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		full, gone := tn.nodes[2], tn.nodes[0]
		tn.awaitApplied(tn.put(gone, "one"), tn.nodes...)
		full.close()
		full.fault.set(errFull, nil)
		full.open()
		gone.close()
		time.Sleep(10 * time.Second)
		if tn.nodes[1].g.IsLeader() || full.g.IsLeader() {
			t.Error("it voted, and could not write that down")
		}
		if term, err := full.g.Promised(); term > 0 || err != nil {
			t.Errorf("it helps a leader to confirm: %d, %v", term, err)
		}
		full.fault.set(nil, nil)
		tn.awaitApplied(tn.put(tn.awaitLeader(tn.nodes[1:]...), "two"), tn.nodes[1:]...)
		tn.stop()
	})
}

// Two of three were promoted while one of them, or one after the other, heard nothing of it.
// What begins again then has a log in which the other does not vote, and the two elect
// without the third nevertheless: they tell each other who votes.
func TestWhoWasPromotedUnheardIsToldWhoVotes(t *testing.T) {
	for name, inTurn := range map[string]bool{"one is away": false, "in turn": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { promotedUnheard(t, inTurn) })
		})
	}
}

func promotedUnheard(t *testing.T, inTurn bool) {
	tn := newTown(t, 3, nil)
	first, two, three := tn.nodes[0], tn.nodes[1], tn.nodes[2]
	for _, r := range tn.nodes {
		r.open()
	}
	if err := first.g.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	tn.awaitLeader(first)
	for _, r := range tn.nodes[1:] {
		if err := first.g.AddNonvoter(t.Context(), r.id, r.id); err != nil {
			t.Fatal(err)
		}
	}
	tn.awaitApplied(tn.put(first, "one"), tn.nodes...)
	promote := func(r *resident) {
		if err := first.g.Promote(t.Context(), r.id); err != nil {
			t.Fatal(err)
		}
	}
	newest, deaf := two, three
	if inTurn {
		promote(two)
		tn.awaitApplied(tn.put(first, "two"), tn.nodes...)
		two.close()
		promote(three)
		newest, deaf = three, two
	} else {
		three.close()
		promote(two)
		promote(three)
	}
	tn.awaitApplied(tn.put(first, "three"), newest)
	first.close()
	newest.close()
	deaf.open()
	time.Sleep(5 * time.Second)
	if deaf.g.boots.standing() == nil {
		t.Fatal("it has met nobody, and would vote")
	}
	newest.open()
	tn.awaitLeader(newest)
	tn.awaitApplied(tn.put(newest, "four"), deaf)
	tn.stop()
}

// Two that stay connected to each other: the leader promotes one, and dies before the other
// hears of it. Their connections are older than the promotion, and what was said at the head
// of them does not name its voters; they are made anew.
func TestWhoWasPromotedOnOldConnectionsSaysWhoVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		first, deaf, newest := tn.nodes[0], tn.nodes[1], tn.nodes[2]
		for _, r := range tn.nodes {
			r.open()
		}
		if err := first.g.Bootstrap(t.Context()); err != nil {
			t.Fatal(err)
		}
		tn.awaitLeader(first)
		if err := errors.Join(first.g.AddVoter(t.Context(), deaf.id, deaf.id), first.g.AddNonvoter(t.Context(), newest.id, newest.id)); err != nil {
			t.Fatal(err)
		}
		tn.awaitApplied(tn.put(first, "one"), tn.nodes...)
		time.Sleep(10 * time.Second) // all have met whom they know to vote
		tn.x.between(first.id, deaf.id)
		if err := first.g.Promote(t.Context(), newest.id); err != nil {
			t.Fatal(err)
		}
		tn.awaitApplied(tn.put(first, "two"), newest)
		for _, m := range deaf.g.Members() {
			if m.ID == newest.id && m.Voter {
				t.Fatal("it heard of the promotion: this story shows nothing")
			}
		}
		first.kill()
		tn.awaitLeader(newest)
		tn.awaitApplied(tn.put(newest, "three"), deaf)
		tn.sameState(newest, deaf)
		tn.stop()
	})
}

// TestWelcomed: most voters, and this process whatever its log says of it.
func TestWelcomed(t *testing.T) {
	voters := func(ids ...string) []Member {
		var ms []Member
		for _, id := range ids {
			ms = append(ms, Member{ID: id, Voter: true})
		}
		return ms
	}
	for _, x := range []struct {
		voters  []Member
		welcome []string
		want    bool
	}{
		{nil, nil, true},
		{voters("me"), nil, true},
		{voters("me", "n2"), nil, false},
		{voters("me", "n2"), []string{"n2"}, true},
		{voters("me", "n2", "n3"), nil, false},
		{voters("me", "n2", "n3"), []string{"n3"}, true},
		{voters("me", "n2", "n3"), []string{"n9"}, false},
		{voters("me", "n2", "n3", "n4", "n5"), []string{"n3"}, false},
		{voters("me", "n2", "n3", "n4", "n5"), []string{"n3", "n5"}, true},
		// Its log ended before its promotion: of the three that the others count, two are here.
		{voters("n2", "n3"), []string{"n2"}, true},
		{voters("n2", "n3"), nil, false},
		{voters("n2"), nil, false},
		{voters("n2"), []string{"n2"}, true},
	} {
		welcome := map[string]bool{}
		for _, id := range x.welcome {
			welcome[id] = true
		}
		if got := welcomed(x.voters, "me", welcome); got != x.want {
			t.Errorf("voters %v, welcome at %v: %v", x.voters, x.welcome, got)
		}
	}
}
