package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner"
	"github.com/forgeyard/forgeyard-node/site"
)

// completion is a finished result on its way into the log. It is written down before
// the first proposal and forgotten after the answer, so that neither a crash nor a
// site without a quorum loses it (07§94, E13). It carries no secret.
type completion struct {
	Authority forgeyard.Authority `cbor:"1,keyasint"`
	Message   forgeyard.MessageID `cbor:"2,keyasint"`
	Result    job.Result          `cbor:"3,keyasint"`
}

func (c completion) encode() []byte { return cborx.Marshal(c) }

func decodeCompletion(b []byte) (completion, error) {
	var c completion
	err := cborx.Unmarshal(b, &c)
	return c, err
}

// deliver brings a completion to its answer, however long that takes, and ends the
// lease here. keep, if given, writes it down first, for a process that comes after this
// one. It returns false only when ctx ended before the answer.
func (n *Node) deliver(ctx context.Context, c completion, keep func([]byte) error) bool {
	if !n.mayReport() {
		c.Result.Told, c.Result.Overran, c.Result.Diagnostics = job.Told{}, false, nil
	}
	c.Result.Log = named(c.Result.Log) // an earlier version wrote down more than one entry holds
	if keep != nil {
		if err := keep(c.encode()); err != nil {
			// Going on without the file risks a repeat of the work after a crash, never a wrong
			// result; holding the result back would lose it for certain.
			n.log.Error("a completion could not be spooled", "job", c.Authority.Job, "err", err)
		}
	}
	n.backlog.add(c.Authority.Lease, n.clock.Now())
	for wait := firstBackoff; ; wait = min(2*wait, 5*time.Second) {
		v, err := n.proposeCompletion(ctx, c)
		if err == nil {
			n.answered(c, v)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if told := len(c.Result.Told.Events); told > 1 && forgeyard.KindOf(err) == forgeyard.Limit {
			n.log.Warn("a completion is too large: it goes without the events that it tells of", "job", c.Authority.Job, "events", told, "err", err)
			left := fmt.Sprintf("%d events are not told: with them the result would not fit into the site's log", told)
			c.Result.Told.Events = []job.Happening{{Kind: job.EventError, Message: left}}
			continue
		}
		if final(err) {
			return n.giveUp(ctx, c, err)
		}
		n.log.Warn("a completion waits for the site", "job", c.Authority.Job, "err", err)
		if !n.pause(ctx, jitter(wait)) {
			return false
		}
	}
}

// final reports an error that the same completion will meet again.
func final(err error) bool {
	switch forgeyard.KindOf(err) {
	case forgeyard.Limit, forgeyard.Invalid, forgeyard.Denied:
		return true
	}
	return false
}

// giveUp ends a job whose result cannot be brought into the log with one that can: it
// says why. If even that is refused, the lease ends here and the leader finds it silent.
func (n *Node) giveUp(ctx context.Context, c completion, why error) bool {
	n.log.Error("a completion cannot be committed", "job", c.Authority.Job, "err", why)
	small := job.Result{Outcome: job.OutcomeFailed, Category: job.Internal, Message: "its result could not be committed: " + why.Error()}
	if c.Result.Category == job.Internal && len(c.Result.Log) == 0 {
		n.backlog.answered(c.Authority.Lease)
		n.over(c.Authority.Lease)
		return true
	}
	return n.deliver(ctx, completion{Authority: c.Authority, Message: forgeyard.MessageID(NewID(n.clock)), Result: small}, nil)
}

func (n *Node) proposeCompletion(ctx context.Context, c completion) (site.Completed, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	reply, err := n.proposer.Propose(ctx, site.Complete{Authority: c.Authority, Message: c.Message, Result: c.Result})
	if err != nil {
		return site.Completed{}, err
	}
	return site.Value[site.Completed](reply)
}

// answered acts on one of the four answers: each of them is final for the runner.
func (n *Node) answered(c completion, v site.Completed) {
	n.metrics.completions.WithLabelValues(string(v.Verdict)).Inc()
	n.backlog.answered(c.Authority.Lease)
	log := n.log.With("job", c.Authority.Job, "epoch", c.Authority.Fence.Epoch, "outcome", c.Result.Outcome)
	switch v.Verdict {
	case site.Accepted, site.DuplicateAccepted:
		log.Info("completion accepted", "answer", v.Verdict)
	case site.StaleRejected:
		log.Warn("completion refused: another epoch is current", "reason", v.Reason)
	default:
		log.Error("completion refused as invalid", "reason", v.Reason)
	}
	n.over(c.Authority.Lease)
}

// deliverRecovered sends what an earlier process finished and never saw answered, before
// this one registers: registering supersedes the session that it was finished under. Results
// come first: they do not wait for what may yet be saved of other logs.
func (n *Node) deliverRecovered(ctx context.Context) {
	for _, r := range n.recovered {
		if len(r.Completion) > 0 {
			n.backlog.add(r.Authority.Lease, n.clock.Now()) // all of them, before the first is tried
		}
	}
	recovered := slices.Clone(n.recovered)
	slices.SortStableFunc(recovered, func(a, b runner.Recovered) int {
		return min(1, len(b.Completion)) - min(1, len(a.Completion))
	})
	var until forgeyard.Instant
	for _, r := range recovered {
		switch {
		case len(r.Completion) > 0:
			c, err := decodeCompletion(r.Completion)
			if err != nil {
				n.backlog.answered(r.Authority.Lease)
				n.log.Error("a completion of an earlier process cannot be read and stays on this disk: start the program that wrote it, or a newer one", "attempt", r.Authority.Attempt, "err", err)
				continue
			} else if n.log.Info("delivering a completion of an earlier process", "job", c.Authority.Job); !n.deliver(ctx, c, nil) {
				return
			}
		case r.Authority.Lease != "":
			until = cmp.Or(until, n.clock.Now().Add(saveLogTime))
			n.saveAgain(ctx, &r, until)
			if !n.giveBack(ctx, r) {
				return
			}
		}
		if err := n.runner.Forget(r.Authority); err != nil {
			n.log.Warn("the record of an earlier attempt stays", "attempt", r.Authority.Attempt, "err", err)
		}
	}
}

// saveLogTime bounds how long all that an earlier process left waits for its logs to be saved.
const saveLogTime = 10 * time.Second

// saveAgain tries to save a log before its epoch is given back: later the site takes no part
// of it. Work that goes on elsewhere is not to wait long for it.
func (n *Node) saveAgain(ctx context.Context, r *runner.Recovered, until forgeyard.Instant) {
	for wait := firstBackoff; r.Unsaved && n.clock.Now() < until; wait = min(2*wait, time.Second) {
		if !n.pause(ctx, wait) {
			return
		}
		if err := n.runner.SaveAgain(ctx, r); err != nil {
			n.log.Warn("the log of an earlier process is not saved yet", "job", r.Authority.Job, "err", err)
		}
	}
}

// keepParts keeps the end of a log that the site does not take any more, for people.
func (n *Node) keepParts(ctx context.Context, r runner.Recovered) {
	j, _ := n.replica.State().Jobs.Get(r.Authority.Job) // it may not be here yet: then all is kept, and who reads it leaves out what is there twice
	parts := slices.DeleteFunc(slices.Clone(r.Log), func(c job.LogChunk) bool {
		return slices.ContainsFunc(j.Log, func(k job.LogChunk) bool { return k.Digest == c.Digest })
	})
	if len(parts) == 0 {
		return
	}
	if err := n.runner.KeepParts(context.WithoutCancel(ctx), r.Authority, parts); err != nil {
		n.log.Error("the end of a log is lost: the site takes it no more, and it cannot be put aside", "job", r.Authority.Job, "err", err)
	}
}

// giveBack tells the log that an epoch of an earlier process is dead, with the part of
// its log that only this disk had. What the log decided meanwhile stands. It returns
// false only when ctx ended before there was an answer.
func (n *Node) giveBack(ctx context.Context, r runner.Recovered) bool {
	why := site.ProcessRestarted
	if r.Rebooted {
		why = site.MachineRestarted
	}
	reply, err := n.proposer.Propose(ctx, site.Release{Authority: r.Authority, Kind: "interrupted", Detail: why, Log: named(r.Log)})
	if err != nil {
		n.keepParts(ctx, r)
		return ctx.Err() == nil
	}
	if refused := reply.Err(); refused != nil {
		n.log.Info("an epoch of an earlier process was not given back", "job", r.Authority.Job, "err", refused)
		n.keepParts(ctx, r)
	}
	return true
}
