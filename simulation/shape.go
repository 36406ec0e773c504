package simulation

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/sitecfg"
)

// shape is what a seed makes of a run, before anything happens.
type shape struct {
	safety    time.Duration
	config    sitecfg.Site
	terms     lease.UplinkTerms
	devices   [nodeCount]int // hosted by each node
	jobs      int
	calm      time.Duration // mean time between two faults
	longest   time.Duration // a fault of the network lasts
	slowApply int           // per mille
	lateRenew bool          // answers to renewals that came too late are still believed
	badWall   int           // the one node whose wall clock may be wrong; -1: none
	wallJump  time.Duration // and by how much
	faults    []func(*sim, *node)
	power     bool // machines lose power, and not only their process
}

// maxWallError is what a wall clock is wrong by in a run in which elapsed time may
// have to be told by it. A clock that is wrong by hours is noticed by its reader, one
// that is wrong by minutes is not.
const maxWallError = 400 * time.Millisecond

func draw(r *rand.Rand) shape {
	pick := func(ds ...time.Duration) time.Duration { return ds[r.IntN(len(ds))] }
	s := shape{
		safety: time.Duration(90+r.IntN(150)) * time.Second, config: sitecfg.DefaultSite(), jobs: 3 + r.IntN(6),
		calm: pick(3*time.Second, 8*time.Second, 20*time.Second), longest: pick(8*time.Second, 25*time.Second, 60*time.Second), slowApply: []int{0, 20, 200}[r.IntN(3)],
		lateRenew: r.IntN(2) == 0, badWall: r.IntN(nodeCount+1) - 1, power: r.IntN(3) == 0,
	}
	l := &s.config.Lease
	l.TTL = pick(3*time.Second, 6*time.Second, 15*time.Second)
	l.Renew = l.TTL / 3
	l.Grace = pick(0, 5*time.Second, 20*time.Second)
	s.terms = lease.UplinkTerms{SilentAfter: pick(2*time.Second, 5*time.Second, 10*time.Second), Grace: pick(0, 5*time.Second, 20*time.Second)}
	s.terms.Allowance = s.terms.SilentAfter + pick(0, 10*time.Second, 40*time.Second, 90*time.Second)
	for i := range s.devices {
		s.devices[i] = []int{0, 0, 1, 2}[r.IntN(4)]
	}
	s.wallJump = []time.Duration{maxWallError, -maxWallError, time.Hour, -time.Hour}[r.IntN(4)]
	if s.power && s.wallJump > time.Minute {
		s.wallJump = maxWallError
	}
	for _, f := range faultKinds {
		if r.IntN(2) == 0 {
			s.faults = append(s.faults, f)
		}
	}
	if len(s.faults) == 0 {
		s.faults = faultKinds
	}
	return s
}

// plan is how a job behaves when it runs.
type plan struct {
	spec      job.Spec
	raw       []byte
	total     time.Duration // of work
	every     time.Duration // between two checkpoints; 0: none
	sealed    bool          // checkpoints are taken while it goes on
	failFirst int           // preparations that fail
	fails     bool          // the work itself fails
	rejects   int           // restored states that the program rejects
}

func (p *plan) id() string { return p.spec.Title }

// drawPlan makes a job.
func (s *sim) drawPlan(name string) *plan {
	r := s.rng
	pick := func(ds ...time.Duration) time.Duration { return ds[r.IntN(len(ds))] }
	p := &plan{total: s.within(2*time.Second, 40*time.Second), fails: s.chance(100)}
	sp := job.Spec{Title: name, Steps: []job.Step{{Name: "work", Run: []string{"work"}}}}
	sp.Resources.MilliCPU = []int64{500, 1000, 2000}[r.IntN(3)]
	switch r.IntN(3) {
	case 0:
		sp.Connectivity = job.Connectivity{Policy: job.Continuous}
	case 1:
		sp.Connectivity = job.Connectivity{Policy: job.Grace, For: pick(time.Second, 5*time.Second, 20*time.Second)}
	default:
		sp.Connectivity = job.Connectivity{Policy: job.OfflineAuthorized, For: pick(10*time.Second, 40*time.Second, 90*time.Second)}
	}
	if r.IntN(3) == 0 {
		sp.Effects = job.EffectsProtected
	}
	sp.Interruption = job.Interruption{Tolerance: job.ToleranceRestartable, Budget: r.IntN(12), Retry: job.RetryResumeOrRestart}
	if r.IntN(2) == 0 {
		p.every, p.sealed = s.within(2*time.Second, 10*time.Second), r.IntN(2) == 0
		sp.Resume.Mode = job.ResumeApplication
		sp.Resume.Checkpoint.Window = 5 * time.Second
		if !p.sealed {
			sp.Resume.Checkpoint.Files = []string{"state"}
		}
		if s.chance(150) {
			p.rejects = 1 + r.IntN(2)
		}
	}
	if s.chance(150) {
		sp.Interruption.Retry = job.RetryNever
	}
	if s.chance(150) {
		p.failFirst = 1 + r.IntN(3)
	}
	sp.Stop.Grace = pick(time.Second, 4*time.Second)
	if r.IntN(4) == 0 && s.deviceCount() > 0 {
		for i := range 1 + r.IntN(min(2, s.deviceCount())) {
			sp.Devices = append(sp.Devices, job.DeviceRequest{Kind: "board", As: fmt.Sprintf("d%d", i)})
		}
	}
	p.spec = sp.Defaulted()
	p.raw = p.spec.Canonical()
	s.work[name] = p
	return p
}

func (s *sim) deviceCount() int {
	n := 0
	for _, d := range s.shape.devices {
		n += d
	}
	return n
}

// plan lays out what clients, the daemon and chance will do in the safety half.
func (sh *shape) plan(s *sim) {
	end := sh.safety * 2 / 3
	for i := range sh.jobs {
		p := s.drawPlan(fmt.Sprintf("job %d", i+1))
		at := int64(s.within(0, end))
		if s.rng.IntN(2) == 0 {
			s.after(at, func() { s.up.delegate(p) })
		} else {
			s.after(at, func() { s.client.submit(s, p) })
		}
	}
	s.after(int64(s.within(0, 2*end)), func() { s.client.cancelOne(s) })
	if s.chance(400) {
		s.after(int64(s.within(0, end)), func() { s.up.cancelOne() })
	}
	if s.chance(400) {
		s.after(int64(s.within(end/4, 2*end)), s.up.raiseOne)
	}
	if s.chance(300) {
		s.after(int64(s.within(0, end)), func() { s.client.drainOne(s) })
	}
	s.after(int64(s.within(sh.calm/2, sh.calm*2)), s.mischief)
}

func (p *plan) submit() site.Submit {
	return site.Submit{Kind: job.Build, Title: p.spec.Title, Key: p.spec.Title, Spec: p.raw, SpecID: cas.Sum(p.raw)}
}
