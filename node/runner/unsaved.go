package runner

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
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
	now := r.cfg.Clock.Wall() // its time begins now, not when it was written to last
	return errors.Join(os.Chtimes(dir+unsavedSuffix, now, now), syncDir(filepath.Dir(dir)))
}

// SaveAgain tries once more to save a log that Recover could not save.
func (r *Runner) SaveAgain(ctx context.Context, rec *Recovered) error {
	if _, err := os.Stat(r.logDir(rec.Authority.Attempt, rec.Authority.Fence.Epoch)); errors.Is(err, fs.ErrNotExist) {
		rec.Unsaved = false // it was put aside: nothing is left to be saved
		return nil
	}
	var err error
	rec.Log, rec.LastLogSeq, err = r.saveLog(ctx, rec.Authority)
	rec.Unsaved = err != nil
	return err
}

// KeepParts puts parts aside that were saved and that the site did not take: the work had been
// given to others before this node said what was left of it.
func (r *Runner) KeepParts(ctx context.Context, a forgeyard.Authority, parts []job.LogChunk) error {
	if err := r.putAside(a); err != nil {
		return err
	}
	dir := r.logDir(a.Attempt, a.Fence.Epoch) + unsavedSuffix
	for _, c := range parts {
		o, err := r.cfg.Store.Open(ctx, c.Digest)
		if err != nil {
			return err
		}
		if err := errors.Join(spool.Restore(dir, c.FirstSeq, o), o.Close()); err != nil {
			return err
		}
	}
	return nil
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

// UnsavedBytes is what the logs that were put aside take.
func (r *Runner) UnsavedBytes() (n int64) {
	l, _ := r.Unsaved() // a folder that cannot be read has nothing that is known
	for _, f := range l {
		n += f.bytes
	}
	return n
}

// unsavedPart is the part of the spool's limit that all logs which were put aside may have.
const unsavedPart = 4

// tidyUnsaved looks at the logs that were put aside, and removes those whose time is over: the
// oldest ones too, as long as all of them take more than they may. The newest one stays.
func (r *Runner) tidyUnsaved(t Tidy) ([]Leftover, error) {
	names, err := r.epochLogs(func(name string) bool { return strings.HasSuffix(name, unsavedSuffix) })
	if err != nil {
		return nil, err
	}
	var out []Leftover
	var all int64
	for _, name := range names {
		info, err := os.Stat(filepath.Join(r.cfg.Spool, name))
		if err != nil {
			continue // it has just gone
		}
		// A clock that was set back is no reason to remove what is nowhere else.
		f := Leftover{What: LeftLog, Name: strings.TrimSuffix(name, unsavedSuffix), Age: max(0, r.cfg.Clock.Wall().Sub(info.ModTime())), made: info.ModTime()}
		f.bytes = bytesIn(filepath.Join(r.cfg.Spool, name))
		all += f.bytes
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(a, b Leftover) int { return a.made.Compare(b.made) })
	most := cmp.Or(max(0, r.spoolLimit.Load()), spool.DefaultLimit) / unsavedPart
	for i := range out {
		f := &out[i]
		tooMany := all > most && i < len(out)-1
		if f.Due = f.Age >= t.Logs || tooMany; !f.Due {
			continue
		}
		all -= f.bytes
		if t.Dry {
			continue
		}
		if f.remove(filepath.Join(r.cfg.Spool, f.Name+unsavedSuffix)); f.Removed && tooMany {
			r.cfg.Log.Error("a log that could not be saved is gone before its time: all of them took more than they may", "attempt and epoch", f.Name, "bytes", f.bytes, "most", most)
		}
	}
	return out, nil
}

// bytesIn is what the files of a folder take.
func bytesIn(dir string) (n int64) {
	l, _ := os.ReadDir(dir) // what has just gone takes nothing
	for _, d := range l {
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
	}
	return n
}
