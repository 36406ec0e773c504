package consensus

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/forgeyard/forgeyard-node"
)

// A node whose log or state cannot be trusted gives them up and fetches them
// from the leader. What it had acknowledged may have been committed thanks to
// it, so it must not help to elect a leader that lacks those entries: until
// its log again ends at or after the place where the old one ended, compared
// as Raft compares logs, it neither votes nor stands. Term and vote are kept.
//
// The plan is a file, synced before anything is removed, so that a crash at
// any point goes on here:
//
//	<dir>/rebuild   {"position":{"term":7,"index":120},"reason":"diverged","snapshots":true,"wiped":false}
type rebuildPlan struct {
	Position  position `json:"position"` // where the log ended
	Reason    string   `json:"reason"`
	Snapshots bool     `json:"snapshots"` // they go as well
	Wiped     bool     `json:"wiped"`
}

// position is a place in the log.
type position struct {
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
}

// compare orders logs by how current they are (Raft §5.4.1).
func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.Term, q.Term), cmp.Compare(p.Index, q.Index))
}

type wipe uint8

const (
	wipeNothing wipe = iota
	wipeLog          // the snapshots hold only what was committed and may stay
	wipeAll          // state, snapshots and log are suspect
)

func planPath(dir string) string { return filepath.Join(dir, "rebuild") }

func readPlan(dir string) (*rebuildPlan, error) {
	b, err := readSmall(planPath(dir), maxMarker)
	if err != nil {
		return nil, forgeyard.E("rebuild plan", forgeyard.Corrupt, err)
	}
	if b == nil {
		return nil, nil
	}
	return decodePlan(b)
}

func decodePlan(b []byte) (*rebuildPlan, error) {
	var p rebuildPlan
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, forgeyard.E("rebuild plan", forgeyard.Corrupt, err)
	}
	return &p, nil
}

func (p *rebuildPlan) save(dir string) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return replaceFile(planPath(dir), b)
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // a directory cannot be synced there
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// wipeStore carries the plan out. It is idempotent.
func (g *Group) wipeStore(s *guardedStore, p *rebuildPlan) error {
	if p.Wiped {
		return nil
	}
	first, err := s.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if last > 0 {
		if err := s.DeleteRange(first, last); err != nil {
			return err
		}
	}
	if p.Snapshots {
		if err := os.RemoveAll(snapshotDir(g.cfg.Dir)); err != nil {
			return err
		}
		if err := g.machine.reset(g.machine.whole()); err != nil {
			return err
		}
	}
	p.Wiped = true
	return p.save(g.cfg.Dir)
}

// planWipe writes the plan down before anything is lost.
func (g *Group) planWipe(s *guardedStore, snaps *shelf, w wipe, reason EventKind) (*rebuildPlan, error) {
	at, err := s.lastEntry()
	if err != nil {
		return nil, err
	}
	if snap, err := snaps.at(); err != nil {
		return nil, err
	} else if snap.compare(at) > 0 {
		at = snap
	}
	if old := g.plan.Load(); old != nil && old.Position.compare(at) > 0 {
		at = old.Position // wiped again before it had caught up
	}
	p := &rebuildPlan{Position: at, Reason: reason.String(), Snapshots: w == wipeAll}
	return p, p.save(g.cfg.Dir)
}

// votesWithheld reports whether this node is behind what it gave up. Once it
// no longer is, the plan is done and removed.
func (g *Group) votesWithheld(in *instance) bool {
	p := g.plan.Load()
	if p == nil {
		return false
	}
	at, err := in.store.lastEntry()
	if err != nil {
		return true
	}
	if snap, err := in.snaps.at(); err == nil && snap.compare(at) > 0 {
		at = snap
	}
	if !p.Wiped || at.compare(p.Position) < 0 {
		return true
	}
	if err := os.Remove(planPath(g.cfg.Dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if g.plan.CompareAndSwap(p, nil) {
		g.machine.quarantined.Store(false)
		g.events.put(Event{Kind: Rebuilt, Term: at.Term, Index: at.Index})
	}
	return false
}
