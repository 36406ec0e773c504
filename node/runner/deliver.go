package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// deliver captures the declared outputs, stores them, and has them replicated. What
// fails is tried again while there is time, and the work is never run again for it
// (07§87).
func (a *Attempt) deliver() *verdict {
	a.enter(job.PhaseUploading)
	ctx, cancel := a.bounded(a.task.Spec.Timeouts.Upload, a.cancelled)
	defer cancel()
	var err error
	switch {
	case a.task.Spec.Own():
		err = a.retry(ctx, "keep what was brought in", a.ownOutputs, outputIsWrong)
	case !a.task.Spec.NoCommit:
		err = a.retry(ctx, "store outputs", a.capture, outputIsWrong)
	}
	if v := a.interruptedByEnd(); v != nil {
		return v
	}
	if err != nil {
		return a.notCaptured(ctx, err)
	}
	if err := a.retry(ctx, "flush log", a.flush, nil); err != nil {
		a.said().Warn("log not flushed", "err", err)
	}
	err = a.retry(ctx, "replicate", a.replicate, nil)
	if v := a.interruptedByEnd(); v != nil {
		return v
	}
	if err != nil {
		// Copies pin before they go anywhere. Where even that may have failed, a result that nothing
		// on the disk keeps is none.
		if perr := a.pin(context.WithoutCancel(ctx)); perr != nil && len(a.outputs) > 0 {
			return a.notCaptured(ctx, perr)
		}
		a.ended.Undelivered = forgeyard.Clip(err.Error(), maxMessage)
		a.result.Short = true
		a.note("passed; outputs are here and not yet where they should be: %v", err)
	} else {
		a.happened(UploadCompleted, "upload completed")
	}
	return &verdict{end: EndCompleted, outcome: job.OutcomeDone, message: a.summary}
}

// retry calls f until it succeeds, the time is over, or the error is final.
func (a *Attempt) retry(ctx context.Context, what string, f func(context.Context) error, final func(error) bool) error {
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		if a.Lost() {
			return forgeyard.E(what, forgeyard.Stale, errLost)
		}
		err := f(ctx)
		if err == nil || (final != nil && final(err)) {
			return err
		}
		if ctx.Err() != nil {
			return err
		}
		a.note("%s: %v; trying again in %v", what, err, wait)
		select {
		case <-ctx.Done():
			return err
		case <-a.run.cfg.Clock.After(wait):
		}
	}
}

// outputIsWrong reports errors that the outputs themselves are, so trying again is useless.
func outputIsWrong(err error) bool {
	switch forgeyard.KindOf(err) {
	case forgeyard.Invalid, forgeyard.NotFound, forgeyard.Limit, forgeyard.Denied:
		return true
	}
	return false
}

// notCaptured sorts a capture that failed for good. The steps passed all the same, and
// the result's steps say so.
func (a *Attempt) notCaptured(ctx context.Context, err error) *verdict {
	switch {
	case outputIsWrong(err):
		return failure(job.OutputInvalid, "%v", err)
	case forgeyard.KindOf(err) == forgeyard.NoSpace:
		return failure(job.DiskFull, "%v", err)
	case errors.Is(context.Cause(ctx), errTimeout):
		return failure(job.TimedOut, "storing outputs took longer than %v: %v", a.task.Spec.Timeouts.Upload, err)
	}
	return failure(job.Internal, "%v", err)
}

// capture stores the declared outputs, kept from the first byte on: this process holds them
// for their owner until the result is pinned, and one that comes after it does not know them.
func (a *Attempt) capture(ctx context.Context) error {
	build := filepath.Join(a.root, executor.BuildDir)
	paths, err := a.present(build)
	if err != nil {
		return err
	}
	if err := a.noSecretIn(ctx, build, paths); err != nil {
		return err
	}
	a.outputs = nil
	if len(paths) > 0 {
		o := tree.Options{Owner: PinOwner(a.task.Authority.Attempt), Class: cas.Durable, UID: a.owner(), Limits: tree.Limits{MaxFiles: maxOutputFiles, MaxBytes: a.task.Spec.Resources.Disk}}
		got, err := tree.CaptureOutputs(ctx, a.run.cfg.Store, build, paths, o)
		if err != nil {
			return err
		}
		for _, it := range got.Items {
			a.outputs = append(a.outputs, job.Output{Path: it.Path, Tree: it.Kind == cas.Dir, Digest: it.Ref.Digest, Manifest: it.Ref.Manifest, Size: it.Ref.Size})
		}
	}
	return nil
}

// owner is whose files may be captured, 0: whatever this process can read. A daemon that is root
// reads files that the workload's user may not, and where the machine lets everybody link
// everything (fs.protected_hardlinks) these can be linked among the outputs.
func (a *Attempt) owner() int {
	if !a.user.Lent() {
		return 0
	}
	return a.user.UID
}

// pin keeps what the result names; inputs and earlier pieces are let go.
func (a *Attempt) pin(ctx context.Context) error {
	pin := cas.Pin{Owner: PinOwner(a.task.Authority.Attempt)}
	outs := a.outputs[:len(a.outputs):len(a.outputs)]
	for _, d := range a.signs {
		if !d.Digest.IsZero() {
			outs = append(outs, d.Output())
		}
	}
	for _, o := range outs {
		if o.Tree {
			pin.Trees = append(pin.Trees, o.Digest)
		} else {
			pin.Roots = append(pin.Roots, o.Digest)
		}
	}
	for _, c := range a.log.Chunks() {
		pin.Roots = append(pin.Roots, c.Digest)
	}
	return a.run.cfg.Store.Pin(ctx, pin)
}

// present lists the declared outputs without the optional ones that are not there. The
// tree is dead, so nothing appears or goes meanwhile.
func (a *Attempt) present(build string) (paths []string, err error) {
	root, err := os.OpenRoot(build)
	if err != nil {
		return nil, forgeyard.E("outputs", forgeyard.Other, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, d := range a.task.Spec.Outputs {
		if d.Optional {
			if _, err := root.Lstat(filepath.FromSlash(d.Path)); errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		paths = append(paths, d.Path)
	}
	return paths, nil
}

func (a *Attempt) replicate(ctx context.Context) error {
	d := Delivery{Outputs: a.outputs, Log: a.log.Chunks()}
	r, err := a.hooks.Replicate(ctx, d)
	if err != nil {
		return err
	}
	a.result.Replicas, a.result.Short = r.Nodes, r.Short
	return nil
}

// flush brings the log into the store, keeps it there, and tells.
func (a *Attempt) flush(ctx context.Context) error {
	_, err := a.flushWith(ctx, a.log.Flush)
	return err
}

// flushWith does so with what is to be flushed now, and returns how many parts that were.
func (a *Attempt) flushWith(ctx context.Context, f func(context.Context, cas.Store) ([]job.LogChunk, error)) (int, error) {
	chunks, err := f(ctx, a.run.cfg.Store)
	if len(chunks) > 0 {
		a.hooks.Logged(ctx, chunks)
	}
	if err != nil {
		return len(chunks), fmt.Errorf("log: %w", err)
	}
	return len(chunks), nil
}

// flushDue reports whether a log that has not filled a part is flushed all the same: what
// only this node has is lost with it. A log of many days keeps its last parts for full ones.
func (a *Attempt) flushDue(since time.Duration) bool {
	has := len(a.log.Chunks())
	return since >= flushEvery<<min(has/flushSlower, 10) && (a.task.LogParts == 0 || a.task.LogParts-has > lateParts)
}

// startFlusher flushes from time to time, until the life's end.
func (a *Attempt) startFlusher() {
	a.flushed = make(chan struct{})
	stop := a.flushStop
	go func() {
		defer close(a.flushed)
		clk := a.run.cfg.Clock
		last := clk.Now()
		reported, reports := last, 0
		for {
			select {
			case <-stop:
				return
			case <-clk.After(flushLook):
			}
			if a.told.Waiting() > 0 && clk.Now().Sub(reported) >= reportEvery<<min(reports/reportSlower, 10) {
				reported, reports = clk.Now(), reports+1
				a.tell(a.report)
			}
			n, due := a.log.Unflushed(), a.flushDue(clk.Now().Sub(last))
			if n == 0 || n < flushBytes && !due {
				continue
			}
			what := a.log.FlushFull
			if due {
				what = a.log.Flush
			}
			ctx, cancel := a.stoppable(stop)
			stored, err := a.flushWith(ctx, what)
			if err != nil && ctx.Err() == nil {
				a.said().Warn("log not flushed", "err", err)
			}
			cancel()
			if stored > 0 || due {
				a.told.Mark(a.log.Last())
				last = clk.Now()
			}
		}
	}()
}

// stoppable ends with the lease or with stop.
func (a *Attempt) stoppable(stop <-chan struct{}) (context.Context, context.CancelFunc) {
	return a.bounded(time.Duration(0), stop)
}

// lastFlush ends the flusher, flushes what is left and closes the log. Nobody is told of these
// parts: the end names them. After the lease has
// ended nothing is flushed: a chunk there would be proposed by nobody.
func (a *Attempt) lastFlush() {
	close(a.flushStop)
	<-a.flushed
	if a.ctx.Err() == nil {
		ctx, cancel := a.bounded(endFlush, nil)
		if _, err := a.log.Flush(ctx, a.run.cfg.Store); err != nil {
			a.said().Warn("log not flushed", "err", err)
			a.cutOff = a.ctx.Err() == nil
		}
		cancel()
	}
	if err := a.log.Close(); err != nil {
		a.said().Warn("log not closed", "err", err)
	}
}
