package node

import (
	"cmp"
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// checkpointer takes the checkpoints of one epoch: into the store, onto other nodes,
// into the log, in this order; before the last nothing exists but garbage (§9).
type checkpointer struct {
	x        *execution
	contract checkpoint.Contract
	invalid  error
	watcher  *capture.Watcher
	last     int // highest slot answered
	tests    tests
	memory   capture.Memory

	openers []forgeyard.RunnerID // of what is taken now, where it is restricted
	waiting *unsettled           // a slot that is in the store, and not decided
	doubt   forgeyard.Digest     // what was proposed last, where nobody knows whether it is committed
	before  []checkpoint.File    // what was committed last, as far as this epoch knows

	words    []checkpoint.Message     // about the restored state, that the site has not heard
	said     []checkpoint.MessageKind // of those that it was or will be told
	unusable string                   // why the program rejects it
}

// unsettled is a slot whose commit is tried again as it was taken: a restricted one that is taken
// anew is another checkpoint, of other bytes in the store, and cannot be the one that the log has.
type unsettled struct {
	ing   capture.Ingested
	began forgeyard.Instant
}

func newCheckpointer(x *execution) *checkpointer {
	c := &checkpointer{x: x}
	cfg := x.n.replica.State().Config
	c.contract, c.invalid = checkpoint.NewContract(x.job.Spec.Resume, checkpoint.Limits{ResumeFailures: cfg.Interruption.ResumeFailures})
	return c
}

func (c *checkpointer) expect(f runner.Folders) capture.Expect {
	e := capture.Expect{Authority: c.x.authority, Contract: c.contract, LastSeq: c.last, Secrets: f.Secrets, Memory: &c.memory, Machine: c.x.machine(), Sensitivity: c.contract.Sensitivity, Open: c.x.openEffects(), MayBeOpen: c.x.mayBeOpen, Pieces: c.x.n.allows(site.FormatPieces)}
	if c.contract.Sensitivity == checkpoint.Restricted {
		e.Seal = c.seal
	}
	return e
}

// seal seals the key of a restricted checkpoint for the nodes that may go on with the job.
func (c *checkpointer) seal(key []byte) ([]byte, error) {
	sealed, openers, err := c.x.n.sealCheckpoint(key, c.x.job)
	c.openers = openers
	return sealed, err
}

// Poll implements runner.Checkpointer.
func (c *checkpointer) Poll(ctx context.Context, f runner.Folders, final bool) (runner.Captured, error) {
	out, err := c.poll(ctx, f, final)
	out.Unusable = c.unusable
	return out, err
}

func (c *checkpointer) poll(ctx context.Context, f runner.Folders, final bool) (runner.Captured, error) {
	if c.invalid != nil {
		return runner.Captured{}, c.invalid
	}
	if c.watcher == nil {
		c.watcher = capture.NewWatcher(f.Ckpt, f.Ctl, c.x.authority.Attempt, c.x.authority.Fence.Epoch)
	}
	found, err := c.watcher.Poll()
	if err != nil {
		return runner.Captured{}, err
	}
	if err := c.hear(ctx, found.Messages); err != nil {
		return runner.Captured{}, err
	}
	if err := c.marks(ctx, f, found.Messages); err != nil {
		return runner.Captured{}, err
	}
	if c.contract.Mode == checkpoint.ModeFramework {
		return c.pollCursor(ctx, f, found.Sealed, final)
	}
	var out runner.Captured
	for _, seq := range found.Sealed {
		if out, err = c.takeSealed(ctx, f, seq); err != nil || out.Verdict == runner.VerdictStale {
			return out, err
		}
	}
	return out, nil
}

func (c *checkpointer) takeSealed(ctx context.Context, f runner.Folders, seq int) (runner.Captured, error) {
	w := c.waiting
	if w == nil || w.ing.Manifest.Seq != seq {
		if err := c.forgo(ctx); err != nil {
			return runner.Captured{}, err
		}
		w = &unsettled{began: c.x.n.clock.Now()}
		c.begun(seq)
		var err error
		if w.ing, err = capture.IngestSealed(ctx, c.x.n.store, filepath.Join(f.Ckpt, checkpoint.SlotName(seq)), c.expect(f)); err != nil {
			finding, final := checkpoint.FindingOf(err)
			if !final {
				return runner.Captured{}, err
			}
			c.last = max(c.last, seq)
			c.x.tookCheckpoint(resultRejected, 0, w.began)
			return runner.Captured{Verdict: runner.VerdictRejected, Seq: seq, Reason: finding.String()}, c.settle(f, seq, finding.Status(), finding.String())
		}
		c.waiting = w
	}
	got, err := c.commit(ctx, w.ing, w.began, false)
	if err != nil {
		return got, err
	}
	c.waiting = nil
	c.last = max(c.last, seq)
	return got, c.settle(f, seq, statusOf(got.Verdict), got.Reason)
}

// forgo lets go of a slot that its program took away before it was decided.
func (c *checkpointer) forgo(ctx context.Context) error {
	w := c.waiting
	if w == nil {
		return nil
	}
	if err := c.letGo(ctx, w.ing); err != nil {
		return err
	}
	c.waiting = nil
	return c.x.n.store.Unpin(ctx, w.ing.Owner)
}

// letGo takes the pin that a job has for one of its checkpoints from what is not committed, and
// leaves it to what may be. Nothing else would take it while the job's lease is live.
func (c *checkpointer) letGo(ctx context.Context, ing capture.Ingested) error {
	if ing.ID == c.doubt {
		return nil
	}
	return c.x.n.store.Unpin(context.WithoutCancel(ctx), checkpointPin(c.x.authority.Job, ing.ID))
}

// begun tells the site that a checkpoint is being taken.
func (c *checkpointer) begun(seq int) {
	c.x.mu.Lock()
	a := c.x.attempt
	c.x.mu.Unlock()
	if a != nil { // the program is faster than its start here
		a.CheckpointBegun(seq)
	}
}

func statusOf(v runner.Verdict) checkpoint.Status {
	switch v {
	case runner.VerdictCommitted, runner.VerdictContinue:
		return checkpoint.StatusCommitted
	case runner.VerdictStale:
		return checkpoint.StatusStale
	}
	return checkpoint.StatusRejected
}

// settle answers the program, and frees the slot's disk.
func (c *checkpointer) settle(f runner.Folders, seq int, st checkpoint.Status, reason string) error {
	if err := c.watcher.Settle(checkpoint.Answer{Seq: seq, Status: st, Reason: reason}); err != nil {
		return err
	}
	return capture.RemoveSlot(f.Ckpt, seq)
}

// Exit implements runner.Checkpointer.
func (c *checkpointer) Exit(ctx context.Context, f runner.Folders, yield bool) (runner.Captured, error) {
	if c.invalid != nil {
		return runner.Captured{}, c.invalid
	}
	if c.contract.Mode == checkpoint.ModeFramework {
		return c.exitCursor(ctx, f, yield)
	}
	e := c.expect(f)
	if h, ok, err := capture.ReadHeartbeat(f.Ctl); err == nil && ok {
		e.Progress = h.Progress
	}
	if c.before == nil {
		c.before = f.Was
	}
	began := c.x.n.clock.Now()
	c.begun(c.last + 1)
	ing, err := capture.IngestExit(ctx, c.x.n.store, f.Build, e)
	if err != nil {
		if finding, final := checkpoint.FindingOf(err); final {
			c.x.tookCheckpoint(resultRejected, 0, began)
			return runner.Captured{Verdict: runner.VerdictRejected, Reason: finding.String()}, nil
		}
		return runner.Captured{}, err
	}
	return c.commit(ctx, ing, began, !yield)
}

// worthOf is the place of a priority among those who wait to bring a checkpoint to others.
func worthOf(p job.Priority) int {
	return map[job.Priority]int{job.PriorityCritical: 2, job.PriorityHigh: 1, job.PriorityLow: -1}[p]
}

// commit commits what was taken, and notes how that went.
func (c *checkpointer) commit(ctx context.Context, ing capture.Ingested, began forgeyard.Instant, goOn bool) (runner.Captured, error) {
	got, err := c.replicateAndPropose(ctx, ing, began, goOn)
	switch {
	case err != nil:
		c.x.tookCheckpoint(resultFailed, 0, began)
	case got.Verdict == runner.VerdictRejected, got.Verdict == runner.VerdictStale && got.Reason != notHere:
		c.x.tookCheckpoint(string(got.Verdict), 0, began)
	default:
		c.x.tookCheckpoint(resultCommitted, ing.Manifest.Bytes, began)
	}
	return got, err
}

// notHere says of a checkpoint that was committed why its epoch has no next one in place: the
// log took the job back, as it is cancelled, stopped or drained.
const notHere = "the job is not to go on here"

// replicateAndPropose replicates and proposes. The instant of the send is taken first: the next
// epoch's holder counts from it.
func (c *checkpointer) replicateAndPropose(ctx context.Context, ing capture.Ingested, began forgeyard.Instant, goOn bool) (runner.Captured, error) {
	x := c.x
	got := runner.Captured{Seq: ing.Manifest.Seq, ID: ing.ID}
	leave, err := x.n.uploads.enter(ctx, worthOf(x.job.Spec.Interruption.Priority))
	if err != nil {
		return got, err
	}
	defer leave()
	x.telling.Lock()
	defer x.telling.Unlock()
	most := site.MaxReportedLog
	if goOn {
		most = math.MaxInt // the epoch ends by this commit: what it does not name is never named
	}
	chunks := x.takeLog(most, math.MaxUint64)
	parts := named(chunks)
	roots := append(checkpointRoots(ing), rootsOf(nil, parts)...)
	rep, err := x.n.replicate(ctx, job.DurSite, pinOf(checkpointPin(x.authority.Job, ing.ID), roots), roots)
	if err != nil {
		x.putBackLog(chunks)
		return got, errors.Join(err, c.letGo(ctx, ing))
	}
	if goOn {
		x.n.handingOver(x.authority.Lease)
	}
	if x.isLost() {
		x.putBackLog(chunks)
		got.Verdict, got.Reason = runner.VerdictStale, "the lease is over"
		return got, x.n.store.Unpin(ctx, ing.Owner)
	}
	told := x.untold()
	sent := x.n.clock.Now()
	rec := c.record(ing, rep.Nodes, sent.Sub(began))
	reply, err := x.n.proposer.Propose(ctx, site.Checkpoint{
		Authority: x.authority, Commit: rec, Log: parts, Continue: goOn, Productive: true, Told: told,
	})
	if err != nil {
		x.putBackLog(chunks)
		if forgeyard.KindOf(err) != forgeyard.Unavailable {
			c.doubt = ing.ID
		}
		return got, errors.Join(err, c.letGo(ctx, ing))
	}
	c.doubt = forgeyard.Digest{}
	done, err := site.Value[site.Checkpointed](reply)
	if err != nil { // the parts of the log that went with it are not named yet
		x.putBackLog(chunks)
		got.Verdict, got.Reason = runner.VerdictRejected, err.Error()
		if forgeyard.KindOf(err) == forgeyard.Stale {
			got.Verdict = runner.VerdictStale
		}
		return got, errors.Join(c.letGo(ctx, ing), x.n.store.Unpin(ctx, ing.Owner))
	}
	if done.Duplicate && !goOn {
		x.putBackLog(chunks) // what came since the first try is named nowhere
	} else if !told.IsZero() {
		x.attempt.Told(told.Last())
	}
	return c.committed(ctx, ing, got, done, grantedNext{sent: sent}, goOn)
}

// committed notes what the log has, and what it granted with it.
func (c *checkpointer) committed(ctx context.Context, ing capture.Ingested, got runner.Captured, done site.Checkpointed, next grantedNext, goOn bool) (runner.Captured, error) {
	x := c.x
	x.n.metrics.checkpoints.Inc()
	c.before = ing.Marker.Files
	got.Verdict = runner.VerdictCommitted
	if done.Next != nil {
		got.Verdict = runner.VerdictContinue
		next.authority = *done.Next
		x.mu.Lock()
		x.next = &next
		x.mu.Unlock()
	} else if goOn {
		got.Verdict, got.Reason = runner.VerdictStale, notHere
	}
	return got, x.n.store.Unpin(ctx, ing.Owner) // the job's own pin keeps it now
}

// record is what the log gets of a checkpoint that others have.
func (c *checkpointer) record(ing capture.Ingested, holders []forgeyard.RunnerID, took time.Duration) checkpoint.Commit {
	rec := ing.Commit(forgeyard.WallOf(c.x.n.clock.Wall()), holders)
	if ing.Manifest.Sealed {
		rec.For, rec.Same = c.openers, slices.Equal(c.before, ing.Marker.Files)
	}
	if c.x.n.replica.State().Allows(site.FormatCheckpoints) {
		rec.Took = took
	}
	return rec
}

func checkpointPin(j forgeyard.JobID, id forgeyard.Digest) string {
	return "job/" + string(j) + "/checkpoint/" + id.Hex()[:16]
}

// isCheckpointPin reports whether a pin's owner is one of checkpointPin's.
func isCheckpointPin(owner string) bool {
	_, what, ok := strings.Cut(strings.TrimPrefix(owner, "job/"), "/")
	return ok && strings.HasPrefix(owner, "job/") && strings.HasPrefix(what, "checkpoint/")
}

func checkpointRoots(ing capture.Ingested) []caspeer.Root {
	var out []caspeer.Root
	for _, b := range ing.Blobs {
		out = append(out, caspeer.Root{Kind: caspeer.Blob, Ref: b})
	}
	for _, t := range ing.Trees {
		out = append(out, caspeer.Root{Kind: caspeer.Tree, Ref: t})
	}
	return out
}

// untold are the events that go with a commit: the epoch that it may end tells no more.
func (x *execution) untold() job.Told {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.attempt == nil || !x.n.mayReport() {
		return job.Told{}
	}
	return x.attempt.Untold()
}

// hear passes on what the program says of the state that it was given. The folders have it
// once; it is said again until the site has heard it.
func (c *checkpointer) hear(ctx context.Context, messages []checkpoint.Message) error {
	for _, m := range messages {
		switch m.Kind {
		case checkpoint.MessageRestoreReject:
			c.unusable = cmp.Or(c.unusable, m.Reason)
		case checkpoint.MessageRestoreOK:
		default:
			continue
		}
		if !slices.Contains(c.said, m.Kind) { // said once in an epoch, it stands in the log
			c.said, c.words = append(c.said, m.Kind), append(c.words, m)
		}
	}
	for len(c.words) > 0 && c.x.n.allows(site.FormatCheckpoints) {
		m := c.words[0]
		reply, err := c.x.n.proposer.Propose(ctx, site.Restored{
			Authority: c.x.authority, Rejected: m.Kind == checkpoint.MessageRestoreReject, Reason: m.Reason,
		})
		if err == nil {
			err = reply.Err()
		} else if k := forgeyard.KindOf(err); k == forgeyard.Unavailable || k == forgeyard.Unknown || k == forgeyard.Interrupted {
			return err
		}
		if err != nil { // its epoch is over, or began from nothing; said again, it would only stand before what comes after it
			c.x.n.log.Warn("the site does not take a program's word of its restored state", "job", c.x.authority.Job, "why", err)
		}
		c.words = c.words[1:]
	}
	return nil
}
