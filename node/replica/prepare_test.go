package replica

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/site"
)

// prepareLog is a log of entries of one to four commands, some of them repeated or refused.
func prepareLog(rng *rand.Rand, n int) (out []consensus.Entry) {
	out = append(out, initEntry())
	for index := uint64(2); len(out) < n; index++ {
		for range 1 + rng.IntN(4) {
			c := site.Command{ID: forgeyard.MessageID(fmt.Sprint("r", rng.IntN(n))), At: forgeyard.Wall(1_800_000_000_000 + int64(index)), By: "ana", Body: submission()}
			if rng.IntN(4) == 0 {
				c.Body = site.Cancel{Job: "none"}
			}
			out = append(out, consensus.Entry{Index: index, Term: 1 + index/20, Live: true, Data: c.Encode()})
		}
	}
	return out
}

// same applies an entry to two replicas, of which one may have prepared it.
func same(t *testing.T, plain, r *Replica, e consensus.Entry) {
	t.Helper()
	want, got := plain.Apply(e), r.Apply(e)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("entry %d: %+v, want %+v", e.Index, got, want)
	}
	if e.Index%8 == 0 && r.Hash() != plain.Hash() {
		t.Fatalf("entry %d: the states differ", e.Index)
	}
}

// What was prepared changes nothing of what is applied, whether it is prepared in its order,
// late, twice, or for an entry that another took the place of.
func TestPreparedOrNotIsTheSame(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		plain, r := New(), New()
		log := prepareLog(rng, 120)
		for i, e := range log {
			for ahead := range rng.IntN(6) {
				if at := i + ahead; at < len(log) {
					guess := log[at]
					switch rng.IntN(12) {
					case 0:
						guess = log[rng.IntN(len(log))] // out of its order
					case 1:
						guess.Term++ // a leader that was deposed
					case 2:
						guess.Index++
					case 3:
						guess.Data = site.Command{ID: "lost", By: "ana", Body: submission()}.Encode()
					}
					r.Prepare(guess)
				}
			}
			same(t, plain, r, e)
		}
	}
}

// A leader prepares on one goroutine what it applies on another.
func TestPreparingBesideApplying(t *testing.T) {
	log := prepareLog(rand.New(rand.NewPCG(7, 7)), 600)
	plain, r := New(), New()
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, e := range log {
			r.Prepare(e)
		}
	})
	for _, e := range log {
		same(t, plain, r, e)
	}
	wg.Wait()
}

// An outcome is taken for the very entry, in the very state, and for nothing else.
func TestOnlyTheSameEntryIsPrepared(t *testing.T) {
	e := drill(2, true)
	other := drill(3, true).Data
	for _, c := range []struct {
		name    string
		applied func(*Replica, consensus.Entry) consensus.Entry
		used    bool
	}{
		{"the same", func(_ *Replica, e consensus.Entry) consensus.Entry { return e }, true},
		{"replayed", func(_ *Replica, e consensus.Entry) consensus.Entry { e.Live = false; return e }, true},
		{"another command", func(_ *Replica, e consensus.Entry) consensus.Entry { e.Data = other; return e }, false},
		{"another index", func(_ *Replica, e consensus.Entry) consensus.Entry { e.Index++; return e }, false},
		{"another term", func(_ *Replica, e consensus.Entry) consensus.Entry { e.Term++; return e }, false},
		{"another state", func(r *Replica, e consensus.Entry) consensus.Entry { r.set(&site.State{Index: 1, Step: 1}); return e }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := New()
			r.Apply(initEntry())
			before := r.State()
			if !r.Prepare(e) || r.State() != before {
				t.Fatal("it was not prepared, or somebody could see it")
			}
			prepared := r.ahead.all[0].next
			r.Apply(c.applied(r, e))
			if used := r.State() == prepared; used != c.used {
				t.Errorf("what was prepared is used: %v", used)
			}
			if len(r.ahead.all) != 0 {
				t.Errorf("%d outcomes are left", len(r.ahead.all))
			}
			if r.Prepare(consensus.Entry{Index: 2, Term: 1, Data: other}) == !c.used {
				t.Error("an entry was prepared that Apply has worked out by itself")
			}
		})
	}
}

// Entries that are never committed do not pile up.
func TestPreparedHasABound(t *testing.T) {
	r := New()
	r.Apply(initEntry())
	for i := range uint64(maxPrepared + 10) {
		if got := r.Prepare(drill(2+i%40, true)); got != (i < maxPrepared) {
			t.Fatalf("outcome %d of at most %d: %v", i+1, maxPrepared, got)
		}
	}
}
