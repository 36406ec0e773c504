package consensus

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
)

func lineageB() Reseed {
	return Reseed{Lineage: "B", Index: 1 << 40, Command: []byte("recovered")}
}

// strangers remembers who called from another lineage.
type strangers struct {
	mu  sync.Mutex
	all []string
}

func (s *strangers) note(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.all, addr) {
		s.all = append(s.all, addr)
	}
}

func (s *strangers) saw(addr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.all, addr)
}

// lost is a town of three whose first node is the only one left, and has what it can.
func lost(t *testing.T, options ...townOption) (*town, *resident) {
	tn := newTown(t, 3, nil, options...)
	tn.start()
	for _, d := range []string{"a", "b", "c"} {
		tn.put(tn.nodes[0], d)
	}
	tn.nodes[1].close()
	tn.nodes[2].close()
	left := tn.nodes[0]
	until(t, "the leader to notice", func() bool { return !left.g.IsLeader() })
	return tn, left
}

// E31: one of three is left for good; it goes on alone, has what was committed, and its
// log goes on above all that the others can have reached.
func TestReseedGoesOnAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, left := lost(t)
		if err := left.g.Reseed(bg, lineageB()); err != nil {
			t.Fatal(err)
		}
		if !left.fsm.has("a") || !left.fsm.has("recovered") || !left.saw(Reseeded) || left.g.Lineage() != "B" {
			t.Fatalf("%v %q", left.fsm.lines(), left.g.Lineage())
		}
		if at := tn.put(left, "after"); at <= 1<<40 {
			t.Fatalf("the log goes on at %d", at)
		}
		if m := left.g.Members(); len(m) != 1 || !m[0].Voter || m[0].ID != left.id {
			t.Fatalf("members %v", m)
		}
		if err := left.g.Reseed(bg, Reseed{Lineage: "C", Index: 1 << 41}); forgeyard.KindOf(err) != forgeyard.Conflict {
			t.Fatalf("a leader of a group that works: %v", err)
		}
		was := left.fsm.lines()
		left.close()
		left.open()
		tn.awaitLeader(left)
		if !slices.Equal(left.fsm.lines(), was) || left.g.Lineage() != "B" {
			t.Fatalf("after a restart %v\nbefore %v", left.fsm.lines(), was)
		}
		tn.stop()
	})
}

// What was in the survivor's log and not known to be committed is kept: the lost voters
// may have committed it.
func TestReseedKeepsTheTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn, left := lost(t)
		left.close()
		var last uint64
		func() {
			disk, err := openDisk(left.cfg.Dir, DefaultLogStore, newHCLog(quiet()))
			if err != nil {
				t.Fatal(err)
			}
			defer disk.Close()
			if last, err = disk.LastIndex(); err != nil {
				t.Fatal(err)
			}
			if err := disk.StoreLog(&raft.Log{Index: last + 1, Term: 9, Type: raft.LogCommand, Data: encodeCommand([]byte("tail"))}); err != nil {
				t.Fatal(err)
			}
		}()
		left.open()
		if left.fsm.has("tail") {
			t.Fatal("it was applied without a majority")
		}
		if tail, err := left.g.Tail(last); err != nil || len(tail) != 1 || string(tail[0].Data) != "tail" || tail[0].Index != last+1 {
			t.Fatalf("the log goes on with %v: %v", tail, err)
		}
		if err := left.g.Reseed(bg, lineageB()); err != nil {
			t.Fatal(err)
		}
		if e, ok := left.fsm.find("tail"); !ok || e.Index != last+1 {
			t.Fatalf("%v", left.fsm.lines())
		}
		tn.stop()
	})
}

// The old majority comes back and elects a leader. It neither takes the recovered node
// along, nor counts it; each side learns of the other. Without the lineage in the calls
// the old leader overwrites what the recovery decided.
func TestOldMajorityDoesNotReachAcross(t *testing.T) {
	for name, off := range map[string]bool{"guarded": false, "without the guard": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var met strangers
				tn, left := lost(t, func(_ int, c *Config) { c.off.lineage, c.OnStranger = off, met.note })
				if err := left.g.Reseed(bg, lineageB()); err != nil {
					t.Fatal(err)
				}
				tn.put(left, "after")
				tn.nodes[1].open()
				tn.nodes[2].open()
				old := tn.awaitLeader(tn.nodes[1], tn.nodes[2])
				tn.put(old, "of the old group")
				time.Sleep(time.Minute)
				held := left.g.IsLeader() && left.fsm.has("after") && !left.fsm.has("of the old group")
				switch {
				case off && held && left.g.Stats().Term >= old.g.Term():
					t.Fatal("without the guard nothing happened either: the test shows nothing")
				case !off && !held:
					t.Fatalf("%v, leads: %v", left.fsm.lines(), left.g.IsLeader())
				case !off && !met.saw(old.id):
					t.Fatalf("the old leader called and nobody was told: %v", met.all)
				}
				tn.stop()
			})
		})
	}
}

// A member of the old group whose log was set aside joins the new one; one that kept it
// does not hear it.
func TestOldMemberBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var met strangers
		tn, left := lost(t, func(_ int, c *Config) { c.OnStranger = met.note })
		if err := left.g.Reseed(bg, lineageB()); err != nil {
			t.Fatal(err)
		}
		back, kept := tn.nodes[1], tn.nodes[2]
		if err := os.Rename(back.cfg.Dir, back.cfg.Dir+".aside"); err != nil {
			t.Fatal(err)
		}
		back.open()
		kept.open()
		for _, r := range []*resident{back, kept} {
			if err := left.g.AddNonvoter(bg, r.id, r.id); err != nil {
				t.Fatal(err)
			}
		}
		last := tn.put(left, "after")
		tn.awaitApplied(last, back)
		tn.sameState(left, back)
		if back.g.Lineage() != "B" {
			t.Fatalf("lineage %q", back.g.Lineage())
		}
		until(t, "the kept log to be told apart", func() bool { return met.saw(left.id) })
		if kept.fsm.has("after") || kept.g.Lineage() != "" {
			t.Fatalf("%v", kept.fsm.lines())
		}
		tn.stop()
	})
}

// What the state machine refuses is not tried at every start for ever: the plan is given
// up, whoever waits for it is told why, and the group is what it was.
func TestReseedThatIsRefusedIsGivenUp(t *testing.T) {
	for _, at := range []string{"while it runs", "at a start"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn, left := lost(t)
				left.fsm.refused, left.refused = "recovered", "recovered"
				if at == "while it runs" {
					if err := left.g.Reseed(bg, lineageB()); forgeyard.KindOf(err) != forgeyard.Denied {
						t.Fatalf("the answer is %v", err)
					}
				}
				left.close()
				if at == "at a start" {
					if err := PlanReseed(left.cfg.Dir, lineageB()); err != nil {
						t.Fatal(err)
					}
				}
				left.open()
				if _, err := os.Stat(reseedPath(left.cfg.Dir)); !errors.Is(err, os.ErrNotExist) {
					t.Fatalf("the plan is still there: %v", err)
				}
				if left.g.Lineage() != "" || left.fsm.has("recovered") {
					t.Fatalf("%q %v", left.g.Lineage(), left.fsm.lines())
				}
				tn.nodes[1].open()
				tn.awaitApplied(tn.put(tn.awaitLeader(left, tn.nodes[1]), "after"), left)
				if !left.fsm.has("a") || !left.fsm.has("after") {
					t.Fatalf("%v", left.fsm.lines())
				}
				tn.stop()
			})
		})
	}
}

// A crash at any step goes on at the next start, with the same outcome.
func TestReseedGoesOnAfterACrash(t *testing.T) {
	for _, at := range []string{"planned", "snapshot written", "log emptied", "lineage written"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tn, left := lost(t)
				left.close()
				log := filepath.Join(left.cfg.Dir, "raft.db")
				before, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				r := lineageB()
				if err := PlanReseed(left.cfg.Dir, r); err != nil {
					t.Fatal(err)
				}
				if at != "planned" {
					left.open()
					tn.awaitLeader(left)
					left.close()
					if at == "snapshot written" {
						if err := os.WriteFile(log, before, 0o600); err != nil {
							t.Fatal(err)
						}
					}
					if at != "lineage written" {
						if err := os.Remove(lineagePath(left.cfg.Dir)); err != nil {
							t.Fatal(err)
						}
					}
					if err := PlanReseed(left.cfg.Dir, r); err != nil {
						t.Fatal(err)
					}
				}
				left.open()
				tn.awaitLeader(left)
				lines := left.fsm.lines()
				if n := len(lines); n != 4 || !strings.HasSuffix(lines[n-1], "/recovered") || left.g.Lineage() != "B" {
					t.Fatalf("%v %q", lines, left.g.Lineage())
				}
				if _, err := os.Stat(reseedPath(left.cfg.Dir)); !errors.Is(err, os.ErrNotExist) {
					t.Fatalf("the plan is still there: %v", err)
				}
				tn.put(left, "after")
				tn.stop()
			})
		})
	}
}

// A state from a file becomes a group of one.
func TestReseedFromAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTown(t, 1, nil)
		r := tn.nodes[0]
		if err := os.MkdirAll(r.cfg.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(notebookSnapshot{Entries: []Entry{{Index: 7, Data: []byte("kept")}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(r.cfg.Dir, "seed"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		plan := lineageB()
		plan.State, plan.StateIndex = "seed", 7
		if err := PlanReseed(r.cfg.Dir, plan); err != nil {
			t.Fatal(err)
		}
		r.open()
		tn.awaitLeader(r)
		tn.put(r, "after")
		if lines := r.fsm.lines(); len(lines) != 3 || lines[0] != "7/kept" || lines[1] != "1099511627776/recovered" {
			t.Fatalf("%v", lines)
		}
		if _, err := os.Stat(filepath.Join(r.cfg.Dir, "seed")); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("the file is still there: %v", err)
		}
		tn.stop()
	})
}

func FuzzReseedPlan(f *testing.F) {
	b, _ := json.Marshal(lineageB())
	f.Add(b)
	f.Add([]byte(`{"lineage":"B","index":9,"command":"eA==","state":"seed","state_index":7}`))
	f.Add([]byte(`{"lineage":"","index":0}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeReseed(b)
		if err == nil && (r.check() != nil || strings.Contains(r.State, "/")) {
			t.Fatalf("%+v was let in", r)
		}
	})
}
