package replica

import (
	"bytes"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

func initEntry() consensus.Entry {
	return consensus.Entry{Index: 1, Term: 1, Live: true, Data: site.Command{ID: "init", Body: site.Init{Site: "01HF000000000000000000000S", Name: "lab", Config: sitecfg.DefaultSite(), Runner: "R1", Node: "n1", Peer: "p1"}}.Encode()}
}

func drill(index uint64, live bool) consensus.Entry {
	return consensus.Entry{Index: index, Term: 1, Live: live, Data: site.Command{ID: forgeyard.MessageID(strings.Repeat("r", int(index))), Body: site.ConfigSet{Key: "voters", Value: "5"}}.Encode()}
}

// Whoever waits for a change is woken by each, and sees a state that never changes under
// it.
func TestChangedWakesAndStatesStay(t *testing.T) {
	r := New()
	empty, ch := r.State(), r.Changed()
	if rep, _ := r.Apply(initEntry()).(site.Reply); rep.Err() != nil {
		t.Fatal(rep.Err())
	}
	select {
	case <-ch:
	default:
		t.Fatal("nobody was woken")
	}
	if empty.Site != "" || r.State().Site != "01HF000000000000000000000S" || r.Changed() == ch {
		t.Fatalf("%q, then %q", empty.Site, r.State().Site)
	}
}

// An observer sees each entry once, with the states on both sides of it and whether it is
// new; bytes that are no command reach none.
func TestObserversSeeEntriesInOrder(t *testing.T) {
	r := New()
	var seen []Applied
	r.Observe(func(a Applied) { seen = append(seen, a) })
	r.Apply(initEntry())
	r.Apply(consensus.Entry{Index: 2, Term: 1, Data: []byte("no command")})
	r.Apply(drill(3, false))
	if len(seen) != 2 || seen[0].Index != 1 || !seen[0].Live || seen[1].Index != 3 || seen[1].Live {
		t.Fatalf("%+v", seen)
	}
	if seen[1].Before.Index != 2 || seen[1].State.Index != 3 || seen[1].State != r.State() {
		t.Errorf("states %d and %d", seen[1].Before.Index, seen[1].State.Index)
	}
	if _, ok := seen[0].Command.Body.(site.Init); !ok {
		t.Errorf("%T", seen[0].Command.Body)
	}
}

// A copy that was restored from a snapshot is the same one, and goes on as the other does.
func TestRestoredCopyIsTheSame(t *testing.T) {
	a, b := New(), New()
	a.Apply(initEntry())
	snap, err := a.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	a.Apply(drill(2, true)) // what comes after is not in it
	var image bytes.Buffer
	if _, err := snap.WriteTo(&image); err != nil {
		t.Fatal(err)
	}
	ch := b.Changed()
	if err := b.Restore(&image, 1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ch:
	default:
		t.Error("a restore is a change")
	}
	if b.State().Index != 1 || a.Hash() == b.Hash() {
		t.Fatalf("index %d", b.State().Index)
	}
	b.Apply(drill(2, true))
	if a.Hash() != b.Hash() {
		t.Error("two copies, two states")
	}
}

// A snapshot that is damaged changes nothing; an empty one is a site that was not begun.
func TestRestoreRefusesDamage(t *testing.T) {
	r := New()
	r.Apply(initEntry())
	before := r.Hash()
	if err := r.Restore(strings.NewReader("no snapshot"), 9); forgeyard.KindOf(err) != forgeyard.Corrupt {
		t.Fatal(err)
	}
	if r.Hash() != before {
		t.Error("half a snapshot was taken")
	}
	if err := r.Restore(strings.NewReader(""), 9); err != nil || r.State().Index != 9 || r.State().Site != "" {
		t.Fatalf("%v %+v", err, r.State())
	}
}

// RA-442: while the state is built again, readers keep the last whole one, and the log goes
// on to the new one. They see that, and are woken, when it is said to be whole.
func TestReadersNeverSeeHalfAState(t *testing.T) {
	r := New()
	r.Apply(initEntry())
	r.Apply(drill(2, true))
	whole, ch := r.State(), r.Changed()

	r.Rebuilding(true)
	if err := r.Restore(strings.NewReader(""), 0); err != nil {
		t.Fatal(err)
	}
	blank := (&site.State{}).Hash()
	if r.Hash() != blank || r.State() != whole {
		t.Fatalf("the log builds on step %d, readers see step %d", r.state.Load().Step, r.State().Step)
	}
	r.Apply(initEntry())
	select {
	case <-ch:
		t.Fatal("a reader was woken for nothing")
	default:
	}
	var before, after uint64
	r.Observe(func(a Applied) { before, after = a.Before.Step, a.State.Step })
	r.Apply(drill(2, false))
	if before != 1 || after != 2 || r.State() != whole {
		t.Fatalf("an observer saw steps %d and %d", before, after)
	}

	r.Rebuilding(false)
	select {
	case <-ch:
	default:
		t.Fatal("nobody was woken")
	}
	if r.State() == whole || r.State().Step != 2 || r.State().Hash() != whole.Hash() {
		t.Fatalf("step %d", r.State().Step)
	}
}
