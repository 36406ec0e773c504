package consensus

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// RA-098: a program that cannot read what the group decided applies nothing after it,
// serves nothing, writes no snapshot, and says so; the others go on, and a newer program
// finds all of it in the log.
func TestOldProgramHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 3, nil)
		tn.start()
		old := tn.nodes[2]
		old.fsm.mu.Lock()
		old.fsm.unread = "of tomorrow"
		old.fsm.mu.Unlock()
		tn.put(tn.nodes[0], "known")
		at := tn.put(tn.nodes[0], "of tomorrow")
		last := tn.put(tn.nodes[0], "after it")
		tn.awaitApplied(last, tn.nodes[0], tn.nodes[1])
		until(t, "the event", func() bool { return old.saw(Halted) })
		if old.fsm.has("after it") || old.g.Applied() >= at {
			t.Fatalf("it went on: %v", old.fsm.lines())
		}
		for what, err := range map[string]error{"wait": old.g.WaitApplied(bg, last), "snapshot": old.g.Snapshot(bg)} {
			if !errors.Is(err, errUnread) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := old.g.Propose(bg, []byte("x")); err == nil || !strings.Contains(err.Error(), "upgrade") {
			t.Errorf("propose: %v", err)
		}
		old.close()
		old.open() // upgraded
		tn.awaitApplied(last, old)
		tn.sameState(tn.nodes...)
		tn.stop()
	})
}

// A program that cannot read the newest snapshot does not start, and says why.
func TestOldProgramDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, nil)
		tn.start()
		r := tn.nodes[0]
		tn.put(r, "one")
		if err := r.g.Snapshot(bg); err != nil {
			t.Fatal(err)
		}
		r.close()
		r.cfg.FSM = &oldNotebook{}
		r.cfg.Layer = tn.x.port(r.id)
		if g, err := Open(r.cfg); !errors.Is(err, errUnread) {
			t.Fatalf("%v %v", g, err)
		}
		r.open()
		if !r.fsm.has("one") {
			until(t, "the state", func() bool { return r.fsm.has("one") })
		}
		tn.stop()
	})
}
