package simulation

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/site"
)

// checker watches one invariant. It sees what no node sees: the committed log as it
// grows, and acts at their true time.
type checker interface {
	applied(s *sim, e applied)
	restored(s *sim, x *execution, from forgeyard.Digest)            // an execution goes on from a saved state
	ran(s *sim, x *execution)                                        // its tree is alive at this instant
	touched(s *sim, h site.HeldDevice, a forgeyard.Authority)        // it acts on a device
	cleaning(s *sim, d forgeyard.DeviceID, token uint64, host *node) // a reset begins
	collected(s *sim, n *node, d forgeyard.Digest)                   // a store let go of an object
	acted(s *sim, x *execution)                                      // it does something outside
	recovered(had, lost *site.State)                                 // a new incarnation begins from the one, and the other is over
	end(s *sim)                                                      // all is at rest
}

// silent is a checker that watches nothing; others embed it.
type silent struct{}

func (silent) applied(*sim, applied)                              {}
func (silent) restored(*sim, *execution, forgeyard.Digest)        {}
func (silent) ran(*sim, *execution)                               {}
func (silent) touched(*sim, site.HeldDevice, forgeyard.Authority) {}
func (silent) cleaning(*sim, forgeyard.DeviceID, uint64, *node)   {}
func (silent) collected(*sim, *node, forgeyard.Digest)            {}
func (silent) acted(*sim, *execution)                             {}
func (silent) recovered(_, _ *site.State)                         {}
func (silent) end(*sim)                                           {}

// checkers are all that watch a run. The last invariant, progress, has no moment
// before the end: see check_progress.go.
func checkers() []checker {
	return []checker{
		newEpochs(), newStale(), newTerminal(), &upstream{}, newAllowance(), newHolder(), newDeviceHolder(), newSameState(), &nothingLost{}, newCheckpoints(), &pinned{excused: map[loss]bool{}}, &named{}, newNeverTwice(), newHeld(), newEffectOnce(),
	}
}

// applied is one committed command.
type applied struct {
	index         uint64
	before, after *site.State
	cmd           site.Command
	reply         site.Reply
	repeat        bool // its request id was answered before: it changes nothing
}

func (e applied) ok() bool { return e.reply.Err() == nil && !e.repeat }

// still says that no job and no run is other than before.
func (e applied) still() bool {
	return e.after.Jobs.Same(e.before.Jobs) && e.after.Runs.Same(e.before.Runs) && e.after.Open.Same(e.before.Open)
}

// job is the job of a command with an authority, after it.
func (e applied) job(id forgeyard.JobID) site.Job { j, _ := e.after.Jobs.Get(id); return j }

// observe shows a command to all that watch, and says which format it belongs to.
func (s *sim) observe(index uint64, before *site.State, data []byte, reply site.Reply, after *site.State) site.Format {
	cmd, err := site.Decode(data)
	if err != nil {
		s.fail("log", "entry %d cannot be read: %v", index, err)
		return site.FormatOldest
	}
	e := applied{index: index, before: before, after: after, cmd: cmd, reply: reply, repeat: before.Requests.Has(cmd.ID)}
	s.traceEntry(e)
	for _, c := range s.checks {
		c.applied(s, e)
	}
	return site.FormatOf(cmd.Body)
}

// traceEntry writes the line of one committed command.
func (s *sim) traceEntry(e applied) {
	if s.quiet {
		return
	}
	what := describe(e)
	switch {
	case e.repeat:
		what += " (repeat)"
	case e.reply.Err() != nil:
		what += " → " + e.reply.Err().Error()
	}
	s.trace("#%d %s by %s", e.index, what, e.cmd.By)
	if e.before.Uplink.State != e.after.Uplink.State {
		s.trace("   uplink %s → %s, used %s %s", e.before.Uplink.State, e.after.Uplink.State, e.after.Uplink.Used, e.after.Uplink.Doubt)
	}
	if id, ok := jobOf(e); ok {
		was, is := jobLine(e.before, id), jobLine(e.after, id)
		if was != is {
			s.trace("   %s: %s → %s", forgeyard.Short(id), was, is)
		}
	}
	if e.after.Devices.Same(e.before.Devices) {
		return
	}
	for id, d := range e.after.Devices.All() {
		b, _ := e.before.Devices.Get(id)
		if was, is := deviceLine(b), deviceLine(d); was != is {
			s.trace("   %s: %s → %s", id, was, is)
		}
	}
}

func describe(e applied) string {
	switch b := e.cmd.Body.(type) {
	case site.Offer:
		return fmt.Sprintf("offer %s to %s after epoch %d", forgeyard.Short(b.Job), b.Session, b.Epoch)
	case site.Accept:
		return "accept " + short(b.Authority)
	case site.Reject:
		return fmt.Sprintf("reject %s: %s", short(b.Authority), b.Reason)
	case site.Phase:
		return fmt.Sprintf("phase %s %s", short(b.Authority), b.Phase)
	case site.Checkpoint:
		return fmt.Sprintf("checkpoint %s %d continue=%v", short(b.Authority), b.Commit.Seq, b.Continue)
	case site.Release:
		return fmt.Sprintf("release %s %s", short(b.Authority), b.Kind)
	case site.Complete:
		v, _ := site.Value[site.Completed](e.reply) // the error, if any, is in the line already
		return fmt.Sprintf("complete %s %s: %s", short(b.Authority), b.Result.Outcome, v.Verdict)
	case site.Expire:
		return fmt.Sprintf("expire %s certain=%v", forgeyard.Short(b.Job), b.Certain)
	case site.UplinkObserve:
		return fmt.Sprintf("silence %.3fs contact=%v %s", float64(b.Used)/1e9, b.Contact, b.Doubt)
	case site.Delegate:
		return fmt.Sprintf("delegate %d..%d", b.From+1, b.To)
	case site.OutboxAck:
		return fmt.Sprintf("acknowledge up to %d", b.Upto)
	case site.Register:
		return "register " + string(b.Session)
	case site.DeviceReset:
		return fmt.Sprintf("reset %s ok=%v", b.Device, b.Evidence.OK)
	case site.DeviceHealth:
		return fmt.Sprintf("%s %s ok=%v", b.Action, b.Device, b.OK)
	case site.Cancel:
		return "cancel " + forgeyard.Short(b.Job)
	case site.Stop:
		return fmt.Sprintf("stop %s: %s", forgeyard.Short(b.Job), b.Kind)
	case site.Revoke:
		return fmt.Sprintf("revoke %s: %s", forgeyard.Short(b.Job), b.Class)
	case site.Stopped:
		return "stopped " + short(b.Authority)
	case site.Recover:
		return fmt.Sprintf("recover: incarnation %d on %s", b.Incarnation, b.Node)
	case site.FormatRaise:
		return fmt.Sprintf("format %d", b.To)
	case site.Fail:
		return fmt.Sprintf("fail %s: %s", forgeyard.Short(b.Job), b.Category)
	case site.Silence:
		return fmt.Sprintf("silence of %s: %v", b.Session, b.Silent)
	case site.Submit:
		return "submit " + b.Title
	}
	return fmt.Sprintf("%T", e.cmd.Body)
}

// jobOf is the job that a command names.
func jobOf(e applied) (forgeyard.JobID, bool) {
	if a, ok := site.AuthorityOf(e.cmd.Body); ok {
		return a.Job, true
	}
	switch b := e.cmd.Body.(type) {
	case site.Offer:
		return b.Job, true
	case site.Expire:
		return b.Job, true
	case site.Cancel:
		return b.Job, true
	case site.Stop:
		return b.Job, true
	case site.Revoke:
		return b.Job, true
	case site.Stopped:
		return b.Authority.Job, true
	case site.Fail:
		return b.Job, true
	}
	return "", false
}

func jobLine(s *site.State, id forgeyard.JobID) string {
	j, ok := s.Jobs.Get(id)
	if !ok {
		return "nothing"
	}
	line := fmt.Sprintf("%s/%s epoch %d lease %s", j.Status, j.Phase, j.Epoch, j.Lease.State)
	if j.Status == job.Unknown {
		line += fmt.Sprintf(" certain=%v", j.Certain)
	}
	if j.CancelAt != 0 {
		line += " cancelled"
	}
	if j.StopKind != "" {
		line += " stop=" + j.StopKind
	}
	return line
}

func deviceLine(d devices.Device) string {
	line := fmt.Sprintf("%s/%s/%s", d.Presence, d.Health, d.Use)
	if d.Lease != nil {
		line += fmt.Sprintf(" token %d", d.Lease.Token)
	}
	return line
}
