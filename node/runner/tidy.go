package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/quota"
)

// What ended work leaves is looked for again and again, since no removal is certain to
// succeed when its attempt ends:
//
//	attempt    its clean-up failed: something is mounted in its workspace, a control group
//	           does not go, a device does not come back. It is kept in mind with all that it
//	           had (its user, its disk) and tried again until it succeeds (07§96)
//	workspace  a folder that no attempt names: a crash between two steps left it
//	spool      a log that no attempt names, for the same reason
//	kept       the workspace of a job that failed, kept for a person for a while
//	log        what could not be saved of a log, likewise
//
// What nobody names is left alone for a grace from the moment that it was first seen, by the
// clock that nobody sets: it may be a step of something that has just begun.

// Kinds of leftovers. Append only.
const (
	LeftAttempt   = "attempt"
	LeftWorkspace = "workspace"
	LeftSpool     = "spool"
	LeftKept      = "kept"
	LeftLog       = "log"
)

// Leftover is something that ended work left.
type Leftover struct {
	What    string
	Name    string
	Age     time.Duration // since it was first seen; of what is kept: since the job failed
	Due     bool          // it is to go now
	Removed bool
	Why     string // why it is still there

	bytes int64     // of a log
	made  time.Time // of a log: when it was put aside
}

// Tidy says what is to be done about leftovers.
type Tidy struct {
	Stale time.Duration // how long what nobody names is left alone
	Keep  time.Duration // how long the workspace of a failed job is kept
	Logs  time.Duration // how long a log that could not be saved is kept
	Dry   bool          // look, and touch nothing
}

// undone is a clean-up that failed.
type undone struct {
	since     forgeyard.Instant
	tries     int
	why       string
	workspace string
	again     func(context.Context) error
}

// keptMark is the file of a workspace that is kept. The workload cannot write beside it.
const keptMark = "kept.json"

// kept is what the mark says.
type kept struct {
	Since time.Time `json:"since"`
	Bytes int64     `json:"bytes"` // what removing it brings
}

// The bounds of what is kept for people.
const (
	maxKept = 32
	// clockSlip is how far in the future a mark may be before the clock is taken to have been
	// set, and its time for over.
	clockSlip = time.Hour
	// probeTime is how long a folder of a probe is left alone, whoever asks.
	probeTime = 5 * time.Minute
)

// failedToClean keeps a clean-up in mind that is to be tried again.
func (r *Runner) failedToClean(id, workspace string, err error, again func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u, ok := r.undone[id]
	if !ok {
		u = &undone{since: r.cfg.Clock.Now(), workspace: filepath.Base(workspace), again: again}
		r.undone[id] = u
	}
	u.tries++
	u.why = err.Error()
}

// cleaned forgets a clean-up that succeeded.
func (r *Runner) cleaned(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.undone, id)
}

// Undone lists what was to go and did not, the oldest first.
func (r *Runner) Undone() []Leftover {
	l := r.failed()
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(l, r.stays...)
}

// failed lists the clean-ups that are to be tried again.
func (r *Runner) failed() []Leftover {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.cfg.Clock.Now()
	var l []Leftover
	for id, u := range r.undone {
		l = append(l, Leftover{What: LeftAttempt, Name: id, Age: now.Sub(u.since), Due: true, Why: fmt.Sprintf("%s (tried %d times)", u.why, u.tries)})
	}
	slices.SortFunc(l, func(a, b Leftover) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.Name, b.Name)) })
	return l
}

// Tidy looks for leftovers and removes those that are due. What cannot be removed is told in
// its Why, and is no error of the look itself.
func (r *Runner) Tidy(ctx context.Context, t Tidy) ([]Leftover, error) {
	r.tidying.Lock()
	defer r.tidying.Unlock()
	found := r.tryAgain(ctx, t)
	strays, err := r.strays(t)
	logs, lerr := r.tidyUnsaved(t)
	return slices.Concat(found, strays, logs), errors.Join(err, lerr)
}

// tryAgain repeats the clean-ups that failed.
func (r *Runner) tryAgain(ctx context.Context, t Tidy) []Leftover {
	found := r.failed()
	if t.Dry {
		return found
	}
	for i := range found {
		f := &found[i]
		r.mu.Lock()
		u := r.undone[f.Name]
		r.mu.Unlock()
		if u == nil || ctx.Err() != nil {
			continue
		}
		err := u.again(ctx)
		if err != nil {
			r.failedToClean(f.Name, u.workspace, err, u.again)
			f.Why = err.Error()
			continue
		}
		r.cleaned(f.Name)
		f.Removed, f.Why = true, ""
		r.cfg.Log.Info("cleaned up at last", "attempt", f.Name, "after", f.Age)
	}
	return found
}

// strays looks for folders that nobody names.
func (r *Runner) strays(t Tidy) ([]Leftover, error) {
	spaces, err := names(r.cfg.Workspaces)
	logs, lerr := r.epochLogs(func(name string) bool { _, err := strconv.ParseUint(name, 10, 64); return err == nil })
	if err = errors.Join(err, lerr); err != nil {
		return nil, err
	}
	// After the listing: who has made a folder by then is active, and if it is not any more,
	// it has removed it.
	var found []Leftover
	now, seen := r.cfg.Clock.Now(), map[string]forgeyard.Instant{}
	add := func(what, name, dir string, grace time.Duration) {
		first, ok := r.seen[dir]
		if !ok {
			first = now
		}
		f := Leftover{What: what, Name: name, Age: now.Sub(first)}
		f.Due = f.Age >= grace
		if f.Due && !t.Dry {
			f.remove(dir)
		}
		if !f.Removed {
			seen[dir] = first
		}
		found = append(found, f)
	}
	named := r.named()
	for _, name := range spaces {
		switch dir := filepath.Join(r.cfg.Workspaces, name); {
		case named.workspace(name):
		case isKept(dir):
			found = append(found, r.judgeKept(name, t))
		case strings.HasPrefix(name, executor.ProbePrefix):
			add(LeftWorkspace, name, dir, max(t.Stale, probeTime))
		default:
			add(LeftWorkspace, name, dir, t.Stale)
		}
	}
	for _, name := range logs {
		if !named.epochs[strings.ReplaceAll(name, string(filepath.Separator), "-")] {
			add(LeftSpool, name, filepath.Join(r.cfg.Spool, name), t.Stale)
		}
	}
	if !t.Dry {
		r.seen = seen
		r.mu.Lock()
		r.stays = slices.DeleteFunc(slices.Clone(found), func(f Leftover) bool { return f.Why == "" })
		r.mu.Unlock()
	}
	return found, nil
}

// remove removes a folder of a leftover.
func (f *Leftover) remove(dir string) {
	err := removeWorkspace(dir)
	if err == nil && (f.What == LeftSpool || f.What == LeftLog) {
		err = removeEmpty(filepath.Dir(dir))
	}
	if err != nil {
		f.Why = err.Error()
		return
	}
	f.Removed = true
}

// inUse are the epochs and workspaces that somebody names: those at work, and those whose
// clean-up is to be tried again as a whole.
type inUse struct {
	epochs map[string]bool
	spaces map[string]bool
}

func (r *Runner) named() inUse {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := inUse{map[string]bool{}, map[string]bool{}}
	for id := range r.active {
		n.epochs[id] = true
	}
	for id, u := range r.undone {
		n.epochs[id], n.spaces[u.workspace] = true, true
	}
	return n
}

// workspace reports whether a workspace is somebody's: its name begins with the epoch's.
func (n inUse) workspace(name string) bool {
	i := strings.LastIndexByte(name, '-')
	return n.spaces[name] || i > 0 && n.epochs[name[:i]]
}

func names(dir string) ([]string, error) { return namesOf(dir, func(os.DirEntry) bool { return true }) }

func namesOf(dir string, which func(os.DirEntry) bool) ([]string, error) {
	l, err := os.ReadDir(dir)
	if err != nil {
		return nil, forgeyard.E("tidy", executor.KindOfDisk(err), err)
	}
	var out []string
	for _, d := range l {
		if which(d) {
			out = append(out, d.Name())
		}
	}
	return out, nil
}

// epochLogs lists the folders of logs with such names, as attempt/name. A file beside them is
// no log.
func (r *Runner) epochLogs(which func(name string) bool) ([]string, error) {
	attempts, err := namesOf(r.cfg.Spool, os.DirEntry.IsDir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, a := range attempts {
		epochs, err := names(filepath.Join(r.cfg.Spool, a))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just gone
		}
		if err != nil {
			return nil, err
		}
		for _, e := range epochs {
			if which(e) {
				out = append(out, filepath.Join(a, e))
			}
		}
	}
	return out, nil
}

// keep marks a workspace as one for a person to look at. Its user is lent to others, who are
// not to read in it.
func (a *Attempt) keep() error {
	if err := os.Chmod(a.root, 0o700); err != nil {
		return err
	}
	k := kept{Since: a.run.cfg.Clock.Wall()}
	if folders, _, err := quota.Count(a.root); err == nil {
		for _, s := range folders {
			k.Bytes += s.Bytes
		}
	}
	if l, err := a.run.Kept(); err == nil && len(l) >= maxKept {
		l[0].remove(filepath.Join(a.run.cfg.Workspaces, l[0].Name)) // one that cannot go is tried again when its time is over
	}
	b, err := json.Marshal(k)
	invariant.NoError(err, "the mark of a kept workspace encodes")
	return durable.WriteFile(filepath.Join(a.root, keptMark), append(b, '\n'), 0o600)
}

// isKept reports whether a workspace has the mark, whatever it says.
func isKept(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, keptMark))
	return err == nil
}

func readKept(dir string) (k kept) {
	b, err := os.ReadFile(filepath.Join(dir, keptMark))
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err != nil {
		return kept{} // kept since long ago: it goes
	}
	return k
}

// judgeKept looks at a workspace that is kept, and removes it when its time is over.
func (r *Runner) judgeKept(name string, t Tidy) Leftover {
	dir := filepath.Join(r.cfg.Workspaces, name)
	f := Leftover{What: LeftKept, Name: name, Age: r.cfg.Clock.Wall().Sub(readKept(dir).Since)}
	f.Due = f.Age >= t.Keep || f.Age < -clockSlip
	if f.Due && !t.Dry {
		f.remove(dir)
	}
	return f
}

// Kept lists the workspaces that are kept, the oldest first.
func (r *Runner) Kept() ([]Leftover, error) {
	l, err := names(r.cfg.Workspaces)
	if err != nil {
		return nil, err
	}
	var out []Leftover
	for _, name := range l {
		if isKept(filepath.Join(r.cfg.Workspaces, name)) {
			out = append(out, r.judgeKept(name, Tidy{Dry: true}))
		}
	}
	slices.SortFunc(out, func(a, b Leftover) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.Name, b.Name)) })
	return out, nil
}

// keptBytes is what removing all that is kept would bring.
func (r *Runner) keptBytes() (n int64) {
	l, _ := r.Kept() // a folder that cannot be read brings nothing
	for _, k := range l {
		n += readKept(filepath.Join(r.cfg.Workspaces, k.Name)).Bytes
	}
	return n
}

// evictKept removes kept workspaces, the oldest first, until so many bytes came free: work
// comes before what a person may want to look at.
func (r *Runner) evictKept(want int64) (freed int64) {
	l, err := r.Kept()
	if err != nil {
		r.cfg.Log.Warn("kept workspaces are not looked for", "err", err)
	}
	for _, k := range l {
		if freed >= want {
			break
		}
		dir := filepath.Join(r.cfg.Workspaces, k.Name)
		n := max(readKept(dir).Bytes, 1)
		if k.remove(dir); !k.Removed {
			r.cfg.Log.Warn("a kept workspace stays", "workspace", k.Name, "why", k.Why)
			continue
		}
		freed += n
	}
	return freed
}
