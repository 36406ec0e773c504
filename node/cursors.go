package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/checkpoint/cursor"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// tests is how far the cursor of one epoch was read and committed.
type tests struct {
	size  int64             // of the cursor when it was read last
	fresh int               // ends that no commit has
	since forgeyard.Instant // when the first of them was seen
	ended int               // ends of this epoch that are committed
	last  runner.Captured   // the last commit
	fault string            // what was wrong when it was read last
}

// pollCursor commits the cursor after so many results, or so long after one that waits; at
// once when it is asked for, or when nobody writes any more.
func (c *checkpointer) pollCursor(ctx context.Context, f runner.Folders, sealed []int, final bool) (runner.Captured, error) {
	for _, seq := range sealed {
		if err := c.settle(f, seq, checkpoint.StatusRejected, string(checkpoint.CodeMode)+": in mode framework the runner takes the cursor, and no directory"); err != nil {
			return runner.Captured{}, err
		}
	}
	if !c.contract.Resumable() {
		return runner.Captured{}, nil
	}
	t, now := &c.tests, c.x.n.clock.Now()
	if st, err := os.Lstat(filepath.Join(f.Ckpt, checkpoint.CursorName)); err == nil && st.Size() == t.size && !final && !f.Now && (t.fresh == 0 || now.Sub(t.since) < c.contract.Interval) {
		return runner.Captured{}, nil
	} else if err == nil {
		t.size = st.Size()
	}
	cur, ok, err := capture.ReadCursor(f.Ckpt, f.Restored, c.expect(f))
	if err != nil {
		return c.tellOnce(c.badCursor(err))
	}
	if !ok {
		return runner.Captured{}, nil
	}
	ended := c.ended(cur)
	if fresh := ended - t.ended; fresh > 0 && t.fresh == 0 {
		t.since = now
	}
	t.fresh = ended - t.ended
	switch {
	case t.fresh >= c.contract.Results, t.fresh > 0 && (final || f.Now || now.Sub(t.since) >= c.contract.Interval):
	case f.Now && t.last.Verdict == runner.VerdictNone:
	case f.Now:
		return t.last, nil
	default:
		return runner.Captured{}, nil
	}
	return c.tellOnce(c.commitCursor(ctx, f, cur, false))
}

// tellOnce leaves out a refusal that the poll before told: the same file is read again and
// again. An exit always has its answer.
func (c *checkpointer) tellOnce(got runner.Captured, err error) (runner.Captured, error) {
	told := c.tests.fault
	c.tests.fault = ""
	if err == nil && got.Verdict == runner.VerdictRejected {
		c.tests.fault = got.Reason
		if got.Reason == told {
			return runner.Captured{}, nil
		}
	}
	return got, err
}

// badCursor refuses what is wrong with it.
func (c *checkpointer) badCursor(err error) (runner.Captured, error) {
	finding, final := checkpoint.FindingOf(err)
	if !final {
		return runner.Captured{}, err
	}
	return runner.Captured{Verdict: runner.VerdictRejected, Seq: c.last + 1, Reason: finding.String()}, nil
}

// ended counts the ends of this epoch.
func (c *checkpointer) ended(cur capture.Cursor) (n int) {
	for _, r := range cur.Records {
		if r.Event == cursor.End && r.Epoch == c.x.authority.Fence.Epoch {
			n++
		}
	}
	return n
}

func (c *checkpointer) commitCursor(ctx context.Context, f runner.Folders, cur capture.Cursor, goOn bool) (runner.Captured, error) {
	began := c.x.n.clock.Now()
	ing, err := capture.IngestCursor(ctx, c.x.n.store, cur, c.expect(f))
	if err != nil {
		return c.badCursor(err)
	}
	got, err := c.commit(ctx, ing, began, goOn)
	if err != nil { // it is read anew, and taken with what came since
		return got, errors.Join(err, c.x.n.store.Unpin(context.WithoutCancel(ctx), ing.Owner))
	}
	c.last = max(c.last, got.Seq)
	if got.Verdict != runner.VerdictCommitted && got.Verdict != runner.VerdictContinue {
		return got, nil
	}
	if got.Reason == "" {
		got.Reason = cur.Dropped
	}
	t := &c.tests
	t.ended, t.fresh, t.last = c.ended(cur), 0, got
	ack := checkpoint.Ack{Slot: got.Seq, Done: int64(cur.State.Done()), Reason: cur.Dropped}
	if n := len(cur.Records); n > 0 {
		ack.Record = cur.Records[n-1].Seq
	}
	return got, capture.WriteAck(f.Ctl, ack)
}

// exitCursor takes the cursor of a program that asks to be started again.
func (c *checkpointer) exitCursor(ctx context.Context, f runner.Folders, yield bool) (runner.Captured, error) {
	cur, ok, err := capture.ReadCursor(f.Ckpt, f.Restored, c.expect(f))
	if err != nil {
		return c.badCursor(err)
	}
	if !ok {
		return runner.Captured{Verdict: runner.VerdictRejected, Reason: "there is no plan of tests"}, nil
	}
	return c.commitCursor(ctx, f, cur, !yield)
}

// marks brings what the program wants kept for its next epoch into the log.
func (c *checkpointer) marks(ctx context.Context, f runner.Folders, messages []checkpoint.Message) error {
	for _, m := range messages {
		if m.Kind != checkpoint.MessageMark {
			continue
		}
		a := checkpoint.Answer{Status: checkpoint.StatusCommitted}
		reply, err := c.x.n.proposer.Propose(ctx, site.Mark{Authority: c.x.authority, Name: m.Reason})
		if err != nil {
			return err // no quorum: it is found again
		}
		if err := reply.Err(); err != nil {
			a.Status, a.Reason = checkpoint.StatusRejected, err.Error()
			if forgeyard.KindOf(err) == forgeyard.Stale {
				a.Status = checkpoint.StatusStale
			}
		}
		if err := capture.WriteAnswer(f.Ctl, m.N, a); err != nil {
			return err
		}
	}
	return nil
}
