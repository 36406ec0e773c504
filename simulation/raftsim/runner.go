package raftsim

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

// proposeFor is how long a node tries to get something into the log, as package node does.
const proposeFor = 10 * time.Second

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func (p *process) pause(d time.Duration) bool {
	select {
	case <-p.ctx.Done():
		return false
	case <-p.m.clk.After(d):
		return true
	}
}

func (p *process) askRenewal() {
	select {
	case p.renewNow <- struct{}{}:
	default:
	}
}

func (p *process) nudge() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *process) propose(b site.Body) (site.Reply, error) {
	ctx, cancel := context.WithTimeout(p.ctx, proposeFor)
	defer cancel()
	r, err := p.proposer.Propose(ctx, b)
	if err == nil {
		err = r.Err()
	}
	return r, err
}

// caps is what every machine is.
func caps() job.Capabilities {
	return job.Capabilities{
		OS: "linux", Arch: "amd64", MilliCPU: 8000, Memory: 16 << 30, Disk: 200 << 30, MaxJobs: 8,
		Sandboxes: []job.SandboxCapability{{Kind: job.SandboxStrict, Limits: []string{"cpu", "memory", "pids"}}}, Networks: []job.Network{job.NetworkNone},
	}
}

// sessionLoop registers this process, then sends its heartbeats.
func (p *process) sessionLoop() {
	for {
		if _, err := p.propose(site.Register{Runner: p.m.runner, Session: p.session, Version: "sim", Caps: caps()}); err == nil {
			break
		}
		if !p.pause(jitter(500 * time.Millisecond)) {
			return
		}
	}
	for fails := 0; ; {
		wait := max(p.replica.State().Config.Lease.Renew, 500*time.Millisecond)
		if p.renewOnce() {
			fails = 0
		} else {
			fails++
			wait = min(wait, 100*time.Millisecond<<min(fails, 6))
		}
		select {
		case <-p.ctx.Done():
			return
		case <-p.renewNow:
			if !p.pause(100 * time.Millisecond) {
				return
			}
		case <-p.m.clk.After(jitter(wait)):
		}
	}
}

// renewOnce sends one heartbeat. The instant of the send is taken first (decision 1).
func (p *process) renewOnce() bool {
	p.mu.Lock()
	batch := p.book.ToRenew()
	p.mu.Unlock()
	var ask []controllers.Renewal
	for _, a := range batch {
		ask = append(ask, controllers.Renewal{Authority: a})
	}
	sign := controllers.Sign{Session: p.session, Pressure: "normal"}
	sent := p.m.clk.Now()
	answers, err := p.renewWith(sign, ask)
	if err != nil {
		return false
	}
	p.mu.Lock()
	for i, a := range batch {
		p.book.Renewed(a.Lease, sent, answers[i].Answer, answers[i].Left)
	}
	p.mu.Unlock()
	p.nudge()
	return true
}

func (p *process) renewWith(sign controllers.Sign, ask []controllers.Renewal) (answers []controllers.RenewalAnswer, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, callWithin)
	defer cancel()
	if l := p.leading.Load(); l != nil {
		return l.Renew(ctx, p.m.runner, sign, ask)
	}
	_, addr, _ := p.group.Leader()
	if addr == "" || addr == p.m.name {
		addr = p.w.nodes[rand.IntN(len(p.w.nodes))].name
	}
	err = p.w.net.call(ctx, p, addr, func(ctx context.Context, to *process) error {
		l := to.leading.Load()
		if l == nil {
			return forgeyard.Errorf("renew", forgeyard.Unavailable, "%s does not lead", addr)
		}
		var e error
		answers, e = l.Renew(ctx, p.m.runner, sign, ask)
		return e
	})
	return answers, err
}

// agentLoop carries out what the agent decides.
func (p *process) agentLoop() {
	for {
		changed := p.replica.Changed()
		now := p.m.clk.Now()
		suspect := p.group.Suspect() // before the state
		p.mu.Lock()
		effects, wake := agent.Step(now, agent.Input{State: p.replica.State(), Suspect: suspect, Me: p.m.runner, Session: p.session, Caps: caps()}, p.book)
		for _, a := range p.book.ToRenew() {
			if p.book.Deadline(a.Lease).IsZero() {
				p.askRenewal()
			}
		}
		p.mu.Unlock()
		for _, e := range effects {
			p.obey(e)
		}
		select {
		case <-p.ctx.Done():
			return
		case <-changed:
		case <-p.kick:
		case <-p.m.clk.After(wake.Sub(p.m.clk.Now())):
		}
	}
}

func (p *process) obey(e agent.Effect) {
	switch e := e.(type) {
	case agent.Accept:
		p.tasks.Go(func() { p.accept(e.Authority) })
	case agent.Reject:
		p.tasks.Go(func() { p.tell(site.Reject{Authority: e.Authority, Reason: e.Reason, Detail: e.Detail}) })
	case agent.Start:
		p.begin(e.Job, e.Lease)
	case agent.Cancel, agent.Stop: // no client here asks for either
	case agent.Kill:
		if x := p.execution(e.Lease); x != nil {
			x.kill(e.Why)
		}
	}
}

// tell proposes something whose refusal changes nothing here.
func (p *process) tell(b site.Body) { _, _ = p.propose(b) }

func (p *process) accept(a forgeyard.Authority) {
	sent := p.m.clk.Now()
	_, err := p.propose(site.Accept{Authority: a})
	p.mu.Lock()
	if err == nil {
		p.book.Accepted(a.Lease, sent)
	} else {
		p.book.NotAccepted(a.Lease)
	}
	p.mu.Unlock()
	p.nudge()
}

// execution is one epoch that a process carries out. Its workload acts until it is dead.
type execution struct {
	p         *process
	authority forgeyard.Authority
	job       site.Job
	takes     time.Duration
	killed    chan struct{} // closed when the order to kill is given
	dead      chan struct{} // closed when the process tree is gone
}

func (p *process) execution(id forgeyard.LeaseID) *execution {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.execs[id]
}

func (p *process) begin(j site.Job, l lease.Lease) {
	x := &execution{p: p, authority: l.Authority, job: j, takes: p.w.client.takes(j.Spec.Title), killed: make(chan struct{}), dead: make(chan struct{})}
	p.mu.Lock()
	p.execs[l.Authority.Lease] = x
	p.mu.Unlock()
	p.w.trace("%s starts %s", p.m.name, short(x.authority))
	p.w.check.started(x)
	p.tasks.Go(x.run)
}

func (x *execution) run() {
	p := x.p
	p.tell(site.Phase{Authority: x.authority, Phase: job.PhaseRunning})
	for done := time.Duration(0); done < x.takes; {
		step := 50*time.Millisecond + rand.N(300*time.Millisecond)
		stops := p.m.clk.stopCount()
		select {
		case <-x.dead:
			return
		case <-p.m.clk.After(step):
		}
		if stops != p.m.clk.stopCount() && !x.firstLook() {
			return
		}
		p.w.check.ran(x)
		done += step
	}
	select {
	case <-x.killed: // it has nothing more to say
		<-x.dead
		return
	default:
	}
	p.w.trace("%s finishes %s", p.m.name, short(x.authority))
	x.complete()
}

// firstLook lets the agent of a machine that stood still compare the clock before its
// workloads act: what they do in between is beyond any clock, and no invariant here
// claims more.
func (x *execution) firstLook() bool {
	x.p.nudge()
	time.Sleep(5 * time.Millisecond)
	select {
	case <-x.killed:
		x.die()
		return false
	default:
		return true
	}
}

// complete reports the result until it is answered.
func (x *execution) complete() {
	p := x.p
	message := forgeyard.MessageID(p.w.newID("m"))
	for {
		r, err := p.propose(site.Complete{Authority: x.authority, Message: message, Result: job.Result{Outcome: job.OutcomeDone}})
		if _, bad := site.Value[site.Completed](r); err == nil && bad == nil {
			break
		}
		if !p.pause(jitter(time.Second)) {
			return
		}
	}
	p.over(x.authority.Lease)
}

func (p *process) over(id forgeyard.LeaseID) {
	p.mu.Lock()
	p.book.Over(id)
	delete(p.execs, id)
	p.mu.Unlock()
	p.nudge()
}

// kill gives the order; the tree is gone a while later.
func (x *execution) kill(why string) {
	x.p.w.trace("%s kills %s: %s", x.p.m.name, short(x.authority), why)
	close(x.killed)
	most := lease.DefaultTerms().KillMax - 300*time.Millisecond
	x.p.tasks.Go(func() {
		select {
		case <-x.dead:
		case <-time.After(rand.N(most)):
			x.die()
		}
	})
}

func (x *execution) die() {
	x.p.mu.Lock()
	select {
	case <-x.dead:
	default:
		close(x.dead)
	}
	x.p.mu.Unlock()
	x.p.over(x.authority.Lease)
}

// killAll ends the workloads with their process: whoever registers next has made sure.
func (p *process) killAll() {
	p.mu.Lock()
	var all []*execution
	for _, x := range p.execs {
		all = append(all, x)
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b *execution) int { return cmp.Compare(a.authority.Lease, b.authority.Lease) })
	for _, x := range all {
		x.die()
	}
}
