package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/site"
)

// The log of an execution outlives its runner: parts that were flushed go to as many nodes
// as the site keeps copies, whatever the durability of the job's outputs, and then into the
// site's log, while the work goes on. What a lost node takes with it is what was not
// flushed yet, and what came since the last round of this.

const (
	// shareLogEvery is the pause between rounds: each costs an entry, which takes along the
	// events that wait. A quiet log is flushed more rarely than that.
	shareLogEvery = 5 * time.Second
	// shareLogAfter is how long a round waits for the end: what ends by then takes its log along.
	shareLogAfter = 500 * time.Millisecond
	// shareLogTime bounds one round. What was copied by then need not be copied again.
	shareLogTime = time.Minute
	// copyLogTime bounds how long the end of an execution waits for the copies of its log.
	copyLogTime = 10 * time.Second
)

// Logged implements runner.Hooks.
func (x *execution) Logged(_ context.Context, chunks []job.LogChunk) {
	x.mu.Lock()
	x.log, x.kept = append(x.log, chunks...), append(x.kept, chunks...)
	x.mu.Unlock()
	x.moreLog()
}

func (x *execution) moreLog() {
	select {
	case x.logged <- struct{}{}:
	default:
	}
}

// shareLog brings what is flushed to where it outlives this node, round by round, until the
// returned function is called: it returns when that has ended. What is left then goes with
// the command that ends the epoch.
func (x *execution) shareLog(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for wait := shareLogEvery; ; {
			select {
			case <-ctx.Done():
				return
			case <-x.logged:
			}
			if !x.n.pause(ctx, shareLogAfter) {
				return
			}
			switch err := x.shareLogOnce(ctx); {
			case err == nil:
				wait = shareLogEvery
			case ctx.Err() != nil || forgeyard.KindOf(err) == forgeyard.Stale:
				return
			default:
				x.n.log.Info("a log is on this node only", "job", x.authority.Job, "err", err)
				x.moreLog()
				wait = min(2*wait, shareLogTime)
			}
			if !x.n.pause(ctx, wait) {
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// shareLogOnce copies what is flushed and tells the site of it, oldest first.
func (x *execution) shareLogOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shareLogTime)
	defer cancel()
	x.mu.Lock()
	kept := slices.Clone(x.kept)
	x.mu.Unlock()
	if len(kept) == 0 || !x.n.mayReport() || x.isLogFull() {
		return nil
	}
	if err := x.replicateLog(ctx, kept); err != nil {
		return err
	}
	for more := true; more; {
		var err error
		if more, err = x.reportLog(ctx, kept[len(kept)-1].LastSeq); err != nil {
			return err
		}
	}
	return nil
}

// reportLog tells the site of parts up to a number, and says whether more are left.
func (x *execution) reportLog(ctx context.Context, upTo uint64) (more bool, err error) {
	if !x.telling.TryLock() {
		x.moreLog() // a checkpoint takes along what there is
		return false, nil
	}
	defer x.telling.Unlock()
	chunks := x.takeLog(site.MaxReportedLog, upTo)
	if len(chunks) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if x.isLost() {
		return false, forgeyard.Errorf("log", forgeyard.Stale, "the lease is over")
	}
	told := x.toldNow()
	if _, err := x.n.propose(ctx, site.Report{Authority: x.authority, Told: told, Log: chunks}); err != nil {
		x.putBackLog(chunks)
		return false, err
	}
	if !told.IsZero() {
		x.attempt.Told(told.Last())
	}
	return len(chunks) == site.MaxReportedLog, nil
}

// toldNow are the events that go along: the entry is there anyhow.
func (x *execution) toldNow() job.Told {
	t := x.untold()
	t.Events = t.Events[:min(len(t.Events), job.MaxTold)]
	return t
}

// packsLogs says whether parts of logs are stored packed: every member reads them so. What an
// earlier process left is saved before the site's state is there to ask: plainly.
func (n *Node) packsLogs() bool { return n.replica != nil && allReadPacked(n.replica.State()) }

func allReadPacked(st *site.State) bool {
	return st.Allows(site.FormatLogParts) && len(st.BehindFormat()) == 0
}

// isLogFull says that the job's record takes no more parts: they are kept here alone, until
// the end.
func (x *execution) isLogFull() bool {
	j, ok := x.n.replica.State().Jobs.Get(x.authority.Job)
	return ok && j.LogFull
}

// replicateLog brings parts to the nodes that should have them, pinned there and here until
// the job is forgotten. What is there is not sent again.
func (x *execution) replicateLog(ctx context.Context, all []job.LogChunk) error {
	roots := rootsOf(nil, all)
	_, err := x.n.replicate(ctx, job.DurSite, pinOf(agent.LogPin(x.authority), roots), roots)
	return err
}

// copyLog does so with the whole log of an epoch that has ended. An end that has its log on
// one node only is better than one that waits.
func (x *execution) copyLog(ctx context.Context, all []job.LogChunk) {
	if x.isLogFull() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, copyLogTime)
	defer cancel()
	if err := x.replicateLog(ctx, all); err != nil {
		x.n.log.Warn("the end of a log is on this node only", "job", x.authority.Job, "err", err)
	}
}

// takeLog takes parts up to a number that the site's log does not have, oldest first. The
// caller holds telling until they have arrived or were put back: the site takes no part that
// comes after a later one.
func (x *execution) takeLog(most int, upTo uint64) []job.LogChunk {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for n < min(len(x.log), most) && x.log[n].LastSeq <= upTo {
		n++
	}
	l := slices.Clone(x.log[:n])
	x.log = x.log[n:]
	return l
}

func (x *execution) putBackLog(l []job.LogChunk) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.log = append(slices.Clone(l), x.log...)
}

// unsent are the chunks of the log that the site does not know yet, as one command names them.
func (x *execution) unsent(all []job.LogChunk) []job.LogChunk {
	known := x.job.LogSeq
	if j, ok := x.n.replica.State().Jobs.Get(x.authority.Job); ok {
		known = j.LogSeq
	}
	var out []job.LogChunk
	for _, c := range all {
		if c.FirstSeq > known {
			out = append(out, c)
		}
	}
	return named(out)
}

// named are the parts that one command names of those that the site does not know. More than
// a job's record has would only make the command too large to be committed; but how far the
// numbers went it must know, and that is in the last.
func named(all []job.LogChunk) []job.LogChunk {
	if len(all) <= site.MaxLogChunks {
		return all
	}
	return append(slices.Clone(all[:site.MaxLogChunks]), all[len(all)-1])
}
