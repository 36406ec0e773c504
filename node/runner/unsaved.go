package runner

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// A log that the store did not take by the end of its epoch, or after a crash, is the only copy
// of what was printed, and the site takes no part of an epoch that has ended. So it is put aside,
// for people to read here, until its time is over:
//
//	<attempt>/<epoch>  ──▶  <attempt>/<epoch>.unsaved
//
// A rename needs no room, which is what may be lacking.
const unsavedSuffix = ".unsaved"

func (r *Runner) logDir(a forgeyard.AttemptID, epoch uint64) string {
	return filepath.Join(r.cfg.Spool, string(a), strconv.FormatUint(epoch, 10))
}

// putAside keeps what is left of an epoch's log: that of it which was saved is gone from here.
func (r *Runner) putAside(a forgeyard.Authority) error {
	dir := r.logDir(a.Attempt, a.Fence.Epoch)
	err := os.Rename(dir, dir+unsavedSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return forgeyard.E("keep log", executor.KindOfDisk(err), err)
	}
	r.cfg.Log.Error("a log could not be saved: it is on this node only", "job", a.Job, "attempt", a.Attempt, "epoch", a.Fence.Epoch, "dir", dir+unsavedSuffix)
	return syncDir(filepath.Dir(dir))
}

// SaveAgain tries once more to save a log that Recover could not save.
func (r *Runner) SaveAgain(ctx context.Context, rec *Recovered) error {
	if _, err := os.Stat(r.logDir(rec.Authority.Attempt, rec.Authority.Fence.Epoch)); errors.Is(err, fs.ErrNotExist) {
		return nil // it was put aside
	}
	var err error
	rec.Log, rec.LastLogSeq, err = r.saveLog(ctx, rec.Authority)
	rec.Unsaved = err != nil
	return err
}

// HasUnsaved reports whether a log of an epoch was put aside.
func (r *Runner) HasUnsaved(a forgeyard.AttemptID, epoch uint64) bool {
	_, err := os.Stat(r.logDir(a, epoch) + unsavedSuffix)
	return err == nil
}

// UnsavedLog reads what was put aside of an epoch's log: nothing where nothing was.
func (r *Runner) UnsavedLog(a forgeyard.AttemptID, epoch uint64) iter.Seq2[spool.Frame, error] {
	return spool.Read(r.logDir(a, epoch) + unsavedSuffix)
}

// Unsaved lists the logs that were put aside.
func (r *Runner) Unsaved() ([]Leftover, error) { return r.tidyUnsaved(Tidy{Dry: true}) }

// tidyUnsaved looks at the logs that were put aside, and removes those whose time is over.
func (r *Runner) tidyUnsaved(t Tidy) ([]Leftover, error) {
	l, err := r.epochLogs(func(name string) bool { return strings.HasSuffix(name, unsavedSuffix) })
	if err != nil {
		return nil, err
	}
	var out []Leftover
	for _, name := range l {
		dir := filepath.Join(r.cfg.Spool, name)
		info, err := os.Stat(dir)
		if err != nil {
			continue // it has just gone
		}
		f := Leftover{What: LeftLog, Name: strings.TrimSuffix(name, unsavedSuffix), Age: r.cfg.Clock.Wall().Sub(info.ModTime())}
		f.Due = f.Age >= t.Logs || f.Age < -clockSlip
		if f.Due && !t.Dry {
			f.remove(dir)
		}
		out = append(out, f)
	}
	return out, nil
}
