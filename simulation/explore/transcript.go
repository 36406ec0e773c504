package explore

import (
	"fmt"
	"slices"

	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// transcript steps the way to a broken invariant once more, and writes it down: one line
// a step, when, who and what; under it what came of it.
func (s *search) transcript(last uint32, by action) []string {
	way := []action{by}
	for id := last; id != 0; id = s.links[id].from {
		way = append(way, s.links[id].by)
	}
	slices.Reverse(way)
	x := s.x
	var out []string
	x.line = func(line string) { out = append(out, "             "+line) }
	x.broken = nil
	w := x.root()
	for i, a := range way {
		out = append(out, fmt.Sprintf("%3d %6s  %s", i+1, at(w.tick), x.describe(&w, a)))
		next := x.step(&w, a)
		x.changes(&w, next)
		w = *next
	}
	x.line = nil
	return append(out, "BROKEN "+s.r.Broken.Error())
}

// describe is who does what.
func (x *explorer) describe(w *world, a action) string {
	n := int(a.arg())
	switch a.kind() {
	case doDeliver:
		return x.arrives(a.arg())
	case doLose:
		return "lost: " + x.arrives(a.arg())
	case doCopy:
		return "doubled: " + x.arrives(a.arg())
	case doMislead:
		return "the deposed leader gets it: " + x.arrives(a.arg())
	case doLook:
		return nodeName(n) + " reads the log"
	case doBeat:
		return nodeName(n) + " sends a heartbeat"
	case doUse:
		return nodeName(n>>1) + " uses the device"
	case doFinish:
		return nodeName(n) + " finishes its work"
	case doSave:
		return nodeName(n) + " ends its tree by a checkpoint"
	case doAgain:
		return nodeName(n) + " repeats what was not answered"
	case doCrash:
		return nodeName(n) + " crashes and begins a new session"
	case doDrain:
		return nodeName(n) + " is told to drain"
	case doBan:
		return nodeName(n) + " is disabled"
	case doTick:
		return fmt.Sprintf("time passes to %s", at(w.tick+1))
	}
	return map[uint32]string{
		doLead: "the leader decides", doLinger: "the deposed leader decides on what it saw", doElect: fmt.Sprintf("another leader is elected, term %d", w.term+1), doCancel: "a client cancels the job", doRevoke: "a person takes the lease away", doCut: map[bool]string{false: "the uplink is cut", true: "the uplink is back"}[w.cut],
		doSync: "the leader sends its records to the daemon", doFigure: "the leader proposes its figure of silence", doRaise: "the daemon gives the job anew",
	}[a.kind()]
}

func (x *explorer) arrives(id uint32) string {
	m := x.messages.rows[id]
	from := fmt.Sprintf("(sent at %s)", at(m.sent))
	switch m.kind {
	case proposal:
		return fmt.Sprintf("the log takes %s of %s %s", describe(x.bodies.rows[m.says].body), nameOf(m.node), from)
	case reply:
		return fmt.Sprintf("%s hears the answer to %s %s", nameOf(m.node), describe(x.bodies.rows[x.messages.rows[m.of].says].body), from)
	case heartbeat:
		return fmt.Sprintf("the leader gets a heartbeat of %s %s", nameOf(m.node), from)
	case answer:
		return fmt.Sprintf("%s hears the answer to its heartbeat %s", nameOf(m.node), from)
	case sync:
		return fmt.Sprintf("the daemon gets %d records %s", len(x.syncs.rows[m.says].records), from)
	}
	return fmt.Sprintf("the leader hears the daemon's answer: %d records taken %s", x.synceds.rows[m.says].acked, from)
}

// changes writes what became different in the log.
func (x *explorer) changes(was, is *world) {
	a, b := &x.sites.rows[was.site], &x.sites.rows[is.site]
	if p, q := jobLine(a), jobLine(b); p != q {
		x.say("job: %s → %s", p, q)
	}
	if p, q := deviceLine(a), deviceLine(b); p != q {
		x.say("device: %s → %s", p, q)
	}
	if p, q := a.st.Uplink, b.st.Uplink; p.State != q.State || p.Used != q.Used {
		x.say("uplink: %s, %s of silence → %s, %s", p.State, p.Used, q.State, q.Used)
	}
}

func jobLine(r *siteRow) string {
	if !r.known {
		return "none"
	}
	line := fmt.Sprintf("%s, epoch %d", r.job.Status, r.job.Epoch)
	if r.job.Lease.State != "" {
		line += " " + string(r.job.Lease.State)
	}
	if r.job.Lease.State == lease.Ended {
		line += " (" + string(r.job.Lease.Reason) + ")"
	}
	if r.job.Status == job.Unknown {
		line += fmt.Sprintf(", certain %v", r.job.Certain)
	}
	return line
}

func deviceLine(r *siteRow) string {
	if r.device.ID == "" {
		return "none"
	}
	line := fmt.Sprintf("%s, %s", r.device.Use, r.device.Health)
	if r.device.Lease != nil {
		line += fmt.Sprintf(", token %d", r.device.Lease.Token)
	}
	return line
}

// describe names a command and the epoch that it is about.
func describe(b site.Body) string {
	switch b := b.(type) {
	case site.Submit:
		return "the submission"
	case site.Offer:
		return fmt.Sprintf("the offer of epoch %d to %s", b.Epoch+1, b.Session)
	case site.Accept:
		return fmt.Sprintf("the acceptance of epoch %d", b.Authority.Fence.Epoch)
	case site.Reject:
		return fmt.Sprintf("the rejection of epoch %d", b.Authority.Fence.Epoch)
	case site.Checkpoint:
		return fmt.Sprintf("the checkpoint of epoch %d", b.Authority.Fence.Epoch)
	case site.Release:
		return fmt.Sprintf("the release of epoch %d (%s)", b.Authority.Fence.Epoch, b.Kind)
	case site.Complete:
		return fmt.Sprintf("the result of epoch %d (%s)", b.Authority.Fence.Epoch, b.Result.Outcome)
	case site.Expire:
		return fmt.Sprintf("the expiry of the %s lease, certain %v, counted in term %d", b.State, b.Certain, b.Term)
	case site.Register:
		return fmt.Sprintf("the registration of %s", b.Session)
	case site.Cancel:
		return "the cancellation"
	case site.Revoke:
		return "the revocation"
	case site.Stop:
		return fmt.Sprintf("the request to stop (%s)", b.Kind)
	case site.DeviceReset:
		return fmt.Sprintf("the reset after token %d", b.Evidence.Token)
	case site.UplinkObserve:
		return fmt.Sprintf("the figure of silence %.1fs, contact %v", float64(b.Used)/1e9, b.Contact)
	case site.OutboxAck:
		return fmt.Sprintf("the acknowledgement up to record %d", b.Upto)
	case site.Delegate:
		return fmt.Sprintf("the delegation of term %d", b.To)
	}
	return fmt.Sprintf("%T", b)
}
