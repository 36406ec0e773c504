package runner

import (
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/runner/quota"
)

// diskWatch follows what one attempt takes of the disk. It is owned by whoever counts: the
// life, or the goroutine that it started for a count and waits for.
type diskWatch struct {
	a      *Attempt
	limits quota.Limits
	pace   quota.Pace
	inputs quota.Usage // as they were before the first step
	given  quota.Sum   // toolchains of the node that are in the workspace: no use of the job's
	looked forgeyard.Instant
	failed bool // counting does not work here, and that was told
	passed bool // a count found too much
	waits  bool // and it was not the workload's: without the log that waits it was within
}

// watchDisk begins to follow the disk, before the first step: what is there are inputs.
func (a *Attempt) watchDisk() {
	if a.task.Spec.Own() {
		return // it writes to the store, which has a bound of its own
	}
	a.disk = &diskWatch{a: a, limits: quota.Of(a.task.Spec.Resources.Disk)}
	for _, in := range a.ins {
		if !a.managed(in) {
			continue
		}
		if folders, _, err := quota.Count(filepath.Join(a.root, filepath.FromSlash(in.Path))); err == nil {
			for _, s := range folders {
				a.disk.given.Bytes += s.Bytes
				a.disk.given.Files += s.Files
			}
		}
	}
	a.over = a.disk.count(nil, true)
}

// due reports whether the files are to be counted now.
func (d *diskWatch) due(end bool) bool {
	if d == nil || d.failed {
		return false
	}
	free, err := quota.FreeOf(d.a.root)
	if err != nil {
		return false
	}
	if end {
		return d.pace.DueAtEnd(free)
	}
	now := d.a.run.cfg.Clock.Now()
	since := now.Sub(d.looked)
	d.looked = now
	return d.pace.Due(free, since)
}

// count counts the files, and says what is over, or nothing.
func (d *diskWatch) count(pids func() ([]int, error), first bool) string {
	began := d.a.run.cfg.Clock.Now()
	d.looked = began
	folders, c, err := quota.Count(d.a.root)
	if err != nil {
		d.failed = true
		d.a.said().Warn("the disk of an attempt is not counted", "err", err)
		return ""
	}
	var u quota.Usage
	for name, s := range folders {
		if name == executor.BinDir {
			continue // the runner's own programs
		}
		u.Files += s.Files
		switch name {
		case executor.SourceDir, executor.RestoreDir, executor.ToolchainsDir:
			u.Inputs += s.Bytes
			if name == executor.ToolchainsDir {
				u.Inputs -= d.given.Bytes
				u.Files -= d.given.Files
			}
		case executor.CkptDir:
			u.Checkpoints += s.Bytes
		default:
			u.Work += s.Bytes
		}
	}
	if first {
		u.Inputs, u.Work = u.Inputs+u.Work, 0
		d.inputs = u
	} else if moved := d.inputs.Inputs - u.Inputs; moved > 0 { // inputs in the build folder
		moved = min(moved, u.Work)
		u.Inputs, u.Work = u.Inputs+moved, u.Work-moved
	}
	if pids != nil {
		if l, err := pids(); err == nil {
			s := c.Deleted(l)
			u.Deleted = s.Bytes
			u.Work += s.Bytes
			u.Files += s.Files
		}
	}
	u.Deep = c.Deep
	u.Log = d.a.log.Unflushed()
	free, err := quota.FreeOf(d.a.root)
	if err != nil {
		free = quota.Free{}
	}
	d.pace.Counted(u, d.limits, free, d.a.run.cfg.Clock.Now().Sub(began))
	over := d.limits.Over(u)
	if over != "" && !d.passed {
		u.Log = 0
		d.passed, d.waits = true, d.limits.Over(u) == ""
	}
	return over
}

// overran reports whether the work took more than it asked for. A log waits on the disk where
// this node's store takes nothing: another node may have a better one.
func (d *diskWatch) overran() bool { return d != nil && d.passed && !d.waits }

// lister is a handle that knows the processes of its tree; both executors' do.
type lister interface{ Procs() ([]int, error) }

// countDisk begins a count in a goroutine of its own, when it is time: a large workspace must
// not delay a signal.
func (w *watch) countDisk() {
	if w.counting != nil || !w.a.disk.due(false) {
		return
	}
	var pids func() ([]int, error)
	if l, ok := w.h.(lister); ok {
		pids = l.Procs
	}
	w.counting = make(chan string, 1)
	go func(out chan<- string) { out <- w.a.disk.count(pids, false) }(w.counting)
}

// counted takes a count: what uses more than it asked for ends at once, since each moment of
// grace is another gigabyte.
func (w *watch) counted(over string) {
	w.counting = nil
	if over != "" && w.a.over == "" {
		w.a.over = over
		w.strike()
	}
}

// lastCount counts what a step left that ended before anybody looked.
func (w *watch) lastCount() {
	if w.counting != nil {
		w.counted(<-w.counting)
	}
	if w.a.over == "" && w.a.disk.due(true) {
		w.a.over = w.a.disk.count(nil, false)
	}
}
