package explore

import (
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/devices"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/node/agent"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/site"
)

var (
	quiet = job.Connectivity{Policy: job.Continuous}
	away  = job.Connectivity{Policy: job.OfflineAuthorized, For: 4 * slowTick}
)

// Companies that are just large enough for a fault to matter, so that the shortest way
// to it is soon found. The honest rules break nothing in any of them.
var (
	silentRunner = Company{Name: "silent runner", Connectivity: quiet, Protected: true, FastLeader: true, Ticks: 4, Beats: 1}
	lostAnswer   = Company{Name: "lost answer", Connectivity: quiet, Protected: true, FastLeader: true, Ticks: 3, Beats: 1, Losses: 1}
	offlineWork  = Company{Name: "offline work", Connectivity: away, Protected: true, FastLeader: true, Ticks: 3}
	plainWork    = Company{Name: "plain work", Connectivity: away, FastLeader: true, Ticks: 3, Beats: 2}
	newLeader    = Company{Name: "new leader", Connectivity: quiet, Protected: true, FastLeader: true, Ticks: 3, Elects: 1, Beats: 1}
	heardAnew    = Company{Name: "heard anew", Connectivity: quiet, Protected: true, FastLeader: true, Ticks: 3, Elects: 1, Beats: 1, Losses: 1}
	restarting   = Company{Name: "restarting runner", Connectivity: quiet, FastLeader: true, Crashes: 1, Ticks: 1}
	doubling     = Company{Name: "doubled messages", Connectivity: quiet, FastLeader: true, Submits: true, Copies: 1}
	saving       = Company{Name: "saving job", Connectivity: quiet, FastLeader: true, Saves: 1, Crashes: 1}
	shared       = Company{Name: "shared device", Connectivity: away, FastLeader: true, Device: true, Ticks: 3, Beats: 2}
	takenAway    = Company{Name: "taken away", Connectivity: away, Protected: true, FastLeader: true, Ticks: 1, Revokes: 1}
	cutOff       = Company{Name: "cut off", Connectivity: away, Delegated: true, Ticks: 3, Elects: 1, Beats: 1}
	reporting    = Company{Name: "reporting", Connectivity: quiet, Delegated: true, Syncs: 2, Losses: 1, Copies: 1, Cancels: 1}
)

// seeded are faults, what they break, and how many steps the shortest way to it has. A
// net that was never seen to catch anything is not trusted.
var seeded = []struct {
	name, invariant string
	company         Company
	steps           int
	rules           func(*Rules)
}{
	{"the epoch is not compared", "stale-never-commits", plainWork, 15, func(r *Rules) { r.Apply = takesStale }},
	{"two epochs may be current", "one-current-epoch", restarting, 3, func(r *Rules) { r.Apply = forgetsLease }},
	{"a result is taken after the end", "terminal-once", plainWork, 21, func(r *Rules) { r.Apply = writesTwice }},
	{"a job is forgotten with its end", "nothing-lost", plainWork, 7, func(r *Rules) { r.Apply = forgetsEnded }},
	{"a repeated request is a new one", "exactly-once", doubling, 3, func(r *Rules) { r.Apply = forgetsRequests }},
	{"an epoch resumes from leftovers", "committed-checkpoint-only", saving, 5, func(r *Rules) { r.Apply = resumesLeftovers }},
	{"a rule asks something outside the log", "same-state", saving, 7, func(r *Rules) { r.Apply = impure() }},
	{"a lease begins twice", "one-current-epoch", doubling, 6, func(r *Rules) { r.Agent = startsTwice }},
	{"a holder counts from the receipt", "holder-stops-first", silentRunner, 10, func(r *Rules) {
		r.Counted = func(_, received forgeyard.Instant) forgeyard.Instant { return received }
	}},
	{"a holder does not stop", "holder-stops-first", silentRunner, 10, func(r *Rules) { r.Agent = neverKills }},
	{"the certain deadline ignores the drift", "holder-stops-first", silentRunner, 9, func(r *Rules) { r.Lead = ignoresDrift }},
	{"protected effects wait for the fence only", "holder-stops-first", offlineWork, 10, func(r *Rules) { r.Apply = alwaysCertain }},
	{"a revocation frees protected work at once", "holder-stops-first", takenAway, 6, func(r *Rules) { r.Apply = freesRevoked }},
	{"a lease is renewed while it expires", "holder-stops-first", lostAnswer, 13, func(r *Rules) { r.Renew = renewsExpiring }},
	{"a deposed leader renews", "holder-stops-first", newLeader, 14, func(r *Rules) { r.Deposed = true }},
	{"a deposed leader's expiry counts", "holder-stops-first", heardAnew, 14, func(r *Rules) { r.Apply = anyTerm }},
	{"a device's token is used again", "device-single-holder", shared, 11, func(r *Rules) { r.Apply = reusesToken }},
	{"a device's host admits any token", "device-single-holder", shared, 12, func(r *Rules) {
		r.Admit = func(devices.Device, uint64, uint64, bool) bool { return true }
	}},
	{"a new leader counts the silence from zero", "within-allowance", cutOff, 12, func(r *Rules) { r.Base = func(time.Duration) time.Duration { return 0 } }},
	{"the daemon's bound does not reach the holder", "within-allowance", cutOff, 11, func(r *Rules) { r.Renew = boundless }},
	{"an acknowledgement is forgotten", "exactly-once-upstream", reporting, 4, func(r *Rules) { r.Apply = forgetsAck }},
	{"the outbox is trimmed unacknowledged", "exactly-once-upstream", reporting, 5, func(r *Rules) { r.Apply = trimsTooMuch }},
	{"the daemon takes a record twice", "exactly-once-upstream", reporting, 5, func(r *Rules) { r.New = func(last, seq uint64) bool { return seq <= last+1 } }},
}

// Each fault is seen. What they show of the rows: a stale lease never executes and its result is refused
// (RA-552, RA-562), one lease begins once however often it is delivered (RA-442, RA-504,
// RA-551), the hard deadline stops who hears nothing (RA-310, RA-566), a device has a lease
// of its own with one holder (RA-393, RA-570); E08, E16, E27.
func TestSeededFaults(t *testing.T) {
	for _, f := range seeded {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			r := Honest()
			f.rules(&r)
			got := Run(f.company, r, Limits{States: 2_000_000}, stopwatch())
			t.Logf("%d steps to it; %d worlds and %d steps tried, %s", got.Depth, got.States, got.Steps, got.Took.Round(time.Millisecond))
			switch {
			case got.Broken == nil:
				t.Errorf("not seen in %d worlds to depth %d", got.States, got.Depth)
			case got.Broken.Invariant != f.invariant || got.Depth != f.steps:
				t.Errorf("%s breaks after %d steps, expected %s after %d\n%s", got.Broken.Invariant, got.Depth, f.invariant, f.steps, strings.Join(got.Path, "\n"))
			}
		})
	}
}

// TestHonestRulesHold: where a fault is seen, the honest rules break nothing, to the same
// depth and two steps more.
func TestHonestRulesHold(t *testing.T) {
	deepest := map[Company]int{}
	for _, f := range seeded {
		deepest[f.company] = max(deepest[f.company], f.steps)
	}
	for c, depth := range deepest {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			r := Run(c, Honest(), Limits{Depth: depth + 2, States: 2_000_000}, stopwatch())
			if r.Broken != nil {
				t.Error(strings.Join(r.Path, "\n"))
			}
			if r.Depth < depth && !r.Whole {
				t.Errorf("looked to depth %d only, the fault needs %d", r.Depth, depth)
			}
		})
	}
}

// edited decodes an entry for a fault, and applies it as the fault changed it.
func edited(s *site.State, index, term uint64, data []byte, f func(site.Body) site.Body) (*site.State, site.Reply) {
	c, err := site.Decode(data)
	if err != nil {
		return s.ApplyEntry(index, term, data)
	}
	c.Body = f(c.Body)
	return s.ApplyEntry(index, term, c.Encode())
}

// after applies an entry and lets the fault change every job then.
func after(s *site.State, index, term uint64, data []byte, f func(b site.Body, was, is *site.Job, next *site.State)) (*site.State, site.Reply) {
	c, err := site.Decode(data)
	next, r := s.ApplyEntry(index, term, data)
	if err != nil {
		return next, r
	}
	out := *next
	for id, is := range next.Jobs.All() {
		was, _ := s.Jobs.Get(id)
		f(c.Body, &was, &is, &out)
		out.Jobs = out.Jobs.Put(id, is)
	}
	return &out, r
}

// forgetsEnded keeps nothing of a job that has a result.
func forgetsEnded(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	next, r := s.ApplyEntry(index, term, data)
	out := *next
	for id, j := range next.Jobs.All() {
		if j.Status.Terminal() {
			out.Jobs = out.Jobs.Delete(id)
		}
	}
	return &out, r
}

func takesStale(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	return edited(s, index, term, data, func(b site.Body) site.Body {
		if c, ok := b.(site.Complete); ok {
			if j, ok := s.Jobs.Get(c.Authority.Job); ok {
				c.Authority = j.Lease.Authority
				return c
			}
		}
		return b
	})
}

func forgetsLease(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	return after(s, index, term, data, func(b site.Body, _, is *site.Job, _ *site.State) {
		if _, ok := b.(site.Accept); ok && is.Lease.Live() {
			is.Status = job.Queued
		}
	})
}

func writesTwice(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	return after(s, index, term, data, func(b site.Body, was, is *site.Job, _ *site.State) {
		if c, ok := b.(site.Complete); ok && was.Status.Terminal() && was.Message != c.Message {
			is.Status, is.Result, is.Message = job.Status(c.Result.Outcome), &c.Result, c.Message
		}
	})
}

func forgetsRequests(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	amnesiac := *s
	for id := range s.Requests.All() {
		amnesiac.Requests = amnesiac.Requests.Delete(id)
	}
	return amnesiac.ApplyEntry(index, term, data)
}

func resumesLeftovers(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	return after(s, index, term, data, func(b site.Body, was, is *site.Job, _ *site.State) {
		if _, ok := b.(site.Offer); ok && was.Epoch == 1 && is.Epoch == 2 && is.ResumeFrom.IsZero() {
			is.ResumeFrom = cas.Sum([]byte("a workspace that still exists"))
		}
	})
}

// impure is a rule that looks at what is not in the log: how often it was called.
func impure() func(*site.State, uint64, uint64, []byte) (*site.State, site.Reply) {
	calls := 0
	return func(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
		calls++
		return after(s, index, term, data, func(b site.Body, _, is *site.Job, _ *site.State) {
			if _, ok := b.(site.Checkpoint); ok && calls%2 == 0 {
				is.Retries++
			}
		})
	}
}

func alwaysCertain(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	return edited(s, index, term, data, func(b site.Body) site.Body {
		if e, ok := b.(site.Expire); ok {
			e.Certain = true
			return e
		}
		return b
	})
}

func freesRevoked(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	return after(s, index, term, data, func(b site.Body, _, is *site.Job, _ *site.State) {
		if _, ok := b.(site.Revoke); ok && is.Status == job.Unknown {
			is.Certain = true
		}
	})
}

func anyTerm(s *site.State, index, _ uint64, data []byte) (*site.State, site.Reply) {
	return s.Apply(index, data)
}

func reusesToken(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	return after(s, index, term, data, func(b site.Body, was, is *site.Job, next *site.State) {
		d, _ := s.Devices.Get(deviceID)
		if _, ok := b.(site.Offer); !ok || is.Epoch == was.Epoch || d.Last == nil {
			return
		}
		now, _ := next.Devices.Get(deviceID)
		l := *now.Lease
		l.Token = d.Last.Token
		now.Lease, now.HighestFence = &l, l.Token
		next.Devices = next.Devices.Put(deviceID, now)
	})
}

func forgetsAck(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	next, r := s.ApplyEntry(index, term, data)
	out := *next
	out.Outbox = s.Outbox
	if next.Sent != s.Sent {
		out.Outbox = next.Outbox
	}
	return &out, r
}

func trimsTooMuch(s *site.State, index, term uint64, data []byte) (*site.State, site.Reply) {
	return edited(s, index, term, data, func(b site.Body) site.Body {
		if _, ok := b.(site.OutboxAck); ok {
			return site.OutboxAck{Upto: s.Sent}
		}
		return b
	})
}

func neverKills(now forgeyard.Instant, in agent.Input, b *agent.Book) ([]agent.Effect, forgeyard.Instant) {
	all, wake := agent.Step(now, in, b)
	var out []agent.Effect
	for _, e := range all {
		if _, kill := e.(agent.Kill); !kill {
			out = append(out, e)
		}
	}
	return out, wake
}

func startsTwice(now forgeyard.Instant, in agent.Input, b *agent.Book) ([]agent.Effect, forgeyard.Instant) {
	all, wake := agent.Step(now, in, b)
	for _, e := range all {
		if _, ok := e.(agent.Start); ok {
			all = append(all, e)
		}
	}
	return all, wake
}

// ignoresDrift lets the leader count as if its clock and the holder's were one.
func ignoresDrift(now forgeyard.Instant, in controllers.Input) ([]controllers.Effect, forgeyard.Instant) {
	st := *in.State
	for id, j := range in.State.Jobs.All() {
		j.Lease.Terms.DriftPPM = 0
		st.Jobs = st.Jobs.Put(id, j)
	}
	in.State = &st
	return controllers.Step(now, in)
}

func renewsExpiring(m *controllers.Memory, arrived forgeyard.Instant, in controllers.Input, batch []controllers.Renewal) []controllers.RenewalAnswer {
	for _, r := range batch {
		m.Settled(r.Authority.Lease)
	}
	return m.Renew(arrived, in, batch)
}

func boundless(m *controllers.Memory, arrived forgeyard.Instant, in controllers.Input, batch []controllers.Renewal) []controllers.RenewalAnswer {
	out := m.Renew(arrived, in, batch)
	for i := range out {
		if out[i].Answer == lease.Continue {
			out[i].Left = -1
		}
	}
	return out
}
