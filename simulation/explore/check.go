package explore

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// entry is one command in the log, and what became of it.
type entry struct {
	id            forgeyard.MessageID
	before, after *site.State
	body          site.Body
	reply         site.Reply
	repeat        bool // it was answered before
}

// check is every invariant that one entry can break.
func check(e entry) *Violation {
	for _, c := range []func(entry) *Violation{oneCurrentEpoch, staleNeverCommits, terminalOnce, committedCheckpointOnly, submittedOnce, outboxInOrder, tokensRise} {
		if v := c(e); v != nil {
			return v
		}
	}
	return nil
}

func broke(invariant, format string, args ...any) *Violation {
	return &Violation{invariant, fmt.Sprintf(format, args...)}
}

// jobs yields each job as it was and as it is.
func (e entry) jobs(f func(was, is site.Job) *Violation) *Violation {
	for id, was := range e.before.Jobs.All() {
		is, ok := e.after.Jobs.Get(id)
		if !ok {
			return broke("nothing-lost", "job %s is gone", forgeyard.Short(id))
		}
		if v := f(was, is); v != nil {
			return v
		}
	}
	return nil
}

// oneCurrentEpoch: a new epoch is the one after, and is granted only when the one before
// has ended, or by its own holder.
func oneCurrentEpoch(e entry) *Violation {
	return e.jobs(func(was, is site.Job) *Violation {
		_, offer := e.body.(site.Offer)
		_, save := e.body.(site.Checkpoint)
		switch {
		case is.Epoch < was.Epoch || is.Epoch > was.Epoch+1:
			return broke("one-current-epoch", "epoch %d after epoch %d", is.Epoch, was.Epoch)
		case is.Epoch > was.Epoch && !offer && !save:
			return broke("one-current-epoch", "%s grants epoch %d", describe(e.body), is.Epoch)
		case is.Epoch > was.Epoch && offer && was.Lease.Live():
			return broke("one-current-epoch", "epoch %d is granted while %s holds epoch %d", is.Epoch, was.Lease.Authority.Session, was.Epoch)
		case is.Epoch == was.Epoch && is.Lease.Authority != was.Lease.Authority:
			return broke("one-current-epoch", "epoch %d has two authorities", is.Epoch)
		case was.Lease.State == lease.Ended && is.Lease.Live() && is.Epoch == was.Epoch:
			return broke("one-current-epoch", "epoch %d ended and lives again", is.Epoch)
		case is.Lease.Live() && is.Status != job.Leased && is.Status != job.Running:
			return broke("one-current-epoch", "epoch %d is held while the job is %s, free for another", is.Epoch, is.Status)
		}
		return nil
	})
}

// staleNeverCommits: nothing is taken under an authority that is not the current one.
func staleNeverCommits(e entry) *Violation {
	a, ok := site.AuthorityOf(e.body)
	if !ok || e.repeat || !taken(e) {
		return nil
	}
	was, _ := e.before.Jobs.Get(a.Job)
	l := was.Lease
	silent := was.Status == job.Unknown && l.Reason == lease.EndExpired
	_, word := e.body.(site.Stopped) // that a tree is dead: perhaps for a lease that has ended, and nothing of the work is committed
	switch {
	case l.Authority != a:
		return broke("stale-never-commits", "%s is taken under epoch %d of %s; current is epoch %d of %s", describe(e.body), a.Fence.Epoch, a.Session, l.Authority.Fence.Epoch, l.Authority.Session)
	case !l.Live() && !silent && !word:
		return broke("stale-never-commits", "%s is taken under epoch %d, whose lease ended: %s", describe(e.body), a.Fence.Epoch, l.Reason)
	case a.Fence.Term != was.Term:
		return broke("stale-never-commits", "%s is taken under term %d, the job is of term %d", describe(e.body), a.Fence.Term, was.Term)
	}
	return nil
}

// taken says that a command was accepted and is not the repeat of one that was.
func taken(e entry) bool {
	if e.reply.Err() != nil {
		return false
	}
	switch e.body.(type) {
	case site.Complete:
		v, err := site.Value[site.Completed](e.reply)
		return err == nil && v.Verdict == site.Accepted
	case site.Checkpoint:
		v, err := site.Value[site.Checkpointed](e.reply)
		return err == nil && !v.Duplicate
	}
	return true
}

// terminalOnce: what ended stays as it ended.
func terminalOnce(e entry) *Violation {
	return e.jobs(func(was, is site.Job) *Violation {
		if !was.Status.Terminal() {
			return nil
		}
		same := is.Status == was.Status && is.Message == was.Message && is.Epoch == was.Epoch && is.Category == was.Category && (is.Result == nil) == (was.Result == nil)
		if is.Result != nil && was.Result != nil {
			same = same && is.Result.Outcome == was.Result.Outcome && is.Result.Message == was.Result.Message
		}
		if !same || e.after.Open.Has(is.ID) {
			return broke("terminal-once", "the job ended %s at epoch %d and is %s at epoch %d now", was.Status, was.Epoch, is.Status, is.Epoch)
		}
		return nil
	})
}

// committedCheckpointOnly: an epoch begins with the newest good checkpoint, or anew.
func committedCheckpointOnly(e entry) *Violation {
	return e.jobs(func(was, is site.Job) *Violation {
		if is.Epoch == was.Epoch || is.ResumeFrom.IsZero() {
			return nil
		}
		committed := was.Checkpoints
		if b, ok := e.body.(site.Checkpoint); ok {
			committed = append(committed[:len(committed):len(committed)], b.Commit)
		}
		for i := len(committed) - 1; i >= 0; i-- {
			if committed[i].State == 0 {
				if committed[i].Manifest != is.ResumeFrom {
					return broke("committed-checkpoint-only", "epoch %d resumes from %s, the newest good one is %s", is.Epoch, is.ResumeFrom.Short(), committed[i].Manifest.Short())
				}
				return nil
			}
		}
		return broke("committed-checkpoint-only", "epoch %d resumes from %s, and none is committed", is.Epoch, is.ResumeFrom.Short())
	})
}

// submittedOnce: one submission is one job, however often its message comes.
func submittedOnce(e entry) *Violation {
	if n := e.after.Jobs.Len(); n > 1 {
		return broke("exactly-once", "%s makes job number %d of one submission", describe(e.body), n)
	}
	return nil
}

// outboxInOrder: the outbox holds all that was sent and not acknowledged, and no more.
func outboxInOrder(e entry) *Violation {
	next := e.after.Acked + 1
	for _, r := range e.after.Outbox.All() {
		if r.Seq != next {
			return broke("exactly-once-upstream", "record %d stands in the outbox where record %d belongs: %d were acknowledged of %d", r.Seq, next, e.after.Acked, e.after.Sent)
		}
		next++
	}
	if next != e.after.Sent+1 {
		return broke("exactly-once-upstream", "the outbox ends before record %d, and %d were sent", next, e.after.Sent)
	}
	return nil
}

// tokensRise: a device has a lease if and only if it is in use, a new lease a higher
// token, and one that was not cleaned is not given away.
func tokensRise(e entry) *Violation {
	for id, was := range e.before.Devices.All() {
		is, _ := e.after.Devices.Get(id)
		fresh := is.Lease != nil && (was.Lease == nil || was.Lease.ID != is.Lease.ID)
		switch {
		case (is.Lease != nil) != (is.Use == devices.Leased || is.Use == devices.Preparing):
			return broke("device-single-holder", "%s is %s, its lease is %+v", id, is.Use, is.Lease)
		case fresh && is.Lease.Token <= was.HighestFence:
			return broke("device-single-holder", "%s is leased under token %d, token %d was given before", id, is.Lease.Token, was.HighestFence)
		case fresh && was.Use != devices.Free:
			return broke("device-single-holder", "%s is leased while it is %s", id, was.Use)
		}
	}
	return nil
}

// checkWorld is every invariant that needs more than the log.
func (x *explorer) checkWorld(w *world) {
	if x.broken != nil {
		return
	}
	row := &x.sites.rows[w.site]
	for n := range w.node {
		for slot := range w.node[n].exec {
			if w.node[n].running(slot) {
				x.checkRunning(w, row, n, &x.starts.rows[w.node[n].exec[slot].start])
			}
		}
	}
	if row.st.Acked > uint64(w.last) {
		x.fail("exactly-once-upstream", "the site has let go of record %d, the daemon has got %d", row.st.Acked, w.last)
	}
	if w.submitted && !row.known {
		x.fail("nothing-lost", "the job's submission was answered, and the job is not there")
	}
}

// checkRunning looks at an execution that acts at this instant.
func (x *explorer) checkRunning(w *world, row *siteRow, n int, s *start) {
	if g := s.job.Grant; g != nil {
		if silent := fast(w.tick).Sub(fast(w.heard)); silent > holderWaits(*g) {
			x.fail("within-allowance", "%s acts for grant %s, %s after the daemon heard the site; it waits %s for %s", nodeName(n), g.ID, silent, holderWaits(*g), g.Span(uplinkTerms))
		}
	}
	if !x.c.Protected {
		return
	}
	j := &row.job
	switch l := &j.Lease; {
	case l.Authority != s.authority:
		x.fail("holder-stops-first", "%s acts under epoch %d while epoch %d is granted", nodeName(n), s.authority.Fence.Epoch, l.Authority.Fence.Epoch)
	case l.State == lease.Ended && row.certainly():
		x.fail("holder-stops-first", "%s acts under epoch %d, whose lease ended (%s), and the job is %s", nodeName(n), s.authority.Fence.Epoch, l.Reason, j.Status)
	}
}

// checkStart: what begins was granted by the log, and one lease begins once, however often
// it is seen.
func (x *explorer) checkStart(n int, id uint32) {
	s, nd := &x.starts.rows[id], &x.w.node[n]
	j := &x.sites.rows[x.w.site].job
	epoch := uint8(s.authority.Fence.Epoch)
	switch {
	case s.authority.Fence.Compare(j.Fence()) > 0:
		x.fail("one-current-epoch", "epoch %d begins, the log has granted epoch %d", epoch, j.Epoch)
	case epoch <= nd.begun:
		x.fail("one-current-epoch", "%s begins epoch %d after it began epoch %d", nodeName(n), epoch, nd.begun)
	}
	nd.begun = max(nd.begun, epoch)
}

// checkDelivered: a runner forgets a result only when the log has it.
func (x *explorer) checkDelivered(b site.Complete, v site.Completed) {
	j := x.sites.rows[x.w.site].job
	if (v.Verdict == site.Accepted || v.Verdict == site.DuplicateAccepted) && j.Message != b.Message && !j.Status.Terminal() {
		x.fail("nothing-lost", "the result of epoch %d was accepted, and the log does not have it", b.Authority.Fence.Epoch)
	}
}
