package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// Recovered is an epoch that an earlier process of this runner had under way. Its tree is
// dead and its workspace is gone, unless Err says otherwise; it is not continued (decision 4).
type Recovered struct {
	Authority  forgeyard.Authority
	Phase      job.Phase
	Completion []byte         // as given to KeepCompletion; Forget ends it
	Log        []job.LogChunk // what was still spooled, now in the store
	Unsaved    bool           // more of it is on this disk only: SaveAgain tries once more
	LastLogSeq uint64
	Rebooted   bool  // the machine was restarted since: nothing of the epoch can run
	Err        error // what could not be cleaned up: a matter of health
	Alive      bool  // with Err: its tree may still run
}

// Recover cleans up after earlier processes: ends their trees, and no process that only has
// the same number (RSE), saves their logs, removes their workspaces. Call it once,
// before the first Start. What cannot be cleaned is told and tried again at the next start.
func (r *Runner) Recover(ctx context.Context) []Recovered {
	names, err := filepath.Glob(filepath.Join(r.cfg.StateDir, "*"+stateSuffix))
	if err != nil {
		return []Recovered{{Err: forgeyard.E("recover", forgeyard.Invalid, err)}}
	}
	var out []Recovered
	held := map[string]bool{}
	for _, name := range names {
		rec, workspace := r.recover1(ctx, name)
		if rec.Err != nil {
			held[filepath.Base(workspace)] = true
			r.cfg.Log.Error("not cleaned up", "attempt", rec.Authority.Attempt, "err", rec.Err)
		}
		out = append(out, rec)
	}
	if err := r.sweep(held); err != nil {
		r.cfg.Log.Error("stale workspaces stay", "err", err)
		out = append(out, Recovered{Err: err})
	}
	return out
}

func (r *Runner) recover1(ctx context.Context, name string) (rec Recovered, workspace string) {
	s, err := readState(name)
	if err != nil {
		// Written whole or not at all, so this is damage; it is put aside for a person. Its
		// tree is still found by the name of its epoch, which is the file's.
		rec.Err = errors.Join(err, os.Rename(name, name+".damaged"))
		if rerr := r.reapByName(ctx, strings.TrimSuffix(filepath.Base(name), stateSuffix)); rerr != nil {
			rec.Err, rec.Alive = errors.Join(rec.Err, rerr), true
		}
		return rec, ""
	}
	rec = Recovered{Authority: s.Authority, Phase: s.Phase, Completion: s.Completion}
	rec.Rebooted = s.Orphan.Boot != "" && s.Orphan.Boot != executor.BootID()
	if rec.Err = r.reap(ctx, s); rec.Err != nil {
		rec.Alive = true
		r.stillHas(s)
		return rec, s.Workspace // something may still run there: nothing of it is touched
	}
	rec.Log, rec.LastLogSeq, err = r.saveLog(ctx, s.Authority)
	rec.Unsaved = err != nil
	if rec.Err = errors.Join(r.clear(s), err); rec.Err != nil {
		r.stillHas(s)
		r.failedToClean(epochName(s.Authority), s.Workspace, rec.Err, func(ctx context.Context) error { return r.clearLater(ctx, s, name) })
	}
	if rec.Err == nil && len(rec.Completion) == 0 {
		rec.Err = absent(os.Remove(name))
	}
	return rec, s.Workspace
}

// clear gives back and removes what a dead process had for an epoch.
func (r *Runner) clear(s state) error {
	var errs []error
	for _, g := range s.Grants {
		errs = append(errs, g.giveBack())
	}
	switch {
	case s.Workspace == "":
	case !within(r.cfg.Workspaces, s.Workspace):
		errs = append(errs, forgeyard.Errorf("recover", forgeyard.Invalid, "workspace %s is not below %s", s.Workspace, r.cfg.Workspaces))
	default:
		errs = append(errs, removeWorkspace(s.Workspace))
	}
	return errors.Join(errs...)
}

// clearLater does what could not be done at the start. What is left of its log is put aside:
// the site has heard how the epoch ended, and takes no more of it.
func (r *Runner) clearLater(_ context.Context, s state, name string) error {
	if err := r.clear(s); err != nil {
		return err
	}
	if err := r.putAside(s.Authority); err != nil {
		return err
	}
	now, err := readState(name)
	if err == nil && len(now.Completion) == 0 { // one that waits for its answer is Forget's
		err = os.Remove(name)
	}
	if err = absent(err); err != nil {
		return err
	}
	if e, ok := r.cfg.Executors[s.Sandbox]; ok {
		e.Users().Return(epochName(s.Authority))
	}
	return nil
}

// stillHas keeps a user from being lent whose tree or files of an earlier process are there.
func (r *Runner) stillHas(s state) {
	if e, ok := r.cfg.Executors[s.Sandbox]; ok {
		e.Users().Hold(epochName(s.Authority), s.User)
	}
}

func readState(name string) (state, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return state{}, forgeyard.E("recover", executor.KindOfDisk(err), err)
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return state{}, forgeyard.E("recover", forgeyard.Corrupt, fmt.Errorf("%s: %w", name, err))
	}
	if s.Version != stateVersion {
		return state{}, forgeyard.Errorf("recover", forgeyard.Invalid, "%s has version %d, this program reads %d", name, s.Version, stateVersion)
	}
	return s, nil
}

func (r *Runner) reap(ctx context.Context, s state) error {
	if s.Orphan.ID == "" {
		return nil
	}
	e, ok := r.cfg.Executors[s.Sandbox]
	if !ok {
		return forgeyard.Errorf("recover", forgeyard.Unavailable, "its executor %q is no longer configured", s.Sandbox)
	}
	return e.Reap(ctx, s.Orphan)
}

// reapByName ends the tree of an epoch of which only the name is known, whichever
// executor started it.
func (r *Runner) reapByName(ctx context.Context, id string) error {
	var errs []error
	for _, e := range r.cfg.Executors {
		errs = append(errs, e.Reap(ctx, executor.Orphan{ID: id, Boot: executor.BootID()}))
	}
	return errors.Join(errs...)
}

// saveLog flushes what a dead process left in its spool (07§76).
func (r *Runner) saveLog(ctx context.Context, a forgeyard.Authority) (chunks []job.LogChunk, last uint64, err error) {
	dir := r.logDir(a.Attempt, a.Fence.Epoch)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	s, err := spool.Open(spool.Config{Dir: dir, Epoch: a.Fence.Epoch, Pack: r.cfg.PackLogs, Clock: r.cfg.Clock})
	if err != nil {
		return nil, 0, err
	}
	chunks, err = s.Flush(ctx, r.cfg.Store)
	if err != nil {
		return chunks, s.Last(), errors.Join(err, s.Close())
	}
	return chunks, s.Last(), errors.Join(s.Remove(), removeEmpty(filepath.Dir(dir)))
}

// sweep removes workspaces that no state file names: a crash between two steps
// left them (07§97–98). Those that are kept for a person stay.
func (r *Runner) sweep(held map[string]bool) error {
	l, err := os.ReadDir(r.cfg.Workspaces)
	if err != nil {
		return forgeyard.E("recover", executor.KindOfDisk(err), err)
	}
	var errs []error
	for _, d := range l {
		if !held[d.Name()] && !isKept(filepath.Join(r.cfg.Workspaces, d.Name())) {
			errs = append(errs, removeWorkspace(filepath.Join(r.cfg.Workspaces, d.Name())))
		}
	}
	return errors.Join(errs...)
}

// within reports whether p lies below dir, by its text.
func within(dir, p string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && rel != "." && filepath.IsLocal(rel) && !strings.Contains(rel, string(filepath.Separator))
}
