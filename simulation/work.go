package simulation

import (
	"fmt"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// execution is one epoch that a node carries out.
type execution struct {
	n         *node
	authority forgeyard.Authority
	job       site.Job
	lease     lease.Lease
	plan      *plan

	alive    bool // its process tree lives, and acts
	over     bool // reported, or never to be
	begun    bool // its program was started
	saved    bool // its program ended with a checkpoint that was committed
	progress time.Duration
	since    time.Duration // since the last checkpoint
	seq      int
	stopping string
	ticked   int64
	tries    int
	effect   published
	needs    []forgeyard.Digest // content that it was given
}

// completion is a finished result; it is on disk before the first proposal.
type completion struct {
	authority forgeyard.Authority
	message   forgeyard.MessageID
	result    job.Result
	safe      bool // it is there whatever happens
}

// saved is what a checkpoint holds.
type saved struct {
	progress  time.Duration
	job       forgeyard.JobID
	seq       int
	committed bool // whoever proposed it was told so
}

// killMax is how long a forced stop takes at most, as lease.DefaultTerms says.
var killMax = lease.DefaultTerms().KillMax

func (n *node) execution(id forgeyard.LeaseID) *execution {
	for _, x := range n.execs {
		if x.authority.Lease == id && !x.over {
			return x
		}
	}
	return nil
}

func (n *node) begin(j site.Job, l lease.Lease) {
	x := &execution{n: n, authority: l.Authority, job: j, lease: l, plan: n.s.work[j.Spec.Title]}
	n.execs = append(n.execs, x)
	n.s.trace("%s starts %s, resuming %q", n.name, short(x.authority), j.ResumeFrom.Short())
	x.phase(job.PhasePreparing)
	n.after(n.s.within(50*time.Millisecond, 600*time.Millisecond), x.prepared)
}

func (x *execution) phase(p job.Phase) {
	x.n.propose(x.n.name, site.Phase{Authority: x.authority, Phase: p}, proposeFor, nil)
}

// prepared is told that the workspace stands: its content comes next.
func (x *execution) prepared() {
	if x.over {
		return
	}
	if p := x.plan; p.Broken > 0 {
		p.Broken--
		x.complete(job.Result{Outcome: job.OutcomeFailed, Category: job.PreparationFailed, Message: "no workspace"})
		return
	}
	var want []forgeyard.Digest
	if x.plan.Input {
		want = append(want, x.plan.input())
	}
	if from := x.resumeFrom(); !from.IsZero() {
		want = append(want, from)
	}
	x.gather(want)
}

// resumeFrom is the state to restore: what the log says, and nothing else.
func (x *execution) resumeFrom() forgeyard.Digest {
	f := x.n.s.faults
	if !f.bestGuess && !f.everSaved {
		return x.job.ResumeFrom
	}
	var best forgeyard.Digest
	for d, s := range x.n.s.store {
		if s.job == x.authority.Job && (f.bestGuess || s.committed) && (best.IsZero() || s.seq > x.n.s.store[best].seq) {
			best = d
		}
	}
	return best
}

// gatherTries is how often content is asked for before the attempt ends without.
const gatherTries = 5

// gather brings what an attempt needs into the local store, under its pin.
func (x *execution) gather(want []forgeyard.Digest) {
	if x.over {
		return
	}
	if len(want) == 0 {
		x.run()
		return
	}
	x.n.fetch(want[0], "attempt/"+string(x.authority.Attempt), func(ok bool) {
		switch {
		case x.over:
		case ok:
			x.needs = append(x.needs, want[0])
			x.gather(want[1:])
		case x.tries < gatherTries:
			x.tries++
			x.n.after(time.Second, func() { x.gather(want) })
		case want[0] == x.resumeFrom():
			x.release("resume_failed", "its checkpoint cannot be had")
		default:
			x.complete(job.Result{Outcome: job.OutcomeFailed, Category: job.InputFetch, Message: "nobody has its input"})
		}
	})
}

// run starts the workload.
func (x *execution) run() {
	if from := x.resumeFrom(); !from.IsZero() {
		for _, c := range x.n.s.checks {
			c.restored(x.n.s, x, from)
		}
		x.progress = x.n.s.store[from].progress
		if p := x.plan; p.Rejects > 0 {
			p.Rejects--
			x.release("resume_rejected", "the program rejects the restored state")
			return
		}
	}
	x.reconcile(x.job.Unreconciled(x.authority.Fence.Epoch), x.start)
}

// start starts it, once all is known that earlier epochs began.
func (x *execution) start() {
	x.alive, x.begun, x.ticked = true, true, x.n.s.now
	x.phase(job.PhaseRunning)
	x.later(x.n.s.within(100*time.Millisecond, time.Second), x.tick)
}

// later is for the workload itself, which a fault may let outlive its agent.
func (x *execution) later(d time.Duration, f func()) {
	if x.n.s.faults.orphans {
		x.n.s.after(int64(d), f)
		return
	}
	x.n.after(d, f)
}

// tick is the workload living on: it acts, whatever the site thinks of it, until it is
// dead.
func (x *execution) tick() {
	if !x.alive {
		return
	}
	s := x.n.s
	dt := time.Duration(s.now - x.ticked)
	x.progress, x.since, x.ticked = x.progress+dt, x.since+dt, s.now
	for _, c := range s.checks {
		c.ran(s, x)
	}
	for _, h := range x.job.Devices {
		x.n.useDevice(h, x.authority)
	}
	publishing := x.publishes() && x.progress >= x.plan.Work/2 && x.effect != effectKnown
	if publishing {
		x.publish()
	}
	switch {
	case x.over: // it was killed, and takes its time to die
	case publishing:
	case x.progress >= x.plan.Work:
		x.finish()
		return
	case x.plan.Every > 0 && x.since >= x.plan.Every && x.stopping == "":
		x.since = 0
		x.checkpoint()
	}
	x.later(s.within(100*time.Millisecond, time.Second), x.tick)
}

func (x *execution) finish() {
	x.alive = false
	x.phase(job.PhaseUploading)
	if x.plan.Fails {
		x.completeIn(job.Result{Outcome: job.OutcomeFailed, Category: job.WorkloadFailed, Message: "exit code 1", ExitCode: 1})
		return
	}
	if x.job.Spec.Own() {
		x.bringIn(nil, replicas{}, x.n.clk.Now().Add(uploadFor))
		return
	}
	if !x.plan.Output {
		x.completeIn(job.Result{Outcome: job.OutcomeDone})
		return
	}
	out := cas.Sum([]byte(x.n.s.newID("output")))
	x.upload(out, x.n.clk.Now().Add(uploadFor))
}

// upload copies the result before the completion is proposed; when that takes too long,
// the result is marked short (decision 0004 of the project).
func (x *execution) upload(out forgeyard.Digest, until forgeyard.Instant) {
	if x.over {
		return
	}
	x.n.replicate(out, "job/"+string(x.authority.Job)+"/outputs", func(r replicas, ok bool) {
		if !ok && (len(r.nodes) == 0 || x.n.clk.Now() < until) {
			x.n.after(2*time.Second, func() { x.upload(out, until) })
			return
		}
		x.completeIn(job.Result{Outcome: job.OutcomeDone, Outputs: []job.Output{{Path: "out", Digest: out, Size: 1}}, Replicas: r.nodes, Short: r.short})
	})
}

// bringIn copies what an ingest found, one input after the other, then proposes all of it.
func (x *execution) bringIn(outs []job.Output, r replicas, until forgeyard.Instant) {
	if x.over {
		return
	}
	if len(outs) == len(x.job.Spec.Ingest) {
		x.completeIn(job.Result{Outcome: job.OutcomeDone, Outputs: outs, Replicas: r.nodes, Short: r.short})
		return
	}
	d := cas.Sum([]byte(x.n.s.newID("brought in")))
	x.n.replicate(d, site.NamePin(x.authority.Job), func(got replicas, ok bool) {
		if !ok && (len(got.nodes) == 0 || x.n.clk.Now() < until) {
			x.n.after(2*time.Second, func() { x.bringIn(outs, r, until) })
			return
		}
		if len(outs) > 0 { // whoever has all of it
			got.nodes = slices.DeleteFunc(slices.Clone(got.nodes), func(n forgeyard.RunnerID) bool { return !slices.Contains(r.nodes, n) })
			got.short = got.short || r.short || len(got.nodes) < x.n.state().CopiesNeeded()
		}
		x.bringIn(append(slices.Clone(outs), job.Output{Path: x.job.Spec.Ingest[len(outs)].Name, Digest: d, Size: 1}), got, until)
	})
}

func (x *execution) completeIn(r job.Result) {
	x.n.after(x.n.s.within(10*time.Millisecond, 500*time.Millisecond), func() {
		if !x.over {
			x.complete(r)
		}
	})
}

func (x *execution) complete(r job.Result) {
	x.alive, x.over = false, true
	x.n.spoolAndDeliver(&completion{authority: x.authority, message: forgeyard.MessageID(x.n.s.newID("m")), result: r})
}

// spoolAndDeliver writes a completion down, then sends it. On a disk that takes nothing it
// is sent all the same: that risks a repeat of the work after a crash, never a wrong
// result.
func (n *node) spoolAndDeliver(c *completion) {
	n.s.trace("%s finishes %s: %s %s", n.name, short(c.authority), c.result.Outcome, c.result.Category)
	if n.disk.full > 0 {
		n.deliver(c, nil)
		return
	}
	n.spool = append(n.spool, c)
	n.after(n.syncFor(), func() {
		c.safe = true
		n.deliver(c, nil)
	})
}

// deliver brings a completion to its answer, however long that takes.
func (n *node) deliver(c *completion, then func()) {
	n.propose(n.name, site.Complete{Authority: c.authority, Message: c.message, Result: c.result}, proposeFor, func(r site.Reply, known bool) {
		v, err := site.Value[site.Completed](r)
		if !known || err != nil {
			n.after(n.s.within(100*time.Millisecond, 2*time.Second), func() { n.deliver(c, then) })
			return
		}
		n.s.trace("%s is answered for %s: %s", n.name, short(c.authority), v.Verdict)
		n.spool = slices.DeleteFunc(n.spool, func(o *completion) bool { return o.message == c.message })
		n.ended(c.authority.Lease)
		if then != nil {
			then()
		}
	})
}

// deliverSpooled sends what an earlier process finished, before this one registers.
func (n *node) deliverSpooled(then func()) {
	if len(n.spool) == 0 {
		n.after(0, then)
		return
	}
	n.deliver(n.spool[0], func() { n.deliverSpooled(then) })
}

func (n *node) ended(id forgeyard.LeaseID) {
	n.book.Over(id)
	n.execs = slices.DeleteFunc(n.execs, func(x *execution) bool { return x.authority.Lease == id })
	n.nudge()
}

func (n *node) cancelUnstarted(id forgeyard.LeaseID, why string) {
	for _, a := range n.book.ToRenew() {
		if a.Lease == id {
			n.spoolAndDeliver(&completion{authority: a, message: forgeyard.MessageID(n.s.newID("m")), result: job.Result{Outcome: job.OutcomeCancelled, Message: why}})
		}
	}
}

func (x *execution) cancel(why string) {
	x.n.after(x.n.s.within(10*time.Millisecond, time.Second), func() {
		if !x.over {
			x.complete(job.Result{Outcome: job.OutcomeCancelled, Message: why})
		}
	})
}

// kill ends the process tree by force, which takes a while; nothing is reported. What a
// workload does between the moment at which a stopped machine goes on and its agent's
// first look is beyond any clock: only a fence at the resource helps then, and none of
// the invariants here claims more. Such a one dies at once.
func (x *execution) kill(why string) {
	x.n.s.trace("%s kills %s: %s", x.n.name, short(x.authority), why)
	x.over = true
	if x.n.resuming {
		x.die()
		return
	}
	most := killMax - 200*time.Millisecond
	if x.n.s.faults.slowKill {
		most *= 8
	}
	if x.n.s.faults.tellsEarly {
		x.tellStopped()
	}
	x.n.after(x.n.s.within(0, most), func() {
		x.die()
		x.tellStopped()
	})
}

// tellStopped says that the tree is dead: for an execution that is unknown this ends the
// doubt.
func (x *execution) tellStopped() {
	x.n.propose(x.n.name, site.Stopped{Authority: x.authority}, time.Minute, nil)
}

func (x *execution) die() {
	x.alive, x.over = false, true
	x.n.book.Over(x.authority.Lease)
}

// stop gives the job back, by a checkpoint where the contract has one.
func (x *execution) stop(kind, why string, wish uint64) {
	switch {
	case kind == site.AskCheckpoint:
		if x.alive && x.stopping == "" {
			x.checkpoint()
		}
		return
	case x.stopping != "" && x.stopping != site.AskSuspend:
		return
	}
	x.stopping = kind
	refuses := kind == site.AskSuspend && (x.plan.Every == 0 || x.n.s.chance(300))
	x.n.after(x.n.s.within(10*time.Millisecond, x.plan.spec.Stop.Grace), func() {
		switch {
		case x.over || x.stopping != kind: // a stronger stop came
		case refuses:
			x.stopping = ""
			x.refuse(why, wish)
		case x.alive && x.plan.Every > 0:
			x.alive = false
			x.commit(false, func(_ site.Checkpointed, err error) {
				x.saved = err == nil
				x.release(kind, why)
			})
		default:
			x.release(kind, why)
		}
	})
}

// refuse tells that the work is not suspended, until the site has heard it or the lease is over.
func (x *execution) refuse(why string, wish uint64) {
	if x.over {
		return
	}
	x.n.propose(x.n.name, site.StopRefused{Authority: x.authority, Why: why, Wish: wish}, proposeFor, func(_ site.Reply, known bool) {
		if !known {
			x.n.after(time.Second, func() { x.refuse(why, wish) })
		}
	})
}

func (x *execution) release(kind, detail string) {
	if x.over {
		return
	}
	x.alive, x.over = false, true
	b := site.Release{Authority: x.authority, Kind: kind, Detail: detail}
	if x.n.reads() >= site.FormatLeases && x.n.state().Allows(site.FormatLeases) {
		b.Clean = !x.begun || x.saved
	}
	x.n.propose(x.n.name, b, proposeFor, nil)
	x.n.ended(x.authority.Lease)
}

// checkpoint takes one: while the work goes on, or by ending the tree and going on in
// place with the next epoch.
func (x *execution) checkpoint() {
	if x.plan.Sealed {
		x.commit(false, func(site.Checkpointed, error) {})
		return
	}
	x.alive = false
	sent := x.n.clk.Now()
	x.commit(true, func(r site.Checkpointed, err error) {
		switch {
		case x.over:
		case err == nil && r.Next != nil:
			x.over = true
			x.n.inherit(x.lease)
			x.n.book.Granted(*r.Next, x.job.Spec.Resources, x.n.s.faults.counted(x.n, sent))
			x.n.ended(x.authority.Lease)
		case err != nil && forgeyard.KindOf(err) != forgeyard.Stale:
			x.release("interrupted", "its checkpoint was not committed")
		default:
			x.over = true
			x.n.ended(x.authority.Lease)
		}
	})
}

func (x *execution) commit(goOn bool, then func(site.Checkpointed, error)) {
	s := x.n.s
	x.seq++
	id := cas.Sum([]byte(s.newID("manifest")))
	s.store[id] = saved{progress: x.progress, job: x.authority.Job, seq: s.ids}
	lost := func(why string) {
		then(site.Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Unknown, "%s", why))
	}
	x.n.replicate(id, "job/"+string(x.authority.Job)+"/checkpoint/"+id.Hex()[:16], func(r replicas, ok bool) {
		if !ok {
			lost("too few nodes take a copy")
			return
		}
		x.propose(id, r, goOn, func(r site.Reply, known bool) {
			if !known {
				lost("the outcome could not be learnt")
				return
			}
			v, err := site.Value[site.Checkpointed](r)
			then(v, err)
		})
	})
}

// propose asks for a checkpoint to be committed, whose bytes are where r says.
func (x *execution) propose(id forgeyard.Digest, r replicas, goOn bool, done func(site.Reply, bool)) {
	x.n.propose(x.n.name, site.Checkpoint{
		Authority: x.authority, Continue: goOn, Productive: true,
		Commit: checkpoint.Commit{
			Seq: x.seq, Manifest: id, Payload: cas.Sum([]byte("payload" + id.Hex())), Marker: cas.Sum([]byte("marker" + id.Hex())), Bytes: 1,
			Attempt: x.authority.Attempt, Epoch: x.authority.Fence.Epoch, Replicas: r.nodes, Consistency: checkpoint.Application,
		},
	}, proposeFor, func(r site.Reply, known bool) {
		if known && r.Err() == nil {
			it := x.n.s.store[id]
			it.committed = true
			x.n.s.store[id] = it
		}
		done(r, known)
	})
}

func short(a forgeyard.Authority) string {
	return fmt.Sprintf("%s@%s", forgeyard.Short(a.Job), a.Fence)
}
