package simulation

import (
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
	progress time.Duration
	since    time.Duration // since the last checkpoint
	seq      int
	stopping string
	ticked   int64
}

// completion is a finished result; it is on disk before the first proposal.
type completion struct {
	authority forgeyard.Authority
	message   forgeyard.MessageID
	result    job.Result
}

// saved is what a checkpoint holds.
type saved struct {
	progress time.Duration
	job      forgeyard.JobID
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
	for _, c := range n.s.checks {
		c.started(n.s, x)
	}
	x.phase(job.PhasePreparing)
	n.after(n.s.within(50*time.Millisecond, 600*time.Millisecond), x.prepared)
}

func (x *execution) phase(p job.Phase) {
	x.n.propose(x.n.name, site.Phase{Authority: x.authority, Phase: p}, proposeFor, nil)
}

func (x *execution) prepared() {
	if x.over {
		return
	}
	p := x.plan
	if p.failFirst > 0 {
		p.failFirst--
		x.complete(job.Result{Outcome: job.OutcomeFailed, Category: job.PreparationFailed, Message: "no workspace"})
		return
	}
	if !x.job.ResumeFrom.IsZero() {
		x.progress = x.n.s.store[x.job.ResumeFrom].progress
		if p.rejects > 0 {
			p.rejects--
			x.release("resume_rejected", "the program rejects the restored state")
			return
		}
	}
	x.alive, x.ticked = true, x.n.s.now
	x.phase(job.PhaseRunning)
	x.n.after(x.n.s.within(100*time.Millisecond, time.Second), x.tick)
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
	switch {
	case x.over: // it was killed, and takes its time to die
	case x.progress >= x.plan.total:
		x.finish()
		return
	case x.plan.every > 0 && x.since >= x.plan.every && x.stopping == "":
		x.since = 0
		x.checkpoint()
	}
	x.n.after(s.within(100*time.Millisecond, time.Second), x.tick)
}

func (x *execution) finish() {
	x.alive = false
	x.phase(job.PhaseUploading)
	r := job.Result{Outcome: job.OutcomeDone}
	if x.plan.fails {
		r = job.Result{Outcome: job.OutcomeFailed, Category: job.WorkloadFailed, Message: "exit code 1", ExitCode: 1}
	}
	x.n.after(x.n.s.within(10*time.Millisecond, 500*time.Millisecond), func() {
		if !x.over {
			x.complete(r)
		}
	})
}

func (x *execution) complete(r job.Result) {
	x.alive, x.over = false, true
	x.n.spoolAndDeliver(completion{x.authority, forgeyard.MessageID(x.n.s.newID("m")), r})
}

func (n *node) spoolAndDeliver(c completion) {
	n.spool = append(n.spool, c)
	n.s.trace("%s finishes %s: %s %s", n.name, short(c.authority), c.result.Outcome, c.result.Category)
	n.deliver(c, nil)
}

// deliver brings a completion to its answer, however long that takes.
func (n *node) deliver(c completion, then func()) {
	n.propose(n.name, site.Complete{Authority: c.authority, Message: c.message, Result: c.result}, proposeFor, func(r site.Reply, known bool) {
		v, err := site.Value[site.Completed](r)
		if !known || err != nil {
			n.after(n.s.within(100*time.Millisecond, 2*time.Second), func() { n.deliver(c, then) })
			return
		}
		n.s.trace("%s is answered for %s: %s", n.name, short(c.authority), v.Verdict)
		n.spool = slices.DeleteFunc(n.spool, func(o completion) bool { return o.message == c.message })
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
			n.spoolAndDeliver(completion{a, forgeyard.MessageID(n.s.newID("m")), job.Result{Outcome: job.OutcomeCancelled, Message: why}})
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
		x.die(why)
		return
	}
	x.n.after(x.n.s.within(0, killMax-200*time.Millisecond), func() { x.die(why) })
}

func (x *execution) die(string) {
	x.alive, x.over = false, true
	x.n.book.Over(x.authority.Lease)
}

// stop gives the job back, by a checkpoint where the contract has one.
func (x *execution) stop(kind, why string) {
	if x.stopping != "" {
		return
	}
	x.stopping = kind
	x.n.after(x.n.s.within(10*time.Millisecond, x.plan.spec.Stop.Grace), func() {
		switch {
		case x.over:
		case x.alive && x.plan.every > 0:
			x.alive = false
			x.commit(false, func(site.Checkpointed, error) { x.release(kind, why) })
		default:
			x.release(kind, why)
		}
	})
}

func (x *execution) release(kind, detail string) {
	if x.over {
		return
	}
	x.alive, x.over = false, true
	x.n.propose(x.n.name, site.Release{Authority: x.authority, Kind: kind, Detail: detail}, proposeFor, nil)
	x.n.ended(x.authority.Lease)
}

// checkpoint takes one: while the work goes on, or by ending the tree and going on in
// place with the next epoch.
func (x *execution) checkpoint() {
	if x.plan.sealed {
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
			l := x.lease
			l.Authority = *r.Next
			x.n.book.Granted(l, x.job.Spec.Resources, x.n.s.faults.counted(x.n, sent))
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
	s.store[id] = saved{x.progress, x.authority.Job}
	body := site.Checkpoint{
		Authority: x.authority, Continue: goOn, Productive: true,
		Commit: checkpoint.Commit{
			Seq: x.seq, Manifest: id, Payload: cas.Sum([]byte("payload" + id.Hex())), Marker: cas.Sum([]byte("marker" + id.Hex())), Bytes: 1,
			Attempt: x.authority.Attempt, Epoch: x.authority.Fence.Epoch, Replicas: []forgeyard.RunnerID{x.n.runner, s.nodes[(x.n.id+1)%nodeCount].runner}, Consistency: checkpoint.Application,
		},
	}
	x.n.propose(x.n.name, body, proposeFor, func(r site.Reply, known bool) {
		if !known {
			then(site.Checkpointed{}, forgeyard.Errorf("checkpoint", forgeyard.Unknown, "the outcome could not be learnt"))
			return
		}
		v, err := site.Value[site.Checkpointed](r)
		then(v, err)
	})
}
