package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// Work that has ended leaves nothing, or is tidied up after: a clean-up that failed is tried
// again, what nobody names goes after a grace, and none of it ever changes a result
// (07§96–98).

// tidyEvery is how often leftovers are looked for, at most.
const tidyEvery = time.Minute

// keepUnsaved is how long a log that could not be saved is kept for people.
const keepUnsaved = 7 * 24 * time.Hour

// janitorLoop tidies up.
func (n *Node) janitorLoop(ctx context.Context) error {
	for {
		r := n.settings().Retention
		wait := min(tidyEvery, r.StaleWorkspace)
		if r.DebugFailed > 0 {
			wait = min(wait, r.DebugFailed)
		}
		if !n.pause(ctx, wait) {
			return nil
		}
		n.tidy(ctx)
	}
}

func (n *Node) tidy(ctx context.Context) {
	r := n.settings().Retention
	found, err := n.runner.Tidy(ctx, runner.Tidy{Stale: r.StaleWorkspace, Keep: r.DebugFailed, Logs: keepUnsaved})
	if err != nil {
		n.log.Warn("leftovers were not looked for", "err", err)
	}
	n.tidied(found)
}

// tidied counts what a look at leftovers did.
func (n *Node) tidied(found []runner.Leftover) {
	for _, f := range found {
		switch {
		case f.Removed:
			n.metrics.tidied.WithLabelValues(f.What).Inc()
			n.log.Info("a leftover of ended work is gone", "what", f.What, "name", f.Name, "age", f.Age.Round(time.Second))
		case f.Why != "":
			n.metrics.cleanupFailures.Inc()
			n.log.Debug("a leftover of ended work stays", "what", f.What, "name", f.Name, "why", f.Why)
		}
	}
}

// Cleanup implements control.Node: what the janitor does, at once, without its grace.
func (n *Node) Cleanup(ctx context.Context, dry, kept bool) (*forgeyardv1.CleanupResponse, error) {
	t := runner.Tidy{Dry: dry, Keep: n.settings().Retention.DebugFailed, Logs: keepUnsaved}
	if kept {
		t.Keep, t.Logs = 0, 0
	}
	found, err := n.runner.Tidy(ctx, t)
	if err != nil {
		return nil, err
	}
	if !dry {
		n.tidied(found)
	}
	out := &forgeyardv1.CleanupResponse{}
	for _, f := range found {
		out.Found = append(out.Found, &forgeyardv1.Leftover{What: f.What, Name: f.Name, Age: durationpb.New(f.Age), Due: f.Due, Removed: f.Removed, Why: f.Why})
	}
	return out, nil
}

// checkWorkspaces says what ended work has left and cannot be removed.
func (n *Node) checkWorkspaces() *forgeyardv1.Health_Check {
	kept, err := n.runner.Kept()
	logs, lerr := n.runner.Unsaved()
	var of forgeyard.JobID
	if len(logs) > 0 {
		of = n.jobOfAttempt(forgeyard.AttemptID(path.Dir(filepath.ToSlash(logs[0].Name))))
	}
	return judgeWorkspaces(n.runner.Undone(), logs, of, len(kept), errors.Join(err, lerr))
}

// jobOfAttempt is empty where the site remembers no such job any more.
func (n *Node) jobOfAttempt(a forgeyard.AttemptID) forgeyard.JobID {
	for id, j := range n.replica.State().Jobs.All() {
		if slices.ContainsFunc(j.History, func(e site.EpochRecord) bool { return e.Attempt == a }) {
			return id
		}
	}
	return ""
}

// judgeWorkspaces judges it; the first of the logs is of that job.
func judgeWorkspaces(undone, logs []runner.Leftover, of forgeyard.JobID, kept int, err error) *forgeyardv1.Health_Check {
	c := check("workspaces")
	c.Detail = "all that could go is gone"
	if kept > 0 {
		c.Detail += fmt.Sprintf("; %d of failed jobs are kept for a look", kept)
	}
	if err != nil {
		c.Status, c.Detail, c.Fix = checkFail, err.Error(), "look at the disk, and at how it is mounted: dmesg, findmnt"
		return c
	}
	if len(logs) > 0 {
		c.Status = checkWarn
		c.Detail = fmt.Sprintf("%d logs could not be saved, the first of job %s, attempt and epoch %s: they are on this node only", len(logs), of, logs[0].Name)
		c.Fix = fmt.Sprintf("read it here with forgeyard-node job log %s, then: forgeyard-node cleanup --kept; each goes by itself after 7 days", of)
		if of == "" {
			c.Detail = fmt.Sprintf("%d logs could not be saved, the first of attempt and epoch %s, of a job that the site does not know any more: they are on this node only", len(logs), logs[0].Name)
			c.Fix = fmt.Sprintf("its frames are in %s/%s.unsaved of the data folder; when they are not needed: forgeyard-node cleanup --kept; each goes by itself after 7 days", dirSpool, filepath.ToSlash(logs[0].Name))
		}
	}
	if len(undone) > 0 {
		u := undone[0]
		c.Status = checkWarn
		c.Detail = fmt.Sprintf("%d clean-ups failed, the oldest %s ago, of %s: %s", len(undone), u.Age.Round(time.Second), u.Name, forgeyard.Clip(u.Why, 200))
		c.Fix = "remove what stands in its way; it is tried again each minute, or at once with: forgeyard-node cleanup"
	}
	return c
}

// vacateLate removes the workspace of an attempt whose result waits too long for its answer,
// until the returned function is called.
func (x *execution) vacateLate(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	x.n.work.Go(func() {
		if !x.n.pause(ctx, x.n.settings().Retention.Finalize) {
			return
		}
		if err := x.attempt.Vacate(); err != nil {
			x.n.log.Warn("the workspace of a result that waits stays", "job", x.authority.Job, "err", err)
			return
		}
		x.n.log.Info("a result waits for the site, and its workspace is gone", "job", x.authority.Job, "epoch", x.authority.Fence.Epoch)
	})
	return cancel
}

// keeps says whether the workspace of an epoch that ended so is kept for a person.
func (n *Node) keeps(r job.Result, e runner.Ended) bool {
	return n.settings().Retention.DebugFailed > 0 && e.Kind == runner.EndCompleted && r.Outcome == job.OutcomeFailed
}
