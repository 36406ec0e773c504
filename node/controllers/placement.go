package controllers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/job/machine"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
)

// heardWithin is how fresh a runner's sign must be for new work to go there, in
// renewal intervals: two may be lost.
const heardWithin = 3

// patience is how long a job stays away from a runner that refused it, doubled with each
// failure on the runners' side, and each time that this one refused it: what a runner lacks
// for it may be lacking for ever, and each offer is written down.
const patience = 5 * time.Second

// Candidate is one runner and what keeps a job from it; no reasons: it can serve.
type Candidate struct {
	Runner  forgeyard.RunnerID
	Name    string
	Reasons []string
	score   int64
}

type usage struct {
	cpu, mem, disk int64
	jobs           int
	withheld       int64 // of its cores, while others use them
}

// place offers every job that may start to the best runner that can serve it,
// oldest first. Within one step what was offered counts as taken.
func (s *stepper) place() {
	taken := s.taken
	held := map[forgeyard.DeviceID]bool{}
	s.takers = s.whoTakes()
	for _, w := range s.waiting {
		if len(s.takers) == 0 && w.job.Spec.Node == "" {
			continue // nobody could have it, whatever it asks
		}
		j := *w.job
		if s.holdBack(j) != "" || s.nowhere(j) {
			continue
		}
		devs, why := s.devicesFor(j, held)
		if why != "" {
			continue
		}
		best := s.best(j, taken, devs)
		if best == nil {
			continue
		}
		m, _ := s.in.State.Members.Get(best.Runner)
		u := taken[m.Runner]
		u.add(&j.Spec)
		taken[m.Runner] = u
		offer := site.Offer{Job: j.ID, Runner: m.Runner, Session: m.Session.ID, Epoch: j.Epoch, Used: int64(s.in.Used)}
		for _, d := range devs {
			held[d.ID] = true
			offer.Devices = append(offer.Devices, d.ID)
		}
		s.propose("offer/"+string(j.ID), offer)
	}
}

// nowhere ends a run whose one node has left the site: nobody else has the data, or is what
// was to be looked after.
func (s *stepper) nowhere(j site.Job) bool {
	m, ok := s.in.State.Members.Get(j.Spec.Node)
	if j.Spec.Node == "" || (ok && !m.Removed) {
		return false
	}
	s.propose("nowhere/"+string(j.ID), site.Fail{Job: j.ID, Epoch: j.Epoch, Category: job.SpecInvalid, Reason: fmt.Sprintf("%s, whose run it is, was removed from the site", cmp.Or(m.Name, string(j.Spec.Node)))})
	return true
}

// holdBack says why no runner may get the job now, whatever it can do.
func (s *stepper) holdBack(j site.Job) string {
	if err := s.in.State.Offerable(j, s.in.Used); err != nil {
		return err.Error()
	}
	if j.Grant != nil && !s.in.Known {
		return "the new leader is asking the voters how long the uplink was silent"
	}
	if j.Grant != nil {
		span := j.Grant.Span(s.in.State.Uplink.Terms)
		left := j.Grant.Left(s.in.uplink(), s.in.Used)
		if left <= stopMargin(j, span) {
			return fmt.Sprintf("only %s of the central daemon's authority are left", left.Round(time.Second))
		}
		if why := j.Grant.Finishes(s.in.uplink(), s.in.Used, j.Spec.Timeouts.Run, j.Spec.Resume.TakesCheckpoints()); why != "" {
			return why
		}
	}
	return ""
}

// stopMargin is how long before the end of an allowance work is asked to stop: the
// time its stop may take, and never more than a quarter of the whole.
func stopMargin(j site.Job, span time.Duration) time.Duration { return min(stopTime(j), span/4) }

// stopTime is what a stop that the job is asked for may take.
func stopTime(j site.Job) time.Duration {
	m := j.Spec.Stop.Grace
	if j.Spec.Resume.TakesCheckpoints() {
		m += j.Spec.Resume.Checkpoint.Window
	}
	return m
}

// take counts what the holder of a job takes of its runner.
func (s *stepper) take(j *site.Job) {
	if j.Lease.Live() || (j.Status == job.Unknown && !j.Certain) {
		u := s.taken[j.Lease.Authority.Runner]
		u.add(&j.Spec)
		s.taken[j.Lease.Authority.Runner] = u
	}
}

func (s *stepper) usage() map[forgeyard.RunnerID]usage {
	s.taken = map[forgeyard.RunnerID]usage{}
	jobs := s.in.State.Jobs.Reader()
	for id := range s.in.State.Open.All() {
		s.take(jobs.Find(id))
	}
	return s.taken
}

func (u *usage) add(s *job.Spec) {
	u.cpu, u.mem, u.disk, u.jobs = u.cpu+s.Resources.MilliCPU, u.mem+s.Resources.Memory, u.disk+s.Resources.Disk, u.jobs+1
}

// whoTakes are the members that take work at all now: the same for every job of a look.
func (s *stepper) whoTakes() (all []site.Member) {
	for _, m := range s.in.State.Members.All() {
		if !m.Removed && len(s.unavailable(m)) == 0 {
			all = append(all, m)
		}
	}
	return all
}

func (s *stepper) best(j site.Job, taken map[forgeyard.RunnerID]usage, devs []devices.Device) *Candidate {
	var best *Candidate
	for _, m := range s.takers {
		c := s.candidate(j, m, taken[m.Runner], devs, nil)
		if len(c.Reasons) == 0 && (best == nil || c.score > best.score) {
			best = &c
		}
	}
	return best
}

func (s *stepper) candidates(j site.Job, taken map[forgeyard.RunnerID]usage, devs []devices.Device) []Candidate {
	var out []Candidate
	for _, m := range s.in.State.Members.All() {
		if !m.Removed {
			out = append(out, s.candidate(j, m, taken[m.Runner], devs, s.unavailable(m)))
		}
	}
	return out
}

// candidate is a member as one for a job: what keeps it from any, what it lacks for this
// one, and how it suits.
func (s *stepper) candidate(j site.Job, m site.Member, u usage, devs []devices.Device, down []string) Candidate {
	sign, _ := s.in.Mem.Runner(m.Runner)
	u.withheld = max(0, sign.Taken.Withheld)
	c := Candidate{Runner: m.Runner, Name: m.Name, score: score(m, j, u, devs) + suits(m.Assigned.Class, j, s.in.Wall)}
	if j.Spec.Node != "" && j.Spec.Node != m.Runner {
		c.Reasons = append(c.Reasons, "the run is for another node")
	}
	c.Reasons = append(c.Reasons, down...)
	c.Reasons = append(c.Reasons, m.Caps.Lacks(j.Spec, m.Assigned)...)
	c.Reasons = append(c.Reasons, misfits(j, m)...)
	c.Reasons = append(c.Reasons, noRoom(m, j.Spec, u)...)
	if m.Assigned.Class.MayVanish() && j.OnlyStable() {
		c.Reasons = append(c.Reasons, fmt.Sprintf("it is %s capacity, the job was interrupted %d times and goes to stable capacity only", m.Assigned.Class, j.Interruptions))
	}
	if last := len(j.History) - 1; last >= 0 && j.History[last].Session == m.Session.ID && j.History[last].EndedWithProcess() {
		c.Reasons = append(c.Reasons, "its new process has not registered yet")
	}
	if why := s.avoids(j, m); why != "" {
		c.Reasons = append(c.Reasons, why)
	}
	return c
}

// misfits says why the job cannot go on there from its checkpoint.
func misfits(j site.Job, m site.Member) []string {
	if k, ok := j.NextFrom(); ok {
		return j.Misfits(k, m)
	}
	return nil
}

// onlyDevices are those that the job's checkpoint binds it to; nil: any.
func onlyDevices(j site.Job) map[forgeyard.DeviceID]bool {
	k, ok := j.NextFrom()
	if !ok || k.Where == nil || k.Where.Machine == nil || j.Spec.Resume.Compatibility.Device != machine.Exact {
		return nil
	}
	only := map[forgeyard.DeviceID]bool{}
	for _, d := range k.Where.Machine.Devices {
		_, id, _ := strings.Cut(d, "=")
		only[forgeyard.DeviceID(id)] = true
	}
	return only
}

// unavailable says why a runner takes no work at all now.
func (s *stepper) unavailable(m site.Member) []string {
	var why []string
	sign, ok := s.in.Mem.Runner(m.Runner)
	limit := heardWithin * s.in.State.Config.Lease.Renew
	switch {
	case m.Session.ID == "":
		why = append(why, "it never registered")
	case !ok || s.now.Sub(sign.At) > limit:
		why = append(why, fmt.Sprintf("not heard from for %s", limit))
	case sign.Session != m.Session.ID:
		why = append(why, "its session is changing")
	}
	if m.Disabled {
		why = append(why, "disabled")
	}
	if m.Waiting {
		why = append(why, "not_approved")
	}
	if m.Draining {
		why = append(why, "draining")
	}
	if m.Notice != nil {
		why = append(why, "it is being taken away: "+m.Notice.Source)
	}
	if ok {
		for _, r := range sign.Refusing {
			if !slices.Contains(why, r) { // the log and the runner may both know it
				why = append(why, r)
			}
		}
	}
	return why
}

func noRoom(m site.Member, sp job.Spec, u usage) []string {
	var why []string
	over := func(what string, unit uint, asked, used, has int64) {
		if asked > has {
			why = append(why, fmt.Sprintf("%s: the job asks for %d, the runner has %d", what, asked>>unit, has>>unit))
		} else if asked+used > has {
			why = append(why, fmt.Sprintf("%s: %d of %d are taken, the job asks for %d", what, used>>unit, has>>unit, asked>>unit))
		}
	}
	over("cpu (thousandths)", 0, sp.Resources.MilliCPU, u.cpu, m.Caps.MilliCPU)
	// What runs alone gets all: on a machine that is never quiet it would wait for ever.
	if asked := sp.Resources.MilliCPU; u.jobs > 0 && asked+u.cpu <= m.Caps.MilliCPU && asked+u.cpu+u.withheld > m.Caps.MilliCPU {
		why = append(why, fmt.Sprintf("cpu (thousandths): %d of %d are taken and %d withheld while others use the machine, the job asks for %d", u.cpu, m.Caps.MilliCPU, u.withheld, asked))
	}
	over("memory (MiB)", 20, sp.Resources.Memory, u.mem, m.Caps.Memory)
	over("disk (MiB)", 20, sp.Resources.Disk, u.disk, m.Caps.Disk)
	if u.jobs >= m.Caps.MaxJobs {
		why = append(why, fmt.Sprintf("%d of %d jobs run there", u.jobs, m.Caps.MaxJobs))
	}
	return why
}

// avoids says that a job stays away from a runner that refused it, or nothing. Another process
// there may take it.
func (s *stepper) avoids(j site.Job, m site.Member) string {
	r := s.in.Mem.avoided[avoidKey{j.ID, m.Runner}]
	if r.times == 0 || r.last.Session != m.Session.ID {
		return ""
	}
	until := r.since.Add(patience << min(max(j.Retries, r.times-1), 4))
	if until <= s.now {
		return ""
	}
	s.at(until)
	return "it refused this job a moment ago: " + r.last.Reason
}

// score prefers the host of the job's devices, then the runner that had the last
// epoch's content, then one that has its toolchains ready, then the emptier one.
func score(m site.Member, j site.Job, u usage, devs []devices.Device) int64 {
	var n int64
	for _, d := range devs {
		if d.Host == m.Runner {
			n += 100_000
		}
	}
	if len(j.Checkpoints) > 0 {
		if slices.Contains(j.Checkpoints[len(j.Checkpoints)-1].Replicas, m.Runner) {
			n += 10_000
		}
	}
	n += 2_000 * min(int64(m.Caps.Warm(j.Spec)), 4) // it saves their preparation, and no more
	if m.Caps.MilliCPU > 0 {
		n += 1000 * (m.Caps.MilliCPU - u.cpu - u.withheld) / m.Caps.MilliCPU
	}
	return n
}

// devicesFor finds a free device for each request, or says why it cannot.
func (s *stepper) devicesFor(j site.Job, held map[forgeyard.DeviceID]bool) ([]devices.Device, string) {
	if len(j.Spec.Devices) == 0 {
		return nil, ""
	}
	var all []devices.Device
	only := onlyDevices(j)
	for _, d := range s.in.State.Devices.All() {
		if !held[d.ID] && (only == nil || only[d.ID]) {
			all = append(all, s.asHosted(d))
		}
	}
	var reqs []devices.Request
	for _, r := range j.Spec.Devices {
		reqs = append(reqs, devices.Request{Kind: r.Kind, Labels: r.Labels})
	}
	ids, refused := devices.Assign(reqs, all)
	if ids == nil {
		return nil, noDevice(j, refused)
	}
	out := make([]devices.Device, len(ids))
	for i, id := range ids {
		out[i], _ = s.in.State.Devices.Get(id)
	}
	return out, ""
}

// asHosted is a device as it can be leased now: one whose host is not heard from cannot be
// opened, whatever the log thinks of it, and work that needs it would only fail.
func (s *stepper) asHosted(d devices.Device) devices.Device {
	if m, ok := s.in.State.Members.Get(d.Host); !ok || m.Removed || !s.fresh(m) {
		return d.HostLost(m.Name + " is not heard from")
	}
	return d
}

func noDevice(j site.Job, refused []devices.Refusal) string {
	if len(refused) == 0 {
		return fmt.Sprintf("the site has no device for %q", j.Spec.Devices[0].As)
	}
	var why []string
	for _, r := range refused[:min(len(refused), 4)] {
		why = append(why, fmt.Sprintf("%s: %s", r.Device, r.Reason))
	}
	return "no device serves: " + strings.Join(why, "; ")
}

// Explain says for a job that waits what keeps it from each runner, and what keeps
// it from all of them.
func Explain(now forgeyard.Instant, in Input, j site.Job) (held string, all []Candidate) {
	s := stepper{now: now, in: in, wake: now.Add(idleLook)}
	if held = s.holdBack(j); held == "" {
		_, held = s.devicesFor(j, nil)
	}
	return held, s.candidates(j, s.usage(), nil)
}

// deviceLeases ends those of people whose time is over, counted like job leases:
// from the apply, stretched by the drift bound.
func (s *stepper) deviceLeases() {
	live := map[forgeyard.DeviceLeaseID]bool{}
	for _, d := range s.in.State.Devices.All() {
		l := d.Lease
		if l == nil || l.Holder.Person == "" {
			continue
		}
		live[l.ID] = true
		since, ok := s.in.Mem.devices[l.ID]
		if !ok {
			since = s.now
			s.in.Mem.devices[l.ID] = since
		}
		due := lease.Stretch(l.TTL, lease.Terms{DriftPPM: cmp.Or(l.DriftPPM, int64(s.in.State.Config.Lease.Drift))})
		if since.Add(due) <= s.now {
			s.propose("device/"+string(l.ID), site.DeviceRelease{Lease: l.ID, Expired: true})
			continue
		}
		s.at(since.Add(due))
	}
	for id := range s.in.Mem.devices {
		if !live[id] {
			delete(s.in.Mem.devices, id)
		}
	}
}
